"""Which GPUs form an instance, and which ports it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .errors import FleetError

NCCL_PORT_OFFSET = 100
LAST_PORT = 65535


@dataclass(frozen=True)
class Gpu:
    """One GPU as declared in the inventory or found on the host; what is unknown is None.

    Attributes:
        index: position in PCI bus order, as in CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        uuid: the card's own identity, `GPU-...`.
        minor: N of the device node /dev/nvidiaN; the index where None.
        name: product name.
        total_mib: its memory in MiB.
        numa_node: NUMA node it hangs on.
        cpus: that node's CPUs as a list such as "0-31,64-95".
    """

    index: int
    uuid: str | None = None
    minor: int | None = None
    name: str | None = None
    total_mib: int | None = None
    numa_node: int | None = None
    cpus: str | None = None

    @classmethod
    def from_value(cls, value: int | Mapping[str, Any]) -> Gpu:
        """Read an inventory entry: an index, or a mapping with the attributes of this class.

        Further keys, as `gpu_facts` returns them, are left out. Raises FleetError for an entry without a usable index.
        """
        entry: Mapping[str, Any] = value if isinstance(value, Mapping) else {"index": value}
        index = entry.get("index")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < NCCL_PORT_OFFSET:
            raise FleetError(
                f"each GPU to be an index from 0 to {NCCL_PORT_OFFSET - 1}, or a mapping with such an index",
                repr(value),
                "correct the list of GPUs",
            )
        return cls(**{field.name: entry[field.name] for field in fields(cls) if entry.get(field.name) is not None})


@dataclass(frozen=True)
class Placement:
    """Where one instance lives.

    Attributes:
        name: the instance of the unit `sglang@NAME`: GPU indices joined by "-".
        gpus: its GPUs, one for each tensor-parallel rank.
        port: HTTP port.
        nccl_port: rendezvous port of its ranks.
    """

    name: str
    gpus: tuple[Gpu, ...]
    port: int
    nccl_port: int

    @property
    def unit(self) -> str:
        """The systemd unit's name."""
        return f"sglang@{self.name}.service"

    @property
    def ports(self) -> tuple[int, int]:
        """Every port it opens."""
        return self.port, self.nccl_port


def place(
    gpus: Iterable[int | Mapping[str, Any]],
    *,
    tensor_parallel: int = 1,
    base_port: int = 30000,
    other_ports: Mapping[str, int] | None = None,
) -> tuple[Placement, ...]:
    """Group the GPUs into instances in index order and derive each one's ports from its first GPU's index.

    Args:
        gpus: as `Gpu.from_value` reads them.
        tensor_parallel: GPUs that one instance spans.
        base_port: HTTP port of GPU 0; the rendezvous ports lie NCCL_PORT_OFFSET above.
        other_ports: ports of others on the same host (the router's), by what they are for.

    Raises FleetError for no GPU, a GPU or UUID declared twice, a number of GPUs that tensor_parallel does not divide,
    and ports that collide or do not exist.
    """
    declared = sorted((Gpu.from_value(gpu) for gpu in gpus), key=lambda gpu: gpu.index)
    if not declared:
        raise FleetError("at least one GPU", "an empty list", "declare the host's GPUs")
    for what, values in (
        ("index", [str(gpu.index) for gpu in declared]),
        ("uuid", [gpu.uuid for gpu in declared if gpu.uuid]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise FleetError(f"each GPU {what} once", f"{', '.join(twice)} twice", "correct the list of GPUs")
    if len(declared) % tensor_parallel:
        raise FleetError(
            f"a number of GPUs that tensor_parallel {tensor_parallel} divides",
            f"{len(declared)} GPUs",
            "change the list of GPUs or tensor_parallel",
        )
    placements = tuple(
        Placement(
            name="-".join(str(gpu.index) for gpu in group),
            gpus=tuple(group),
            port=base_port + group[0].index,
            nccl_port=base_port + NCCL_PORT_OFFSET + group[0].index,
        )
        for group in (declared[first : first + tensor_parallel] for first in range(0, len(declared), tensor_parallel))
    )
    _check_ports(placements, other_ports or {})
    return placements


# How modules take the arguments of `place`: documented in plugins/doc_fragments/layout.py.
OPTIONS = {
    "gpus": {"type": "list", "elements": "raw", "required": True},
    "tensor_parallel": {"type": "int", "default": 1},
    "base_port": {"type": "int", "default": 30000},
    "other_ports": {"type": "dict", "default": {}},
}


def _check_ports(placements: Sequence[Placement], other_ports: Mapping[str, int]) -> None:
    owners: dict[int, str] = {}
    wanted = [(port, placement.unit) for placement in placements for port in placement.ports]
    wanted += [(port, what) for what, port in other_ports.items()]
    for port, owner in wanted:
        if not 0 < port <= LAST_PORT:
            raise FleetError(f"ports up to {LAST_PORT}", f"port {port} for {owner}", "lower the base port")
        if port in owners:
            raise FleetError(
                "every port once", f"port {port} for {owners[port]} and {owner}", "change the base port or the other"
            )
        owners[port] = owner
