"""An instance and its routers: in the list while it serves, out of it before it stops."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .errors import FleetError
from .instance import Instance
from .router import Router, on_every, wait_idle
from .start_checks import add_instance_arguments


def routers_of(instance: Instance) -> list[Router]:
    """The routers that send the instance requests. Raises FleetError for an API key that cannot be read."""
    return [Router.from_mapping(address) for address in instance.routers]


def enter(instance: Instance, *, anew: bool) -> bool:
    """Have every router list the instance as healthy; returns whether one did not before.

    All are tried; raises FleetError for the first that failed. `anew` re-registers: the list may still speak of the
    process before.
    """
    return on_every(routers_of(instance), lambda router: router.add(instance.url, anew=anew))


def leave(options: argparse.Namespace) -> int:
    """`sglang-fleet leave NAME`: off the routers' lists, whatever ended the engine."""
    instance = Instance.read(options.name, options.config_dir)
    on_every(routers_of(instance), lambda router: router.remove(instance.url))
    return 0


def drain(options: argparse.Namespace) -> int:
    """`sglang-fleet drain NAME`: off the routers' lists, then wait until the engine has nothing in flight.

    A router that does not answer is named and does not keep the engine from finishing what it has.
    Raises FleetError where requests are in flight after the instance's drain time-out.
    """
    try:
        leave(options)
    except FleetError as error:
        print(f"warning: {error}", file=sys.stderr, flush=True)
    instance = Instance.read(options.name, options.config_dir)
    wait_idle(instance.local_url, instance.drain_timeout_s)
    print(f"drained: {instance.unit} has no request in flight", flush=True)
    return 0


def register(subparsers: Any) -> None:
    """Offer `drain` and `leave` to the host tool."""
    for command, function, what in (
        ("drain", drain, "leave the routers and wait until nothing is in flight (ExecStop)"),
        ("leave", leave, "leave the routers (ExecStopPost)"),
    ):
        parser = subparsers.add_parser(command, help=what)
        parser.set_defaults(run=function)
        add_instance_arguments(parser)
