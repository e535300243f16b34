"""What must hold at every start of an engine, judged on the host by systemd's ExecStartPre, without Ansible.

These are the conditions of the moment: each is given a while to come true, then the start is refused and systemd tries
again up to the unit's start limit. What no restart can cure is judged by `launch.run`, because systemd heeds
RestartPreventExitStatus= for the main process alone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import FleetError
from .gpu_facts import ObservedGpu, observe
from .host_measure import measure_host
from .instance import CONFIG_DIR, RUNTIME_DIR, Instance, is_ready, running
from .manifest import require_ready
from .processes import listeners
from .ram_headroom import recorded_plan, start_headroom
from .units import gib

POLL_S = 1.0
RESERVATION_GRACE_S = 30.0
DEVICE_PATIENCE_S = 60.0
PORT_PATIENCE_S = 30.0
GPU_PATIENCE_S = 120.0
RAM_PATIENCE_S = 30.0


class NotNow(FleetError):
    """A condition of the moment that does not hold; each kind has an exit code of its own."""


class RamTooSmall(NotNow):
    """The host's RAM cannot take the engine now; `table` shows why, in lines for people."""

    exit_code = 80
    table: tuple[str, ...] = ()


class WeightsMissing(NotNow):
    """The model is not staged, or not completely."""

    exit_code = 81


class DeviceMissing(NotNow):
    """A device node of the GPU is not there."""

    exit_code = 82


class PortTaken(NotNow):
    """A stranger listens on one of the engine's ports."""

    exit_code = 83


class GpuTaken(NotNow):
    """A stranger computes on one of the engine's GPUs."""

    exit_code = 84


def check_weights(instance: Instance) -> None:
    """Raises WeightsMissing unless the model was staged to its end and every file still has its size."""
    try:
        require_ready(Path(instance.model_path))
    except FleetError as error:
        raise WeightsMissing(error.expected, error.found, error.change) from None


def check_devices(instance: Instance) -> None:
    """Raises DeviceMissing unless every device node is there."""
    missing = [node for node in instance.device_nodes if not Path(node).exists()]
    if missing:
        raise DeviceMissing(
            f"the device nodes {', '.join(instance.device_nodes)}",
            f"no {', '.join(missing)}",
            "load the driver (nvidia-smi, nvidia-modprobe -u -c 0), or correct the list of GPUs",
        )


def check_ports(instance: Instance, proc: Path = Path("/proc")) -> None:
    """Raises PortTaken where one of the engine's ports has a listener; names it by PID and unit."""
    owners = listeners(proc)
    for port in instance.ports:
        if port in owners:
            raise PortTaken(
                f"port {port} to be free", f"it is held by {owners[port]}", "stop that process or change the base port"
            )


def check_gpu_users(instance: Instance, gpus: Sequence[ObservedGpu]) -> None:
    """Raises GpuTaken where another than the instance's unit computes on one of its GPUs; names it by PID and unit.

    GPUs are told by UUID: behind the unit's device fence the driver numbers those that are left from 0.
    """
    for gpu in gpus:
        for process in gpu.processes:
            if gpu.uuid in instance.gpu_uuids and process.unit != instance.unit:
                raise GpuTaken(
                    f"the GPU {gpu.uuid} for {instance.unit} alone",
                    f"{process} computes on it",
                    "stop that process; if it is an engine that escaped its unit, kill that PID",
                )


def reservations(runtime_dir: Path = RUNTIME_DIR) -> dict[str, int]:
    """RAM in bytes that engines which are starting were let in with and may not have taken yet, by instance."""
    held = {}
    for path in runtime_dir.glob("*.reserved"):
        fresh = time.time() - path.stat().st_mtime < RESERVATION_GRACE_S
        started = running(path.stem, runtime_dir)
        if fresh if started is None else not is_ready(path.stem, started, runtime_dir):
            held[path.stem] = int(json.loads(path.read_text(encoding="utf-8"))["host_ram_bytes"])
    return held


def reserve_ram(instance: Instance, config_dir: Path = CONFIG_DIR, runtime_dir: Path = RUNTIME_DIR) -> None:
    """Let the engine in where the RAM suffices beside every engine that is still starting; else raise RamTooSmall.

    Check and reservation are one step under a lock, so two starts never count on the same memory. The reservation
    ends when the engine is ready (its memory then shows in MemAvailable) or gone.
    """
    with (runtime_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plan, staged = recorded_plan(config_dir)
        others = {name: size for name, size in reservations(runtime_dir).items() if name != instance.name}
        room = start_headroom(plan, instance.name, measure_host(staged, shm=staged.parent), sum(others.values()))
        if room.problems:
            first = room.problems[0]
            refusal = RamTooSmall(first.expected, first.found, first.change)
            promises = (f"promised to {name}, which is starting: {gib(size)} GiB" for name, size in others.items())
            refusal.table = (*room.table().splitlines(), *promises)
            raise refusal
        (runtime_dir / f"{instance.name}.reserved").write_text(
            json.dumps({"host_ram_bytes": instance.host_ram_bytes}) + "\n", encoding="utf-8"
        )


def wait(check: Callable[[], None], patience_s: float) -> None:
    """Repeat the check until it holds; raises its last refusal after patience_s."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return check()
        except NotNow:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def prestart(options: argparse.Namespace) -> int:
    """`sglang-fleet prestart NAME`: everything of the moment that the start of this engine needs."""
    instance = Instance.read(options.name, options.config_dir)
    wait(lambda: check_devices(instance), DEVICE_PATIENCE_S)
    wait(lambda: check_weights(instance), 0)
    wait(lambda: check_ports(instance), PORT_PATIENCE_S)
    if instance.accelerator == "cuda":
        wait(lambda: check_gpu_users(instance, observe().gpus), GPU_PATIENCE_S)
    others_start = reservations(options.runtime_dir).keys() - {instance.name}
    try:
        wait(
            lambda: reserve_ram(instance, options.config_dir, options.runtime_dir),
            instance.start_timeout_s if others_start else RAM_PATIENCE_S,
        )
    except RamTooSmall as refusal:
        print(*refusal.table, sep="\n", flush=True)
        raise
    print(f"{instance.unit} may start: {instance.model_path} is staged, {gib(instance.host_ram_bytes)} GiB reserved")
    return 0


def register(subparsers: Any) -> None:
    """Offer `prestart` to the host tool."""
    parser = subparsers.add_parser("prestart", help="check that an engine may start now (ExecStartPre)")
    parser.set_defaults(run=prestart)
    add_instance_arguments(parser)


def add_instance_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that all commands on one instance have."""
    parser.add_argument("name", help="instance, the NAME of sglang@NAME.service")
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, help="default: %(default)s")
    parser.add_argument("--runtime-dir", type=Path, default=RUNTIME_DIR, help="default: %(default)s")
