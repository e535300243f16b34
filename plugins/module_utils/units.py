"""Units of memory. SGLang speaks of GB (1e9 bytes) for hicache and of GiB for GPU memory; they are never mixed here."""

from __future__ import annotations

MIB = 2**20
GIB = 2**30
GB = 10**9


def gib(size_bytes: float) -> float:
    """Bytes as GiB, rounded to the two decimals that are shown to people."""
    return round(size_bytes / GIB, 2)


def gb(size_bytes: float) -> float:
    """Bytes as GB (1e9), rounded to the two decimals that are shown to people."""
    return round(size_bytes / GB, 2)
