"""Whether a serving engine still makes tokens; one that does not is ended, and systemd starts it anew."""

from __future__ import annotations

import argparse
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import FleetError
from .http_api import parse_metrics, request
from .instance import Instance, is_ready, running
from .launch import NotReady, generate
from .registration import leave, stay_entered
from .start_checks import add_instance_arguments

PROGRESS = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total")
METRICS_TIMEOUT_S = 5.0
STATE = "probe.json"


class Wedged(FleetError):
    """An engine that lives but makes no tokens."""

    kind = "wedged"
    exit_code = 88


def progress(instance: Instance) -> float | None:
    """Tokens that the engine has read and written since its start; None where it does not tell."""
    try:
        answer = request("GET", f"{instance.local_url}/metrics", timeout_s=METRICS_TIMEOUT_S)
    except OSError:
        return None
    counters = [sample.value for sample in parse_metrics(answer.body) if sample.name in PROGRESS]
    return sum(counters) if counters else None


def probe(options: argparse.Namespace) -> int:
    """`sglang-fleet probe NAME`: have one token generated within the instance's probe time-out.

    A probe that gets none is a failure only if the engine's token counters stood still meanwhile: under a long queue
    it may wait its turn. A failure takes the engine off its routers; after probe_failures in a row its main process is
    killed, which takes its schedulers along, and systemd's Restart= replaces it. Raises Wedged then, and NotReady for a
    failure before. A probe that gets its token has the engine registered again where a router does not list it.
    """
    instance = Instance.read(options.name, options.config_dir)
    started = running(instance.name, options.runtime_dir)
    if started is None or not is_ready(instance.name, started, options.runtime_dir):
        return 0
    state_file: Path = options.runtime_dir / instance.name / STATE
    tokens_before = progress(instance)
    try:
        generate(instance, timeout_s=instance.probe_timeout_s)
    except NotReady as failure:
        tokens = progress(instance)
        if tokens is not None and tokens_before is not None and tokens > tokens_before:
            return 0
        failures = _failures(state_file, started.pid) + 1
        state_file.write_text(json.dumps({"pid": started.pid, "failures": failures}) + "\n", encoding="utf-8")
        with suppress(FleetError):
            leave(instance)
        if failures < instance.probe_failures:
            raise
        os.kill(started.pid, signal.SIGKILL)
        raise Wedged(
            f"{instance.unit} to make tokens",
            f"none in {failures} checks of {instance.probe_timeout_s} s each ({failure.found})",
            f"nothing to do: PID {started.pid} was killed and systemd starts the engine anew",
        ) from failure
    state_file.unlink(missing_ok=True)
    stay_entered(instance, options.runtime_dir)
    return 0


def _failures(state_file: Path, pid: int) -> int:
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return int(state["failures"]) if state["pid"] == pid else 0


def register(subparsers: Any) -> None:
    """Offer `probe` to the host tool."""
    parser = subparsers.add_parser("probe", help="check that a serving engine makes tokens; replace it where not")
    parser.set_defaults(run=probe)
    add_instance_arguments(parser)
