"""What real launches on an H200 allocated (benchmarks/gpu/results), against the plan of the core as it is now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "benchmarks/gpu"
sys.path.insert(0, str(GPU))

import accuracy  # noqa: E402

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
