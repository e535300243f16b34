"""What the core plans for a case of the grid on the machine that was measured."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shapes
from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_memory import Gpu, usable_gib
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import Host
from ansible_collections.llmops.fleet.plugins.module_utils.intent import Intent, with_profile
from ansible_collections.llmops.fleet.plugins.module_utils.planner import Plan, plan
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release, memory_behaviour
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB
from grid import Case

RELEASE = Release.parse("0.5.17")
GPU: dict[str, Any] = {"total_mib": 143771, "compute_capability": "9.0"}
HOST_GIB_PER_GPU = {"mem_total_gib": 125, "mem_available_gib": 120}
# Less free memory than the planner expects of an idle GPU by more than this: another process was on it.
SHARED_GIB = 1.0


def predict(case: Case, settled: Mapping[str, Any] | None = None, seen_free_gib: float | None = None) -> Plan:
    """The plan of one launch.

    Args:
        settled: the settings that it was started with, where it is over; else the planner settles them now.
        seen_free_gib: what the engine found free before loading; it is planned with only where the GPU was shared.
    """
    with tempfile.TemporaryDirectory() as directory:
        shapes.write(case.shape, Path(directory))
        checkpoint = read_checkpoint(Path(directory))
    own_gib = memory_behaviour(RELEASE).multimodal_transport_bytes / GIB if checkpoint.vision else 0.0
    values: dict[str, Any] = dict(GPU)
    if seen_free_gib is not None and seen_free_gib + own_gib < usable_gib(GPU["total_mib"]) - SHARED_GIB:
        values["free_gib"] = seen_free_gib + own_gib
    gpus = [Gpu.from_mapping({**values, "index": index}) for index in range(len(case.gpus))]
    host = Host.from_mapping({name: size * len(gpus) for name, size in HOST_GIB_PER_GPU.items()})
    if settled is not None:
        return plan(checkpoint, RELEASE, gpus, Intent.from_mapping(settled), host, allow_known_bad=True)
    intent = with_profile(Intent.from_mapping(case.intent), case.profile)
    return plan(checkpoint, RELEASE, gpus, intent, host, resolve=case.proposed, allow_known_bad=True)
