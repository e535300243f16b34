"""Models of a hub-shaped endpoint and of an S3-compatible server, both real servers on loopback."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import weights_http
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_http import Access, HttpFiles
from ansible_collections.llmops.fleet.plugins.plugin_utils import weights_remote
from ansible_collections.llmops.fleet.plugins.plugin_utils.weights_remote import bucket_files, hub_files
from moto.server import ThreadedMotoServer

sys.path.insert(0, str(Path(__file__).parent))
from weights_model import make_model
from weights_server import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARD = "model-2-of-3.safetensors"
KEYS = {"region": "us-east-1", "access_key": "key", "secret_key": "secret-key"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(weights_http, "sleep", lambda _: None)
    monkeypatch.setattr(weights_remote, "sleep", lambda _: None)
    monkeypatch.setattr(HttpFiles, "block_bytes", 100_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = make_model(tmp_path_factory.mktemp("remote") / "model")
    subprocess.run("sha256sum $(find * -type f) > SHA256SUMS", shell=True, cwd=model, check=True)
    return model


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "disk/model", "model", COMMIT, state_dir=tmp_path / "state", threads=3, stall_s=20)


@pytest.fixture
def hub(model):
    """A hub with one private model: its listing, and addresses that redirect to a store of large files."""

    def listing(handler, match):
        if refusals:
            return handler.answer(refusals.pop(0), b"{}", [("Retry-After", "0"), ("Content-Type", "application/json")])
        if handler.headers.get("Authorization") != "Bearer hub-token":
            return handler.answer(401, b"{}", [("Content-Type", "application/json")])
        siblings = []
        for path in sorted(path for path in model.rglob("*") if path.is_file()):
            data = path.read_bytes()
            entry = {
                "rfilename": str(path.relative_to(model)),
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            }
            if path.suffix == ".safetensors":
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        body = {"id": "org/model", "sha": hub.commit, "siblings": siblings}
        return handler.answer(200, json.dumps(body).encode(), [("Content-Type", "application/json")])

    def resolve(handler, match):
        if handler.headers.get("Authorization") != "Bearer hub-token":
            return handler.answer(401)
        if match["path"].endswith(".safetensors"):
            return handler.answer(302, b"", [("Location", f"{store.url}/{match['path']}?signature=1")])
        return handler.serve_file(match["path"])

    refusals = []
    with serving(model) as hub, serving(model) as store:
        hub.commit, hub.refusals, hub.store = COMMIT, refusals, store
        hub.routes = [
            (r"/api/models/org/model/revision/" + COMMIT, listing),
            (rf"/org/model/resolve/{COMMIT}/(?P<path>.+)", resolve),
        ]
        yield hub


@pytest.fixture(scope="module")
def bucket(model):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"endpoint": f"http://{host}:{port}", **KEYS}
    client = boto3.client(
        "s3",
        endpoint_url=settings["endpoint"],
        region_name=KEYS["region"],
        aws_access_key_id="key",
        aws_secret_access_key="secret-key",
    )
    client.create_bucket(Bucket="models")
    for path in model.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "models", f"org/model/{path.relative_to(model)}")
    yield client, settings
    server.stop()


def same(target, model):
    staged = {path.relative_to(target.path): path.read_bytes() for path in target.path.rglob("*") if path.is_file()}
    staged.pop(Path("READY"))
    return staged == {
        path.relative_to(model): path.read_bytes()
        for path in model.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }


def test_a_private_model_of_a_hub_is_staged_at_its_commit(hub, model, target):
    hub.refusals += [429, 503]
    hub.store.faults[SHARD] = ["cut", 429]
    files = hub_files("hf://org/model", COMMIT, (), "hub-token", hub.url)
    assert {bool(file.get("sha256")) for file in files} == {True, False}
    stage(HttpFiles.signed("hf://org/model", files, Access("hub-token", attempts=3)), target)
    assert same(target, model)


@pytest.mark.parametrize("revision", ["", "main", "0123abc"])
def test_a_revision_that_could_move_is_refused(revision):
    with pytest.raises(FleetError, match="40 hexadecimal digits"):
        hub_files("hf://org/model", revision, ())


def test_a_hub_that_refuses_or_answers_with_another_commit_fails_loudly(hub):
    with pytest.raises(FleetError, match=r"HTTP 401 after 1 tries; give sglang_weights_token"):
        hub_files("hf://org/model", COMMIT, (), "wrong", hub.url)
    hub.commit = "f" * 40
    with pytest.raises(FleetError, match="found ffff"):
        hub_files("hf://org/model", COMMIT, (), "hub-token", hub.url)
    hub.refusals += [500] * 10
    with pytest.raises(FleetError, match="HTTP 500 after 5 tries"):
        hub_files("hf://org/model", COMMIT, (), "hub-token", hub.url)


def test_a_hub_that_does_not_answer_fails_loudly():
    with pytest.raises(FleetError, match="answer within 5 tries"):
        hub_files("hf://org/model", COMMIT, (), None, "http://127.0.0.1:9")


def test_wrong_bytes_of_a_hub_are_found(hub, target):
    hub.store.faults[SHARD] = ["wrong"] * 20
    files = hub_files("hf://org/model", COMMIT, (), "hub-token", hub.url)
    with pytest.raises(FleetError, match=rf"{SHARD} from hf://org/model with sha256"):
        stage(HttpFiles.signed("hf://org/model", files, Access("hub-token")), target)
    assert not target.path.exists()


def test_a_model_in_a_bucket_is_staged_without_keys_on_the_host(bucket, model, target):
    _, settings = bucket
    files = bucket_files("s3://models/org/model", (), settings)
    assert not any("secret-key" in file["url"] for file in files)
    stage(HttpFiles.signed("s3://models/org/model", files, Access()), target)
    assert same(target, model)


def test_a_bucket_that_cannot_be_used_is_refused_with_the_reason(bucket):
    client, settings = bucket
    with pytest.raises(FleetError, match="NoSuchBucket"):
        bucket_files("s3://other/org/model", (), settings)
    with pytest.raises(FleetError, match="0 objects without it"):
        bucket_files("s3://models/nothing", (), settings)
    client.put_object(Bucket="models", Key="broken/SHA256SUMS", Body=b"0" * 64 + b"  gone.safetensors\n")
    with pytest.raises(FleetError, match=r"gone.safetensors; complete the upload"):
        bucket_files("s3://models/broken", (), settings)
    with pytest.raises(FleetError, match="correct the bucket, its endpoint"):
        bucket_files("s3://models/org/model", (), settings | {"endpoint": "http://127.0.0.1:9"})


def test_wrong_bytes_of_a_bucket_are_found(bucket, model, target):
    client, settings = bucket
    data = bytearray((model / SHARD).read_bytes())
    data[-3] ^= 4
    for path in model.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "models", f"bad/{path.relative_to(model)}")
    client.put_object(Bucket="models", Key=f"bad/{SHARD}", Body=bytes(data))
    with pytest.raises(FleetError, match=rf"{SHARD} from s3://models/bad with sha256"):
        stage(HttpFiles.signed("s3://models/bad", bucket_files("s3://models/bad", (), settings), Access()), target)


@pytest.mark.parametrize("kind", ["hub", "bucket"])
def test_a_play_stages_from_it_and_shows_no_secret(kind, hub, bucket, model, tmp_path):
    arguments = {"path": str(tmp_path / "disk/model"), "name": "model", "state_dir": str(tmp_path / "state")}
    if kind == "hub":
        source = {"source": "hf://org/model", "revision": COMMIT, "token": "hub-token", "hub_endpoint": hub.url}
    else:
        source = {"source": "s3://models/org/model", "s3": bucket[1]}
    play = tmp_path / "play.json"
    task = {"llmops.fleet.stage_weights": arguments | source}
    play.write_text(json.dumps([{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}]))
    outputs = [
        subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-vvv", "--diff", *check, play],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        ).stdout
        for check in ((["--check"], [], []) if kind == "hub" else ([],))
    ]
    assert ["changed=1" in output for output in outputs] == ([True, True, False] if kind == "hub" else [True])
    assert "failed=0" in outputs[-1]
    assert same(Target(tmp_path / "disk/model", "model"), model)
    for secret in ("hub-token", "secret-key", "X-Amz-Signature", "signature=1"):
        assert not any(secret in output for output in outputs)
