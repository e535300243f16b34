"""What a staged model consists of: the READY manifest that is written last, and sums that a source brings itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import FleetError

READY = "READY"
SUMS = "SHA256SUMS"
_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


@dataclass(frozen=True)
class FileRecord:
    """One file of a model as it must be."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A complete model: where it came from and every file of it (path below the directory -> record)."""

    name: str
    revision: str
    source: str
    files: Mapping[str, FileRecord]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(record.size_bytes for record in self.files.values())

    @property
    def digest(self) -> str:
        """Identity of the content: sha256 over the sorted lines of a SHA256SUMS file."""
        return hashlib.sha256(sums_text(self.files).encode()).hexdigest()

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """The READY manifest of a directory, None where there is none. Raises FleetError for a damaged one."""
        try:
            text = (directory / READY).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls.parse(text, str(directory / READY))

    @classmethod
    def parse(cls, text: str, origin: str) -> Manifest:
        """Read a READY manifest's text; `origin` names it in the FleetError for a damaged one."""
        try:
            content: dict[str, Any] = json.loads(text)
            files = {
                path: FileRecord(int(record["size_bytes"]), str(record["sha256"]))
                for path, record in content["files"].items()
            }
            return cls(str(content["name"]), str(content["revision"]), str(content["source"]), files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FleetError(
                f"{origin} to be a READY manifest", repr(error), "remove the directory and stage the model again"
            ) from None

    def text(self) -> str:
        """The READY file's content."""
        return (
            json.dumps(
                {
                    "name": self.name,
                    "revision": self.revision,
                    "source": self.source,
                    "digest": self.digest,
                    "files": {
                        path: {"size_bytes": record.size_bytes, "sha256": record.sha256}
                        for path, record in sorted(self.files.items())
                    },
                },
                indent=1,
            )
            + "\n"
        )


def sums_text(files: Mapping[str, FileRecord]) -> str:
    """The content of a SHA256SUMS file, sorted by path, as `sha256sum` writes it."""
    return "".join(f"{files[path].sha256}  {path}\n" for path in sorted(files))


def parse_sums(text: str, origin: str) -> dict[str, str]:
    """Read a SHA256SUMS file: path -> sha256 in lower case. Raises FleetError for a line of another shape."""
    sums = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _SUM.fullmatch(line)
        if match is None:
            raise FleetError(f"{origin} to be the output of sha256sum", f"line {number}: {line!r}", "make it again")
        sums[match[2].removeprefix("./")] = match[1].lower()
    return sums


def require_ready(directory: Path) -> Manifest:
    """The manifest of a model that an engine may load: READY is there and every file has its size.

    Raises FleetError when the model is missing, half copied or changed since. Reads no weights.
    """
    manifest = Manifest.read(directory)
    if manifest is None:
        raise FleetError(
            f"a staged model with its {READY} manifest in {directory}",
            "no directory" if not directory.is_dir() else f"a directory without {READY}",
            "stage it: systemctl start sglang-weights.target (systemctl status 'sglang-weights@*' says why it failed), "
            "or deploy the host again",
        )
    for path, record in manifest.files.items():
        try:
            size_bytes: int | None = (directory / path).stat().st_size
        except FileNotFoundError:
            size_bytes = None
        if size_bytes != record.size_bytes:
            raise FleetError(
                f"{directory / path} with {record.size_bytes} bytes as in {READY}",
                "no file" if size_bytes is None else f"{size_bytes} bytes",
                f"remove {directory} when no engine uses it and stage the model again",
            )
    return manifest
