"""tmpfs mounts that hold weights: what they lack, and the fstab line that makes it last."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError
from .units import GIB, gib

LARGE_PAGES = "huge=within_size"
_SIZE_OPTION = re.compile(r"(^|,)size=([^,]*)")
_SUFFIX_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Mounted:
    """A mounted tmpfs: its size and its options as the kernel lists them."""

    size_bytes: int
    options: tuple[str, ...]


@dataclass(frozen=True)
class Tmpfs:
    """A wanted tmpfs: never shrunk, only grown to `size_bytes`; `options` are mount options beside the size."""

    path: str
    size_bytes: int
    options: tuple[str, ...] = ()

    def lacks(self, size_bytes: int | None, options: Collection[str]) -> tuple[str, ...]:
        """Mount options that a tmpfs of this size with these options lacks; the size in KiB, as the kernel has it."""
        # The kernel lists `mpol=interleave` with the nodes: mpol=interleave:0-1.
        missing = tuple(o for o in self.options if not any(f"{there}:".startswith(f"{o}:") for there in options))
        if size_bytes is not None and size_bytes >= self.size_bytes:
            return missing
        return (*missing, f"size={self.size_bytes // 1024}k")

    def in_fstab(self, fstab: str, mounted: Mounted | None, mem_total_bytes: int) -> str:
        """The text of /etc/fstab that brings this mount back; other lines and this line's other options stay.

        A mount of which /etc/fstab says no size gets at the next boot the size it has now.
        """
        lines = fstab.splitlines()
        number, parts = _fstab_entry(lines, self.path)
        size_bytes = size_in_fstab_bytes(fstab, self.path, mem_total_bytes)
        if size_bytes is None and mounted is not None:
            size_bytes = mounted.size_bytes
        there = parts[3].split(",") if parts else []
        missing = self.lacks(size_bytes, there)
        if not missing:
            return fstab
        names = {option.partition("=")[0] for option in missing}
        options = ",".join((*(option for option in there if option.partition("=")[0] not in names), *missing))
        if parts:
            lines[number] = " ".join((*parts[:3], options, *parts[4:]))
        else:
            lines.append(f"tmpfs {self.path} tmpfs {options} 0 0")
        return "\n".join(lines) + "\n"


def large_page_options(switch: Path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")) -> list[str]:
    """Mount options of a tmpfs for weights: large pages where the kernel has them. Source: tmpfs(5)."""
    return [LARGE_PAGES] if switch.exists() else []


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


def mounted(path: str, mounts: str | None = None) -> Mounted | None:
    """The tmpfs mounted exactly at `path`, None where nothing is mounted there.

    Raises FleetError where another kind of file system is mounted at `path`. Source of mounts: /proc/self/mounts.
    """
    kind, options = None, ""
    for line in (mounts or Path("/proc/self/mounts").read_text(encoding="utf-8")).splitlines():
        _, target, fstype, listed, *_ = line.split()
        if target == path:
            kind, options = fstype, listed
    if kind is None:
        return None
    if kind != "tmpfs":
        raise FleetError(f"a tmpfs at {path}", kind, "choose another directory for the weights")
    stats = os.statvfs(path)
    return Mounted(stats.f_blocks * stats.f_frsize, tuple(options.split(",")))


def check_against_ram(wanted: Tmpfs, mem_total_bytes: int) -> None:
    """Refuse a tmpfs larger than the host's RAM: filling it would leave nothing for the engines."""
    if wanted.size_bytes >= mem_total_bytes:
        raise FleetError(
            f"a size for {wanted.path} below the host's RAM of {gib(mem_total_bytes)} GiB",
            f"{wanted.size_bytes / GIB:g} GiB",
            "lower sglang_host_shm_size_gib to the size of the weights plus a margin",
        )
