"""Processes of a Linux host, as /proc shows them: who listens where, in which systemd unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LISTEN = "0A"
_UNIT = re.compile(r"([^/]+\.(?:service|scope))(?:/|$)")


@dataclass(frozen=True)
class Process:
    """A process as it is shown to people.

    Attributes:
        pid: its number; None where only root could tell it.
        command: name of its program.
        unit: systemd unit that it runs in, "" where none.
        state: the kernel's letter for what it does, "D" for uninterruptible sleep; "" where unknown.
    """

    pid: int | None
    command: str
    unit: str
    state: str = ""

    def __str__(self) -> str:
        pid = "a process that only root can name" if self.pid is None else f"PID {self.pid} ({self.command})"
        return f"{pid} of {self.unit or 'no unit'}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def unit_of(pid: int, proc: Path = PROC) -> str:
    """The systemd service or scope of a process, "" where it is in none or gone; reads cgroup v1 and v2."""
    for line in _read(proc / str(pid) / "cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if controllers == "name=systemd" or (hierarchy, controllers) == ("0", ""):
            units = _UNIT.findall(path)
            if units:
                return str(units[-1])
    return ""


def describe(pid: int, proc: Path = PROC) -> Process:
    """The process with this number."""
    state = _read(proc / str(pid) / "stat").rpartition(")")[2].split()[:1]
    return Process(pid, _read(proc / str(pid) / "comm").strip() or "gone", unit_of(pid, proc), "".join(state))


def processes_of(unit: str, proc: Path = PROC) -> list[Process]:
    """The processes that a systemd unit still has, zombies not counted."""
    pids = (int(path.name) for path in proc.glob("[0-9]*"))
    return [describe(pid, proc) for pid in pids if unit_of(pid, proc) == unit and start_ticks(pid, proc) is not None]


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When the process started, in clock ticks since boot; None where it is gone or a zombie.

    Together with the number it identifies a process for good, numbers alone come round again.
    """
    fields = _read(proc / str(pid) / "stat").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def listeners(proc: Path = PROC) -> dict[int, Process]:
    """TCP ports that someone listens on, in this network namespace, with the first process found to hold each."""
    inodes: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTEN:
                inodes[columns[9]] = int(columns[1].rpartition(":")[2], 16)
    found: dict[int, Process] = {}
    for entry in proc.glob("[0-9]*/fd/*"):
        try:
            link = entry.readlink().as_posix()
        except OSError:
            continue
        port = inodes.get(link[len("socket:[") : -1]) if link.startswith("socket:[") else None
        if port is not None:
            found.setdefault(port, describe(int(entry.parts[-3]), proc))
    return {port: found.get(port, Process(None, "", "")) for port in inodes.values()}
