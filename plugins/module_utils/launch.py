"""From the record of an instance to a serving engine: what the unit runs, and how it is known to serve."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .errors import FleetError
from .gpu_facts import observe
from .http_api import request
from .instance import ARGUMENTS, Instance, Started, arguments, configured_sha256, mark_ready
from .processes import start_ticks
from .registration import enter_at_start
from .releases import Release
from .start_checks import add_instance_arguments

READY_ENDPOINT_SINCE = Release(0, 5, 20)
POLL_S = 1.0
ANSWER_TIMEOUT_S = 25.0
WARMUP_TOKENS = 16


class NotReady(FleetError):
    """The engine does not serve."""

    kind = "not ready"
    exit_code = 87


def check_cards(instance: Instance) -> None:
    """Raises FleetError where one of the instance's cards is not behind its device node, as after a swap.

    Cards are told by UUID: behind the unit's device fence the driver numbers those that are left from 0.
    """
    wanted = {uuid for uuid in instance.gpu_uuids if uuid}
    missing = wanted - ({gpu.uuid for gpu in observe().gpus} if wanted else set())
    if missing:
        raise FleetError(
            f"the cards {', '.join(instance.gpu_uuids)} as GPUs {', '.join(map(str, instance.gpus))}",
            f"no {', '.join(sorted(missing))} there",
            "if cards were swapped on purpose, correct the UUIDs in the inventory and deploy the host again",
        )


def visible_devices(instance: Instance, dev: Path = Path("/dev")) -> dict[str, str]:
    """The environment by which CUDA finds the instance's GPUs.

    Where the unit's device fence keeps every other GPU away, CUDA numbers those that are left from 0; without a fence
    their index is their number.
    """
    if instance.accelerator == "cpu":
        return {}
    own = {Path(node).name for node in instance.device_nodes}
    strangers = [node for node in dev.glob("nvidia[0-9]*") if node.name not in own and _opens(node)]
    numbers = instance.gpus if strangers else range(len(instance.gpus))
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}


def _opens(node: Path) -> bool:
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError:
        return False
    return True


def run(options: argparse.Namespace) -> int:
    """`sglang-fleet run NAME`: become the engine; the process keeps its number, so systemd watches the engine itself.

    Refusals here are those that no restart cures (exit code 78).
    """
    instance = Instance.read(options.name, options.config_dir)
    if not os.access(instance.python, os.X_OK):
        raise FleetError(
            f"the engine's interpreter {instance.python}", "no executable file there", "install that engine again"
        )
    if not Path(instance.model_path, "config.json").is_file():
        raise FleetError(
            f"a model in {instance.model_path}", "no config.json there", "correct the model and stage it again"
        )
    check_cards(instance)
    os.environ.update(visible_devices(instance))
    started = Started(
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        sha256=configured_sha256(options.name, options.config_dir),
        engine_version=instance.engine_version,
    )
    started.write(options.name, options.runtime_dir)
    args = arguments((options.config_dir / options.name / ARGUMENTS).read_text(encoding="utf-8"))
    os.execv(instance.python, [instance.python, "-m", "sglang.launch_server", *args])


def answers(instance: Instance, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Whether the engine says of itself that it serves: `/ready` where the release has it, else `/health`."""
    endpoint = "ready" if Release.parse(instance.engine_version) >= READY_ENDPOINT_SINCE else "health"
    try:
        return request("GET", f"{instance.local_url}/{endpoint}", timeout_s=timeout_s).status == 200
    except OSError:
        return False


def generate(instance: Instance, tokens: int = 1, prompt: str = "ready?", timeout_s: float = 60.0) -> float:
    """Have the engine generate through the API that clients use; returns the seconds that it took.

    Raises NotReady where it answers with anything but a completion of at least one token.
    """
    begin = time.monotonic()
    body = {"model": instance.served_model_name, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    try:
        answer = request("POST", f"{instance.local_url}/v1/completions", body=body, timeout_s=timeout_s)
        found = f"status {answer.status}: {answer.body.strip()[:300]}"
        generated = answer.status == 200 and answer.json()["usage"]["completion_tokens"] > 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        found, generated = f"no completion: {error}", False
    if not generated:
        raise NotReady(
            f"{instance.unit} to generate a token of {instance.served_model_name}",
            found,
            f"read journalctl -u {instance.unit}",
        )
    return time.monotonic() - begin


def ready(options: argparse.Namespace) -> int:
    """`sglang-fleet ready NAME`: wait until the engine generates, warm it up, and say so to the routers.

    systemd gives the engine's process number as MAINPID; where that process is gone the wait ends at once.
    """
    instance = Instance.read(options.name, options.config_dir)
    pid = int(os.environ["MAINPID"])
    begin = time.monotonic()
    while not answers(instance):
        if start_ticks(pid) is None:
            raise NotReady(
                f"the engine of {instance.unit} to load",
                "it ended",
                f"read its own words: journalctl -u {instance.unit}",
            )
        if time.monotonic() - begin > instance.start_timeout_s:
            raise NotReady(
                f"{instance.unit} to serve within {instance.start_timeout_s} s",
                f"no answer at {instance.local_url}",
                "read its journal, or raise sglang_instances_start_timeout_seconds",
            )
        time.sleep(POLL_S)
    first_token_s = generate(instance, timeout_s=instance.start_timeout_s)
    if instance.warmup_requests:
        with ThreadPoolExecutor(instance.warmup_requests) as pool:
            prompts = (f"warm-up {number}" for number in range(instance.warmup_requests))
            list(pool.map(lambda prompt: generate(instance, WARMUP_TOKENS, prompt, instance.start_timeout_s), prompts))
    mark_ready(instance.name, pid, options.runtime_dir)
    enter_at_start(instance, options.runtime_dir)
    print(
        f"ready: {instance.served_model_name} on GPU {', '.join(map(str, instance.gpus))} at {instance.url}, "
        f"{time.monotonic() - begin:.0f} s after its start; first token in {first_token_s:.2f} s",
        flush=True,
    )
    return 0


def register(subparsers: Any) -> None:
    """Offer `run` and `ready` to the host tool."""
    for command, function, what in (
        ("run", run, "become the engine (ExecStart)"),
        ("ready", ready, "wait until the engine generates, then register it (ExecStartPost)"),
    ):
        parser = subparsers.add_parser(command, help=what)
        parser.set_defaults(run=function)
        add_instance_arguments(parser)
