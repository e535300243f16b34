"""What the installed SGLang itself makes of command lines, before a running engine is touched."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import parser_probe
from .errors import FleetError
from .flag_lists import fate, flags_of
from .flags import MANAGED, REPLACED
from .releases import Release

WATCHED = (
    "mamba_radix_cache_strategy",
    "mamba_scheduler_strategy",
    "page_size",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "linear_attn_backend",
    "hicache_io_backend",
    "hicache_mem_layout",
    "speculative_num_draft_tokens",
    "disable_overlap_schedule",
)
"""Settings whose silent choice by the engine is worth a warning."""

_SAME = [("speculative_algorithm", "NEXTN", "EAGLE")]
_FREE_TO_CHANGE = {"model_path", "tokenizer_path", "served_model_name"}


@dataclass(frozen=True)
class Verdict:
    """The installed parser's word on one command line.

    Attributes:
        name: the instance.
        error: why it is rejected; "" where it is accepted.
        undone: settings that were given and that the engine would silently change, as (setting, given, becomes).
        chosen: watched settings that were left open, as (setting, becomes).
        warnings: the engine's own.
    """

    name: str
    error: str
    undone: tuple[tuple[str, Any, Any], ...] = ()
    chosen: tuple[tuple[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()

    def require(self, release: Release, allow_known_bad: bool = False) -> None:
        """Raises FleetError where the command line is rejected or its intent undone (the latter may be allowed)."""
        if self.error:
            raise FleetError(
                f"SGLang {release} to take the command line of instance {self.name}",
                f"{self.error}{explain(self.error, release)}",
                "correct the intent or the free arguments; nothing was changed",
            )
        if self.undone and not allow_known_bad:
            raise FleetError(
                f"SGLang {release} to keep what instance {self.name} asks for",
                "; ".join((self._changes(), *self.warnings)),
                "ask for what it would run with, or set sglang_instances_allow_known_bad",
            )

    def said(self) -> list[str]:
        """Everything that a person should know though the command line is accepted."""
        chosen = ", ".join(f"{setting} {value}" for setting, value in self.chosen)
        return [
            *([self._changes()] if self.undone else []),
            *([f"left open, the engine chooses {chosen}"] if chosen else []),
            *(f"the engine says: {each}" for each in self.warnings),
        ]

    def _changes(self) -> str:
        changes = ", ".join(f"{setting} {given} -> {becomes}" for setting, given, becomes in self.undone)
        return f"it would silently change {changes}"


def check_all(
    python: Path,
    release: Release,
    command_lines: Mapping[str, Sequence[str]],
    environments: Mapping[str, Mapping[str, str]],
    model_path: Path,
    allow_known_bad: bool = False,
) -> tuple[str, list[Verdict]]:
    """Judge every instance by the best that is there: the engine's resolution, its parser, or the table of flags.

    Returns which of the three ("resolution" needs a model with config.json, "parser" an installed engine) and the
    verdicts. Instances that share an environment share a process. Raises FleetError for the first that is refused.
    """
    if not python.exists():
        for name, argv in command_lines.items():
            Verdict(name, _unknown(argv, release)).require(release)
        return "table", []
    resolve = (model_path / "config.json").is_file()
    groups: dict[tuple[tuple[str, str], ...], dict[str, Sequence[str]]] = {}
    for name, argv in command_lines.items():
        groups.setdefault(tuple(sorted(environments.get(name, {}).items())), {})[name] = argv
    verdicts = [
        verdict
        for environment, members in groups.items()
        for verdict in check(str(python), members, dict(environment), resolve)
    ]
    for verdict in verdicts:
        verdict.require(release, allow_known_bad)
    return "resolution" if resolve else "parser", verdicts


def check(
    python: str,
    command_lines: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    resolve: bool = True,
    timeout_s: float = 300.0,
    prelude: str = "",
) -> list[Verdict]:
    """Have an engine's Python judge command lines, all in one process.

    Args:
        python: the engine's interpreter.
        command_lines: instance name → arguments of `sglang.launch_server`.
        environment: what the instances run with; a HOME of its own is given, so that nothing is left on the host.
        resolve: whether SGLang also resolves and validates them, which reads the model's config.json and the GPU.
        prelude: Python statements to run first (tests of GPU settings on machines without one).

    Raises FleetError where SGLang cannot even be imported.
    """
    request = json.dumps({"resolve": resolve, "command_lines": [list(argv) for argv in command_lines.values()]})
    with tempfile.TemporaryDirectory() as home:
        result = subprocess.run(
            [python, "-c", f"{prelude}\nexec({inspect.getsource(parser_probe)!r})"],
            input=request,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **environment, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    try:
        answers = json.loads(result.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise FleetError(
            f"the SGLang of {python} to be imported",
            (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1],
            "install the engine again, or look at its dependencies",
        ) from None
    return [_verdict(name, answer) for name, answer in zip(command_lines, answers, strict=True)]


def explain(error: str, release: Release) -> str:
    """The fate of every flag in a parser's message that the release does not take, and its name now."""
    renamed = {spelling: managed.name(release) for managed in MANAGED.values() for spelling in managed.spellings}
    known = flags_of(release)
    told = ""
    for flag in dict.fromkeys(re.findall(r"--[a-z0-9][a-z0-9-]*", error)):
        now = renamed.get(flag) or REPLACED.get(flag)
        if flag not in known:
            told += f"; {flag}: {fate(flag, release)}" + (f", now {now}" if now and now != flag else "")
    return told


def _unknown(argv: Sequence[str], release: Release) -> str:
    known = flags_of(release)
    unknown = [flag for argument in argv if (flag := argument.partition("=")[0]).startswith("--") and flag not in known]
    return f"unknown {', '.join(unknown)}" if unknown else ""


def _verdict(name: str, answer: Mapping[str, Any]) -> Verdict:
    asked, given, resolved = answer["asked"], answer["given"], answer["resolved"]
    changed = [
        (setting, asked[setting], value)
        for setting, value in resolved.items()
        if setting in asked
        and asked[setting] != value
        and setting not in _FREE_TO_CHANGE
        and (setting, asked[setting], value) not in _SAME
    ]
    return Verdict(
        name,
        answer["error"],
        undone=tuple(change for change in changed if change[0] in given),
        chosen=tuple((setting, value) for setting, _, value in changed if setting not in given and setting in WATCHED),
        warnings=tuple(answer["log"]),
    )
