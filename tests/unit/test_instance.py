"""The record of an instance and the hash of what its process starts with."""

import dataclasses
import os

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import instance as core
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.processes import start_ticks

from .instances import INSTANCE, configure

PAIR = dataclasses.replace(
    INSTANCE,
    name="0-1",
    gpus=(0, 1),
    routers=({"url": "http://192.0.2.2:8000", "api_key_file": "/etc/key"},),
)


def test_a_record_survives_writing_and_reading(tmp_path):
    configure(tmp_path, PAIR)
    assert core.Instance.read("0-1", tmp_path) == PAIR
    assert core.configured(tmp_path) == ("0-1",)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "0"}', '{"colour": "red"}'])
def test_a_broken_record_is_refused(text):
    with pytest.raises(FleetError, match="deploy the host again"):
        core.Instance.from_json(text)


def test_an_unknown_instance_is_refused_with_the_known_ones(tmp_path):
    configure(tmp_path, PAIR)
    with pytest.raises(FleetError, match="name one of: 0-1"):
        core.Instance.read("7", tmp_path)


ARGS, ENV = "# the model\n--model-path=/m\n\n--port=1\n", '# why\nA="1"\n'


def sha256(args=ARGS, env=ENV, **changes):
    return core.launch_sha256(dataclasses.replace(PAIR, **changes).to_json(), args, env)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ARGS + "--x\n"},
        {"env": ENV + "B=2\n"},
        {"env": "", "args": ARGS + 'A="1"\n'},
        {"python": "/opt/sglang/0.5.20/bin/python"},
        {"model_path": "/dev/shm/sglang/n"},
        {"unit_sha256": "0"},
    ],
)
def test_what_the_process_starts_with_is_hashed(changes):
    assert sha256(**changes) != sha256()


@pytest.mark.parametrize(
    "changes", [{"args": ARGS.replace("the model", "words")}, {"start_timeout_s": 1}, {"routers": ()}]
)
def test_what_is_read_when_used_needs_no_restart(changes):
    assert sha256(**changes) == sha256()


def test_only_the_very_process_counts_as_running(tmp_path, monkeypatch):
    (tmp_path / "0").mkdir()
    monkeypatch.setattr(core, "unit_of", lambda pid: "sglang@0.service")
    own = core.Started(os.getpid(), start_ticks(os.getpid()), "hash", "0.5.23")
    own.write("0", tmp_path)
    assert core.running("0", tmp_path) == own
    assert not core.is_ready("0", own, tmp_path)
    core.mark_ready("0", os.getpid(), tmp_path)
    assert core.is_ready("0", own, tmp_path)
    dataclasses.replace(own, start_ticks=1).write("0", tmp_path)
    assert core.running("0", tmp_path) is None
    assert core.running("1", tmp_path) is None
