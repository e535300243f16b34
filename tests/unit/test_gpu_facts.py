"""GPUs as a real driver shows them: recorded from an H200 with driver 580.159.04."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import gpu_facts as core
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.topology import Gpu

RECORDED = Path(__file__).parents[1] / "fixtures/nvidia-smi"
UUID = "GPU-3cbfa405-9af7-6a09-fb6a-aa816184cec9"
BUS = "0000:00:06.0"


def recorded(*arguments):
    if arguments == ("--version",):
        return (RECORDED / "version.txt").read_text()
    table = "gpus" if arguments[0].startswith("--query-gpu") else "processes"
    return (RECORDED / f"{table}.csv").read_text()


@pytest.fixture
def host(tmp_path):
    """Roots of /sys and /proc as the recorded host had them; process 420 runs in a unit."""
    device = tmp_path / "sys/bus/pci/devices" / BUS
    device.mkdir(parents=True)
    (device / "numa_node").write_text("-1\n")
    (device / "local_cpulist").write_text("0-15\n")
    driver = tmp_path / "proc/driver/nvidia/gpus" / BUS
    driver.mkdir(parents=True)
    (driver / "information").write_text((RECORDED / "information.txt").read_text())
    (tmp_path / "proc/420").mkdir()
    (tmp_path / "proc/420/cgroup").write_text("0::/sglang.slice/sglang@0.service\n")
    return tmp_path / "sys", tmp_path / "proc"


EXPECTED = core.ObservedGpu(
    index=0,
    uuid=UUID,
    name="NVIDIA H200",
    total_mib=143771,
    free_mib=143156,
    bus_id=BUS,
    compute_capability="9.0",
    minor=0,
    numa_node=None,
    cpus="0-15",
    processes=(core.GpuProcess(420, "python3", 1634, "sglang@0.service"),),
)


def test_what_nvidia_smi_shows_is_read(host):
    observation = core.from_nvidia_smi(recorded, *host)
    assert observation == core.Observation("580.159.04", "13.0", (EXPECTED,))
    assert observation.orphans() == []


def test_numa_node_and_minor_come_from_the_kernel(host):
    sys, proc = host
    (sys / "bus/pci/devices" / BUS / "numa_node").write_text("1\n")
    information = proc / "driver/nvidia/gpus" / BUS / "information"
    information.write_text(information.read_text().replace("Device Minor: \t 0", "Device Minor: \t 3"))
    (gpu,) = core.from_nvidia_smi(recorded, sys, proc).gpus
    assert (gpu.numa_node, gpu.minor) == (1, 3)


def test_an_orphan_is_shown(host):
    sys, proc = host
    (proc / "420/cgroup").write_text("0::/user.slice/session-1\n")
    assert core.from_nvidia_smi(recorded, sys, proc).orphans() == ["GPU 0: PID 420 (python3) of no unit"]


def test_memory_that_the_driver_does_not_tell_is_unknown(host):
    def ask(*arguments):
        return recorded(*arguments).replace(" 1634", " [N/A]").replace("9.0", "[N/A]")

    (gpu,) = core.from_nvidia_smi(ask, *host).gpus
    assert gpu.processes[0].used_mib is None
    assert gpu.compute_capability is None


def test_nvml_and_nvidia_smi_tell_the_same(host):
    mib = 2**20
    closed = []
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=143771 * mib, free=143156 * mib),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetUUID=lambda handle: UUID,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H200",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId="00000000:00:06.0"),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=420, usedGpuMemory=1634 * mib)],
        nvmlSystemGetProcessName=lambda pid: "/usr/bin/python3",
        nvmlSystemGetCudaDriverVersion=lambda: 13000,
        nvmlSystemGetDriverVersion=lambda: "580.159.04",
        nvmlShutdown=lambda: closed.append(True),
    )
    assert core.from_nvml(nvml, *host) == core.from_nvidia_smi(recorded, *host)
    assert closed == [True]


def test_a_host_without_a_driver_is_refused():
    with pytest.raises(FleetError, match="install or repair the NVIDIA driver"):
        core.ask_nvidia_smi()


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({0: UUID, 1: ""}, "expected a GPU 1; found GPUs 0;"),
        ({0: "GPU-other"}, "the card GPU-other as GPU 0; found .* nowhere"),
    ],
)
def test_a_missing_or_swapped_card_is_noticed(expected, message):
    core.check_cards([EXPECTED], {0: UUID})
    core.check_cards([EXPECTED], {0: ""})
    with pytest.raises(FleetError, match=message):
        core.check_cards([EXPECTED], expected)


def test_swapped_cards_are_both_named():
    second = dataclasses.replace(EXPECTED, index=1, uuid="GPU-b")
    with pytest.raises(FleetError, match="and the wanted card as GPU 1"):
        core.check_cards([EXPECTED, second], {0: "GPU-b"})


def test_what_the_inventory_says_of_a_gpu_wins_over_what_was_found():
    second = dataclasses.replace(EXPECTED, index=1, uuid="GPU-b", numa_node=1)
    everything = core.select([EXPECTED, second], [])
    assert [(gpu["index"], gpu["uuid"], gpu["numa_node"]) for gpu in everything] == [(0, UUID, None), (1, "GPU-b", 1)]
    assert "processes" not in everything[0]
    (only,) = core.select([EXPECTED, second], [Gpu(1, numa_node=0)])
    assert (only["index"], only["uuid"], only["numa_node"]) == (1, "GPU-b", 0)
