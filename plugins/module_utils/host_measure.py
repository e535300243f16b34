"""Measure the memory of the host this runs on, without root and without Ansible.

    measure_host(staged=Path("/dev/shm/sglang/Qwen3.6-27B")) -> host_memory.Host

Read: /proc/meminfo, /sys/devices/system/node, the tmpfs of the weights, and the cgroups of the engine units (v1 and
v2). Memory that running engine units hold is credited, because a plan counts all units of the host anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import FleetError
from .host_memory import Host, Node

SLICE = "sglang.slice"
UNITS = "sglang@*.service"
READY = "READY"
# cgroup v1 writes an unlimited memory.limit_in_bytes as the largest multiple of a page.
_UNLIMITED_BYTES = 2**60


def measure_host(
    staged: Path | None = None,
    shm: Path = Path("/dev/shm"),
    proc: Path = Path("/proc"),
    sys: Path = Path("/sys"),
) -> Host:
    """The host's memory now.

    Args:
        staged: directory of the staged weights; its bytes count as written once its READY manifest is there.
        shm: the tmpfs that holds, or will hold, the weights.
        proc, sys: other roots for tests.

    Raises FleetError where /proc/meminfo has no MemTotal or MemAvailable.
    """
    meminfo = _meminfo(proc / "meminfo")
    for name in ("MemTotal", "MemAvailable"):
        if name not in meminfo:
            raise FleetError(f"{name} in {proc / 'meminfo'}", "none", "run on Linux 3.14 or newer")
    size_bytes = used_bytes = None
    if shm.is_dir():
        tmpfs = os.statvfs(shm)
        size_bytes = tmpfs.f_blocks * tmpfs.f_frsize
        used_bytes = size_bytes - tmpfs.f_bfree * tmpfs.f_frsize
    cgroups = _Cgroups(sys / "fs/cgroup")
    return Host(
        total_bytes=meminfo["MemTotal"],
        available_bytes=meminfo["MemAvailable"],
        shm_size_bytes=size_bytes,
        shm_used_bytes=used_bytes,
        shm_may_grow=True,
        staged_bytes=_staged_bytes(staged) if staged else None,
        cgroup_available_bytes=cgroups.available_bytes(),
        held_bytes=cgroups.held_bytes(),
        nodes=tuple(
            _node(path, cgroups) for path in sorted((sys / "devices/system/node").glob("node[0-9]*"), key=_node_number)
        ),
    )


def _meminfo(path: Path) -> dict[str, int]:
    """Name to bytes; a node's lines begin with "Node N"."""
    values = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.removeprefix(" ".join(line.split()[:2]) if line.startswith("Node ") else "").split()
        if len(words) >= 2 and words[0].endswith(":") and words[1].isdigit():
            values[words[0][:-1]] = int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return values


def _staged_bytes(directory: Path) -> int:
    if not (directory / READY).exists():
        return 0
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _node_number(path: Path) -> int:
    return int(path.name.removeprefix("node"))


def _node(path: Path, cgroups: _Cgroups) -> Node:
    meminfo = _meminfo(path / "meminfo")
    reclaimable = sum(meminfo.get(name, 0) for name in ("Active(file)", "Inactive(file)", "SReclaimable"))
    return Node(
        index=_node_number(path),
        total_bytes=meminfo.get("MemTotal", 0),
        available_bytes=meminfo.get("MemFree", 0) + reclaimable,
        held_bytes=cgroups.held_bytes(_node_number(path)),
    )


class _Cgroups:
    """The memory controller: the limit over everything, and the slice of the engine units."""

    def __init__(self, root: Path) -> None:
        self._v2 = (root / "cgroup.controllers").exists()
        self._root = root if self._v2 else root / "memory"

    def available_bytes(self) -> int | None:
        """What the limit over this machine (of a container, or of the whole) leaves, page cache not counted as used.

        None without a limit. The ceiling of the engines' slice is no limit: the deployment derives it from the plan.
        """
        limit, usage = (
            ("memory.max", "memory.current") if self._v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        limit_bytes, usage_bytes = _number(self._root / limit), _number(self._root / usage)
        if limit_bytes is None or usage_bytes is None or limit_bytes >= _UNLIMITED_BYTES:
            return None
        stat = _stat(self._root / "memory.stat")
        prefix = "" if self._v2 else "total_"
        cache_bytes = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
        return max(0, limit_bytes - usage_bytes + cache_bytes)

    def held_bytes(self, node: int | None = None) -> int:
        """Anonymous and shared memory of the running engine units, on one NUMA node or in all."""
        units = sorted((self._root / SLICE).glob(UNITS))
        if node is None:
            names = ("anon", "shmem") if self._v2 else ("total_rss", "total_shmem")
            return sum(_stat(unit / "memory.stat").get(name, 0) for unit in units for name in names)
        # cgroup v1 counts pages, and shared memory among the anonymous: both are on the same lists.
        scale = 1 if self._v2 else os.sysconf("SC_PAGE_SIZE")
        return sum(_numa_stat(unit / "memory.numa_stat", node) * scale for unit in units)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value in (line.split() for line in lines if len(line.split()) == 2)}


def _numa_stat(path: Path, node: int) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    held = 0
    for line in lines:
        name, *values = line.split()
        if name.partition("=")[0] in ("anon", "shmem"):
            held += sum(int(value.partition("=")[2]) for value in values if value.startswith(f"N{node}="))
    return held
