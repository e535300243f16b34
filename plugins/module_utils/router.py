"""Workers of `sglang-router` over its REST API, and how a worker leaves without losing a request.

Behaviour of sglang-router 0.3.2, measured: POST and DELETE answer 202 and work in the background, so both are followed
by polling the list; a removed worker gets nothing new, and what is in flight runs on; ids change with every addition;
a worker that never answers `/health` never appears in the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import FleetError
from .http_api import Response, parse_metrics, request

POLL_S = 0.25
REPOST_S = 10.0
SETTLE_S = 2.0
TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
TCP_ESTABLISHED = "01"


@dataclass(frozen=True)
class Worker:
    """One entry of a router's list.

    Attributes:
        id: the router's name for it, new with every addition.
        url: base URL of the engine.
        healthy: whether the router sends requests to it.
        load: requests of this router that are in flight there.
        model: model name that the router learned from it.
    """

    id: str
    url: str
    healthy: bool
    load: int
    model: str


@dataclass(frozen=True)
class Router:
    """One router: its base URL and the key of its REST API."""

    url: str
    api_key: str = field(default="", repr=False)

    @classmethod
    def from_mapping(cls, address: Mapping[str, Any]) -> Router:
        """From `{"url": ..., "api_key_file": ...}` as in the inventory; without a key file there is no key.

        Raises FleetError for an unreadable key file.
        """
        path = address.get("api_key_file")
        return cls(address["url"].rstrip("/"), read_key(Path(path)) if path else "")

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Response:
        try:
            answer = request(method, f"{self.url}{path}", body=body, api_key=self.api_key)
        except OSError as error:
            raise FleetError(
                f"router {self.url} to answer", str(error), "start sglang-router there, or correct the URL"
            ) from error
        if answer.status == 401:
            raise FleetError(f"router {self.url} to accept the API key", "401 Unauthorized", "correct the key file")
        return answer

    def workers(self) -> tuple[Worker, ...]:
        """The router's list as it is now. Raises FleetError where the router gives none."""
        answer = self._call("GET", "/workers")
        if answer.status != 200:
            raise FleetError(f"router {self.url} to list its workers", f"status {answer.status}", "see its journal")
        return tuple(
            Worker(entry["id"], entry["url"].rstrip("/"), entry["is_healthy"], entry["load"], entry["model_id"])
            for entry in answer.json()["workers"]
        )

    def find(self, worker_url: str) -> Worker | None:
        """The worker with this URL, or None."""
        return next((worker for worker in self.workers() if worker.url == worker_url.rstrip("/")), None)

    def add(self, worker_url: str, timeout_s: float = 60.0, anew: bool = False) -> bool:
        """Have the worker listed as healthy; returns whether it was not before.

        Waits up to timeout_s and raises FleetError beyond. A worker that is listed as unhealthy is registered anew:
        that skips the health interval and closes its circuit breaker. `anew` does the same to any worker: right
        after an engine's start, when the list may still speak of the process before.
        """
        worker = self.find(worker_url)
        if worker is not None and worker.healthy and not anew:
            return False
        self.remove(worker_url, timeout_s)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = self._call("POST", "/workers", {"url": worker_url.rstrip("/")})
            if answer.status != 202:
                raise FleetError(
                    f"router {self.url} to accept worker {worker_url}",
                    f"status {answer.status}: {answer.body.strip()[:200]}",
                    "correct the worker's URL",
                )
            post_again = min(deadline, time.monotonic() + REPOST_S)
            while time.monotonic() < post_again:
                worker = self.find(worker_url)
                if worker is not None and worker.healthy:
                    return True
                time.sleep(POLL_S)
        raise FleetError(
            f"worker {worker_url} to be healthy in router {self.url} within {timeout_s:g} s",
            "an unhealthy worker" if worker else "no such worker in its list",
            "see in the router's journal why it does not reach that URL",
        )

    def remove(self, worker_url: str, timeout_s: float = 60.0) -> bool:
        """Have the worker off the list; returns whether it was on it. Raises FleetError after timeout_s."""
        deadline = time.monotonic() + timeout_s
        worker = self.find(worker_url)
        changed = worker is not None
        while worker is not None:
            if time.monotonic() > deadline:
                raise FleetError(
                    f"worker {worker_url} to leave router {self.url} within {timeout_s:g} s",
                    "it is still listed",
                    "see the router's journal",
                )
            self._call("DELETE", f"/workers/{worker.id}")
            time.sleep(POLL_S)
            worker = self.find(worker_url)
        return changed


def read_key(path: Path) -> str:
    """The API key in a file; raises FleetError where it cannot be read or is empty."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        key, reason = "", error.strerror
    else:
        reason = "an empty file"
    if not key:
        raise FleetError(f"the router's API key in {path}", str(reason), "write the key there, mode 0600")
    return key


def on_every(routers: Sequence[Router], act: Callable[[Router], bool]) -> bool:
    """Whether `act`, done at all routers at once, changed any; the first failure is raised after the last has ended."""

    def attempt(router: Router) -> bool | FleetError:
        try:
            return act(router)
        except FleetError as error:
            return error

    with ThreadPoolExecutor(len(routers) or 1) as pool:
        outcomes = list(pool.map(attempt, routers))
    for outcome in outcomes:
        if isinstance(outcome, FleetError):
            raise outcome
    return any(outcomes)


@dataclass(frozen=True)
class InFlight:
    """Work that an engine has not finished.

    Attributes:
        running, queued: requests in its scheduler (`sglang:num_running_reqs`, `sglang:num_queue_reqs`).
        open_requests: HTTP requests without a complete answer; 0 in releases that do not count them.
        unsent_connections: TCP connections of its port with bytes that the other side has not yet taken.
    """

    running: int
    queued: int
    open_requests: int
    unsent_connections: int

    @property
    def total(self) -> int:
        """0 when a stop would lose nothing."""
        return self.running + self.queued + self.open_requests + self.unsent_connections

    def __str__(self) -> str:
        return (
            f"{self.running} running, {self.queued} queued, {self.open_requests} open requests, "
            f"{self.unsent_connections} connections with unsent bytes"
        )


def _unsent_connections(port: int, tables: Sequence[Path]) -> int:
    count = 0
    for table in tables:
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, queues, *_ = line.split()
            if state == TCP_ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                count += int(queues.partition(":")[0], 16) > 0
    return count


def in_flight(worker_url: str, tcp_tables: Sequence[Path] = TCP_TABLES) -> InFlight:
    """What the engine at worker_url, on this host, has in flight; nothing where no process listens there.

    Raises OSError where it gives no answer, FleetError where it has no metrics.
    """
    try:
        answer = request("GET", f"{worker_url.rstrip('/')}/metrics")
    except OSError as error:
        if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
            return InFlight(0, 0, 0, 0)
        raise
    if answer.status != 200:
        raise FleetError(
            f"{worker_url}/metrics to count the requests in flight",
            f"status {answer.status}",
            "start the engine with --enable-metrics",
        )
    samples = parse_metrics(answer.body)

    def total(name: str, method: str | None = None) -> int:
        return int(sum(s.value for s in samples if s.name == f"sglang:{name}" and s.labels.get("method") == method))

    return InFlight(
        running=total("num_running_reqs"),
        queued=total("num_queue_reqs"),
        open_requests=total("http_requests_active", method="POST"),
        unsent_connections=_unsent_connections(urlsplit(worker_url).port or 80, tcp_tables),
    )


def wait_idle(worker_url: str, timeout_s: float, settle_s: float = SETTLE_S) -> None:
    """Wait until nothing is in flight at the worker twice, settle_s apart; raises FleetError after timeout_s.

    An engine that does not answer counts as busy: it may be in a long prefill.
    """
    deadline = time.monotonic() + timeout_s
    idle_before = False
    while True:
        try:
            busy: InFlight | OSError = in_flight(worker_url)
        except OSError as error:
            busy = error
        idle = isinstance(busy, InFlight) and busy.total == 0
        if idle and idle_before:
            return
        if time.monotonic() > deadline:
            raise FleetError(
                f"{worker_url} to finish its requests within {timeout_s:g} s of leaving the routers",
                str(busy),
                "raise the drain time-out above the longest request, or end those requests",
            )
        idle_before = idle
        time.sleep(settle_s)


def drain(routers: Sequence[Router], worker_url: str, timeout_s: float, settle_s: float = SETTLE_S) -> bool:
    """Take the worker off every router, then wait until it has nothing in flight; returns whether it was listed.

    The worker of this host only (its connections are counted here). Raises FleetError after timeout_s.
    """
    changed = on_every(routers, lambda router: router.remove(worker_url))
    wait_idle(worker_url, timeout_s, settle_s)
    return changed


def converge(
    routers: Sequence[Router],
    worker_urls: Sequence[str],
    state: str,
    *,
    timeout_s: float = 60.0,
    drain_timeout_s: float = 900.0,
    pretend: bool = False,
) -> tuple[str, str]:
    """Have the workers `present`, `absent` or `drained` in all routers (`listed`: look only); `pretend` changes none.

    Returns the entries of all lists before and after, one line each. Raises FleetError where a router does not answer
    or does not follow within the time-outs.
    """
    urls = [url.rstrip("/") for url in worker_urls]
    before = {(router.url, worker.url): worker.healthy for router in routers for worker in router.workers()}
    named = {(router.url, url): True for router in routers for url in urls}
    if state == "present":
        after = before | named
    elif state == "listed":
        after = before
    else:
        after = {entry: healthy for entry, healthy in before.items() if entry not in named}
    for url in urls if not pretend else ():
        if state == "present":
            on_every(routers, partial(Router.add, worker_url=url, timeout_s=timeout_s))
        elif state == "absent":
            on_every(routers, partial(Router.remove, worker_url=url, timeout_s=timeout_s))
        elif state == "drained":
            drain(routers, url, drain_timeout_s)

    def text(entries: Mapping[tuple[str, str], bool]) -> str:
        return "".join(
            f"{router} {worker}{'' if healthy else ' (unhealthy)'}\n"
            for (router, worker), healthy in sorted(entries.items())
        )

    return text(before), text(after)
