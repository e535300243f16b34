"""Filters of restart.yml: the wiring of fleet_order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.helpers import pct_to_int
from ansible_collections.llmops.fleet.plugins.module_utils.fleet_order import fleet_order
from ansible_collections.llmops.fleet.plugins.module_utils.rolling import Policy


def serial_groups(hosts: Sequence[str], serial: Any) -> list[list[str]]:
    """The hosts of a play in the groups that `serial` makes: a number, a share such as 25%, or a list of these."""
    sizes = [pct_to_int(size, len(hosts)) for size in (serial if isinstance(serial, list) else [serial])]
    left, groups = list(hosts), []
    while left:
        size = sizes[min(len(groups), len(sizes) - 1)]
        size = size if size > 0 else len(left)
        groups.append(left[:size])
        left = left[size:]
    return groups


def order_of(
    hosts: Sequence[str], hostvars: Mapping[str, Any], serial: Any, rolling: Mapping[str, Any], canary: int
) -> dict[str, list[str]]:
    """`fleet_order` of a play's hosts, each with `restart_plan`."""
    plans = {host: hostvars[host]["restart_plan"] for host in hosts}
    policy = Policy(
        batch=int(rolling.get("batch", Policy.batch)),
        min_healthy=int(rolling.get("min_healthy", Policy.min_healthy)),
        allow_downtime=boolean(rolling.get("allow_downtime", Policy.allow_downtime)),
    )
    return fleet_order(plans, serial_groups(hosts, serial), policy, canary)


class FilterModule:
    """Offers fleet_order."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"fleet_order": order_of}
