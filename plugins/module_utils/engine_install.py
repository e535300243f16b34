"""SGLang, or its router, in versioned directories: `<root>/<name>` is a virtual environment that is whole or not there.

`COMPLETE`, written last, records what the directory was made from; a directory without it is a failed installation and
is replaced. Nothing that a process runs from, or that a configuration refers to, is ever changed or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import FleetError
from .prerequisites import observe, require
from .releases import Release
from .units import gb
from .wheelhouse import Wheelhouse, sha256

COMPLETE = "COMPLETE"
CURRENT = "current"
ON_DISK_PER_UNPACKED = 1.25
"""Disk used by an installation, compiled bytecode included, over the wheels' unpacked bytes (1.22 measured)."""
ENGINE, ROUTER = "sglang", "sglang-router"
INDEX_INSTALL_BYTES = {ENGINE: 9_950_000_000, ROUTER: 165_000_000}
"""Disk used by SGLang 0.5.23 for CUDA and by its router, measured; needed where no wheelhouse says the exact size."""


@dataclass(frozen=True)
class Source:
    """Where packages come from: a wheelhouse on the host, or a lock file (text) for the host's package index.

    `extra_packages` are installed after the locked ones, from the same place.
    """

    wheelhouse: Path | None = None
    lock: str = ""
    extra_packages: tuple[str, ...] = ()

    def lock_text(self) -> str:
        """The hash-checked list; raises FleetError where the source has none."""
        if self.wheelhouse is not None:
            return Wheelhouse.open(self.wheelhouse).lock.read_text()
        if "--hash=sha256:" not in self.lock:
            raise FleetError(
                "a wheelhouse, or a lock file with hashes for this version",
                "neither",
                "name a wheelhouse, or write the lock file with playbooks/lock.yml",
            )
        return self.lock

    def packages(self) -> set[str]:
        """Names of the locked packages."""
        return {line.split("==")[0] for line in self.lock_text().splitlines() if "==" in line and line[0].isalpha()}

    def install_bytes(self, package: str) -> int:
        """Disk that the installation takes."""
        if self.wheelhouse is None:
            return INDEX_INSTALL_BYTES[package]
        return int(Wheelhouse.open(self.wheelhouse).unpacked_bytes() * ON_DISK_PER_UNPACKED)

    def pip_arguments(self) -> list[str]:
        """What keeps pip and uv to this source."""
        return [] if self.wheelhouse is None else ["--no-index", "--find-links", str(self.wheelhouse)]


@dataclass(frozen=True)
class Installation:
    """What a directory below the root was made from; `python` is the minor version, since patches do not matter."""

    version: str
    python: str
    packages_sha256: str


@dataclass(frozen=True)
class Engines:
    """The installations of a package below one root directory; JSON files below `references` name those in use."""

    root: Path
    references: tuple[Path, ...] = ()
    package: str = ENGINE

    def installed(self) -> dict[str, Installation]:
        """Every whole installation by its directory's name; one whose mark cannot be read is none."""
        whole = {}
        for marker in sorted(self.root.glob(f"*/{COMPLETE}")):
            with contextlib.suppress(ValueError, TypeError):
                if not marker.parent.is_symlink():
                    whole[marker.parent.name] = Installation(**json.loads(marker.read_text()))
        return whole

    def current(self) -> str | None:
        """The directory that the link `current` names, or None."""
        link = self.root / CURRENT
        return link.readlink().name if link.is_symlink() else None

    def needed(self, name: str) -> str | None:
        """Who needs this installation, in words, or None: a running process or a configuration that names it."""
        directory = f"{self.root / name}/"
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            except OSError:
                continue
            if command.startswith(directory):
                return f"process {process.name}"
        for reference in self.references:
            for file in reference.rglob("*.json"):
                if directory in file.read_text(errors="replace"):
                    return str(file)
        return None

    def ensure(
        self, name: str, version: Release, source: Source, python: str, accelerator: str = "cpu", check: bool = False
    ) -> bool:
        """Install `version` as `<root>/<name>` unless it is there; returns whether that was, or is, needed.

        Raises FleetError before anything is written where the host, the source or the disk is unfit, or where the
        name is taken by other packages that are in use; and after removing what it wrote where the installation fails.
        """
        host = observe(python)
        minor = ".".join(host.python.split(".")[:2])
        wanted = Installation(str(version), minor, _digest(source))
        found = self.installed().get(name)
        if found == wanted:
            return False
        user = self.needed(name) if found else None
        if user:
            raise FleetError(
                f"{self.root / name} to hold the wanted packages",
                f"others ({found}), in use by {user}",
                "give the new ones a directory of their own: set sglang_engine_build or sglang_router_build",
            )
        if self.package == ENGINE:
            require(version, accelerator, host, source.packages())
        self._check_fit(version, source, minor)
        if not check:
            self._install(self.root / name, wanted, source, python)
        return True

    def activate(self, name: str, check: bool = False) -> bool:
        """Point `current` to an installation, atomically; returns whether that changes it."""
        if self.current() == name:
            return False
        if not check:
            link = self.root / f".{CURRENT}"
            link.unlink(missing_ok=True)
            link.symlink_to(name)
            link.replace(self.root / CURRENT)
        return True

    def prunable(self, name: str, keep: int) -> list[str]:
        """Installations beyond the newest `keep`, oldest first, without `name`, `current` and those that are needed."""
        by_age = sorted(self.installed(), key=lambda each: (self.root / each / COMPLETE).stat().st_mtime)
        spare = [each for each in by_age if each not in (name, self.current())]
        surplus = spare[: max(0, len(spare) - (keep - 1))]
        return [each for each in surplus if self.needed(each) is None]

    def remove(self, name: str) -> None:
        """Remove an installation, its mark first, so that a partial removal never looks whole."""
        (self.root / name / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(self.root / name, ignore_errors=True)

    def _check_fit(self, version: Release, source: Source, python: str) -> None:
        if source.wheelhouse is not None:
            house = Wheelhouse.open(source.wheelhouse)
            held = house.version_of(self.package)
            if held != str(version):
                raise FleetError(
                    f"{self.package} {version} in {source.wheelhouse}",
                    f"{self.package} {held}" if held else f"no {self.package}",
                    "correct the version or the wheelhouse",
                )
            _check_tags(house, python)
        existing = next(parent for parent in (self.root, *self.root.parents) if parent.exists())
        free_bytes, need_bytes = shutil.disk_usage(existing).free, source.install_bytes(self.package)
        if free_bytes < need_bytes:
            raise FleetError(
                f"{gb(need_bytes)} GB free below {existing} for {self.package} {version}",
                f"{gb(free_bytes)} GB",
                "free space there, or install on a larger file system",
            )

    def _install(self, directory: Path, wanted: Installation, source: Source, python: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.remove(directory.name)
        cache = self.root / ".uv-cache"
        lock = self.root / f".{directory.name}.lock"
        lock.write_text(source.lock_text())
        try:
            uv = _uv(source, self.root)
            if uv is None:
                _run([python, "-m", "venv", str(directory)], "a virtual environment")
                install = [str(directory / "bin/python"), "-m", "pip", "install", "--quiet"]
                install += ["--no-cache-dir", "--disable-pip-version-check"]
            else:
                _run([uv, "venv", "--quiet", "--no-config", "--python", python, str(directory)], "an environment")
                install = [uv, "pip", "install", "--quiet", "--no-config", "--compile-bytecode"]
                install += ["--cache-dir", str(cache), "--python", str(directory / "bin/python")]
            install += source.pip_arguments()
            _run([*install, "--no-deps", "--require-hashes", "-r", str(lock)], "the locked packages")
            if source.extra_packages:
                _run([*install, *source.extra_packages], "the extra packages")
            self._check_installed(directory, wanted.version)
            marker = directory / f".{COMPLETE}"
            marker.write_text(json.dumps(asdict(wanted), indent=1) + "\n")
            marker.replace(directory / COMPLETE)
        except BaseException:
            self.remove(directory.name)
            raise
        finally:
            lock.unlink(missing_ok=True)
            shutil.rmtree(cache, ignore_errors=True)

    def _check_installed(self, directory: Path, version: str) -> None:
        question = f"import importlib.metadata as m; print(m.version('{self.package}'))"
        found = _run([str(directory / "bin/python"), "-c", question], f"{self.package} say its version").strip()
        if found != version:
            raise FleetError(f"{self.package} {version} installed", found, "correct the lock file")


def _digest(source: Source) -> str:
    return hashlib.sha256("\n".join((source.lock_text(), *source.extra_packages)).encode()).hexdigest()


def _check_tags(house: Wheelhouse, python: str) -> None:
    tag = "cp" + python.replace(".", "")
    for wheel in house.wheels:
        python_tag, abi_tag = wheel.path.stem.split("-")[-3:-1]
        if abi_tag.startswith("cp") and tag not in python_tag.split("."):
            raise FleetError(
                f"a wheelhouse for Python {python} at {house.directory}",
                f"{wheel.path.name}",
                "set sglang_engine_python to a Python of that version, or build the wheelhouse with this one",
            )


def _uv(source: Source, root: Path) -> str | None:
    """A `uv` to install with: the host's own, else the wheelhouse's (hash-checked), else None for pip."""
    found = shutil.which("uv")
    if found or source.wheelhouse is None:
        return found
    wheel = next((each for each in Wheelhouse.open(source.wheelhouse).wheels if each.name == "uv"), None)
    if wheel is None:
        return None
    if sha256(wheel.path) != wheel.sha256:
        raise FleetError(f"{wheel.path} as its lock file has it", "other content", "copy the wheelhouse again")
    target = root / ".uv" / wheel.version / "uv"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel.path) as archive:
            name = next(entry for entry in archive.namelist() if entry.endswith(".data/scripts/uv"))
            partial = target.with_suffix(".partial")
            partial.write_bytes(archive.read(name))
        partial.chmod(0o755)
        partial.replace(target)
    return str(target)


def _run(command: Sequence[str], wanted: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, env=_environment())
    except OSError as error:
        raise FleetError(
            f"{command[0]} to make {wanted}", str(error), f"install {command[0]} or correct its path"
        ) from error
    if result.returncode != 0:
        words = result.stderr.strip().splitlines() or [f"exit code {result.returncode} without a message"]
        raise FleetError(
            f"{Path(command[0]).name} to make {wanted}", " ".join(words[-6:]), "correct that and run it again"
        )
    return result.stdout


def _environment() -> dict[str, str]:
    """The caller's environment without another virtual environment's or Python's influence."""
    influences: Iterable[str] = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in influences}
