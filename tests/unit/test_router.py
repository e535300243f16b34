"""The router's client and the drain, against an HTTP server that behaves as sglang-router 0.3.2 was seen to."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.http_api import parse_metrics
from ansible_collections.llmops.fleet.plugins.module_utils.router import (
    InFlight,
    Router,
    converge,
    drain,
    in_flight,
    on_every,
    read_key,
    wait_idle,
)
from ansible_collections.llmops.fleet.plugins.module_utils.router_service import WorkerList

FIXTURES = Path(__file__).parent.parent / "fixtures" / "router"
KEY = "secret"
ENGINE = "http://127.0.0.1:1"


class Server(ThreadingHTTPServer):
    """A server whose answers a test sets."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class RouterServer(Server):
    """Adds and removes in the background, gives every addition a new id, refuses a wrong key."""

    def __init__(self) -> None:
        self.workers: dict[str, dict[str, object]] = {}
        self.unreachable: set[str] = set()
        self.frozen = False
        super().__init__(RouterHandler)

    def entry(self, url: str, healthy: bool = True) -> None:
        name = str(uuid.uuid4())
        self.workers[name] = {"id": name, "url": url, "is_healthy": healthy, "load": 0, "model_id": "tiny"}

    def urls(self) -> list[object]:
        return [worker["url"] for worker in self.workers.values()]


class RouterHandler(Handler):
    server: RouterServer

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.reply(401)
            return False
        return True

    def do_GET(self) -> None:
        self.reply(200, json.dumps({"workers": list(self.server.workers.values())}))

    def do_POST(self) -> None:
        url = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["url"]
        if url not in self.server.unreachable and url not in self.server.urls():
            threading.Timer(0.05, self.server.entry, (url,)).start()
        self.reply(202, "{}")

    def do_DELETE(self) -> None:
        if not self.server.frozen:
            threading.Timer(0.05, self.server.workers.pop, (self.path.rpartition("/")[2], None)).start()
        self.reply(202, "{}")


class EngineServer(Server):
    """An engine's /ready and /metrics."""

    def __init__(self) -> None:
        self.metrics = (FIXTURES / "metrics-idle.txt").read_text()
        self.status = 200
        super().__init__(EngineHandler)


class EngineHandler(Handler):
    server: EngineServer

    def do_GET(self) -> None:
        self.reply(self.server.status, self.server.metrics if self.path == "/metrics" else "")


@pytest.fixture
def router_server() -> Iterator[RouterServer]:
    with RouterServer() as server:
        yield server
        server.shutdown()


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    with EngineServer() as server:
        yield server
        server.shutdown()


def client(server: RouterServer) -> Router:
    return Router(server.url, KEY)


def test_add_waits_until_the_worker_is_listed_and_changes_nothing_twice(router_server: RouterServer) -> None:
    router = client(router_server)
    assert router.add(ENGINE)
    assert [worker.url for worker in router.workers()] == [ENGINE]
    assert not router.add(ENGINE + "/")


def test_an_unhealthy_worker_is_registered_anew(router_server: RouterServer) -> None:
    router_server.entry(ENGINE, healthy=False)
    before = set(router_server.workers)
    assert client(router_server).add(ENGINE)
    assert not before & set(router_server.workers)


def test_anew_replaces_a_healthy_entry(router_server: RouterServer) -> None:
    router_server.entry(ENGINE)
    before = set(router_server.workers)
    assert client(router_server).add(ENGINE, anew=True)
    assert not before & set(router_server.workers)


def test_add_names_a_worker_that_never_appears(router_server: RouterServer) -> None:
    router_server.unreachable.add(ENGINE)
    with pytest.raises(FleetError, match=r"healthy in router .* within 0\.5 s; found no such worker"):
        client(router_server).add(ENGINE, timeout_s=0.5)


def test_remove_waits_until_the_worker_is_gone_and_changes_nothing_twice(router_server: RouterServer) -> None:
    router_server.entry(ENGINE)
    router = client(router_server)
    assert router.remove(ENGINE)
    assert router_server.urls() == []
    assert not router.remove(ENGINE)


def test_remove_is_bounded(router_server: RouterServer) -> None:
    router_server.entry(ENGINE)
    router_server.frozen = True
    with pytest.raises(FleetError, match="it is still listed"):
        client(router_server).remove(ENGINE, timeout_s=0.3)


def test_a_wrong_key_is_named_and_never_shown(router_server: RouterServer) -> None:
    router = Router(router_server.url, "wrong-key")
    with pytest.raises(FleetError, match="accept the API key"):
        router.workers()
    assert "wrong-key" not in repr(router)


def test_a_router_that_is_down_is_named() -> None:
    with pytest.raises(FleetError, match=r"router http://127\.0\.0\.1:1 to answer"):
        Router("http://127.0.0.1:1").workers()


def test_every_router_is_tried_before_a_failure_is_raised(router_server: RouterServer) -> None:
    router_server.entry(ENGINE)
    with pytest.raises(FleetError, match=r"http://127\.0\.0\.1:1 to answer"):
        on_every([Router("http://127.0.0.1:1"), client(router_server)], lambda router: router.remove(ENGINE))
    assert router_server.urls() == []


def test_keys_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abc\n")
    address = {"url": "http://r:1/", "api_key_file": str(tmp_path / "key")}
    assert Router.from_mapping(address) == Router("http://r:1", "abc")
    assert Router.from_mapping({"url": "http://r:1"}) == Router("http://r:1")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(FleetError, match="empty file"):
        read_key(tmp_path / "empty")
    with pytest.raises(FleetError, match="No such file"):
        read_key(tmp_path / "missing")


def test_metrics_of_a_real_engine_are_counted(engine: EngineServer) -> None:
    engine.metrics = (FIXTURES / "metrics-busy.txt").read_text()
    assert in_flight(engine.url) == InFlight(running=3, queued=0, open_requests=3, unsent_connections=0)


def test_connections_with_unsent_bytes_are_in_flight(engine: EngineServer, tmp_path: Path) -> None:
    local = f"0100007F:{engine.server_port:04X}"
    (tmp_path / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue:rx_queue tr:tm->when retrnsmt   uid\n"
        f"   0: {local} 0100007F:9C40 01 00000A00:00000000 01:00000014 00000000 0\n"
        f"   1: {local} 0100007F:9C41 01 00000000:00000000 01:00000014 00000000 0\n"
        f"   2: {local} 00000000:0000 0A 00000001:00000000 01:00000014 00000000 0\n"
        "   3: 0100007F:0050 0100007F:9C42 01 00000A00:00000000 01:00000014 00000000 0\n"
    )
    assert in_flight(engine.url, (tmp_path / "tcp",)).unsent_connections == 1


def test_an_engine_that_does_not_listen_has_nothing_in_flight() -> None:
    assert in_flight(ENGINE).total == 0


def test_an_engine_without_metrics_is_refused(engine: EngineServer) -> None:
    engine.status = 404
    with pytest.raises(FleetError, match="--enable-metrics"):
        in_flight(engine.url)


def test_idle_must_be_seen_twice(engine: EngineServer) -> None:
    busy = (FIXTURES / "metrics-busy.txt").read_text()
    idle = engine.metrics
    threading.Timer(0.05, setattr, (engine, "metrics", busy)).start()
    threading.Timer(0.5, setattr, (engine, "metrics", idle)).start()
    begin = time.monotonic()
    wait_idle(engine.url, timeout_s=5, settle_s=0.15)
    assert time.monotonic() - begin > 0.6


def test_a_drain_that_does_not_end_says_what_is_left(router_server: RouterServer, engine: EngineServer) -> None:
    engine.metrics = (FIXTURES / "metrics-busy.txt").read_text()
    router_server.entry(engine.url)
    with pytest.raises(FleetError, match="found 3 running, 0 queued, 3 open requests"):
        drain([client(router_server)], engine.url, timeout_s=0.3, settle_s=0.05)
    assert router_server.urls() == []


def test_a_drain_leaves_every_router(router_server: RouterServer, engine: EngineServer) -> None:
    router_server.entry(engine.url)
    assert drain([client(router_server)], engine.url, timeout_s=5, settle_s=0.05)
    assert not drain([client(router_server)], engine.url, timeout_s=5, settle_s=0.05)


def test_states_are_predicted_as_they_come_true(router_server: RouterServer) -> None:
    router_server.entry("http://sick:1", healthy=False)
    routers = [client(router_server)]
    for state, urls, lines in (
        ("present", [ENGINE + "/"], [ENGINE, "http://sick:1 (unhealthy)"]),
        ("present", [ENGINE], [ENGINE, "http://sick:1 (unhealthy)"]),
        ("listed", [], [ENGINE, "http://sick:1 (unhealthy)"]),
        ("absent", ["http://sick:1"], [ENGINE]),
        ("drained", [ENGINE], []),
    ):
        predicted = converge(routers, urls, state, pretend=True)
        assert predicted == converge(routers, urls, state)
        assert predicted[1] == "".join(f"{router_server.url} {line}\n" for line in lines)


def test_escapes_in_metric_labels() -> None:
    (sample,) = parse_metrics('# HELP x\nx{a="b\\"},c",d="e"} 1.5\n\nbroken\n')
    assert (sample.name, sample.value, dict(sample.labels)) == ("x", 1.5, {"a": 'b\\"},c', "d": "e"})


class TestWorkerList:
    def test_a_restarted_router_gets_its_answering_workers_back(
        self, router_server: RouterServer, engine: EngineServer, tmp_path: Path
    ) -> None:
        state = tmp_path / "workers.json"
        router_server.entry(engine.url)
        WorkerList(client(router_server), state, 60).step()
        router_server.workers.clear()
        WorkerList(client(router_server), state, 60).step()
        assert router_server.urls() == [engine.url]

    def test_a_worker_that_does_not_answer_is_added_when_it_does(
        self, router_server: RouterServer, engine: EngineServer, tmp_path: Path
    ) -> None:
        state = tmp_path / "workers.json"
        state.write_text(json.dumps({"workers": [engine.url]}))
        engine.status = 503
        workers = WorkerList(client(router_server), state, 60)
        workers.step()
        assert router_server.urls() == []
        assert json.loads(state.read_text()) == {"workers": [engine.url]}
        engine.status = 200
        workers.step()
        assert router_server.urls() == [engine.url]

    def test_a_worker_taken_out_is_forgotten(self, router_server: RouterServer, tmp_path: Path) -> None:
        state = tmp_path / "workers.json"
        router_server.entry(ENGINE)
        workers = WorkerList(client(router_server), state, 60)
        workers.step()
        router_server.workers.clear()
        workers.step()
        assert json.loads(state.read_text()) == {"workers": []}

    def test_waiting_for_a_missing_worker_ends(self, router_server: RouterServer, tmp_path: Path) -> None:
        state = tmp_path / "workers.json"
        state.write_text(json.dumps({"workers": [ENGINE]}))
        workers = WorkerList(client(router_server), state, 0)
        workers.step()
        assert json.loads(state.read_text()) == {"workers": []}
