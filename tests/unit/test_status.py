"""What runs, compared with what was configured and planned."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import status as core
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.instance import Started, configured_sha256
from ansible_collections.llmops.fleet.plugins.module_utils.launch import NotReady
from ansible_collections.llmops.fleet.plugins.module_utils.router import InFlight
from ansible_collections.llmops.fleet.plugins.module_utils.systemd import UnitState

from .instances import INSTANCE, configure

GIB = 2**30
PAIR = replace(
    INSTANCE,
    gpus=(0, 1),
    routers=({"url": "http://192.0.2.2:8000"},),
    host_ram_bytes=8 * GIB,
    planned={"gpu": {"kv_tokens": 1000}},
)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with one serving instance that is as planned; a test changes what it needs."""
    configure(tmp_path, PAIR, "--context-length=512\n")
    host = SimpleNamespace(
        unit=UnitState("sglang@0.service", "active", "running", "success", 42, True, False),
        started=Started(42, 1, configured_sha256("0", tmp_path), "0.5.23"),
        info={"context_length": 512, "max_total_num_tokens": 1000},
        worker=SimpleNamespace(healthy=True),
        out="",
        flight=InFlight(2, 1, 0, 0),
    )

    def give(value):
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(core, "show", lambda units: {units[0]: host.unit})
    monkeypatch.setattr(core, "running", lambda name, runtime_dir: host.started)
    monkeypatch.setattr(core, "memory_bytes", lambda unit: 6 * GIB)
    monkeypatch.setattr(core, "taken_out_by", lambda name, runtime_dir: host.out)
    monkeypatch.setattr(core.Router, "find", lambda router, url: give(host.worker))
    monkeypatch.setattr(core, "server_info", lambda instance: give(host.info))
    monkeypatch.setattr(core, "in_flight", lambda url: host.flight)
    host.look = lambda: core.status(tmp_path, tmp_path)[0]
    return host


def test_an_engine_that_is_as_planned_has_no_remark(host):
    found = host.look()
    assert found == core.InstanceStatus("0", (0, 1), "active", "0.5.23", 6 * GIB, 8 * GIB, 3, 1, ())
    header, row = core.table([core.asdict(found)]).splitlines()
    assert header.split()[:3] == ["unit", "state", "GPUs"]
    assert row.split() == ["sglang@0", "active", "0,1", "0.5.23", "6.00", "8.00", "3", "1", "as", "planned"]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"started": Started(42, 1, "other", "0.5.20")}, "runs 0.5.20 with another configuration"),
        ({"unit": UnitState("", "active", "running", "success", 42, False, False)}, "does not start at boot"),
        ({"worker": None}, r"not listed by router http://192\.0\.2\.2:8000"),
        ({"worker": SimpleNamespace(healthy=False)}, "unhealthy at router"),
        ({"worker": FleetError("a", "b", "c")}, "expected a; found b; c"),
        ({"info": {"context_length": 256}}, "context_length is 256, wanted or planned was 512"),
        ({"info": {"max_total_num_tokens": 900}}, "max_total_num_tokens is 900, wanted or planned was 1000"),
        ({"info": NotReady("a", "b", "c")}, "does not answer"),
        ({"out": "an operator"}, "taken out of the routers by an operator"),
    ],
)
def test_every_difference_is_named(host, change, remark):
    vars(host).update(change)
    (found,) = host.look().remarks
    assert re.match(remark, found)


def test_an_engine_that_is_down_is_not_asked(host):
    host.unit = UnitState("", "failed", "failed", "start-limit-hit", 0, True, False)
    host.started = None
    host.info = AssertionError("asked")
    found = host.look()
    assert (found.remarks, found.memory_bytes, found.requests) == (("failed (failed, start-limit-hit)",), 0, None)
