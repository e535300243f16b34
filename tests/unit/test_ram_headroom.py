"""The RAM gate: a plan against a host measured later, in the module's way and in the host tool's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import ram_headroom
from ansible_collections.llmops.fleet.plugins.module_utils.cli import main
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import Host, Node
from ansible_collections.llmops.fleet.plugins.module_utils.ram_headroom import headroom, recorded_plan, start_headroom
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

from .planning import MTP, RTX, planned

HOST = Host(
    total_bytes=512 * GIB,
    available_bytes=300 * GIB,
    shm_size_bytes=128 * GIB,
    shm_used_bytes=60 * GIB,
    staged_bytes=52 * GIB,
)


@pytest.fixture
def plan():
    """Two engines with 60 GB of host tier each, as capacity_plan returns them."""
    gpus = [{**RTX, "index": index, "numa_node": index} for index in range(2)]
    return planned("qwen3.6-27b", "0.5.23", gpus=gpus, mtp=MTP, hicache_gb=60)


def test_the_gate_adds_up_what_the_plan_says(plan):
    found = headroom(plan.as_dict(), HOST)
    assert not found.problems
    parts = dict(found.budgets[0].parts)
    planned_parts = dict(plan.host[0].parts)
    for name in ("hicache KV", "hicache state", "processes", "load peak"):
        assert parts[name] == pytest.approx(planned_parts[name], rel=0.0001)


def test_a_host_that_lost_memory_is_refused_with_the_table(plan):
    found = headroom(plan.as_dict(), replace(HOST, available_bytes=100 * GIB))
    assert "too little" in str(found.problems[0])
    table = found.table()
    for words in ("hicache KV", "processes", "reserve", "needed", "available", "too little"):
        assert words in table
    assert f"Largest hicache_gb per GPU that would fit: {found.largest_hicache_gb}" in table


def test_the_largest_size_fits_and_one_more_does_not(plan):
    small = replace(HOST, available_bytes=100 * GIB)
    largest_gb = headroom(plan.as_dict(), small).largest_hicache_gb
    assert 0 < largest_gb < 60
    options = {"gpus": [{**RTX, "index": index} for index in range(2)], "mtp": MTP}
    fitting, beyond = (
        headroom(planned("qwen3.6-27b", "0.5.23", hicache_gb=size, **options).as_dict(), small)
        for size in (largest_gb, largest_gb + 1)
    )
    assert not fitting.problems
    assert beyond.problems


def test_running_engines_are_credited(plan):
    running = replace(HOST, available_bytes=100 * GIB, held_bytes=130 * GIB)
    assert not headroom(plan.as_dict(), running).problems


def test_one_full_numa_node_is_refused(plan):
    nodes = (Node(0, 256 * GIB, 40 * GIB), Node(1, 256 * GIB, 260 * GIB))
    found = headroom(plan.as_dict(), replace(HOST, nodes=nodes))
    assert [budget.where for budget in found.budgets] == ["the host", "NUMA node 0", "NUMA node 1"]
    assert "NUMA node 0" in str(found.problems[0])


def test_one_engine_starts_beside_those_that_run(plan):
    """Its own 60 GB, processes, load peak and the reserve must be there; what others hold is theirs."""
    need_gib = 56 + 4.1 + 4.8 + 25.6 + 0.5
    beside = replace(HOST, available_bytes=round(need_gib * GIB), held_bytes=100 * GIB)
    assert not start_headroom(plan.as_dict(), "1", beside).problems
    assert start_headroom(plan.as_dict(), "1", replace(beside, available_bytes=80 * GIB)).problems
    assert start_headroom(plan.as_dict(), "1", beside, promised_bytes=5 * GIB).problems
    assert headroom(plan.as_dict(), replace(beside, held_bytes=0)).problems


@pytest.mark.parametrize("damaged", [{}, {"engine_version": "0.5.23", "instances": [{"name": "0"}], "host": {}}])
def test_something_else_than_a_plan(damaged):
    with pytest.raises(FleetError, match="the result of capacity_plan"):
        headroom(damaged, HOST)


@pytest.fixture
def records(tmp_path, plan):
    """The instances' records as a deployment leaves them."""
    for instance in plan.as_dict()["instances"]:
        directory = tmp_path / "instances" / instance["name"]
        directory.mkdir(parents=True)
        record = {
            "name": instance["name"],
            "gpus": instance["gpus"],
            "engine_version": "0.5.23",
            "model_path": str(tmp_path / "shm" / "model"),
            "planned": {"gpu": instance["gpu"], "host": instance["host"]},
        }
        (directory / "instance.json").write_text(json.dumps(record))
    (tmp_path / "shm").mkdir()
    return tmp_path / "instances"


@pytest.mark.parametrize(("available_gib", "code"), [(300, 0), (100, ram_headroom.SHORT)])
def test_the_host_tool_weighs_the_recorded_instances(records, monkeypatch, capsys, available_gib, code):
    host = replace(HOST, available_bytes=available_gib * GIB)
    monkeypatch.setattr(ram_headroom, "measure_host", lambda staged, shm: host)
    assert main(["ram-headroom", "--config-dir", str(records)]) == code
    said = capsys.readouterr().out
    assert main(["ram-headroom", "0", "--config-dir", str(records)]) == 0
    assert "hicache KV" in said
    assert ("refused: " in said) is bool(code)


def test_the_host_tool_on_this_machine(records, capsys):
    """Whatever this machine has, the sums are printed and the exit code follows them."""
    code = main(["ram-headroom", "--config-dir", str(records)])
    assert ("refused: " in capsys.readouterr().out) is (code == ram_headroom.SHORT)


def test_records_that_are_missing_or_without_a_plan(records, tmp_path):
    with pytest.raises(FleetError, match="deploy the host first"):
        recorded_plan(tmp_path / "nowhere")
    path = records / "0" / "instance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "planned": {}}))
    with pytest.raises(FleetError, match="planned numbers"):
        ram_headroom.run(SimpleNamespace(config_dir=records, name=None))
