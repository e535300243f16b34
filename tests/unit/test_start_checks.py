"""What an engine's start waits for and is refused for."""

import dataclasses
import socket
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import start_checks as core
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_facts import GpuProcess, ObservedGpu
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import Host
from ansible_collections.llmops.fleet.plugins.module_utils.manifest import Manifest

from .instances import INSTANCE, configure

GIB = 2**30
PLANNED = {
    "numa_nodes": [None],
    "hicache_kv_gb": 0,
    "hicache_state_gb": 0,
    "hicache_draft_gb": 0,
    "hicache_index_gb": 0,
    "rss_gib": 100,
    "ram_per_hicache_gb": 1.0,
}


@pytest.fixture
def instance(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "READY").write_text(Manifest("model", "", "/srv/model", {}).text())
    return dataclasses.replace(INSTANCE, port=0, nccl_port=0, model_path=str(model), host_ram_bytes=100 * GIB)


@pytest.fixture
def config_dir(instance, tmp_path):
    """Records of two instances, each planned with 100 GiB of processes."""
    for name in ("0", "1"):
        configure(tmp_path / "etc", dataclasses.replace(instance, name=name, planned={"host": PLANNED}))
    return tmp_path / "etc"


@pytest.fixture
def available(monkeypatch):
    """Sets the RAM that the host has available, in GiB, out of 1000."""

    def set_gib(gib):
        host = Host(total_bytes=1000 * GIB, available_bytes=gib * GIB, shm_size_bytes=GIB, shm_used_bytes=0)
        monkeypatch.setattr(core, "measure_host", lambda staged, shm: host)

    return set_gib


def test_a_model_that_is_not_staged_to_its_end_is_refused(instance):
    core.check_weights(instance)
    Path(instance.model_path, "READY").unlink()
    with pytest.raises(core.WeightsMissing, match="without READY"):
        core.check_weights(instance)
    with pytest.raises(core.WeightsMissing, match="no directory"):
        core.check_weights(dataclasses.replace(instance, model_path="/nowhere"))


def test_missing_device_nodes_are_named(instance):
    with pytest.raises(core.DeviceMissing, match="found no /dev/nvidia99;"):
        core.check_devices(dataclasses.replace(instance, device_nodes=("/dev/null", "/dev/nvidia99")))


def test_a_stranger_on_the_port_is_named_by_pid(instance):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = dataclasses.replace(instance, nccl_port=server.getsockname()[1])
        with pytest.raises(core.PortTaken, match=r"held by PID \d+ \(.+\) of"):
            core.check_ports(taken)
    core.check_ports(taken)


def test_an_orphan_on_the_gpu_is_named_by_pid_and_unit(instance):
    bound = dataclasses.replace(instance, gpu_uuids=("GPU-a",))

    def gpu(uuid, unit):
        users = (GpuProcess(4711, "python3", 1634, unit),)
        return ObservedGpu(0, uuid, "", 1, 1, "", None, 0, None, None, users)

    core.check_gpu_users(bound, [gpu("GPU-a", "sglang@0.service"), gpu("GPU-b", "other.service")])
    with pytest.raises(core.GpuTaken, match=r"GPU-a .* PID 4711 \(python3\) of no unit computes on it"):
        core.check_gpu_users(bound, [gpu("GPU-a", "")])


def test_two_starts_never_count_on_the_same_memory(instance, config_dir, available, tmp_path):
    available(200)
    core.reserve_ram(instance, config_dir, tmp_path)
    second = dataclasses.replace(instance, name="1")
    with pytest.raises(core.RamTooSmall, match=r"GB available, .* too little") as refusal:
        core.reserve_ram(second, config_dir, tmp_path)
    table = "\n".join(refusal.value.table)
    for words in ("processes", "reserve", "needed", "too little", "promised to 0, which is starting: 100.0 GiB"):
        assert words in table
    available(251)
    core.reserve_ram(second, config_dir, tmp_path)
    assert core.reservations(tmp_path) == {"0": 100 * GIB, "1": 100 * GIB}


def test_a_reservation_ends_with_the_start_that_made_it(instance, config_dir, available, tmp_path, monkeypatch):
    available(200)
    core.reserve_ram(instance, config_dir, tmp_path)
    monkeypatch.setattr(core, "RESERVATION_GRACE_S", 0)
    assert core.reservations(tmp_path) == {}
    monkeypatch.setattr(core, "running", lambda name, runtime_dir: object())
    monkeypatch.setattr(core, "is_ready", lambda name, started, runtime_dir: False)
    assert core.reservations(tmp_path) == {"0": 100 * GIB}
    monkeypatch.setattr(core, "RESERVATION_GRACE_S", 30)
    monkeypatch.setattr(core, "is_ready", lambda name, started, runtime_dir: True)
    assert core.reservations(tmp_path) == {}


def test_a_condition_of_the_moment_is_waited_for(monkeypatch):
    monkeypatch.setattr(core, "POLL_S", 0)
    outcomes = iter([core.PortTaken("a", "b", "c"), core.PortTaken("a", "b", "c"), None])

    def check():
        outcome = next(outcomes)
        if outcome:
            raise outcome

    core.wait(check, 60)
    assert next(outcomes, "exhausted") == "exhausted"


def test_every_refusal_has_an_exit_code_of_its_own():
    kinds = core.NotNow.__subclasses__()
    assert len({kind.exit_code for kind in kinds} | {78, 2}) == len(kinds) + 2
