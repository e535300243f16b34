"""`sglang-router` as a service: the API key stays out of argv, and the worker list outlives the router's process."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .errors import FleetError
from .http_api import request
from .router import Router, read_key

KEEP_INTERVAL_S = 1.0
READY_TIMEOUT_S = 5.0


def serve(api_key_file: Path, arguments: Sequence[str]) -> None:
    """Run sglang-router in this process, with the key from the file; returns after its graceful stop.

    The running Python must be the one of the virtual environment that holds the package sglang-router.
    Raises FleetError where it is another one.
    """
    try:
        launcher = import_module("sglang_router.launch_router")
    except ModuleNotFoundError as error:
        raise FleetError(
            "a Python that has the package sglang-router",
            f"{sys.executable} without {error.name}",
            "call it with the python of /opt/sglang-router/current",
        ) from error
    settings = launcher.parse_router_args(list(arguments))
    settings.api_key = read_key(api_key_file)
    launcher.launch_router(settings)


def answers(worker_url: str) -> bool:
    """Whether an engine serves at the URL: `/ready` is 200, or `/health` where the release has no `/ready`."""
    try:
        status = request("GET", f"{worker_url}/ready", timeout_s=READY_TIMEOUT_S).status
        if status == 404:
            status = request("GET", f"{worker_url}/health", timeout_s=READY_TIMEOUT_S).status
    except OSError:
        return False
    return status == 200


class WorkerList:
    """The workers of one router, remembered in a file across the router's restarts.

    A worker that the file names and that the router does not list is added as soon as it answers, for
    restore_timeout_s after the start; from then on, and for every other worker, the router's own list decides.
    """

    def __init__(self, router: Router, path: Path, restore_timeout_s: float) -> None:
        self.router = router
        self.path = path
        self.restore_until = time.monotonic() + restore_timeout_s
        self.missing = self._read()

    def _read(self) -> set[str]:
        try:
            return set(json.loads(self.path.read_text(encoding="utf-8"))["workers"])
        except FileNotFoundError:
            return set()

    def step(self) -> None:
        """Add remembered workers that answer by now, and write down the list. Raises FleetError without a router."""
        listed = {worker.url for worker in self.router.workers()}
        self.missing -= listed
        if time.monotonic() > self.restore_until:
            self.missing.clear()
        for url in sorted(self.missing):
            if answers(url):
                self.router.add(url)
                print(f"restored worker {url}", flush=True)
        remembered = listed | self.missing
        if remembered != self._read():
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"workers": sorted(remembered)}) + "\n", encoding="utf-8")
            new.replace(self.path)


def keep(workers: WorkerList) -> None:
    """Take a step every second until stopped; a router that does not answer is waited for."""
    answering = True
    while True:
        try:
            workers.step()
            answering = True
        except FleetError as error:
            if answering:
                print(f"waiting: {error}", flush=True)
            answering = False
        time.sleep(KEEP_INTERVAL_S)


def _run_serve(arguments: argparse.Namespace) -> int:
    serve(arguments.api_key_file, arguments.arguments)
    return 0


def _run_keep(arguments: argparse.Namespace) -> int:
    router = Router(arguments.url, read_key(arguments.api_key_file))
    keep(WorkerList(router, arguments.state, arguments.restore_timeout_s))
    return 0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of the router's two units."""
    parser = subparsers.add_parser("router-serve", help="run sglang-router with its API key from a file")
    parser.add_argument("--api-key-file", type=Path, required=True)
    parser.add_argument("arguments", nargs="*", help="arguments of sglang-router, after --")
    parser.set_defaults(run=_run_serve)
    parser = subparsers.add_parser("router-keep", help="remember the router's workers and restore them")
    parser.add_argument("--url", required=True, help="base URL of the router")
    parser.add_argument("--api-key-file", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="JSON file that holds the list")
    parser.add_argument("--restore-timeout-s", type=float, default=600.0)
    parser.set_defaults(run=_run_keep)
