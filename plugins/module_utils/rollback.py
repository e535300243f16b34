"""Back to what engines served with before the newest configuration: engine, unit, arguments and model, GPU by GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import systemd
from .engine_install import COMPLETE, Engines
from .errors import FleetError
from .generations import GOOD, PREVIOUS, Generations
from .instance import ARGUMENTS, Instance, arguments, configured
from .manifest import require_ready
from .registration import rolling
from .rolling import Policy, Step, roll

OWN_FLAGS = ("--port=", "--nccl-port=", "--numa-node=")


@dataclass(frozen=True)
class Return:
    """One instance's way back."""

    generations: Generations
    now: Instance
    before: Instance

    def __str__(self) -> str:
        return f"{self.now.unit}: {_what(self.now)} -> {_what(self.before)}"


def ways_back(kept: Sequence[Generations]) -> tuple[Return, ...]:
    """The instances that have the newest configuration, each with the one before it.

    Those that a halted deployment left on an older configuration stay as they are. Raises FleetError where an earlier
    configuration, its engine or its model is not there any more; nothing was changed then.
    """
    served = [each for each in kept if each.exists(GOOD)]
    if not served:
        raise FleetError("engines that have served before", "none", "deploy first")
    newest = max(served, key=lambda each: each.kept_at(GOOD))
    changed = [each for each in served if _shape(each, GOOD) == _shape(newest, GOOD)]
    without = [each.name for each in changed if not each.exists(PREVIOUS)]
    if without:
        raise FleetError(
            "an earlier configuration of every engine",
            f"none of {', '.join(without)}",
            "deploy the version that is wanted: there is nothing to go back to",
        )
    ways = tuple(Return(each, each.instance(GOOD), each.instance(PREVIOUS)) for each in changed)
    for way in ways:
        _require_parts(way.before)
    return ways


def roll_back(ways: Sequence[Return], policy: Policy) -> tuple[Step, ...]:
    """Return instances one after another; the first failure ends it, with what is not back yet as it was.

    Raises Halted for a failure and FleetError for a refusal, after which all serve as before.
    """
    with rolling():
        for way in ways:
            way.generations.restore(PREVIOUS)
    systemd.systemctl("daemon-reload")
    steps = roll([way.now.name for way in ways], policy)
    engines = {Path(Instance.read(name).python).parents[1] for name in configured()}
    if len(engines) == 1:
        engine = engines.pop()
        Engines(engine.parent).activate(engine.name)
    return steps


def _shape(generations: Generations, generation: str) -> tuple[str, ...]:
    """What a configuration has in common with its neighbours': all but the instance's own ports and place."""
    instance = generations.instance(generation)
    text = (generations.kept(generation) / "config" / ARGUMENTS).read_text(encoding="utf-8")
    return (
        instance.python,
        *(argument for argument in arguments(text) if not argument.startswith(OWN_FLAGS)),
    )


def _require_parts(instance: Instance) -> None:
    directory = Path(instance.python).parents[1]
    if not (directory / COMPLETE).exists():
        raise FleetError(
            f"SGLang {instance.engine_version} in {directory}, from which {instance.unit} served before",
            "no whole installation there",
            f"install it again: deploy with sglang_engine_version={instance.engine_version}",
        )
    require_ready(Path(instance.model_path))


def _what(instance: Instance) -> str:
    return f"SGLang {instance.engine_version} ({Path(instance.python).parents[1].name}), {instance.model_path}"
