"""Safetensors shards: is the file whole? Reads headers only (format: https://github.com/huggingface/safetensors)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from .errors import FleetError

LFS_POINTER = b"version https://git-lfs"
LARGEST_HEADER_BYTES = 100_000_000
INDEX = "model.safetensors.index.json"


def read_header(path: Path) -> dict[str, Any]:
    """The header of one shard: tensor name -> {"dtype", "shape", "data_offsets"}, without "__metadata__".

    Checks that the tensors' bytes lie one behind the other and end where the file ends. Raises FleetError where they
    do not: a truncated file, an LFS pointer, or something else under this name.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as shard:
        start = shard.read(8)
        if start + shard.read(len(LFS_POINTER) - 8) == LFS_POINTER:
            raise FleetError(
                f"{path} to hold tensors",
                "a Git LFS pointer",
                "fetch the file itself (git lfs pull, or download it again)",
            )
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < header_bytes <= min(LARGEST_HEADER_BYTES, size_bytes - 8):
            raise FleetError(
                f"{path} to begin with a safetensors header",
                f"a header length of {header_bytes} bytes in a file of {size_bytes} bytes",
                "copy or download the file again",
            )
        shard.seek(8)
        try:
            header = json.loads(shard.read(header_bytes))
            spans = sorted(
                tuple(map(int, tensor["data_offsets"])) for key, tensor in header.items() if key != "__metadata__"
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FleetError(
                f"{path} to have a readable safetensors header", str(error), "copy or download the file again"
            ) from None
    end_bytes = 0
    for begin, end in spans:
        if begin != end_bytes or end < begin:
            raise FleetError(
                f"the tensors of {path} to lie one behind the other",
                f"bytes {begin} to {end} after {end_bytes}",
                "copy or download the file again",
            )
        end_bytes = end
    if 8 + header_bytes + end_bytes != size_bytes:
        raise FleetError(
            f"{path} to have the {8 + header_bytes + end_bytes} bytes its header promises",
            f"{size_bytes} bytes",
            "copy or download the file again",
        )
    header.pop("__metadata__", None)
    return dict(header)


def check_model(directory: Path, files: frozenset[str]) -> None:
    """Refuse a model directory that an engine could not load.

    Args:
        directory: the model directory.
        files: the paths below it that belong to the model.

    Raises FleetError when config.json is missing or unreadable, a shard named by the index is missing, or a shard is
    not whole.
    """
    if "config.json" not in files:
        raise FleetError(
            f"a model with config.json in {directory}",
            f"{len(files)} files without it",
            "name the directory that holds config.json",
        )
    for name in ("config.json", INDEX):
        if name not in files:
            continue
        try:
            content = json.loads((directory / name).read_bytes())
        except ValueError as error:
            raise FleetError(f"{directory / name} to be JSON", str(error), "copy or download the file again") from None
        if name == INDEX:
            missing = sorted(set(content.get("weight_map", {}).values()) - files)
            if missing:
                raise FleetError(
                    f"every shard that {directory / INDEX} names",
                    f"{len(missing)} missing: {', '.join(missing[:3])}",
                    "complete the model directory",
                )
    for name in sorted(files):
        if name.endswith(".safetensors"):
            read_header(directory / name)
