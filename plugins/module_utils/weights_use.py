"""Which staged revisions of a model nobody uses any more."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .manifest import Manifest, require_ready
from .processes import PROC, Process, describe


@dataclass(frozen=True)
class Revision:
    """One staged revision that is not the wanted one, and who still uses it."""

    path: Path
    manifest: Manifest
    users: tuple[str, ...]


def other_revisions(keep: Path, config_dir: Path, proc: Path = PROC) -> tuple[Revision, ...]:
    """Every other staged revision of the model at `keep`, beside it.

    A revision is in use when an instance's record names it, when a process has it on its command line, or when a
    process has a file below it open or mapped. Raises FleetError when `keep` is not whole: then nothing may go.
    """
    name = require_ready(keep).name
    revisions = []
    for path in sorted(keep.parent.iterdir()):
        manifest = Manifest.read(path) if path != keep and path.is_dir() else None
        if manifest is not None and manifest.name == name:
            users = (*_instances(path, config_dir), *(str(process) for process in processes_using(path, proc)))
            revisions.append(Revision(path, manifest, users))
    return tuple(revisions)


def remove(revision: Revision, persistent_dir: Path) -> None:
    """Remove a revision from memory and its copy from the disk."""
    shutil.rmtree(revision.path)
    shutil.rmtree(persistent_dir / revision.path.name, ignore_errors=True)


def processes_using(path: Path, proc: Path = PROC) -> tuple[Process, ...]:
    """Processes with `path` on their command line, or with a file below it open or mapped."""
    return tuple(
        describe(int(entry.name), proc)
        for entry in sorted(proc.glob("[0-9]*"), key=lambda entry: int(entry.name))
        if _uses(entry, path)
    )


def _uses(entry: Path, path: Path) -> bool:
    below = f"{path}/"
    with suppress(OSError):
        words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("=", "\0").split("\0")
        if any(word == str(path) or word.startswith(below) for word in words):
            return True
        if below in (entry / "maps").read_text(errors="replace"):
            return True
        for descriptor in (entry / "fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()).startswith(below):
                    return True
    return False


def _instances(path: Path, config_dir: Path) -> list[str]:
    return [
        f"instance {record.parent.name}"
        for record in sorted(config_dir.glob("*/instance.json"))
        if Path(json.loads(record.read_text())["model_path"]) == path
    ]
