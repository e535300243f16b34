"""The gate for host RAM: a plan against the host as it is now.

    headroom(result_of_capacity_plan, measure_host()) -> Headroom            # all engines of the host anew
    start_headroom(result_of_capacity_plan, "0", measure_host()) -> Headroom  # one engine beside those that run

Used by the module ram_headroom before anything is stopped, and on the host at every start of a unit and by
`sglang-fleet ram-headroom`, which take the planned numbers from the records of the instances.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import FleetError
from .host_measure import measure_host
from .host_memory import (
    Host,
    HostBudget,
    HostPools,
    Unit,
    host_budgets,
    host_refusals,
    largest,
)
from .instance import CONFIG_DIR, RECORD
from .releases import Release
from .units import GB, GIB

SHORT = 80


@dataclass(frozen=True)
class Headroom:
    """The plan's need against what is available now.

    Attributes:
        budgets: the host's sum, then each NUMA node's.
        problems: what is short; empty if everything fits.
        largest_hicache_gb: largest size per GPU that would fit.
    """

    budgets: tuple[HostBudget, ...]
    problems: tuple[FleetError, ...]
    largest_hicache_gb: int

    def table(self) -> str:
        """Every sum as lines for people."""
        lines = []
        for budget in self.budgets:
            lines.append(f"{budget.where}:")
            rows = [(name, size) for name, size in budget.parts if size]
            rows += [("needed", budget.needed_bytes), ("available", budget.available_bytes)]
            rows += [("too little", budget.shortfall_bytes)] if budget.shortfall_bytes else []
            lines += [f"  {name:<40}{size / GB:>9.1f} GB {size / GIB:>9.1f} GiB" for name, size in rows]
        if self.problems:
            lines.append(f"Largest hicache_gb per GPU that would fit: {self.largest_hicache_gb or 'none'}")
        return "\n".join(lines)


def headroom(plan: Mapping[str, Any], host: Host) -> Headroom:
    """Weigh a plan's host memory against a host.

    Args:
        plan: what capacity_plan returned.
        host: measured now; what running engines hold is credited, because the plan counts all of them anew.

    Raises FleetError for anything else than such a result.
    """
    try:
        release = Release.parse(plan["engine_version"])
        units = [_unit(instance) for instance in plan["instances"]]
        factors = [float(instance["host"]["ram_per_hicache_gb"]) for instance in plan["instances"]]
        weights_bytes = round(plan["host"]["weights_gib"] * GIB)
        peak_bytes = round(plan["host"]["parts_gib"]["load peak"] * GIB)
    except (KeyError, TypeError) as error:
        raise FleetError("the result of capacity_plan", f"one without {error}", "pass it on unchanged") from None

    def fits(hicache_gb: int) -> bool:
        wanted = [
            replace(unit, pools=HostPools(kv_bytes=round(hicache_gb * factor * GB)))
            for unit, factor in zip(units, factors, strict=True)
        ]
        return not host_refusals(host, release, wanted, weights_bytes, peak_bytes)

    return Headroom(
        budgets=host_budgets(host, units, weights_bytes, peak_bytes),
        problems=tuple(host_refusals(host, release, units, weights_bytes, peak_bytes)),
        largest_hicache_gb=largest(fits, host.total_bytes // GB),
    )


def start_headroom(plan: Mapping[str, Any], name: str, host: Host, promised_bytes: int = 0) -> Headroom:
    """Weigh one instance of a plan against what the host has left now.

    Args:
        plan: what capacity_plan returned.
        name: the instance that is about to start.
        host: measured now; what other engines hold stays with them.
        promised_bytes: what engines that are starting were let in with and may not have taken yet.
    """
    alone = {**plan, "instances": [instance for instance in plan["instances"] if instance["name"] == name]}
    left = replace(
        host,
        available_bytes=max(0, host.available_bytes - promised_bytes),
        held_bytes=0,
        nodes=tuple(replace(node, held_bytes=0) for node in host.nodes),
    )
    return headroom(alone, left)


def _unit(instance: Mapping[str, Any]) -> Unit:
    planned = instance["host"]
    return Unit(
        name=str(instance["name"]),
        ranks=len(instance["gpus"]),
        nodes=tuple(planned["numa_nodes"]),
        pools=HostPools(
            kv_bytes=round(planned["hicache_kv_gb"] * GB),
            state_bytes=round(planned["hicache_state_gb"] * GB),
            draft_bytes=round(planned["hicache_draft_gb"] * GB),
            index_bytes=round(planned["hicache_index_gb"] * GB),
        ),
        rss_bytes=round(planned["rss_gib"] * GIB),
    )


def recorded_plan(config_dir: Path = CONFIG_DIR) -> tuple[dict[str, Any], Path]:
    """The plan that the host's instances were deployed with, and their model's directory, from their records.

    Raises FleetError where there is no record or one without planned numbers.
    """
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(config_dir.glob(f"*/{RECORD}"))]
    if not records:
        raise FleetError(f"instances in {config_dir}", "none", "deploy the host first")
    unplanned = [record["name"] for record in records if not record.get("planned", {}).get("host")]
    if unplanned:
        raise FleetError(
            f"planned numbers in every record of {config_dir}",
            f"none of {', '.join(unplanned)}",
            "deploy the host again",
        )
    plan = {
        "engine_version": records[0]["engine_version"],
        "instances": [
            {"name": record["name"], "gpus": record["gpus"], "host": record["planned"]["host"]} for record in records
        ],
        # Engines start only once their weights are staged, and load one after another.
        "host": {"weights_gib": 0, "parts_gib": {"load peak": 0}},
    }
    return plan, Path(records[0]["model_path"])


def run(options: argparse.Namespace) -> int:
    """`sglang-fleet ram-headroom [NAME]`: print the sums; exit code 80 where the RAM is too small."""
    plan, staged = recorded_plan(options.config_dir)
    host = measure_host(staged, shm=staged.parent)
    found = start_headroom(plan, options.name, host) if options.name else headroom(plan, host)
    print(found.table())
    for problem in found.problems:
        print(f"refused: {problem}")
    return SHORT if found.problems else 0


def register(subparsers: Any) -> None:
    """Offer `ram-headroom` to the host tool."""
    parser = subparsers.add_parser("ram-headroom", help="weigh what engines will take against the host's RAM now")
    parser.add_argument("name", nargs="?", help="one instance, beside those that run; all of them anew if left out")
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, help="directory of the instances' records")
    parser.set_defaults(run=run)
