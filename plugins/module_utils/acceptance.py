"""Is a started engine what was planned, and no worse than the one before it?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import FleetError
from .http_api import parse_metrics, request
from .instance import ARGUMENTS, CONFIG_DIR, Instance, arguments
from .launch import NotReady, generate

# Arguments that /server_info must repeat: those that decide about memory and limits. SGLang rewrites others on purpose.
CHECKED_ARGUMENTS = (
    "--context-length",
    "--hicache-size",
    "--kv-cache-dtype",
    "--mamba-ssm-dtype",
    "--max-mamba-cache-size",
    "--max-total-tokens",
    "--mem-fraction-static",
    "--tp-size",
)
# The plan's numbers of a GPU, and what /server_info calls them.
PLANNED = {
    "kv_tokens": "max_total_num_tokens",
    "state_slots": "max_mamba_cache_size",
    "max_running_requests": "effective_max_running_requests_per_dp",
}
# An engine may have this share less than planned before it counts as another one: free memory varies between starts.
PLAN_TOLERANCE = 0.03
SAMPLE_REQUESTS = 16
SAMPLE_PARALLEL = 8
SAMPLE_TOKENS = 64


@dataclass(frozen=True)
class Sample:
    """What an engine did with a fixed load, alone.

    Attributes:
        tokens_per_s: generated tokens per second over all requests.
        failed: requests without an answer.
        accept_length: tokens per verification step (`sglang:spec_accept_length`); 0 without speculation.
    """

    tokens_per_s: float
    failed: int
    accept_length: float


def server_info(instance: Instance) -> Mapping[str, Any]:
    """What the engine says it resolved. Raises NotReady where it says nothing."""
    try:
        answer = request("GET", f"{instance.local_url}/server_info", timeout_s=30)
        info = answer.json()
    except (OSError, ValueError) as error:
        raise NotReady(f"{instance.unit} to answer /server_info", str(error), "read its journal") from error
    return {**info, **(info.get("internal_states") or [{}])[0]}


def differences(info: Mapping[str, Any], instance: Instance, args: tuple[str, ...]) -> list[tuple[str, object, object]]:
    """Where /server_info is not what was asked for and planned: name, expected, found."""
    wanted: dict[str, object] = {"version": instance.engine_version, "model_path": instance.model_path}
    for argument in args:
        flag, _, value = argument.partition("=")
        if flag in CHECKED_ARGUMENTS:
            wanted[flag.removeprefix("--").replace("-", "_")] = value
    found = [
        (name, value, info[name]) for name, value in wanted.items() if name in info and not _same(value, info[name])
    ]
    plan = instance.planned.get("gpu") or {}
    for planned, name in PLANNED.items():
        if plan.get(planned) and info.get(name) is not None and info[name] < plan[planned] * (1 - PLAN_TOLERANCE):
            found.append((name, plan[planned], info[name]))
    return found


def _same(wanted: object, found: object) -> bool:
    try:
        return float(str(wanted)) == float(str(found))
    except ValueError:
        return str(wanted) == str(found)


def check_started(instance: Instance, config_dir: Path = CONFIG_DIR) -> None:
    """Raises NotReady where the running engine is not the one that was asked for and planned."""
    args = arguments((config_dir / instance.name / ARGUMENTS).read_text(encoding="utf-8"))
    found = differences(server_info(instance), instance, args)
    if found:
        raise NotReady(
            f"{instance.unit} with {', '.join(f'{name} {wanted}' for name, wanted, _ in found)}",
            ", ".join(f"{name} {value}" for name, _, value in found),
            "plan the host again: its memory or the engine's own decision is another than planned",
        )


def measure(instance: Instance, requests: int = SAMPLE_REQUESTS) -> Sample:
    """Have the engine generate for `requests` prompts, SAMPLE_PARALLEL at a time."""

    def one(number: int) -> int:
        try:
            generate(instance, SAMPLE_TOKENS, f"{number}: a sample of what this engine does", instance.start_timeout_s)
        except NotReady:
            return 0
        return SAMPLE_TOKENS

    begin = time.monotonic()
    with ThreadPoolExecutor(SAMPLE_PARALLEL) as pool:
        tokens = list(pool.map(one, range(requests)))
    seconds = time.monotonic() - begin
    samples = parse_metrics(request("GET", f"{instance.local_url}/metrics").body)
    accept_length = max((s.value for s in samples if s.name == "sglang:spec_accept_length"), default=0.0)
    return Sample(round(sum(tokens) / seconds, 2), tokens.count(0), round(accept_length, 3))


def compare(before: Sample, after: Sample, tolerance: float) -> None:
    """Raises FleetError where the engine is worse than the one before it by more than the tolerance, a share."""
    floor = 1 - tolerance
    if after.failed > before.failed:
        raise FleetError(
            f"at most {before.failed} failed requests, as before", f"{after.failed}", "read the engine's journal"
        )
    for what, old, new in (
        ("tokens/s", before.tokens_per_s, after.tokens_per_s),
        ("tokens accepted per step", before.accept_length, after.accept_length),
    ):
        if new < old * floor:
            raise FleetError(
                f"at least {old * floor:.2f} {what}, {floor:.0%} of what it was before",
                f"{new:.2f}",
                "see what changed, or raise the canary's tolerance",
            )
