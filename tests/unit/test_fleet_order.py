"""The order over several hosts: which go in step, and which router that leaves with too few workers."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmops.fleet.plugins.filter.rolling import order_of, serial_groups
from ansible_collections.llmops.fleet.plugins.module_utils.fleet_order import fleet_order
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import Policy


def plan(host: str, *names: str, down: tuple[str, ...] = (), done: tuple[str, ...] = ()) -> dict[str, Any]:
    engines = [{"name": name, "url": f"http://{host}:{name}", "hot": name not in down} for name in names]
    return {"engines": engines, "done": list(done), "waves": len(names), "workers": {}}


def fleet(*plans: dict[str, Any], model: str = "m") -> dict[str, dict[str, Any]]:
    """Hosts a, b, ..., all of whose engines that run are workers of one router."""
    workers = [
        {"id": engine["url"], "url": engine["url"], "healthy": engine["hot"], "load": 0, "model": model}
        for plan in plans
        for engine in plan["engines"]
    ]
    return {host: {**plan, "workers": {"http://r": workers}} for host, plan in zip("abcd", plans, strict=False)}


def test_hosts_of_a_group_go_in_step_and_what_is_down_goes_first() -> None:
    plans = fleet(plan("a", "0", "1"), plan("b", "0", "1", down=("1",)), plan("c", "0", done=("1",)))
    assert fleet_order(plans, [["a", "b"], ["c"]], Policy()) == {
        "order": [
            "done before an interruption: sglang@1 of c",
            "1: sglang@0 of a, sglang@1 of b (down)",
            "2: sglang@1 of a, sglang@0 of b",
            "3: sglang@0 of c",
        ],
        "problems": [],
    }


def test_a_canary_goes_alone_and_is_not_done_twice() -> None:
    plans = fleet(plan("a", "0", "1"), plan("b", "0", "1"))
    assert fleet_order(plans, [["a", "b"]], Policy(batch=2), canary=1)["order"] == [
        "1 (canary): sglang@0 of a",
        "2: sglang@1 of a, sglang@0 of b, sglang@1 of b",
    ]


def test_hosts_that_would_take_the_last_workers_together_are_refused() -> None:
    plans = fleet(plan("a", "0"), plan("b", "0"))
    (problem,) = fleet_order(plans, [["a", "b"]], Policy())["problems"]
    assert "1 healthy workers left at router http://r in 1; found 0; lower rolling_serial" in problem
    assert fleet_order(plans, [["a"], ["b"]], Policy())["problems"] == []
    assert len(fleet_order(plans, [["a"], ["b"]], Policy(min_healthy=2))["problems"]) == 2
    assert fleet_order(plans, [["a", "b"]], Policy(allow_downtime=True))["problems"] == []


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [("25%", [2, 2, 2, 2]), ("10%", [1] * 8), ("100%", [8]), (3, [3, 3, 2]), ([1, "50%"], [1, 4, 3]), (0, [8])],
)
def test_groups_are_those_of_serial(serial: Any, sizes: list[int]) -> None:
    """The sizes are what Ansible itself makes of it, whose executor offers no function for it."""
    hosts = [f"h{number}" for number in range(8)]
    groups = serial_groups(hosts, serial)
    assert [len(group) for group in groups] == sizes
    assert [host for group in groups for host in group] == hosts


def test_the_filter_reads_what_the_play_registered() -> None:
    hostvars = {host: {"restart_plan": found} for host, found in fleet(plan("a", "0"), plan("b", "0")).items()}
    order = order_of(["a", "b"], hostvars, "25%", {"min_healthy": "1", "drain_timeout_s": 9}, 0)
    assert order == {"order": ["1: sglang@0 of a", "2: sglang@0 of b"], "problems": []}
