"""Staging from a real HTTP server on loopback that cuts, shortens, lies and refuses."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import weights_http
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target, plan, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_http import Access, HttpFiles
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory

sys.path.insert(0, str(Path(__file__).parent))
from weights_model import make_model
from weights_server import serving

SHARD = "model-2-of-3.safetensors"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(weights_http, "sleep", lambda _: None)
    monkeypatch.setattr(HttpFiles, "block_bytes", 100_000)


@pytest.fixture
def model(tmp_path):
    model = make_model(tmp_path / "model")
    subprocess.run("sha256sum $(find * -type f) > SHA256SUMS", shell=True, cwd=model, check=True)
    return model


@pytest.fixture
def server(model):
    with serving(model) as server:
        yield server


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "disk/model", "model", state_dir=tmp_path / "state", threads=3, stall_s=20)


def mirror(server, **access):
    return HttpFiles.mirror(server.url, (), Access(**{"timeout_s": 0.5, "attempts": 3} | access))


def same(target, model):
    for path in model.rglob("*"):
        if path.is_file() and path.name != "SHA256SUMS":
            assert (target.path / path.relative_to(model)).read_bytes() == path.read_bytes()
    return True


def test_a_mirror_is_staged_and_staged_once(server, model, target):
    stage(mirror(server), target)
    assert same(target, model)
    server.served.clear()
    assert stage(mirror(server), target) is None
    assert server.served == []


@pytest.mark.parametrize(
    "faults",
    [
        ["cut"],
        ["cut", "cut", "cut", "cut", "cut"],
        ["short"],
        [429],
        [503, 500],
        ["silent"],
        ["wrong"],
        ["cut", 429, "wrong", 502, "short"],
    ],
    ids=str,
)
def test_what_a_server_recovers_from_is_waited_out(server, model, target, faults):
    server.faults[SHARD] = list(faults)
    source = mirror(server)
    stage(source, target)
    assert same(target, model)
    assert [fault for *_, fault in server.served if fault] == faults


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (503, r"within 3 tries; found HTTP 503"),
        (429, r"HTTP 429"),
        (404, r"HTTP 404; correct the address"),
        (403, r"HTTP 403; give a token"),
        ("wrong", r"with sha256 .* twice"),
        ("whole", r"range requests"),
        ("grown", r"range requests and whose files match"),
        ("silent", r"within 3 tries; found TimeoutError"),
    ],
)
def test_what_it_does_not_recover_from_fails_loudly_and_is_resumed(server, model, target, fault, found):
    server.faults[SHARD] = [None, fault] + [fault] * 20
    with pytest.raises(FleetError, match=found):
        stage(mirror(server), target)
    assert not target.path.exists()
    server.faults.clear()
    remaining = plan(mirror(server), target).remaining_bytes
    assert remaining < sum(path.stat().st_size for path in model.glob("*.safetensors"))
    server.served.clear()
    stage(mirror(server), target)
    assert same(target, model)
    assert sum(last + 1 - first for _, first, last, _ in server.served) <= remaining


def test_a_mirror_without_a_manifest_proves_nothing(server, model, target):
    (model / "SHA256SUMS").unlink()
    with pytest.raises(FleetError, match="expected a manifest"):
        mirror(server)


def test_a_mirror_that_lacks_a_listed_file_is_refused(server, model):
    (model / SHARD).unlink()
    with pytest.raises(FleetError, match=f"no .*{SHARD}"):
        mirror(server)


def test_a_file_outside_the_directory_is_refused(target):
    files = [{"path": "../x", "url": "http://localhost/x", "size_bytes": 1, "sha256": "0" * 64}]
    with pytest.raises(FleetError, match="below the model directory"):
        plan(HttpFiles.signed("hub", files, Access()), target)


def test_a_server_that_wants_a_token_gets_it_and_those_it_redirects_to_do_not(server, model, target, tmp_path):
    server.token = "secret-token"
    with pytest.raises(FleetError, match="HTTP 401; give a token"):
        mirror(server)
    seen = []
    with serving(model) as elsewhere:
        elsewhere.routes.append(
            (
                r"/(?P<path>.*)",
                lambda handler, match: (
                    seen.append(handler.headers.get("Authorization")),
                    handler.serve_file(match["path"]),
                ),
            )
        )
        server.routes.append(
            (
                r"/(?P<path>model-.*safetensors)",
                lambda handler, match: handler.answer(302, b"", [("Location", f"{elsewhere.url}/{match['path']}")]),
            )
        )
        stage(mirror(server, token="secret-token"), target)
    assert same(target, model)
    assert set(seen) == {None}


def test_an_expired_redirect_is_asked_for_again(server, model, target):
    with serving(model) as elsewhere:
        elsewhere.faults[SHARD] = [None, 403, None, 403]
        redirects = []
        server.routes.append(
            (
                r"/(?P<path>model-.*safetensors)",
                lambda handler, match: (
                    redirects.append(match["path"]),
                    handler.answer(302, b"", [("Location", f"{elsewhere.url}/{match['path']}")]),
                ),
            )
        )
        stage(mirror(server), dataclasses.replace(target, threads=1))
        assert elsewhere.faults[SHARD] == []
    assert same(target, model)
    assert redirects.count(SHARD) >= 2


def test_files_of_a_hub_are_checked_by_their_git_identity(server, model, target):
    blob = subprocess.run(["git", "hash-object", model / "config.json"], capture_output=True, text=True, check=True)
    files = [
        {"path": "config.json", "url": f"{server.url}/config.json", "size_bytes": 2, "git_sha1": blob.stdout.strip()}
    ]
    stage(HttpFiles.signed("hub", files, Access()), target)
    assert stage(HttpFiles.signed("hub", files, Access()), target) is None
    (model / "config.json").write_text("[]")
    second = Target(target.path.with_name("second"), "model", state_dir=target.state_dir)
    with pytest.raises(FleetError, match="with Git blob"):
        stage(HttpFiles.signed("hub", files, Access()), second)


def test_a_staged_model_served_by_a_peer_needs_no_sums(server, model, target, tmp_path):
    stage(Directory(model), target)
    with serving(target.path) as peer:
        second = Target(tmp_path / "second/model", "model", state_dir=tmp_path / "state2")
        stage(mirror(peer), second)
    assert same(second, model)
