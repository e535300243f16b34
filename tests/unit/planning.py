"""What the planner's tests share: shapes of real models, and plans from a few options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.llmops.fleet.plugins.module_utils.capacity import plan_from_options
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_memory import GpuBudget
from ansible_collections.llmops.fleet.plugins.module_utils.planner import Plan

FIXTURES = Path(__file__).parent.parent / "fixtures"
SHAPES = FIXTURES / "checkpoints"
MTP = {"steps": 3, "topk": 1, "draft_tokens": 4}
RTX = {"index": 0, "total_mib": 97887, "free_gib": 94.5}
B200 = {"index": 0, "total_mib": 183359, "free_gib": 177.5}
H200 = {"index": 0, "total_mib": 143771, "free_gib": 139.09}
# Text and vision weights of the 27 B model and the 0.35 GiB that loading was assumed to leave in use.
WEIGHTS_27B_GIB = 50.96 + 0.35
ROOMY = {"mem_total_gib": 4096, "mem_available_gib": 4000, "shm_size_gib": 2048, "shm_used_gib": 1024}


def planned(shape: str, engine_version: str, **options: Any) -> Plan:
    """A plan for one of the fixture shapes on a roomy host."""
    return plan_from_options(
        {"checkpoint": SHAPES / shape, "engine_version": engine_version, "host": ROOMY, "gpus": [RTX], **options}
    )


def budget(plan: Plan) -> GpuBudget:
    """What the plan's first instance holds on a GPU."""
    gpu = plan.instances[0].gpu
    assert gpu is not None
    return gpu
