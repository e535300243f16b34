"""An instance and its routers: in the list while it serves, out of it before it stops.

Who takes an engine out on purpose leaves a mark, so that neither the start of its unit nor its liveness check puts it
back: `operator` (`sglang-fleet drain`, until the next start or `sglang-fleet enter`) or `roll` (a rolling restart, as
long as that one lives). A mark of a rolling restart that died counts for nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FleetError
from .instance import RUNTIME_DIR, Instance
from .router import Router, on_every, wait_idle
from .start_checks import add_instance_arguments

OUT = "out"
OPERATOR, ROLL = "operator", "roll"
ROLL_LOCK = "roll.lock"


@contextmanager
def rolling(runtime_dir: Path = RUNTIME_DIR) -> Iterator[None]:
    """Be the one rolling restart of this host. Raises FleetError where there is one already."""
    runtime_dir.mkdir(exist_ok=True)
    runtime_dir.chmod(0o755)
    with (runtime_dir / ROLL_LOCK).open("w") as lock:
        _let_helpers_read(runtime_dir / ROLL_LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FleetError(
                "no other rolling restart on this host",
                "one that still runs, perhaps of a session that was lost",
                "wait for it (journalctl -t sglang-roll -f), then run again",
            ) from error
        yield


def _let_helpers_read(path: Path) -> None:
    """The engines' helpers are another user than the roll, whatever root's umask is."""
    path.chmod(0o644)


def _roll_lives(runtime_dir: Path) -> bool:
    try:
        with (runtime_dir / ROLL_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def taken_out_by(name: str, runtime_dir: Path = RUNTIME_DIR) -> str:
    """Who keeps the instance out of its routers: `operator`, `roll`, or "" where nobody does (any more)."""
    try:
        who = (runtime_dir / name / OUT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    return "" if who == ROLL and not _roll_lives(runtime_dir) else who


def routers_of(instance: Instance) -> list[Router]:
    """The routers that send the instance requests. Raises FleetError for an API key that cannot be read."""
    return [Router.from_mapping(address) for address in instance.routers]


def enter(instance: Instance, *, anew: bool, runtime_dir: Path = RUNTIME_DIR) -> bool:
    """Have every router list the instance as healthy, and drop a mark; returns whether one did not list it before.

    All are tried; raises FleetError for the first that failed. `anew` re-registers: the list may still speak of the
    process before.
    """
    (runtime_dir / instance.name / OUT).unlink(missing_ok=True)
    return on_every(routers_of(instance), lambda router: router.add(instance.url, anew=anew))


def leave(instance: Instance, who: str = "", runtime_dir: Path = RUNTIME_DIR) -> bool:
    """Have no router list the instance, and with `who` leave that mark; returns whether one listed it before.

    All are tried; raises FleetError for the first that failed.
    """
    if who:
        mark = runtime_dir / instance.name / OUT
        mark.parent.mkdir(exist_ok=True)
        mark.with_suffix(".new").write_text(who, encoding="utf-8")
        _let_helpers_read(mark.with_suffix(".new"))
        mark.with_suffix(".new").replace(mark)
    return on_every(routers_of(instance), lambda router: router.remove(instance.url))


def enter_at_start(instance: Instance, runtime_dir: Path = RUNTIME_DIR) -> None:
    """Register an engine that has just become ready, unless a rolling restart does so itself; never fails.

    A router that is down is no reason to load the engine again: its liveness check tries again.
    """
    if taken_out_by(instance.name, runtime_dir) == ROLL:
        print("the rolling restart registers it once it has looked at it", flush=True)
        return
    try:
        enter(instance, anew=True, runtime_dir=runtime_dir)
    except FleetError as error:
        print(f"warning: not registered: {error}", file=sys.stderr, flush=True)


def stay_entered(instance: Instance, runtime_dir: Path = RUNTIME_DIR) -> None:
    """Have a serving engine in its routers' lists, whatever they lost, unless it is out on purpose; never fails."""
    if taken_out_by(instance.name, runtime_dir):
        return
    try:
        if enter(instance, anew=False, runtime_dir=runtime_dir):
            print(f"registered {instance.url} again", flush=True)
    except FleetError as error:
        print(f"warning: not registered: {error}", file=sys.stderr, flush=True)


def _run_enter(options: argparse.Namespace) -> int:
    enter(Instance.read(options.name, options.config_dir), anew=False, runtime_dir=options.runtime_dir)
    return 0


def _run_leave(options: argparse.Namespace) -> int:
    leave(Instance.read(options.name, options.config_dir))
    return 0


def _run_drain(options: argparse.Namespace) -> int:
    """A router that does not answer is named and does not keep the engine from finishing what it has.

    Nothing is left to do where a rolling restart did it already. Raises FleetError where requests are in flight after
    the instance's drain time-out.
    """
    instance = Instance.read(options.name, options.config_dir)
    if taken_out_by(instance.name, options.runtime_dir) == ROLL:
        return 0
    try:
        leave(instance, OPERATOR, options.runtime_dir)
    except FleetError as error:
        print(f"warning: {error}", file=sys.stderr, flush=True)
    wait_idle(instance.local_url, instance.drain_timeout_s)
    print(f"drained: {instance.unit} has no request in flight", flush=True)
    return 0


def register(subparsers: Any) -> None:
    """Offer `drain`, `enter` and `leave` to the host tool."""
    for command, function, what in (
        ("drain", _run_drain, "leave the routers and wait until nothing is in flight (ExecStop)"),
        ("enter", _run_enter, "have the routers send requests again"),
        ("leave", _run_leave, "leave the routers (ExecStopPost)"),
    ):
        parser = subparsers.add_parser(command, help=what)
        parser.set_defaults(run=function)
        add_instance_arguments(parser)
