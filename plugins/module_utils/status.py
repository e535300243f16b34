"""What runs on this host, compared with what was configured and planned."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .acceptance import differences, server_info
from .errors import FleetError
from .instance import (
    ARGUMENTS,
    CONFIG_DIR,
    RUNTIME_DIR,
    Instance,
    arguments,
    configured,
    configured_sha256,
    running,
)
from .launch import NotReady
from .registration import routers_of, taken_out_by
from .router import Router, in_flight
from .systemd import memory_bytes, show
from .units import gib

HEADER = ("unit", "state", "GPUs", "engine", "RAM GiB", "of", "requests", "routers", "remarks")


@dataclass(frozen=True)
class InstanceStatus:
    """One configured instance as it is now.

    Attributes:
        name: the instance.
        gpus: its GPU indices.
        state: ActiveState of its unit.
        engine_version: release of the running process, of the configuration where none runs.
        memory_bytes: RAM that its unit is charged with.
        planned_bytes: RAM that it was planned with.
        requests: requests in flight, None where the engine does not tell.
        routers: routers that list it as healthy.
        remarks: everything that is not as configured and planned, in words; empty means all is well.
    """

    name: str
    gpus: tuple[int, ...]
    state: str
    engine_version: str
    memory_bytes: int
    planned_bytes: int
    requests: int | None
    routers: int
    remarks: tuple[str, ...]


def status(config_dir: Path = CONFIG_DIR, runtime_dir: Path = RUNTIME_DIR) -> tuple[InstanceStatus, ...]:
    """Every configured instance of this host. Raises FleetError where a record cannot be read."""
    return tuple(_status(Instance.read(name, config_dir), config_dir, runtime_dir) for name in configured(config_dir))


def _status(instance: Instance, config_dir: Path, runtime_dir: Path) -> InstanceStatus:
    unit = show([instance.unit])[instance.unit]
    started = running(instance.name, runtime_dir)
    serves = unit.active == "active"
    remarks = []
    if not serves:
        remarks.append(f"{unit.active} ({unit.sub}, {unit.result})")
    if not unit.enabled:
        remarks.append("does not start at boot")
    if started and started.sha256 != configured_sha256(instance.name, config_dir):
        remarks.append(f"runs {started.engine_version} with another configuration than the one on disk: deploy again")
    out = taken_out_by(instance.name, runtime_dir)
    if out:
        remarks.append(f"taken out of the routers by {out}")
    listed = 0
    for router in routers_of(instance):
        remark = _router_remark(router, instance.url)
        listed += not remark
        if remark and serves and not out:
            remarks.append(remark)
    requests = None
    if serves:
        requests, said = _ask(instance, config_dir)
        remarks += said
    return InstanceStatus(
        name=instance.name,
        gpus=instance.gpus,
        state=unit.active,
        engine_version=started.engine_version if started else instance.engine_version,
        memory_bytes=memory_bytes(instance.unit) if serves else 0,
        planned_bytes=instance.host_ram_bytes,
        requests=requests,
        routers=listed,
        remarks=tuple(remarks),
    )


def _router_remark(router: Router, url: str) -> str:
    try:
        worker = router.find(url)
    except FleetError as error:
        return str(error)
    if worker is None:
        return f"not listed by router {router.url}"
    return "" if worker.healthy else f"unhealthy at router {router.url}"


def _ask(instance: Instance, config_dir: Path) -> tuple[int | None, list[str]]:
    args = arguments((config_dir / instance.name / ARGUMENTS).read_text(encoding="utf-8"))
    try:
        found = differences(server_info(instance), instance, args)
        return in_flight(instance.local_url).total, [
            f"{name} is {value}, wanted or planned was {wanted}" for name, wanted, value in found
        ]
    except (NotReady, OSError) as error:
        return None, [f"does not answer: {error}"]


def table(statuses: Sequence[Mapping[str, Any]]) -> str:
    """The statuses, as `asdict` gives them, as a table of text; a line for each instance."""
    rows = [
        HEADER,
        *(
            (
                f"sglang@{each['name']}",
                each["state"],
                ",".join(map(str, each["gpus"])),
                each["engine_version"],
                f"{gib(each['memory_bytes']):.2f}",
                f"{gib(each['planned_bytes']):.2f}",
                "?" if each["requests"] is None else str(each["requests"]),
                str(each["routers"]),
                "; ".join(each["remarks"]) or "as planned",
            )
            for each in statuses
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    return "\n".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    )


def run(options: argparse.Namespace) -> int:
    """`sglang-fleet status`: the table; exit code 1 where anything is not as planned."""
    statuses = status(options.config_dir, options.runtime_dir)
    print(table([asdict(each) for each in statuses]))
    return int(any(each.remarks for each in statuses))


def register(subparsers: Any) -> None:
    """Offer `status` to the host tool."""
    parser = subparsers.add_parser("status", help="what runs, compared with what was configured and planned")
    parser.set_defaults(run=run)
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, help="default: %(default)s")
    parser.add_argument("--runtime-dir", type=Path, default=RUNTIME_DIR, help="default: %(default)s")
