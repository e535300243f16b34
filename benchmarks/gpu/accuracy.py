"""The planner against what the engine allocated, number by number: results/accuracy.json and a table.

Usage: benchmarks/gpu/accuracy.py                    (predicts again with the core as it is now)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / ".collections")]

from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import MLA  # noqa: E402
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import (  # noqa: E402
    PREFILL_GRAPHS_BYTES,
    PREFILL_GRAPHS_HYBRID_BYTES,
)
from ansible_collections.llmops.fleet.plugins.module_utils.planner import Plan  # noqa: E402
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB  # noqa: E402
from engine_log import seen as seen_in  # noqa: E402
from grid import NO_PREFILL_GRAPHS, Case  # noqa: E402
from predict import predict  # noqa: E402
from shapes import config  # noqa: E402

LAUNCHES = HERE / "results/launches"
ACCURACY = HERE / "results/accuracy.json"

# Greatest deviation that counts as right: a share of the seen value, or a difference where the engine rounds.
EXACT, TOKENS, ESTIMATED = 0.0, 0.001, 0.05
TOLERANCES = {
    "state_slots": (EXACT, 0),
    "max_running_requests": (EXACT, 0),
    "hicache_state_slots": (EXACT, 0),
    "hicache_kv_tokens": (TOKENS, 0),
    "kv_tokens": (TOKENS, 0),
    "hicache_kv_gb": (EXACT, 0.0101),
    "hicache_state_gb": (EXACT, 0.0101),
    "hicache_draft_gb": (EXACT, 0.0101),
    "free_gib": (TOKENS, 0.0101),
    "weights_gib": (TOKENS, 0.07),
    "draft_gib": (TOKENS, 0.0101),
    "state_gib": (EXACT, 0.0151),
    "intermediate_gib": (EXACT, 0.0151),
    "kv_gib": (TOKENS, 0.0151),
    "draft_kv_gib": (TOKENS, 0.0151),
    "slack_gib": (ESTIMATED, 0),
    "available_gib": (ESTIMATED, 0),
    "graphs_gib": (ESTIMATED, 0),
    "rss_gib": (ESTIMATED, 0),
}
# Parts that Triton's decoding splits MLA's KV into on a GPU of 132 multiprocessors, from 4,096 tokens of context on.
TRITON_MLA_SPLITS = 256
# Launches that the planner cannot know everything of; they count for no greatest deviation.
SET_APART = {
    "baseline-f-default-without-prefill-graphs": "the default mem_fraction_static is 0.907 instead of 0.903 because a "
    "free argument turned the prefill graphs off, for which SGLang reserves memory",
    "mtp-f-default-without-prefill-graphs": "as baseline-f-default-without-prefill-graphs",
}


def case_of(result: dict[str, Any]) -> Case:
    """The launch as grid.py had it."""
    fields = Case.__dataclass_fields__
    given = {name: value for name, value in result["case"].items() if name in fields}
    return Case(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def predicted(plan: Plan, case: Case) -> dict[str, float]:
    """The plan's numbers under the names of engine_log, as the launch's free arguments leave them."""
    instance = plan.as_dict()["instances"][0]
    numbers = {**instance["gpu"], **instance["host"]}
    if any(argument in case.extra_args for argument in NO_PREFILL_GRAPHS):
        numbers["available_gib"] = numbers["spare_gib"]
        hybrid = plan.checkpoint.linear is not None
        numbers["rss_gib"] -= (PREFILL_GRAPHS_HYBRID_BYTES if hybrid else PREFILL_GRAPHS_BYTES) / GIB
    else:
        numbers["graphs_gib"] += numbers["prefill_graphs_gib"]
    if plan.checkpoint.family == MLA:
        # The kit's Triton attention keeps partial results: float32 for every request, head, split and latent dimension.
        shape = config(case.shape)
        request_bytes = 4 * shape["num_attention_heads"] * TRITON_MLA_SPLITS * shape["kv_lora_rank"]
        partial_gib = numbers["max_running_requests"] * request_bytes / GIB
        numbers["graphs_gib"] += partial_gib
        numbers["available_gib"] -= partial_gib
    numbers["slack_gib"] -= numbers["request_table_gib"]
    return numbers


def compare(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """predicted, seen and deviation of every number that one launch reports."""
    case = case_of(result)
    found = seen_in("\n".join(result["log"]), result["seen"])
    numbers = predicted(predict(case, result["intent"], found["free_gib"]), case)
    return {
        name: {
            "predicted": round(numbers[name], 4),
            "seen": value,
            "deviation": round((numbers[name] - value) / value, 6) if value else 0.0,
        }
        for name, value in found.items()
        if name in numbers
    }


def within(name: str, numbers: dict[str, float]) -> bool:
    """Whether a number is as right as it has to be."""
    share, difference = TOLERANCES[name]
    off = abs(numbers["predicted"] - numbers["seen"])
    return off <= max(share * abs(numbers["seen"]), difference)


def accuracy() -> dict[str, Any]:
    """accuracy.json: every launch's numbers, and the greatest deviation of each number over all launches."""
    launches: dict[str, Any] = {}
    greatest: dict[str, dict[str, Any]] = {}
    for file in sorted(LAUNCHES.glob("*.json")):
        result = json.loads(file.read_text())
        if result["case"].get("refused"):
            plan = predict(case_of(result), result["intent"])
            launches[file.stem] = {
                "refused": {
                    "predicted": [str(problem) for problem in plan.problems],
                    "seen": [line for line in result["log"] if "Error" in line],
                }
            }
            continue
        launches[file.stem] = compare(result)
        if file.stem in SET_APART:
            launches[file.stem]["set_apart"] = SET_APART[file.stem]
            continue
        for name, numbers in launches[file.stem].items():
            if abs(numbers["deviation"]) >= abs(greatest.get(name, {"deviation": 0.0})["deviation"]):
                greatest[name] = {"launch": file.stem, **numbers}
    return {"launches": launches, "greatest_deviation": dict(sorted(greatest.items()))}


def main() -> None:
    table = accuracy()
    ACCURACY.write_text(json.dumps(table, indent=1) + "\n")
    counts = {
        name: sum(name in launch for launch in table["launches"].values()) for name in table["greatest_deviation"]
    }
    print(f"{'number':22}{'launches':>9}{'predicted':>12}{'seen':>12}{'off':>9}  greatest deviation in")
    for name, most in table["greatest_deviation"].items():
        print(
            f"{name:22}{counts[name]:9}{most['predicted']:12g}{most['seen']:12g}{most['deviation']:9.2%}"
            f"  {most['launch']}{'' if within(name, most) else '   <-- beyond its tolerance'}"
        )


if __name__ == "__main__":
    main()
