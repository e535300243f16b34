"""What may be removed: never what an instance, a command line, an open file or a mapping still needs."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Target, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory
from ansible_collections.llmops.fleet.plugins.module_utils.weights_use import other_revisions, remove

sys.path.insert(0, str(Path(__file__).parent))
from weights_model import make_model


@pytest.fixture
def revisions(tmp_path):
    """Staged revisions 1 and 2 of a model and another model beside them."""
    root = tmp_path / "shm"
    for name, revision, seed in (("model", "1", 1), ("model", "2", 2), ("other", "1", 3)):
        source = make_model(tmp_path / f"source-{name}-{revision}", seed=seed)
        stage(Directory(source), Target(root / f"{name}-{revision}", name, revision, state_dir=tmp_path / "state"))
    return root


def users(revisions, tmp_path):
    (found,) = other_revisions(revisions / "model-2", tmp_path / "instances")
    assert found.path == revisions / "model-1"
    return found.users


def test_an_unused_revision_goes_with_its_copy_and_nothing_else_does(revisions, tmp_path):
    (tmp_path / "models/model-1").mkdir(parents=True)
    (found,) = other_revisions(revisions / "model-2", tmp_path / "instances")
    assert found.users == ()
    remove(found, tmp_path / "models")
    assert sorted(path.name for path in revisions.iterdir() if path.is_dir()) == ["model-2", "other-1"]
    assert list((tmp_path / "models").iterdir()) == []


def test_a_revision_that_an_instance_names_stays(revisions, tmp_path):
    record = tmp_path / "instances/0/instance.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"model_path": str(revisions / "model-1")}))
    assert users(revisions, tmp_path) == ("instance 0",)


def test_a_revision_on_a_command_line_stays(revisions, tmp_path):
    with subprocess.Popen(["sh", "-c", "read line", f"--model-path={revisions}/model-1"], stdin=subprocess.PIPE) as run:
        assert any(f"PID {run.pid} " in user for user in users(revisions, tmp_path))
        run.communicate(b"\n")
    assert users(revisions, tmp_path) == ()


def test_a_revision_with_an_open_or_a_mapped_file_stays(revisions, tmp_path):
    with (revisions / "model-1/model-1-of-3.safetensors").open("rb") as shard:
        assert any(f"PID {os.getpid()} " in user for user in users(revisions, tmp_path))
        mapped = mmap.mmap(shard.fileno(), 0, prot=mmap.PROT_READ)
    assert any(f"PID {os.getpid()} " in user for user in users(revisions, tmp_path))
    mapped.close()
    assert users(revisions, tmp_path) == ()


def test_nothing_goes_while_the_wanted_revision_is_not_whole(revisions, tmp_path):
    os.truncate(revisions / "model-2/model-1-of-3.safetensors", 5)
    with pytest.raises(FleetError, match="5 bytes"):
        other_revisions(revisions / "model-2", tmp_path / "instances")
