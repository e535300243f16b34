"""A host that has a model hands it to another over a real connection, to nobody else, and ends by itself."""

import stat
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import weights_peer
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_http import Access, HttpFiles
from ansible_collections.llmops.fleet.plugins.module_utils.weights_peer import Share
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory

sys.path.insert(0, str(Path(__file__).parent))
from weights_model import make_model


@pytest.fixture
def staged(tmp_path):
    target = Target(tmp_path / "shm/model", "model", state_dir=tmp_path / "state")
    stage(Directory(make_model(tmp_path / "source")), target)
    return target.path


def test_a_peer_gets_the_whole_model_with_the_token_alone(staged, tmp_path, monkeypatch):
    monkeypatch.setattr(HttpFiles, "block_bytes", 100_000)
    (staged / "not-in-ready").write_text("x")
    share = Share(staged, ("127.0.0.1", 0), "token")
    url = f"http://127.0.0.1:{share.server_address[1]}"
    serving = threading.Thread(target=share.serve_until_idle, args=(0.3,))
    serving.start()
    with pytest.raises(FleetError, match="HTTP 401"):
        HttpFiles.mirror(url, (), Access("wrong"))
    target = Target(tmp_path / "disk/model", "model", state_dir=tmp_path / "state2")
    stage(HttpFiles.mirror(url, (), Access("token")), target)
    for path in (path for path in staged.rglob("*") if path.is_file() and path.name not in ("READY", "not-in-ready")):
        assert (target.path / path.relative_to(staged)).read_bytes() == path.read_bytes()
    secret = [{"path": "x", "url": f"{url}/not-in-ready", "size_bytes": 1, "sha256": "0" * 64}]
    with pytest.raises(FleetError, match="HTTP 404"):
        stage(HttpFiles.signed(url, secret, Access("token")), Target(tmp_path / "x", "x", state_dir=tmp_path / "s"))
    serving.join(timeout=5)
    assert not serving.is_alive()
    share.server_close()


def test_half_a_model_is_not_shared(staged):
    (staged / "READY").unlink()
    with pytest.raises(FleetError, match="without READY"):
        Share(staged, ("127.0.0.1", 0), "token")


def test_the_token_is_for_root_alone(staged, tmp_path):
    started = time.monotonic()
    arguments = Namespace(path=staged, listen="127.0.0.1", port=0, idle_s=0.2)
    assert weights_peer.share(arguments, {"RUNTIME_DIRECTORY": str(tmp_path)}) == 0
    assert time.monotonic() - started < 5
    token = tmp_path / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32
