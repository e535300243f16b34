"""From the options of capacity_plan to a plan: read the checkpoint, and GPUs and host where they are not declared."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .checkpoint import read_checkpoint
from .errors import FleetError
from .gpu_memory import Gpu
from .host_measure import measure_host
from .host_memory import Host
from .intent import Intent
from .planner import Plan, plan
from .releases import Release

_QUERY = "index,memory.total,memory.used,compute_cap"


def plan_from_options(options: Mapping[str, Any]) -> Plan:
    """Plan what the options of the module capacity_plan describe; options that are None count as absent.

    Raises FleetError for input that no plan can be made from.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = {field.name for field in fields(Intent)}
    intent = Intent.from_mapping({name: value for name, value in given.items() if name in known})
    gpus = tuple(Gpu.from_mapping(values) for values in given["gpus"]) if "gpus" in given else detect_gpus()
    host = (
        Host.from_mapping(given["host"])
        if "host" in given
        else measure_host(Path(given["staged"]) if "staged" in given else None)
    )
    return plan(
        read_checkpoint(Path(given["checkpoint"]), shards="weights_gib" not in given),
        Release.parse(given["engine_version"]),
        gpus,
        intent,
        host,
        weights_gib=given.get("weights_gib"),
        draft_gib=given.get("draft_gib"),
        accelerator=given.get("accelerator", "cuda"),
        resolve=bool(given.get("resolve")),
    )


def detect_gpus() -> tuple[Gpu, ...]:
    """GPUs as nvidia-smi shows them. Raises FleetError where it cannot."""
    try:
        found = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise FleetError(
            "GPUs declared or shown by nvidia-smi", str(error), "declare gpus, or repair the NVIDIA driver"
        ) from None
    return tuple(
        Gpu.from_mapping({"index": int(index), "total_mib": int(total), "compute_capability": capability})
        for index, total, _used, capability in (line.split(", ") for line in found.splitlines())
    )
