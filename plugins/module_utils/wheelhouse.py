"""A wheelhouse: one directory with every wheel of an installation and the hash-checked list of them.

It is built on a machine that has a network and installed from on machines that have none. `requirements.lock`, written
last, names every wheel with its SHA-256, so that its presence means the wheelhouse is whole.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError

LOCK = "requirements.lock"
_INPUTS = "# built from "
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})$", re.M)


@dataclass(frozen=True)
class Step:
    """One call of pip: requirements, requirement files and local projects, with or without their dependencies.

    A requirement file that has hashes is checked against them by pip.
    """

    requirements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    dependencies: bool = True

    def run(self, python: str, directory: Path) -> None:
        """Have pip put the wheels into the directory; projects are built from a copy, since pip builds in place."""
        with tempfile.TemporaryDirectory() as scratch:
            copies = [shutil.copytree(project, Path(scratch, str(n))) for n, project in enumerate(self.projects)]
            command = [
                *(python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
                *("--wheel-dir", str(directory)),
                *([] if self.dependencies else ["--no-deps"]),
                *(argument for file in self.files for argument in ("--requirement", file)),
                *(str(copy) for copy in copies),
                *self.requirements,
            ]
            result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise FleetError(
                "pip to bring the wheels of " + " ".join((*self.files, *self.projects, *self.requirements)),
                (result.stderr.strip().splitlines() or ["no message"])[-1],
                "correct the requirement, or see that the package index can be reached, and run it again",
            )


@dataclass(frozen=True)
class Wheel:
    """One locked wheel: normalized name, version, SHA-256 and file."""

    name: str
    version: str
    sha256: str
    path: Path


@dataclass(frozen=True)
class Wheelhouse:
    """A whole wheelhouse on this machine."""

    directory: Path
    wheels: tuple[Wheel, ...]

    @classmethod
    def open(cls, directory: Path) -> Wheelhouse:
        """Read the list and find each wheel's file. Raises FleetError where either is missing; hashes nothing."""
        lock = directory / LOCK
        if not lock.is_file():
            raise FleetError(
                f"a whole wheelhouse at {directory}",
                f"no {LOCK} in it",
                "build it with playbooks/wheelhouse.yml and make it readable on this host",
            )
        files = {_pin(path): path for path in directory.glob("*.whl")}
        wheels = []
        for match in _PIN.finditer(lock.read_text()):
            path = files.get((match["name"], match["version"]))
            if path is None:
                raise FleetError(
                    f"the wheel of {match['name']}=={match['version']} in {directory}",
                    f"only its line in {LOCK}",
                    "copy the wheelhouse again, completely",
                )
            wheels.append(Wheel(match["name"], match["version"], match["sha256"], path))
        return cls(directory, tuple(wheels))

    @property
    def lock(self) -> Path:
        """The list that pip and uv check every wheel against."""
        return self.directory / LOCK

    def version_of(self, name: str) -> str | None:
        """The locked version of a package, or None."""
        return next((wheel.version for wheel in self.wheels if wheel.name == name), None)

    def unpacked_bytes(self) -> int:
        """What the wheels' files take once installed, from the wheels' own directories."""
        total = 0
        for wheel in self.wheels:
            with zipfile.ZipFile(wheel.path) as archive:
                total += sum(entry.file_size for entry in archive.infolist())
        return total


def build(directory: Path, steps: Sequence[Step], python: str, check: bool = False) -> tuple[str, str]:
    """Build the wheelhouse with `python`'s pip where its inputs changed or a wheel is missing.

    Returns the text of the list before (empty unless whole) and after; equal texts mean that nothing was done. With
    `check` nothing is written, and the after is the inputs' line alone where it would be built. An interrupted build
    goes on from what pip has in its cache. Raises FleetError with pip's last words.
    """
    lock = directory / LOCK
    before = lock.read_text() if _is_whole(directory) else ""
    inputs = _INPUTS + _fingerprint(steps, python)
    if before.startswith(inputs):
        return before, before
    if check:
        return before, inputs + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    lock.unlink(missing_ok=True)
    for stale in directory.glob("*.whl"):
        stale.unlink()
    for step in steps:
        step.run(python, directory)
    lines = sorted(
        f"{name}=={version} --hash=sha256:{sha256(path)}"
        for path in directory.glob("*.whl")
        for name, version in [_pin(path)]
    )
    after = "\n".join([inputs, *lines, ""])
    temporary = lock.with_suffix(".partial")
    temporary.write_text(after)
    temporary.replace(lock)
    return before, after


def sha256(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
        return digest.hexdigest()


def _is_whole(directory: Path) -> bool:
    try:
        Wheelhouse.open(directory)
    except FleetError:
        return False
    return True


def _pin(wheel: Path) -> tuple[str, str]:
    name, version = wheel.name.split("-")[:2]
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _fingerprint(steps: Sequence[Step], python: str) -> str:
    """A digest of everything that decides the content: arguments, requirement files, local projects, the Python."""
    digest = hashlib.sha256()
    tag = subprocess.run(
        [python, "-c", "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_platform())"],
        capture_output=True,
        text=True,
    )
    if tag.returncode != 0:
        raise FleetError(f"{python} to run", tag.stderr.strip(), "give the Python of the hosts' version")
    digest.update(tag.stdout.encode())
    for step in steps:
        digest.update(repr((step.requirements, len(step.files), len(step.projects), step.dependencies)).encode())
        for name in step.files:
            digest.update(_read(Path(name)))
        for name in step.projects:
            for path in sorted(Path(name).rglob("*")):
                if path.suffix in {".py", ".toml"}:
                    digest.update(str(path.relative_to(name)).encode() + _read(path))
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FleetError(f"the requirement file {path}", "no such file", "correct the path")
    return path.read_bytes()
