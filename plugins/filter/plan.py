"""Filters that show plans to people: the wiring of plan_report."""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.llmops.fleet.plugins.module_utils.plan_report import plan_page, plan_table


class FilterModule:
    """Offers plan_table and plan_page."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Name to function."""
        return {
            "plan_table": lambda result, host: plan_table(host, result),
            "plan_page": plan_page,
        }
