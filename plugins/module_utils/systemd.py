"""systemd of this host, asked and told through `systemctl`."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError

POLL_S = 1.0
JOURNAL_LINES = 100
LAST_WORDS = 15
_PROPERTIES = ("Id", "ActiveState", "SubState", "Result", "MainPID", "UnitFileState", "NeedDaemonReload")


@dataclass(frozen=True)
class UnitState:
    """A unit as `systemctl show` gives it.

    Attributes:
        unit: its name.
        active: ActiveState, such as "active", "activating", "failed", "inactive".
        sub: SubState, such as "running", "start-pre", "auto-restart".
        result: Result, such as "success", "exit-code", "oom-kill", "start-limit-hit".
        main_pid: its main process, 0 where none.
        enabled: whether it starts at boot.
        needs_reload: whether its files changed since systemd read them.
    """

    unit: str
    active: str
    sub: str
    result: str
    main_pid: int
    enabled: bool
    needs_reload: bool


def systemctl(*arguments: str, check: bool = True) -> str:
    """Run systemctl and return its output. Raises FleetError with its words where it fails and `check` is set."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise FleetError(
            f"`systemctl {' '.join(arguments)}` to succeed",
            done.stderr.strip() or f"exit code {done.returncode}",
            "see systemctl status and the journal",
        )
    return done.stdout


def require(runtime: Path = Path("/run/systemd/system")) -> None:
    """Raises FleetError on a host whose services systemd does not supervise."""
    if not runtime.is_dir():
        raise FleetError(
            "a host supervised by systemd", f"no {runtime}", "deploy onto a host that runs systemd as PID 1"
        )


def show(units: Sequence[str]) -> dict[str, UnitState]:
    """The state of each unit; a unit that systemd does not know is inactive."""
    if not units:
        return {}
    output = systemctl("show", f"--property={','.join(_PROPERTIES)}", *units)
    states = {}
    for unit, block in zip(units, output.strip().split("\n\n"), strict=True):
        values = dict(line.split("=", 1) for line in block.splitlines())
        states[unit] = UnitState(
            unit=unit,
            active=values["ActiveState"],
            sub=values["SubState"],
            result=values["Result"],
            main_pid=int(values["MainPID"]),
            enabled=values["UnitFileState"] == "enabled",
            needs_reload=values["NeedDaemonReload"] == "yes",
        )
    return states


def reload_where_needed(units: Sequence[str]) -> None:
    """Have systemd read unit files that changed, even if an earlier run ended before it could say so."""
    if any(state.needs_reload for state in show(units).values()):
        systemctl("daemon-reload")


def journal(unit: str, lines: int = JOURNAL_LINES) -> str:
    """The last lines that the unit and systemd about it left in the journal."""
    command = ["journalctl", "--no-pager", "--output=short", f"--lines={lines}", f"--unit={unit}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def last_words(unit: str) -> str:
    """The end of the unit's journal without the requests that it answered."""
    lines = [line for line in journal(unit).splitlines() if ' HTTP/1.1" ' not in line]
    return "\n".join(lines[-LAST_WORDS:]) + "\n"


def start(units: Sequence[str], timeout_s: float) -> None:
    """Start units at the same time and wait until each is active.

    Raises FleetError with the journal's last lines for units that fail, are stopped meanwhile, or exceed timeout_s.
    """
    if not units:
        return
    systemctl("reset-failed", *units, check=False)
    systemctl("start", "--no-block", *units)
    deadline = time.monotonic() + timeout_s
    while True:
        states = show(units)
        ended = [s for s in states.values() if s.active in ("failed", "inactive") or s.sub == "auto-restart"]
        late = [state for state in states.values() if state.active != "active"]
        if not late:
            return
        if ended or time.monotonic() > deadline:
            bad = ended or late
            raise FleetError(
                f"{', '.join(state.unit for state in bad)} to start",
                "; ".join(f"{state.unit} is {state.active} ({state.sub}, {state.result})" for state in bad)
                + "".join(f"\n--- journal of {state.unit}\n{last_words(state.unit)}" for state in bad),
                "correct the cause and deploy again",
            )
        time.sleep(POLL_S)


def memory_bytes(unit: str) -> int:
    """RAM that the unit's processes are charged with, page cache included; 0 where systemd does not count it."""
    text = systemctl("show", "--property=MemoryCurrent", "--value", unit).strip()
    return int(text) if text.isdigit() and int(text) < 2**63 else 0


def verify(files: Mapping[str, str], units: Iterable[str]) -> None:
    """Have `systemd-analyze verify` read unit files before they are installed.

    Args:
        files: path below the unit directory, and text.
        units: names to verify, instances of templates included.

    Raises FleetError with what it says.
    """
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            path = Path(directory, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no", *units],
            capture_output=True,
            text=True,
            check=False,
            env={"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin"},
        )
    if done.returncode:
        raise FleetError(
            "unit files that systemd-analyze verify accepts",
            done.stderr.strip(),
            "run the role sglang_host first where a command is missing, else correct the variables that it names",
        )
