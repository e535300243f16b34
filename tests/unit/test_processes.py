"""Who listens where, read from a /proc made for the test."""

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.processes import Process, listeners, start_ticks, unit_of

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 4711 1 0 100 0 0 10 0
   1: 0100007F:7531 00000000:0000 0A 00000000:00000000 00:00000000 00000000   999        0 4712 1 0 100 0 0 10 0
   2: 0100007F:7530 0100007F:8888 01 00000000:00000000 00:00000000 00000000   999        0 4713 1 0 100 0 0 10 0
"""
V1 = "12:pids:/sglang.slice/other.service\n1:name=systemd:/sglang.slice/sglang@0.service\n"
V2 = "0::/sglang.slice/sglang@0.service/payload\n"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(TCP)
    (tmp_path / "42/fd").mkdir(parents=True)
    (tmp_path / "42/fd/3").symlink_to("socket:[4711]")
    (tmp_path / "42/fd/4").symlink_to("/dev/null")
    (tmp_path / "42/comm").write_text("python\n")
    return tmp_path


@pytest.mark.parametrize("cgroup", [V1, V2])
def test_a_listener_is_named_by_pid_and_unit(proc, cgroup):
    (proc / "42/cgroup").write_text(cgroup)
    found = listeners(proc)
    assert found == {30000: Process(42, "python", "sglang@0.service"), 30001: Process(None, "", "")}
    assert str(found[30000]) == "PID 42 (python) of sglang@0.service"
    assert str(found[30001]) == "a process that only root can name of no unit"


def test_a_process_outside_of_any_unit_has_none(proc):
    (proc / "42/cgroup").write_text("0::/user.slice\n")
    assert unit_of(42, proc) == ""
    assert unit_of(43, proc) == ""


@pytest.mark.parametrize(("state", "expected"), [("S", 987), ("Z", None)])
def test_a_zombie_has_ended(proc, state, expected):
    (proc / "42/stat").write_text(f"42 (a (strange) name) {state} " + " ".join(map(str, range(4, 22))) + " 987 0\n")
    assert start_ticks(42, proc) == expected
    assert start_ticks(43, proc) is None
