"""Measuring a host from /proc and /sys, with cgroup v1 and v2."""

from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.host_measure import measure_host
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

MIB = 2**20
UNIT = "sglang.slice/sglang@0.service"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def host(tmp_path):
    """A host of two NUMA nodes without cgroups."""
    write(
        tmp_path / "proc/meminfo",
        f"MemTotal:       {512 * MIB} kB\nMemFree:  1 kB\nMemAvailable:   {300 * MIB} kB\nHugePages_Total:       0\n",
    )
    for node in (0, 1):
        write(
            tmp_path / f"sys/devices/system/node/node{node}/meminfo",
            f"Node {node} MemTotal:       {256 * MIB} kB\n"
            f"Node {node} MemFree:        {(100 + node) * MIB} kB\n"
            f"Node {node} Active(file):   {20 * MIB} kB\n"
            f"Node {node} Inactive(file): {10 * MIB} kB\n"
            f"Node {node} Shmem:          {60 * MIB} kB\n"
            f"Node {node} SReclaimable:   {2 * MIB} kB\n",
        )
    (tmp_path / "shm").mkdir()
    return tmp_path


def measured(root, **options):
    return measure_host(shm=root / "shm", proc=root / "proc", sys=root / "sys", **options)


def test_memory_and_nodes(host):
    found = measured(host)
    assert (found.total_bytes, found.available_bytes) == (512 * GIB, 300 * GIB)
    assert [(node.index, node.total_bytes, node.available_bytes) for node in found.nodes] == [
        (0, 256 * GIB, 132 * GIB),
        (1, 256 * GIB, 133 * GIB),
    ]
    assert found.cgroup_available_bytes is None
    assert found.held_bytes == 0
    assert found.shm_size_bytes > 0


def test_cgroup_v2_limits_and_running_units(host):
    root = host / "sys/fs/cgroup"
    write(root / "cgroup.controllers", "cpu memory\n")
    write(root / "memory.max", f"{200 * GIB}\n")
    write(root / "memory.current", f"{90 * GIB}\n")
    write(root / "memory.stat", f"anon {4 * GIB}\ninactive_file {10 * GIB}\nactive_file {5 * GIB}\n")
    write(root / "sglang.slice/memory.max", f"{65 * GIB}\n")
    write(root / "sglang.slice/memory.current", f"{64 * GIB}\n")
    write(root / UNIT / "memory.stat", f"anon {4 * GIB}\nfile {70 * GIB}\nshmem {60 * GIB}\n")
    write(
        root / UNIT / "memory.numa_stat",
        f"anon N0={3 * GIB} N1={GIB}\nfile N0={70 * GIB} N1=0\nshmem N0={60 * GIB} N1=0\n",
    )
    write(root / "sglang.slice/sglang-weights.service/memory.stat", f"anon 0\nshmem {52 * GIB}\n")
    found = measured(host)
    assert found.cgroup_available_bytes == 125 * GIB
    assert found.held_bytes == 64 * GIB
    assert [node.held_bytes for node in found.nodes] == [63 * GIB, GIB]


def test_cgroup_v1_limits_and_running_units(host):
    root = host / "sys/fs/cgroup/memory"
    write(root / "memory.limit_in_bytes", f"{100 * GIB}\n")
    write(root / "memory.usage_in_bytes", f"{90 * GIB}\n")
    write(root / "memory.stat", f"rss 0\ntotal_inactive_file {3 * GIB}\ntotal_active_file {GIB}\n")
    write(root / UNIT / "memory.stat", f"total_rss {4 * GIB}\ntotal_shmem {20 * GIB}\n")
    pages = GIB // os.sysconf("SC_PAGE_SIZE")
    write(
        root / UNIT / "memory.numa_stat",
        f"total={94 * pages} N0={93 * pages} N1={pages}\nfile={70 * pages} N0={70 * pages} N1=0\n"
        f"anon={24 * pages} N0={23 * pages} N1={pages}\nunevictable=0 N0=0 N1=0\n",
    )
    found = measured(host)
    assert found.cgroup_available_bytes == 14 * GIB
    assert found.held_bytes == 24 * GIB
    assert [node.held_bytes for node in found.nodes] == [23 * GIB, GIB]


@pytest.mark.parametrize(
    ("limit", "text"), [("memory.max", "max"), ("memory/memory.limit_in_bytes", "9223372036854771712")]
)
def test_no_limit_is_none(host, limit, text):
    root = host / "sys/fs/cgroup"
    if limit == "memory.max":
        write(root / "cgroup.controllers", "memory\n")
    write(root / limit, f"{text}\n")
    write(root / limit.replace("max", "current").replace("limit", "usage"), f"{400 * GIB}\n")
    assert measured(host).cgroup_available_bytes is None


def test_staged_weights_count_once_they_are_ready(host):
    staged = host / "shm/model"
    write(staged / "model.safetensors", "x" * 1000)
    assert measured(host, staged=staged).staged_bytes == 0
    write(staged / "READY", "")
    assert measured(host, staged=staged).staged_bytes == 1000


def test_the_machine_that_runs_the_tests():
    found = measure_host()
    assert 0 < found.available_bytes < found.total_bytes


def test_something_that_is_no_linux(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal: 1 kB\n")
    with pytest.raises(FleetError, match="MemAvailable"):
        measured(tmp_path)
