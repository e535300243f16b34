"""SGLang releases: parsing and ordering of version strings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import FleetError

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


@dataclass(frozen=True, order=True)
class Release:
    """One SGLang release; ordered as PyPI orders them (0.5.10 < 0.5.10.post1 < 0.5.11)."""

    major: int
    minor: int
    patch: int
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read "0.5.10.post1". Raises FleetError for anything else (ranges, "latest", dev builds)."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise FleetError(
                "an exact SGLang release such as 0.5.23 or 0.5.10.post1",
                repr(text),
                "pin the engine version",
            )
        major, minor, patch, post = (int(part or 0) for part in match.groups())
        return cls(major, minor, patch, post)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")
