"""The one error of the core: what was expected, what was found, what to change."""

from __future__ import annotations


class FleetError(ValueError):
    """A refusal that a person can act on.

    Args:
        expected: what the product needs, as a sentence without a full stop.
        found: what it saw instead, with the value.
        change: what the person at the keyboard should do.

    A command that ends with it prints `kind` before the message and exits with `exit_code`, 78 (EX_CONFIG) unless a
    subclass says otherwise.
    """

    kind = "refused"
    exit_code = 78

    def __init__(self, expected: str, found: str, change: str) -> None:
        super().__init__(f"expected {expected}; found {found}; {change}")
        self.expected = expected
        self.found = found
        self.change = change
