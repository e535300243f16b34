"""tmpfs mounts that hold weights: how large they are now, and the fstab line that makes a size last."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError
from .units import GIB, gib

_SIZE_OPTION = re.compile(r"(^|,)size=([^,]*)")
_SUFFIX_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Tmpfs:
    """A wanted tmpfs: never shrunk, only grown to `size_bytes`; `options` are mount options beside the size."""

    path: str
    size_bytes: int
    options: tuple[str, ...] = ()

    def mount_options(self) -> str:
        """The options for mount(8) and fstab(5), the size in KiB as the kernel itself reports it."""
        return ",".join((*self.options, f"size={self.size_bytes // 1024}k"))

    def in_fstab(self, fstab: str) -> str:
        """The text of /etc/fstab with this mount in it; other lines and this line's other options stay."""
        lines = fstab.splitlines()
        number, parts = _fstab_entry(lines, self.path)
        if parts:
            kept = [option for option in _SIZE_OPTION.sub("", parts[3]).split(",") if option]
            wanted = [option for option in self.mount_options().split(",") if option not in kept]
            lines[number] = " ".join((*parts[:3], ",".join((*kept, *wanted)), *parts[4:]))
        else:
            lines.append(f"tmpfs {self.path} tmpfs {self.mount_options()} 0 0")
        return "\n".join(lines) + "\n"


def _fstab_entry(lines: list[str], path: str) -> tuple[int, list[str]]:
    for number, line in enumerate(lines):
        parts = line.split()
        if len(parts) >= 4 and not parts[0].startswith("#") and parts[1] == path:
            return number, parts
    return len(lines), []


def size_in_fstab_bytes(fstab: str, path: str, mem_total_bytes: int) -> int | None:
    """Size that /etc/fstab gives the tmpfs at `path`, None where it says nothing of it. Notation: tmpfs(5)."""
    _, parts = _fstab_entry(fstab.splitlines(), path)
    match = _SIZE_OPTION.search(parts[3]) if parts else None
    if match is None:
        return None
    text = match.group(2).lower()
    if text.endswith("%"):
        return mem_total_bytes * int(text[:-1]) // 100
    number = text.rstrip("kmg")
    return int(number) * _SUFFIX_BYTES[text[len(number) :]]


def mounted_size_bytes(path: str, mounts: str | None = None) -> int | None:
    """Size of the tmpfs mounted exactly at `path`, None where nothing is mounted there.

    Raises FleetError where another kind of file system is mounted at `path`. Source of mounts: /proc/self/mounts.
    """
    kind = None
    for line in (mounts or Path("/proc/self/mounts").read_text(encoding="utf-8")).splitlines():
        _, target, fstype, *_ = line.split()
        if target == path:
            kind = fstype
    if kind is None:
        return None
    if kind != "tmpfs":
        raise FleetError(f"a tmpfs at {path}", kind, "choose another directory for the weights")
    stats = os.statvfs(path)
    return stats.f_blocks * stats.f_frsize


def check_against_ram(wanted: Tmpfs, mem_total_bytes: int) -> None:
    """Refuse a tmpfs larger than the host's RAM: filling it would leave nothing for the engines."""
    if wanted.size_bytes >= mem_total_bytes:
        raise FleetError(
            f"a size for {wanted.path} below the host's RAM of {gib(mem_total_bytes)} GiB",
            f"{wanted.size_bytes / GIB:g} GiB",
            "lower sglang_host_shm_size_gib to the size of the weights plus a margin",
        )
