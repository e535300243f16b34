"""The command `sglang-fleet` on a GPU host: the core's checks without Ansible, for systemd units and people.

Each part of the core that has a command offers `register(subparsers)`, which sets `run` (a callable taking the parsed
arguments and returning the exit code) as a default of its parser.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import launch, liveness, ram_headroom, registration, router_service, staging, start_checks, status, weights_peer
from .errors import FleetError

PARTS = (launch, liveness, ram_headroom, registration, router_service, staging, start_checks, status, weights_peer)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; a refusal is printed as one line and ends with the exit code of its error."""
    parser = argparse.ArgumentParser(prog="sglang-fleet", description=__doc__.splitlines()[0])
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for part in PARTS:
        part.register(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except FleetError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
