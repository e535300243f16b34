"""Host RAM of one GPU host: what all its engine units will need together, against what is really available.

    host_pools(checkpoint, release, intent, gpu_budget) -> HostPools        # the host tier of one rank
    host_budgets(host, units, weights_bytes, load_peak_bytes) -> the host's sum, then each NUMA node's

GB is 1e9 bytes, as in `--hicache-size`; GiB is 2**30, as in MemAvailable's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .checkpoint import Checkpoint
from .errors import FleetError
from .gpu_memory import GpuBudget
from .intent import Intent
from .releases import Release, memory_behaviour
from .units import GB, GIB

# SGLang refuses a host pool that would leave less than this available.
ENGINE_RESERVE_BYTES = 10 * GIB
# Measured with 0.5.17 on an H200: launcher 1.04 GB, detokenizer 1.01 GB, scheduler 2.05 to 2.4 GB.
_RSS_PROCESSES_BYTES = round(2.05 * GB)
_RSS_RANK_BYTES = round(2.27 * GB)
# PyTorch compiles the routing of experts, and its pool of compilers stays: seen with two models.
_RSS_COMPILERS_BYTES = round(0.85 * GB)
# What prefill graphs add to a scheduler: they break at every linear-attention layer of a hybrid model.
PREFILL_GRAPHS_HYBRID_BYTES = round(0.46 * GIB)
PREFILL_GRAPHS_BYTES = round(0.12 * GIB)
# Measured with 0.5.23 on CPU: 1.6 GB for one unit, without the weights.
_RSS_CPU_BYTES = round(1.6 * GB)


@dataclass(frozen=True)
class HostPools:
    """The host tier (hicache) of one rank: sizes in bytes and as SGLang logs them, padding page and row included."""

    kv_tokens: int = 0
    state_slots: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    draft_bytes: int = 0
    index_bytes: int = 0

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Every pool by name, in the order in which the engine allocates them."""
        return (
            ("hicache KV", self.kv_bytes),
            ("hicache state", self.state_bytes),
            ("hicache index", self.index_bytes),
            ("hicache draft", self.draft_bytes),
        )

    @property
    def total_bytes(self) -> int:
        """All pools of the rank."""
        return sum(size for _name, size in self.parts)


def host_pools(checkpoint: Checkpoint, release: Release, intent: Intent, gpu: GpuBudget) -> HostPools:
    """Pools behind `--hicache-size` or `--hicache-ratio` on one rank; all zero without hicache.

    Raises FleetError for a hybrid model on a release whose host tier has no state pool.
    """
    if not intent.hicache:
        return HostPools()
    behaviour = memory_behaviour(release)
    hybrid = checkpoint.linear is not None
    if hybrid and not behaviour.hybrid_hicache:
        raise FleetError(
            "SGLang 0.5.10 or newer for hicache on a hybrid model",
            f"{release}, which has no host pool for recurrent states",
            "upgrade the engine or drop hicache",
        )
    page, ranks = gpu.page_size, intent.tensor_parallel
    index_row_bytes = checkpoint.attention_layers * checkpoint.index_layer_bytes()
    if not behaviour.hicache_index_pool:
        index_row_bytes = 0
    row_bytes = gpu.kv_token_bytes - index_row_bytes
    draft_row_bytes = checkpoint.draft_kv_token_bytes(intent.kv_dtype, ranks) if intent.mtp is not None else 0
    if behaviour.hicache_draft_pool == "packed":
        row_bytes += draft_row_bytes
    slots = 0
    if intent.hicache_gb is not None:
        kv_gb = state_gb = float(intent.hicache_gb)
        if hybrid and not behaviour.hicache_size_per_pool:
            kv_gb, state_gb = _split(intent.hicache_gb, checkpoint, intent, gpu)
        tokens = int(kv_gb * GB // row_bytes)
        if hybrid:
            slots = int(state_gb * GB // gpu.state_slot_bytes)
    else:
        assert intent.hicache_ratio is not None
        tokens = int(gpu.kv_tokens * intent.hicache_ratio)
        slots = int(gpu.state_slots * intent.hicache_ratio)
    kv_tokens = (tokens // page + 1) * page
    draft_tokens = (kv_tokens // page + 1) * page if behaviour.hicache_draft_pool == "outside" else 0
    state_slots = slots + 1 if hybrid else 0
    return HostPools(
        kv_tokens=kv_tokens,
        state_slots=state_slots,
        kv_bytes=kv_tokens * row_bytes,
        state_bytes=state_slots * gpu.state_slot_bytes,
        draft_bytes=draft_tokens * draft_row_bytes,
        index_bytes=kv_tokens * index_row_bytes,
    )


def tier_refusal(release: Release, pools: HostPools, gpu: GpuBudget) -> FleetError | None:
    """Why a release would not start with a host tier that is not larger than the device's pools, or None."""
    if not memory_behaviour(release).hicache_must_exceed_device or not pools.kv_tokens:
        return None
    if pools.kv_tokens > gpu.kv_tokens and (not gpu.state_slots or pools.state_slots > gpu.state_slots):
        return None
    return FleetError(
        f"host pools larger than the device's ({gpu.kv_tokens} tokens, {gpu.state_slots} slots), as SGLang {release} "
        "asserts",
        f"{pools.kv_tokens} tokens, {pools.state_slots} slots",
        "raise hicache_gb or hicache_ratio, or upgrade to 0.5.15",
    )


def _split(size_gb: int, checkpoint: Checkpoint, intent: Intent, gpu: GpuBudget) -> tuple[float, float]:
    """`--hicache-size` divided in proportion to the device's KV and state pools, in GB."""
    assert checkpoint.linear is not None
    kv_bytes = (gpu.kv_tokens + gpu.page_size) * gpu.kv_token_bytes
    state_bytes = gpu.state_bytes
    if intent.mtp is not None:
        state_bytes += (gpu.max_running_requests + 1) * intent.mtp.draft_tokens * gpu.state_slot_bytes
    whole = kv_bytes + state_bytes
    return size_gb * kv_bytes / whole, size_gb * state_bytes / whole


@dataclass(frozen=True)
class Unit:
    """One engine unit on the host.

    Attributes:
        name: instance name.
        ranks: GPUs it spans.
        nodes: NUMA node of each rank, or None where unknown.
        pools: host tier of each rank.
        rss_bytes: launcher, detokenizer and schedulers together.
    """

    name: str
    ranks: int
    nodes: tuple[int | None, ...]
    pools: HostPools
    rss_bytes: int

    @property
    def total_bytes(self) -> int:
        """Host memory of the unit."""
        return self.ranks * self.pools.total_bytes + self.rss_bytes


def unit_rss_bytes(accelerator: str, ranks: int, weights_bytes: int, checkpoint: Checkpoint) -> int:
    """Resident memory of a unit without its host tier; on `cpu` it holds the weights itself."""
    if accelerator == "cpu":
        return _RSS_CPU_BYTES + weights_bytes
    rank_bytes = _RSS_RANK_BYTES + (PREFILL_GRAPHS_BYTES if checkpoint.linear is None else PREFILL_GRAPHS_HYBRID_BYTES)
    if checkpoint.experts:
        rank_bytes += _RSS_COMPILERS_BYTES
    return _RSS_PROCESSES_BYTES + ranks * rank_bytes


@dataclass(frozen=True)
class Node:
    """One NUMA node: memory that a process bound to it can get, and what replaced units will give back there."""

    index: int
    total_bytes: int
    available_bytes: int
    held_bytes: int = 0


@dataclass(frozen=True)
class Host:
    """A host's memory, measured or declared.

    Attributes:
        available_bytes: MemAvailable.
        shm_size_bytes, shm_used_bytes: the tmpfs that holds the weights; None where not declared.
        shm_may_grow: its size is no limit yet, because staging enlarges it where the weights want more.
        staged_bytes: weights already in that tmpfs, or None to take shm_used_bytes for it.
        cgroup_available_bytes: what the tightest cgroup limit over the units still allows, or None without a limit.
        held_bytes: held by running units of ours that are about to be replaced.
        nodes: NUMA nodes; empty where unknown.
    """

    total_bytes: int
    available_bytes: int
    shm_size_bytes: int | None = None
    shm_used_bytes: int | None = None
    shm_may_grow: bool = False
    staged_bytes: int | None = None
    cgroup_available_bytes: int | None = None
    held_bytes: int = 0
    nodes: tuple[Node, ...] = field(default=())

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Host:
        """Build from `{mem_total_gib, mem_available_gib, shm_size_gib, shm_used_gib, …}`, all in GiB.

        Also taken: staged_gib, cgroup_available_gib, held_gib, nodes ([{node, total_gib, available_gib, held_gib}]).
        mem_total_gib is taken from mem_available_gib if absent. Raises FleetError for anything else.
        """
        known = {
            "mem_total_gib",
            "mem_available_gib",
            "shm_size_gib",
            "shm_used_gib",
            "staged_gib",
            "cgroup_available_gib",
            "held_gib",
        }
        unknown = sorted(set(values) - known - {"nodes"})
        if unknown:
            raise FleetError(f"host with {', '.join(sorted(known))}", ", ".join(unknown), "correct the spelling")
        size = {name: _bytes(name, values[name]) for name in known if values.get(name) is not None}
        if "mem_available_gib" not in size:
            raise FleetError("host.mem_available_gib", "none", "declare MemAvailable, or leave host out to measure it")
        available = size["mem_available_gib"]
        total = size.get("mem_total_gib", available)
        if available > total:
            raise FleetError(
                f"host.mem_available_gib within mem_total_gib ({total / GIB:g})", f"{available / GIB:g}", "correct host"
            )
        return cls(
            total_bytes=total,
            available_bytes=available,
            shm_size_bytes=size.get("shm_size_gib"),
            shm_used_bytes=size.get("shm_used_gib"),
            staged_bytes=size.get("staged_gib"),
            cgroup_available_bytes=size.get("cgroup_available_gib"),
            held_bytes=size.get("held_gib", 0),
            nodes=tuple(
                Node(
                    index=int(node["node"]),
                    total_bytes=_bytes("total_gib", node["total_gib"]),
                    available_bytes=_bytes("available_gib", node["available_gib"]),
                    held_bytes=_bytes("held_gib", node.get("held_gib", 0)),
                )
                for node in values.get("nodes") or ()
            ),
        )


def _bytes(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise FleetError(f"host.{name} as GiB of at least 0", repr(value), "correct host")
    return round(value * GIB)


@dataclass(frozen=True)
class HostBudget:
    """The sum for a whole host or one NUMA node (`where`): parts in bytes by name, and what is there for them."""

    where: str
    parts: tuple[tuple[str, int], ...]
    available_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Sum of the parts."""
        return sum(size for _name, size in self.parts)

    @property
    def shortfall_bytes(self) -> int:
        """How much is missing, 0 if it fits."""
        return max(0, self.needed_bytes - self.available_bytes)

    def refusal(self) -> FleetError | None:
        """The shortfall with the sum shown, or None."""
        if not self.shortfall_bytes:
            return None
        summands = " + ".join(f"{name} {size / GB:.1f}" for name, size in self.parts if size)
        tier_bytes = sum(size for name, size in self.parts if name.startswith("hicache"))
        of_it = f", {tier_bytes / GB:.1f} GB of it hicache" if tier_bytes else ""
        return FleetError(
            f"{self.needed_bytes / GB:.1f} GB of memory on {self.where}{of_it} ({summands})",
            f"{self.available_bytes / GB:.1f} GB available, {self.shortfall_bytes / GB:.1f} GB too little",
            "lower hicache_gb, run fewer instances, or free memory",
        )


def reserve_bytes(total_bytes: int) -> int:
    """Left for the operating system: 10 GiB or 5 %, on hosts under 100 GiB a tenth."""
    return max(total_bytes // 20, min(ENGINE_RESERVE_BYTES, total_bytes // 10))


def host_budgets(host: Host, units: Sequence[Unit], weights_bytes: int, load_peak_bytes: int) -> tuple[HostBudget, ...]:
    """The host's budget, then one per NUMA node where nodes are known: units bind their memory to their GPUs' nodes.

    Args:
        units: all units that will run, those about to be replaced included (host.held_bytes credits what they hold).
        weights_bytes: what tmpfs must hold; the part already there is in MemAvailable's absence, so counted once.
        load_peak_bytes: passing need of one unit while it loads; units load one after another.
    """
    writing = max(0, weights_bytes - _staged(host))
    available = host.available_bytes
    if host.cgroup_available_bytes is not None:
        available = min(available, host.cgroup_available_bytes)
    budgets = [
        HostBudget(
            where="the host",
            parts=(
                ("weights still to be written to tmpfs", writing),
                *_pool_sums([(unit, unit.ranks) for unit in units]),
                ("processes", sum(unit.rss_bytes for unit in units)),
                ("load peak", load_peak_bytes),
                ("reserve", reserve_bytes(host.total_bytes)),
            ),
            available_bytes=available + host.held_bytes,
        )
    ]
    if any(None in unit.nodes for unit in units):
        return tuple(budgets)
    for node in host.nodes:
        here = [(unit, unit.nodes.count(node.index)) for unit in units]
        share = node.total_bytes / host.total_bytes
        budgets.append(
            HostBudget(
                where=f"NUMA node {node.index}",
                parts=(
                    ("weights still to be written to tmpfs", round(writing * share)),
                    *_pool_sums(here),
                    ("processes", sum(unit.rss_bytes * ranks // unit.ranks for unit, ranks in here)),
                    ("load peak", load_peak_bytes if any(ranks for _unit, ranks in here) else 0),
                    ("reserve", round(reserve_bytes(host.total_bytes) * share)),
                ),
                available_bytes=node.available_bytes + node.held_bytes,
            )
        )
    return tuple(budgets)


def _pool_sums(units: Sequence[tuple[Unit, int]]) -> tuple[tuple[str, int], ...]:
    """Bytes by pool name over (unit, ranks)."""
    return tuple(
        (name, sum(ranks * dict(unit.pools.parts)[name] for unit, ranks in units)) for name, _size in HostPools().parts
    )


def _staged(host: Host) -> int:
    if host.staged_bytes is not None:
        return host.staged_bytes
    return host.shm_used_bytes or 0


def shm_refusal(host: Host, weights_bytes: int) -> FleetError | None:
    """Why the weights do not fit the tmpfs, or None (also where its size is unknown)."""
    if host.shm_size_bytes is None:
        return None
    writing = max(0, weights_bytes - _staged(host))
    free = host.shm_size_bytes - (host.shm_used_bytes or 0)
    if writing <= free:
        return None
    return FleetError(
        f"{writing / GIB:.1f} GiB free in the tmpfs of the weights",
        f"{free / GIB:.1f} of {host.shm_size_bytes / GIB:.1f} GiB",
        f"raise its size to {(writing + (host.shm_used_bytes or 0)) / GIB:.0f} GiB or more (sglang_host_shm_size_gib)",
    )


def engine_refusal(host: Host, release: Release, units: Sequence[Unit], weights_bytes: int) -> FleetError | None:
    """The first pool that SGLang's own check (10 GiB must stay available) would refuse, units starting in order."""
    behaviour = memory_behaviour(release)
    available = host.available_bytes + host.held_bytes - max(0, weights_bytes - _staged(host))
    if behaviour.hicache_check_cgroup and host.cgroup_available_bytes is not None:
        available = min(available, host.cgroup_available_bytes + host.held_bytes)
    for unit in units:
        available -= unit.rss_bytes
        for name, size in unit.pools.parts:
            allowed = (available - ENGINE_RESERVE_BYTES) // (unit.ranks if behaviour.hicache_check_per_rank else 1)
            if size > max(0, allowed):
                return FleetError(
                    f"a pool of at most {max(0, allowed) / GB:.2f} GB when instance {unit.name} starts (SGLang "
                    f"{release} keeps 10 GiB of the {available / GB:.2f} GB available then)",
                    f"a {name} pool of {size / GB:.2f} GB",
                    "lower hicache_gb",
                )
            available -= unit.ranks * size
    return None


def host_refusals(
    host: Host, release: Release, units: Sequence[Unit], weights_bytes: int, load_peak_bytes: int
) -> list[FleetError]:
    """Everything that is short: the tmpfs, the sums of host_budgets(), and if those fit, SGLang's own check."""
    budgets = host_budgets(host, units, weights_bytes, load_peak_bytes)
    found = [budget.refusal() for budget in budgets]
    if not host.shm_may_grow:
        found.insert(0, shm_refusal(host, weights_bytes))
    if not any(found):
        found.append(engine_refusal(host, release, units, weights_bytes))
    return [refusal for refusal in found if refusal]


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest whole number from 1 to `most` that fits, or 0; fits() must be monotone."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
