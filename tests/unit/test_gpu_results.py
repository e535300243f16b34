"""What real launches on an H200 allocated (benchmarks/gpu/results), against the plan of the core as it is now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import accuracy  # noqa: E402
from grid import SIDE_BY_SIDE, TENSOR_PARALLEL  # noqa: E402

LAUNCHES = sorted(file.stem for file in accuracy.LAUNCHES.glob("*.json"))
REFUSED = {"refused-f40": "raise mem_fraction_static above 0.401", "refused-bulk-m512": "lower max_running_requests"}


def result(name):
    return json.loads((accuracy.LAUNCHES / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [name for name in LAUNCHES if name not in {*REFUSED, *accuracy.SET_APART}])
def test_the_plan_is_what_the_engine_allocates(name):
    numbers = accuracy.compare(result(name))
    assert numbers.keys() >= {"free_gib", "weights_gib", "kv_tokens", "kv_gib", "slack_gib"}
    off = {number: values for number, values in numbers.items() if not accuracy.within(number, values)}
    assert off == {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_refused(name):
    launch = result(name)
    assert any("Error: " in line for line in launch["log"])
    plan = accuracy.predict(accuracy.case_of(launch), launch["intent"])
    assert any(REFUSED[name] in str(problem) for problem in plan.problems)


def test_accuracy_json_is_what_the_core_predicts_now():
    assert json.loads(accuracy.ACCURACY.read_text()) == json.loads(json.dumps(accuracy.accuracy()))


def test_the_grid_was_seen():
    cases = [accuracy.case_of(result(name)) for name in LAUNCHES]
    assert {case.profile for case in cases} == {"baseline", "mtp", "mtp_hicache", "bulk"}
    assert {case.shape for case in cases} >= {"qwen3.6-27b", "qwen3.6-27b-vision", "qwen3.5-35b-a3b", "qwen3-32b"}
    assert len(cases) >= 60


def test_what_two_ranks_of_one_unit_will_hold():
    tensor_parallel = TENSOR_PARALLEL[1]
    [instance] = accuracy.predict(tensor_parallel).instances
    free_gib, slot_gib, token_bytes = 139.0901, 73.40625 / 1024, 32768
    rest_gib = free_gib - 50.2214 / 2 - 5.5273 / 2 - (free_gib + 0.1038) * 0.15
    slots = int((rest_gib * 0.9 / 1.9 - 5 * slot_gib) / (slot_gib * (1 + 4 / 5)))
    tokens = (rest_gib - 49 * 4 * slot_gib - (slots + 1) * slot_gib) * 2**30 / token_bytes
    assert (instance.name, instance.gpus, instance.unit.ranks) == ("0-1", (0, 1), 2)
    assert (instance.gpu.state_slots, instance.gpu.max_running_requests) == (slots, 48)
    assert instance.gpu.kv_tokens == pytest.approx(tokens, rel=1e-4)
    pools = instance.unit.pools
    assert pools.kv_bytes + pools.state_bytes == pytest.approx(20e9, rel=0.01)
    assert instance.unit.total_bytes == 2 * pools.total_bytes + instance.unit.rss_bytes


def test_two_units_side_by_side_are_planned_as_two_alone_that_share_the_host():
    plan = accuracy.predict(SIDE_BY_SIDE[0])
    first, second = plan.instances
    assert (first.gpu, first.unit.pools) == (second.gpu, second.unit.pools)
    alone = json.loads(accuracy.ACCURACY.read_text())["launches"]["hicache-20"]
    assert first.gpu.state_slots == alone["state_slots"]["seen"]
    assert first.unit.pools.kv_tokens == pytest.approx(alone["hicache_kv_tokens"]["seen"], abs=2)
    needed_bytes = dict(plan.host[0].parts)
    assert sum(needed_bytes[name] for name in ("hicache KV", "hicache state", "hicache draft", "processes")) == (
        2 * first.unit.total_bytes
    )
