"""From a record to a process that serves."""

import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import launch as core
from ansible_collections.llmops.fleet.plugins.module_utils import liveness
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError

from .instances import INSTANCE, configure

PAIR = dataclasses.replace(
    INSTANCE,
    gpus=(3, 4),
    device_nodes=("/dev/nvidia3", "/dev/nvidia4", "/dev/nvidiactl"),
    start_timeout_s=5,
)


@pytest.fixture
def engine():
    """An HTTP server that answers each path with what `answers` holds for it, and notes what it was asked."""
    state = SimpleNamespace(answers={}, asked=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append((self.path, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            status, body = state.answers.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.instance = dataclasses.replace(PAIR, local_url=f"http://127.0.0.1:{server.server_port}")
    yield state
    server.shutdown()
    server.server_close()


COMPLETION = (200, json.dumps({"usage": {"completion_tokens": 1}}))


@pytest.mark.parametrize(("release", "endpoint"), [("0.5.19", "/health"), ("0.5.20", "/ready")])
def test_readiness_is_asked_where_the_release_tells_it(engine, release, endpoint):
    instance = dataclasses.replace(engine.instance, engine_version=release)
    assert not core.answers(instance)
    engine.answers[endpoint] = (503, "")
    assert not core.answers(instance)
    engine.answers[endpoint] = (200, "")
    assert core.answers(instance)


def test_a_token_is_generated_through_the_api_of_clients(engine):
    engine.answers["/v1/completions"] = COMPLETION
    assert 0 < core.generate(engine.instance) < 5
    ((_, body),) = engine.asked
    assert json.loads(body)["model"] == "m"


@pytest.mark.parametrize(
    "answer",
    [(500, "boom"), (200, "no json"), (200, "{}"), (200, json.dumps({"usage": {"completion_tokens": 0}}))],
)
def test_anything_but_a_token_is_not_ready(engine, answer):
    engine.answers["/v1/completions"] = answer
    with pytest.raises(core.NotReady, match=r"sglang@0\.service to generate a token of m"):
        core.generate(engine.instance)


def test_gpus_are_numbered_as_cuda_numbers_them(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"nvidia{number}").touch()
    assert core.visible_devices(PAIR, tmp_path) == {"CUDA_VISIBLE_DEVICES": "3,4"}
    monkeypatch.setattr(core, "_opens", lambda node: node.name in ("nvidia3", "nvidia4"))
    assert core.visible_devices(PAIR, tmp_path) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert core.visible_devices(dataclasses.replace(PAIR, accelerator="cpu"), tmp_path) == {}


def test_a_swapped_card_is_refused_and_needs_no_look_where_none_is_bound(monkeypatch):
    bound = dataclasses.replace(PAIR, gpu_uuids=("GPU-a", "GPU-b"))
    shown = [SimpleNamespace(uuid="GPU-a"), SimpleNamespace(uuid="GPU-c")]
    monkeypatch.setattr(core, "observe", lambda: SimpleNamespace(gpus=shown))
    with pytest.raises(FleetError, match="found no GPU-b there"):
        core.check_cards(bound)
    shown[1].uuid = "GPU-b"
    core.check_cards(bound)
    monkeypatch.delattr(core, "observe")
    core.check_cards(PAIR)


@pytest.fixture
def probed(engine, tmp_path, monkeypatch):
    """A probe of the engine, which counts as running, and what it was killed with."""
    configure(tmp_path, dataclasses.replace(engine.instance, probe_failures=2))
    monkeypatch.setattr(liveness, "running", lambda name, runtime_dir: SimpleNamespace(pid=42))
    monkeypatch.setattr(liveness, "is_ready", lambda name, started, runtime_dir: True)
    engine.killed = []
    monkeypatch.setattr(liveness.os, "kill", lambda pid, signal: engine.killed.append((pid, signal)))
    engine.routers = []
    monkeypatch.setattr(liveness, "leave", lambda instance: engine.routers.append("left"))
    monkeypatch.setattr(liveness, "stay_entered", lambda instance, runtime_dir: engine.routers.append("entered"))
    options = SimpleNamespace(name="0", config_dir=tmp_path, runtime_dir=tmp_path)
    engine.probe = lambda: liveness.probe(options)
    engine.state = tmp_path / "0" / liveness.STATE
    return engine


def metrics(tokens):
    return 200, f'sglang:generation_tokens_total{{model="m"}} {tokens}\n'


def test_an_engine_that_makes_no_tokens_is_replaced_after_the_allowed_failures(probed):
    probed.answers["/metrics"] = metrics(7)
    with pytest.raises(core.NotReady):
        probed.probe()
    assert probed.killed == []
    with pytest.raises(liveness.Wedged, match="PID 42 was killed"):
        probed.probe()
    assert probed.killed == [(42, liveness.signal.SIGKILL)]


def test_waiting_behind_a_long_queue_is_no_failure_while_tokens_are_made(probed, monkeypatch):
    tokens = iter(range(20))
    monkeypatch.setattr(liveness, "progress", lambda instance: next(tokens))
    for _ in range(5):
        assert probed.probe() == 0
    assert probed.killed == []


def test_progress_is_read_from_the_metrics(probed):
    assert liveness.progress(probed.instance) is None
    probed.answers["/metrics"] = metrics(7)
    assert liveness.progress(probed.instance) == 7


def test_one_good_probe_makes_up_for_earlier_ones(probed):
    with pytest.raises(core.NotReady):
        probed.probe()
    assert probed.routers == ["left"]
    probed.answers["/v1/completions"] = COMPLETION
    assert probed.probe() == 0
    assert probed.routers == ["left", "entered"]
    del probed.answers["/v1/completions"]
    with pytest.raises(core.NotReady):
        probed.probe()
    assert probed.killed == []


def test_failures_of_an_earlier_process_do_not_count(probed, monkeypatch):
    with pytest.raises(core.NotReady):
        probed.probe()
    monkeypatch.setattr(liveness, "running", lambda name, runtime_dir: SimpleNamespace(pid=43))
    with pytest.raises(core.NotReady):
        probed.probe()
    assert probed.killed == []


def test_an_engine_that_does_not_serve_is_not_probed(probed, monkeypatch):
    monkeypatch.setattr(liveness, "running", lambda name, runtime_dir: None)
    assert probed.probe() == 0
    assert probed.asked == []
    assert not Path(probed.state).exists()
