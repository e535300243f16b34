"""Render every profile for the releases whose parsers were read, and hold each against the release's flag list.

The last line says how many command lines were rendered and how many of them a list rejects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.llmops.fleet.plugins.module_utils.flag_lists import LISTED
from ansible_collections.llmops.fleet.plugins.module_utils.flags import Argument, CommandLine, Launch, render
from ansible_collections.llmops.fleet.plugins.module_utils.intent import PROFILES, Intent, with_profile
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release

LISTS = Path(__file__).parent / "fixtures/sglang-args"
FIELD_RECORD = Intent(
    concurrency=64,
    context_length=32768,
    mem_fraction_static=0.85,
    max_running_requests=9,
    max_mamba_cache_size=48,
    state_strategy="extra_buffer",
    hicache_gb=20,
    hicache_write_policy="write_through_selective",
    hicache_storage_backend="file",
    kv_dtype="fp8_e4m3",
)
LAUNCH = Launch(
    model_path="/dev/shm/sglang/qwen3.6-27b",
    served_model_name="qwen3.6-27b",
    host="0.0.0.0",
    port=30000,
    nccl_port=31000,
    extra_args=("--schedule-conservativeness=0.5", "--log-level", "warning"),
    environment={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
    hybrid=True,
    model_type="qwen3_5",
    cache_dir="/var/cache/sglang/version",
    numa_nodes=(0,),
)


def command_lines() -> Iterator[tuple[str, str, CommandLine]]:
    """(release, profile, command line) of all, on a GPU."""
    for version in LISTED:
        for profile in PROFILES:
            yield version, profile, render(with_profile(FIELD_RECORD, profile), Release.parse(version), LAUNCH)


def read_list(version: str) -> dict[str, dict[str, Any]]:
    """A release's flags by every spelling."""
    entries = [json.loads(line) for line in (LISTS / f"{version}.jsonl").read_text().splitlines()]
    return {spelling: entry for entry in entries for spelling in entry["flags"]}


def objection(entry: dict[str, Any] | None, argument: Argument) -> str:
    """What the list has against an argument; "" where nothing."""
    if entry is None:
        return "is unknown"
    if entry.get("deprecated"):
        return "is deprecated"
    if (entry["kind"] == "value") != (argument.value is not None):
        return f"is a {entry['kind']}"
    if entry.get("choices") and argument.value not in map(str, entry["choices"]):
        return f"is not one of {entry['choices']}"
    try:
        {"int": int, "float": float}.get(entry.get("type", ""), str)(argument.value or 0)
    except ValueError:
        return f"is no {entry['type']}"
    return ""


def main() -> int:
    rendered = rejected = 0
    for version, profile, line in command_lines():
        flags = read_list(version)
        objections = [
            f"{argument.text} {said}"
            for argument in line.arguments
            if (said := objection(flags.get(argument.flag), argument))
        ]
        missing = [
            f"{entry['flags'][0]} is missing"
            for entry in flags.values()
            if entry.get("required") and not {argument.flag for argument in line.arguments} & set(entry["flags"])
        ]
        problems = [*objections, *missing]
        print(f"{version:12} {profile:12} {len(line.arguments):2} arguments  {'; '.join(problems) or 'taken'}")
        rendered += 1
        rejected += bool(problems)
    print(f"{rendered} rendered, {rejected} rejected")
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
