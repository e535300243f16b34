"""From the options of capacity_plan to plans: read the checkpoint, and GPUs and host where they are not declared.

plan_from_options(options) -> Plan
Request.from_options(options).described("mtp") -> dict    # one of several profiles of the same host
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, read_checkpoint
from .errors import FleetError
from .gpu_facts import ObservedGpu, observe
from .gpu_memory import Gpu, usable_gib
from .host_measure import measure_host
from .host_memory import Host
from .intent import Intent, with_profile
from .planner import Plan, plan
from .releases import Release
from .units import GIB, MIB

OUR_UNITS = "sglang@"


@dataclass(frozen=True)
class Request:
    """Everything a plan is made from but the intent's profile."""

    checkpoint: Checkpoint
    release: Release
    gpus: tuple[Gpu, ...]
    host: Host
    intent: Intent
    weights_gib: float | None
    draft_gib: float | None
    accelerator: str
    resolve: bool
    allow_known_bad: bool

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Request:
        """Read what the options name; options that are None count as absent.

        Raises FleetError for input that no plan can be made from.
        """
        given = {name: value for name, value in options.items() if value is not None}
        known = {field.name for field in fields(Intent)}
        accelerator = given.get("accelerator", "cuda")
        staged = Path(given["staged"]) if "staged" in given else None
        directory = Path(given["checkpoint"])
        if staged and not (directory / "config.json").exists() and (staged / "config.json").exists():
            directory = staged
        return cls(
            checkpoint=read_checkpoint(directory, shards="weights_gib" not in given),
            release=Release.parse(given["engine_version"]),
            gpus=_gpus(given.get("gpus"), accelerator, given.get("gpu_total_mib")),
            host=Host.from_mapping(given["host"]) if "host" in given else measure_host(staged),
            intent=Intent.from_mapping(
                {**given.get("intent", {}), **{name: value for name, value in given.items() if name in known}}
            ),
            weights_gib=given.get("weights_gib"),
            draft_gib=given.get("draft_gib"),
            accelerator=accelerator,
            resolve=bool(given.get("resolve")),
            allow_known_bad=bool(given.get("allow_known_bad")),
        )

    def plan(self, profile: str | None = None) -> Plan:
        """The plan of the host, with the intent as this profile."""
        return plan(
            self.checkpoint,
            self.release,
            self.gpus,
            with_profile(self.intent, profile) if profile else self.intent,
            self.host,
            weights_gib=self.weights_gib,
            draft_gib=self.draft_gib,
            accelerator=self.accelerator,
            resolve=self.resolve,
            allow_known_bad=self.allow_known_bad,
        )

    def described(self, profile: str | None = None) -> dict[str, Any]:
        """The plan as plain values; one that is refused as a whole has its refusal alone."""
        try:
            return self.plan(profile).as_dict()
        except FleetError as error:
            return {
                "fits": False,
                "problems": [str(error)],
                "warnings": [],
                "engine_version": str(self.release),
                "model": self.checkpoint.path.name,
                "architecture": self.checkpoint.architecture,
                "instances": [],
                "host": None,
                "proposal": None,
            }

    def compared(self, profile: str | None, profiles: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The plans of several profiles by name, without `profile` also that of the intent as it is, as "intent"."""
        plans = {} if profile else {"intent": self.described()}
        return plans | {name: self.described(name) for name in profiles}


def plan_from_options(options: Mapping[str, Any]) -> Plan:
    """Plan what the options of the module capacity_plan describe."""
    return Request.from_options(options).plan(options.get("profile"))


def _gpus(
    declared: Sequence[int | Mapping[str, Any]] | None, accelerator: str, total_mib: int | None
) -> tuple[Gpu, ...]:
    """The declared GPUs, completed by total_mib or what the driver shows; all that it shows where none is declared."""
    entries = [
        {"total_mib": total_mib, **(entry if isinstance(entry, Mapping) else {"index": entry})}
        for entry in declared or ()
    ]
    if accelerator == "cpu":
        return tuple(Gpu.from_mapping({**entry, "total_mib": entry["total_mib"] or 1}) for entry in entries)
    if entries and all(entry.get("total_mib") or entry.get("free_gib") for entry in entries):
        return tuple(Gpu.from_mapping(entry) for entry in entries)
    try:
        seen = {gpu.index: _seen(gpu) for gpu in observe().gpus}
    except FleetError as error:
        raise FleetError(
            "GPUs declared with total_mib, or a driver that shows them", error.found, f"declare gpus, or {error.change}"
        ) from None
    wanted = entries or [{"index": index} for index in seen]
    return tuple(
        Gpu.from_mapping(
            seen.get(entry["index"], {}) | {name: value for name, value in entry.items() if value is not None}
        )
        for entry in wanted
    )


def _seen(gpu: ObservedGpu) -> dict[str, Any]:
    """What a plan uses of an observed GPU; memory of others than our engines is not free."""
    strangers_mib = sum(process.used_mib or 0 for process in gpu.processes if not process.unit.startswith(OUR_UNITS))
    return {
        "index": gpu.index,
        "total_mib": gpu.total_mib,
        "free_gib": max(0.01, usable_gib(gpu.total_mib) - strangers_mib * MIB / GIB),
        "numa_node": gpu.numa_node,
        "compute_capability": gpu.compute_capability,
    }
