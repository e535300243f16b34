"""What an instance served with before: kept once it serves, put back when its successor does not.

    /var/lib/sglang/good/NAME/       the configuration that served last, with its unit
    /var/lib/sglang/previous/NAME/   the one before that, for a rollback
    /var/lib/sglang/next/NAME/       the one that waits for its turn while a roll is at other engines

A generation holds the instance's directory (`config/`), its drop-ins (`drop-in/`) and the template (`unit`). A template
that has changed since is restored for this instance alone, as `sglang@NAME.service`: systemd prefers that file to the
template, and the other instances keep theirs.
"""

from __future__ import annotations

import filecmp
import shutil
from dataclasses import dataclass
from pathlib import Path

from .instance import ARGUMENTS, CONFIG_DIR, ENVIRONMENT, RECORD, Instance, launch_sha256

STATE_DIR = Path("/var/lib/sglang")
SYSTEMD_DIR = Path("/etc/systemd/system")
GOOD, PREVIOUS, NEXT = "good", "previous", "next"
TEMPLATE = "sglang@.service"


@dataclass(frozen=True)
class Generations:
    """The kept configurations of one instance, and where its current one lies.

    Attributes:
        name: the instance.
        config_dir, systemd_dir, state_dir: other roots for tests.
    """

    name: str
    config_dir: Path = CONFIG_DIR
    systemd_dir: Path = SYSTEMD_DIR
    state_dir: Path = STATE_DIR

    @property
    def override(self) -> Path:
        """The unit file that stands in for the template; absent unless a restore needed it."""
        return self.systemd_dir / f"sglang@{self.name}.service"

    def kept(self, generation: str) -> Path:
        """The directory of a generation."""
        return self.state_dir / generation / self.name

    def _parts(self) -> dict[str, Path]:
        unit = self.override if self.override.exists() else self.systemd_dir / TEMPLATE
        drop_in = self.systemd_dir / f"sglang@{self.name}.service.d"
        return {"config": self.config_dir / self.name, "drop-in": drop_in, "unit": unit}

    def exists(self, generation: str = GOOD) -> bool:
        """Whether this generation was kept."""
        return self.kept(generation).is_dir()

    def is_current(self, generation: str = GOOD) -> bool:
        """Whether the host's files are those of the generation."""
        kept = self.kept(generation)
        return kept.is_dir() and all(_same(path, kept / part) for part, path in self._parts().items())

    def kept_at(self, generation: str) -> float:
        """When the generation was kept, in seconds of the epoch."""
        return self.kept(generation).stat().st_mtime

    def instance(self, generation: str) -> Instance:
        """The record of a generation. Raises FleetError where it is none."""
        record = self.kept(generation) / "config" / RECORD
        return Instance.from_json(record.read_text(encoding="utf-8"), str(record))

    def good_instance(self) -> Instance:
        """The record that the running engine was started from, as far as it was kept; else the current one."""
        if (self.kept(GOOD) / "config" / RECORD).exists():
            return self.instance(GOOD)
        return Instance.read(self.name, self.config_dir)

    def keep(self) -> bool:
        """Keep the current configuration as the good one; returns whether it was another one than before.

        The good one before becomes the previous one where an engine started from it would be another.
        """
        if self.is_current():
            return False
        good, previous = self.kept(GOOD), self.kept(PREVIOUS)
        new = good.with_name(f".{self.name}.new")
        self._copy_to(new)
        if good.exists() and _launch(good / "config") != _launch(new / "config"):
            shutil.rmtree(previous, ignore_errors=True)
            previous.parent.mkdir(parents=True, exist_ok=True)
            good.replace(previous)
        shutil.rmtree(good, ignore_errors=True)
        new.replace(good)
        return True

    def set_aside(self) -> None:
        """Have what served last in place until `take_up`: a crash or a reboot must not start what has had no turn."""
        if self.exists():
            self._copy_to(self.kept(NEXT))
            self.restore()

    def take_up(self) -> None:
        """Put in place what was set aside, if anything was. systemd must reload after it."""
        self.restore(NEXT)
        self.forget_next()

    def forget_next(self) -> None:
        """Drop what an interrupted roll had set aside."""
        shutil.rmtree(self.kept(NEXT), ignore_errors=True)

    def _copy_to(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, mode=0o700)
        for part, path in self._parts().items():
            if path.exists():
                _copy(path, target / part)

    def restore(self, generation: str = GOOD) -> bool:
        """Put the generation's files in place; returns whether they were other ones. systemd must reload after it."""
        if not self.exists(generation) or self.is_current(generation):
            return False
        kept = self.kept(generation)
        template = self.systemd_dir / TEMPLATE
        self.use_template()
        for part, path in self._parts().items():
            if part == "unit" and not _same(template, kept / part):
                _copy(kept / part, self.override)
            elif part != "unit":
                shutil.rmtree(path, ignore_errors=True)
                if (kept / part).exists():
                    _copy(kept / part, path)
        return True

    def use_template(self) -> None:
        """Have the instance use the template again, as every deployment does."""
        self.override.unlink(missing_ok=True)


def _launch(config: Path) -> str:
    return launch_sha256(*((config / part).read_text(encoding="utf-8") for part in (RECORD, ARGUMENTS, ENVIRONMENT)))


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        shutil.copy2(source, target)
        return
    shutil.copytree(source, target)
    for path in (source, *source.rglob("*")):
        status = path.stat()
        shutil.chown(target / path.relative_to(source), status.st_uid, status.st_gid)


def _same(left: Path, right: Path) -> bool:
    if left.is_dir() and right.is_dir():
        names = {path.name for path in left.iterdir()} | {path.name for path in right.iterdir()}
        return all(_same(left / name, right / name) for name in names)
    if left.is_file() and right.is_file():
        return filecmp.cmp(left, right, shallow=False)
    return not left.exists() and not right.exists()
