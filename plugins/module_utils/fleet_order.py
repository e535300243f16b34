"""The order in which the engines of several hosts are replaced, and whether every router keeps enough workers in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .rolling import Policy, Step, batches, workers_left
from .router import Worker

Wave = list[tuple[str, Step]]


def waves_of(hosts: Sequence[str], engines: Mapping[str, Sequence[Step]], batch: int) -> list[Wave]:
    """What is done at the same time on hosts that go in step, each in its own order, `batch` engines at a time."""
    own = {host: batches(engines[host], batch) for host in hosts}
    length = max((len(waves) for waves in own.values()), default=0)
    return [
        [(host, step) for host in hosts for step in (own[host][number] if number < len(own[host]) else ())]
        for number in range(length)
    ]


def fleet_order(
    plans: Mapping[str, Mapping[str, Any]], groups: Sequence[Sequence[str]], policy: Policy, canary: int = 0
) -> dict[str, list[str]]:
    """The order of a roll in words, and what stands against it.

    Args:
        plans: what rolling_restart returned in check mode, by host.
        groups: hosts that go in step, one group after the other.
        canary: waves of single engines that the first host does before.

    Returns `order`, a line for what an interrupted roll has done and one for each wave, and `problems`, a sentence for
    each router that it would leave with too few workers.
    """
    urls = {(host, engine["name"]): engine["url"] for host, plan in plans.items() for engine in plan["engines"]}
    left = {host: [Step(engine["name"], engine["hot"]) for engine in plan["engines"]] for host, plan in plans.items()}
    routers = {
        url: [Worker(**worker) for worker in workers]
        for plan in plans.values()
        for url, workers in plan["workers"].items()
    }
    first = waves_of(groups[0][:1], left, 1)[:canary] if canary else []
    for wave in first:
        for host, step in wave:
            left[host].remove(step)
    waves = [*first, *(wave for group in groups for wave in waves_of(group, left, policy.batch))]
    done = [f"sglang@{name} of {host}" for host, plan in plans.items() for name in plan["done"]]
    order = [f"done before an interruption: {', '.join(done)}"] if done else []
    problems = []
    for number, wave in enumerate(waves):
        names = ", ".join(f"sglang@{step.name} of {host}{'' if step.hot else ' (down)'}" for host, step in wave)
        order.append(f"{number + 1}{' (canary)' if number < len(first) else ''}: {names}")
        leaving = {urls[host, step.name] for host, step in wave}
        for router, workers in {} if policy.allow_downtime else routers.items():
            stay = workers_left(workers, leaving)
            if stay is not None and stay < policy.min_healthy:
                problems.append(
                    f"expected {policy.min_healthy} healthy workers left at router {router} in {number + 1}; found "
                    f"{stay}; lower rolling_serial, rolling_batch or min_healthy, or set allow_downtime"
                )
    return {"order": order, "problems": problems}
