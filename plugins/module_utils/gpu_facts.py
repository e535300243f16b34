"""The NVIDIA GPUs of this host: who they are, where they hang, and who computes on them.

    observe() -> Observation

Asked are NVML, where the Python that runs this has nvidia-ml-py, or else nvidia-smi; then /sys for the NUMA node and
/proc for the processes. NVML and nvidia-smi number GPUs in PCI bus order, as CUDA does with
CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import FleetError
from .processes import unit_of
from .topology import Gpu
from .units import MIB

GPU_QUERY = "index,uuid,name,memory.total,memory.free,pci.bus_id,driver_version,compute_cap"
PROCESS_QUERY = "gpu_uuid,pid,process_name,used_gpu_memory"
UNKNOWN = ("[N/A]", "[Not Supported]", "[Insufficient Permissions]", "")


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU.

    Attributes:
        pid: its number on this host.
        command: its program.
        used_mib: GPU memory that it holds, None where the driver does not say.
        unit: systemd unit that it runs in; "" for an orphan.
    """

    pid: int
    command: str
    used_mib: int | None
    unit: str

    def __str__(self) -> str:
        return f"PID {self.pid} ({self.command}) of {self.unit or 'no unit'}"


@dataclass(frozen=True)
class ObservedGpu:
    """One GPU as the driver shows it.

    Attributes:
        index: position in PCI bus order.
        uuid, name: identity of the card, product.
        total_mib, free_mib: its memory in MiB.
        bus_id: PCI address, such as 0000:00:06.0.
        compute_capability: such as "9.0", None where unknown.
        minor: N of /dev/nvidiaN.
        numa_node: None where the platform does not say.
        cpus: CPUs near it as a list such as "0-15", None where unknown.
        processes: who computes on it.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    free_mib: int
    bus_id: str
    compute_capability: str | None
    minor: int
    numa_node: int | None
    cpus: str | None
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True)
class Observation:
    """All GPUs, and the driver that shows them.

    Attributes:
        driver_version: such as 580.159.04.
        cuda_version: newest CUDA that the driver serves, such as "13.0"; None where unknown.
        gpus: in index order.
    """

    driver_version: str
    cuda_version: str | None
    gpus: tuple[ObservedGpu, ...]

    def orphans(self) -> list[str]:
        """Who computes on a GPU outside of any systemd unit, one line each."""
        return [f"GPU {gpu.index}: {process}" for gpu in self.gpus for process in gpu.processes if not process.unit]


def ask_nvidia_smi(*arguments: str) -> str:
    """Output of nvidia-smi. Raises FleetError where there is none or it fails."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        words = (getattr(error, "stdout", "") or getattr(error, "stderr", "") or str(error)).strip()
        raise FleetError("nvidia-smi to show the GPUs", words, "install or repair the NVIDIA driver") from None


def observe(
    ask: Callable[..., str] = ask_nvidia_smi, sys: Path = Path("/sys"), proc: Path = Path("/proc")
) -> Observation:
    """Look at the GPUs now. Raises FleetError where neither NVML nor nvidia-smi shows them."""
    nvml = _load_nvml()
    return from_nvml(nvml, sys, proc) if nvml else from_nvidia_smi(ask, sys, proc)


def from_nvidia_smi(ask: Callable[..., str], sys: Path, proc: Path) -> Observation:
    """Read nvidia-smi's tables; `ask` runs it with arguments and returns its output."""
    form = "--format=csv,noheader,nounits"
    processes: dict[str, list[GpuProcess]] = {}
    for uuid, pid, command, used in _rows(ask(f"--query-compute-apps={PROCESS_QUERY}", form)):
        used_mib = None if used in UNKNOWN else int(used)
        processes.setdefault(uuid, []).append(GpuProcess(int(pid), command, used_mib, unit_of(int(pid), proc)))
    rows = _rows(ask(f"--query-gpu={GPU_QUERY}", form))
    gpus = [
        _gpu(
            int(index),
            uuid,
            name,
            int(total),
            int(free),
            bus,
            None if capability in UNKNOWN else capability,
            processes.get(uuid, ()),
            sys,
            proc,
        )
        for index, uuid, name, total, free, bus, _driver, capability in rows
    ]
    return Observation(rows[0][6] if rows else "", _cuda_version(ask), tuple(gpus))


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in table.splitlines() if line.strip()]


def _cuda_version(ask: Callable[..., str]) -> str | None:
    try:
        lines = ask("--version").splitlines()
    except FleetError:
        return None
    return next((line.split(":")[1].strip() for line in lines if line.startswith("CUDA Version")), None)


def _load_nvml() -> Any:
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return None
    return nvml


def from_nvml(nvml: Any, sys: Path, proc: Path) -> Observation:
    """Read the driver through the initialised module pynvml, and shut NVML down."""
    gpus = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            gpus.append(
                _gpu(
                    index,
                    _text(nvml.nvmlDeviceGetUUID(handle)),
                    _text(nvml.nvmlDeviceGetName(handle)),
                    memory.total // MIB,
                    memory.free // MIB,
                    _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
                    f"{major}.{minor}",
                    [
                        GpuProcess(
                            process.pid,
                            Path(_text(nvml.nvmlSystemGetProcessName(process.pid))).name,
                            None if process.usedGpuMemory is None else process.usedGpuMemory // MIB,
                            unit_of(process.pid, proc),
                        )
                        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                    ],
                    sys,
                    proc,
                )
            )
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return Observation(_text(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}", tuple(gpus))
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _gpu(
    index: int,
    uuid: str,
    name: str,
    total_mib: int,
    free_mib: int,
    bus: str,
    compute_capability: str | None,
    processes: Sequence[GpuProcess],
    sys: Path,
    proc: Path,
) -> ObservedGpu:
    domain, _, rest = bus.lower().partition(":")
    bus_id = f"{domain[-4:]}:{rest}"
    device = sys / "bus/pci/devices" / bus_id
    node = _read(device / "numa_node")
    information = dict(
        line.split(":", 1)
        for line in _read(proc / "driver/nvidia/gpus" / bus_id / "information").splitlines()
        if ":" in line
    )
    return ObservedGpu(
        index=index,
        uuid=uuid,
        name=name,
        total_mib=total_mib,
        free_mib=free_mib,
        bus_id=bus_id,
        compute_capability=compute_capability,
        minor=int(information.get("Device Minor", index)),
        numa_node=int(node) if node and int(node) >= 0 else None,
        cpus=_read(device / "local_cpulist") or None,
        processes=tuple(processes),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def select(observed: Sequence[ObservedGpu], declared: Sequence[Gpu]) -> list[dict[str, Any]]:
    """The declared GPUs, all where none is declared, with what was observed of each; what is declared wins.

    Raises FleetError where a declared GPU is missing or another card is in its place.
    """
    check_cards(observed, {gpu.index: gpu.uuid or "" for gpu in declared})
    wanted = {gpu.index: gpu for gpu in declared} or {gpu.index: Gpu(gpu.index) for gpu in observed}
    return [
        {
            name: value if declared_value is None else declared_value
            for name, value in asdict(gpu).items()
            if name != "processes"
            for declared_value in (getattr(wanted[gpu.index], name, None),)
        }
        for gpu in observed
        if gpu.index in wanted
    ]


def check_cards(gpus: Sequence[ObservedGpu], expected: dict[int, str]) -> None:
    """Raises FleetError unless every index is there and, where a UUID is expected, is that very card.

    Args:
        gpus: what the driver shows.
        expected: index to UUID, "" where any card will do.
    """
    found = {gpu.index: gpu.uuid for gpu in gpus}
    for index, uuid in expected.items():
        if index not in found:
            raise FleetError(
                f"a GPU {index}",
                f"GPUs {', '.join(map(str, sorted(found))) or 'none'}",
                "correct the list of GPUs, or see in dmesg why the card is gone",
            )
        if uuid and found[index] != uuid:
            where = next((other for other, there in found.items() if there == uuid), None)
            raise FleetError(
                f"the card {uuid} as GPU {index}",
                f"{found[index]} there"
                + (f", and the wanted card as GPU {where}" if where is not None else ", and the wanted card nowhere"),
                "if cards were swapped on purpose, correct the UUIDs in the inventory and deploy again",
            )
