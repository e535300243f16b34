"""Files that are compared before they are written, and written whole or not at all."""

from __future__ import annotations

import grp
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError

HOST_ROOT = Path("/")


@dataclass(frozen=True)
class File:
    """One file of a host: absolute path, text, mode, and the group that may read it."""

    path: str
    text: str
    mode: int = 0o644
    group: str = "root"


@dataclass(frozen=True)
class Change:
    """What differs at one path; an absent file is the empty text with mode 0."""

    path: str
    before: str
    after: str
    before_mode: int
    after_mode: int

    def diff(self) -> dict[str, str]:
        """In the form that Ansible shows."""
        return {
            "before_header": f"{self.path} (mode {self.before_mode:04o})",
            "after_header": f"{self.path} (mode {self.after_mode:04o})",
            "before": self.before,
            "after": self.after,
        }


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def compare(files: Iterable[File], root: Path = HOST_ROOT) -> tuple[Change, ...]:
    """The files that are not as wanted below `root`; owner and group count only where root is the host's own."""
    changes = []
    for file in files:
        path = root / file.path.lstrip("/")
        try:
            before, status = path.read_text(encoding="utf-8"), path.stat()
        except FileNotFoundError:
            changes.append(Change(file.path, "", file.text, 0, file.mode))
            continue
        mode = status.st_mode & 0o7777
        owned = root != HOST_ROOT or (status.st_uid, status.st_gid) == (0, _group_id(file.group))
        if before != file.text or mode != file.mode or not owned:
            changes.append(Change(file.path, before, file.text, mode, file.mode))
    return tuple(changes)


def write(files: Iterable[File], root: Path = HOST_ROOT) -> None:
    """Put each file in place by an atomic move, owned by root and the file's group where root is the host's own.

    Raises FleetError where the group does not exist.
    """
    for file in files:
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(file.text)
                os.fchmod(stream.fileno(), file.mode)
                if root == HOST_ROOT:
                    group_id = _group_id(file.group)
                    if group_id is None:
                        raise FleetError(f"the group {file.group}", "no such group", "run the role sglang_host first")
                    os.fchown(stream.fileno(), 0, group_id)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
