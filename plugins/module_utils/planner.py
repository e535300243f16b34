"""The memory plan of one host: what every GPU and the host's RAM will hold, what does not fit, what would serve best.

    plan(checkpoint, release, gpus, intent, host) -> Plan       # Plan.as_dict() is what the module returns

With `resolve`, settings that the intent leaves open (mem_fraction_static, state strategy, max_mamba_cache_size,
max_running_requests) are taken from the proposal, and every instance's `intent` carries the numbers to render.
Accuracy-relevant choices (state_dtype, kv_dtype) and prefix_reuse are never taken, only named as alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .checkpoint import Checkpoint
from .errors import FleetError
from .gpu_memory import (
    Gpu,
    GpuBudget,
    LoadedWeights,
    activation_bytes,
    allocate,
    chunked_prefill_tokens,
    loaded_weights,
    resolve_strategy,
)
from .host_memory import (
    Host,
    HostBudget,
    HostPools,
    Unit,
    host_budgets,
    host_pools,
    host_refusals,
    largest,
    shm_refusal,
    tier_refusal,
    unit_rss_bytes,
)
from .intent import Intent
from .known_bad import Candidate, judge
from .releases import Release, coverage_note, known_release, memory_behaviour
from .units import GB, GIB, MIB

ACCELERATORS = ("cuda", "cpu")
DEFAULT_TOKENS_PER_REQUEST = 4096
_MOST_REQUESTS = 4096
# SGLang allows 1.5 MiB per token of a prefill chunk; with less than 0.6 MiB, long prompts run out of memory.
_SCARCE_SPARE_MIB_PER_TOKEN = 0.6
# A decode step in milliseconds, and how much longer it is for every running request: seen with 0.5.17 and the shape of
# Qwen3.6-27B on an H200, without MTP and with it (4 tokens verified, 3 accepted). Good for comparing the two only.
_STEP_MS = (15.0, 0.12)
_MTP_STEP_MS = (16.0, 0.68)
_MTP_ACCEPTED_TOKENS = 3.0
# Tokens per host state slot above which prefixes in the host tier were never found again (4,745) and below which they
# were (3,652): sglang pull request 39436.
_TOKENS_PER_STATE_SLOT = 4096
# An engine with 28 slots, 4 requests of 5 and a host tier died for want of a slot: its 8 spare ones were too few.
_TIER_SPARE_REQUESTS = 2
# A size at which rounding to pages and slots no longer shows.
_SAMPLE_GB = 1000


@dataclass(frozen=True)
class Instance:
    """One engine instance of the plan.

    Attributes:
        name: its GPU indexes, joined by "-".
        gpus: CUDA indexes.
        intent: the settings to render; complete when the plan was made with `resolve`.
        gpu: what each of its GPUs will hold, None on the CPU accelerator.
        unit: what it takes of the host.
        tier_factor: bytes of host memory that each of its GPUs takes for a byte of hicache_gb.
    """

    name: str
    gpus: tuple[int, ...]
    intent: Intent
    gpu: GpuBudget | None
    unit: Unit
    tier_factor: float


@dataclass(frozen=True)
class Proposal:
    """Settings that fit and serve the expected load best.

    Attributes:
        intent: complete settings.
        gpu: what a GPU will hold with them.
        explanation: one sentence that says why.
        alternatives: (setting, value, requests) that would run more requests but need a person's word.
    """

    intent: Intent
    gpu: GpuBudget
    explanation: str
    alternatives: tuple[tuple[str, Any, int], ...]


@dataclass(frozen=True)
class Plan:
    """The plan of one host.

    Attributes:
        host: the host's sum, then each NUMA node's where memory is bound.
        problems: why not to start; empty if everything fits.
        warnings: what will start and may disappoint.
        proposal: None where not even one request fits, and on the CPU accelerator.
        largest_hicache_gb: largest size per GPU with which all instances fit the host.
        weights_bytes: what tmpfs must hold.
    """

    checkpoint: Checkpoint
    release: Release
    instances: tuple[Instance, ...]
    host: tuple[HostBudget, ...]
    problems: tuple[FleetError, ...]
    warnings: tuple[str, ...]
    proposal: Proposal | None
    largest_hicache_gb: int
    weights_bytes: int

    @property
    def fits(self) -> bool:
        """Whether everything can be started."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: GiB and GB as numbers with four decimals, names as documented by capacity_plan."""
        whole = self.host[0]
        return {
            "fits": self.fits,
            "problems": [str(problem) for problem in self.problems],
            "warnings": list(self.warnings),
            "engine_version": str(self.release),
            "planned_as": str(known_release(self.release)),
            "model": self.checkpoint.path.name,
            "architecture": self.checkpoint.architecture,
            "instances": [_instance_dict(instance) for instance in self.instances],
            "host": {
                **_budget_dict(whole),
                "nodes": [_budget_dict(node) for node in self.host[1:]],
                "weights_gib": _gib(self.weights_bytes),
            },
            "largest_hicache_gb": self.largest_hicache_gb,
            "proposal": _proposal_dict(self.proposal) if self.proposal else None,
        }


def _gib(size_bytes: float) -> float:
    return round(size_bytes / GIB, 4)


def _gb(size_bytes: float) -> float:
    return round(size_bytes / GB, 4)


def settings(intent: Intent) -> dict[str, Any]:
    """The intent as inventory values, settings left open omitted."""
    return {name: value for name, value in asdict(intent).items() if value is not None}


def gpu_dict(gpu: GpuBudget) -> dict[str, Any]:
    """One GPU's budget as plain values; weights, draft, state, intermediate, kv and slack add up to free_gib."""
    return {
        "total_gib": _gib(gpu.total_bytes),
        "free_gib": _gib(gpu.free_bytes),
        "mem_fraction_static": round(gpu.mem_fraction_static, 4),
        "minimum_mem_fraction_static": round(gpu.minimum_fraction, 4),
        "state_strategy": gpu.state_strategy,
        "slots_per_request": gpu.slots_per_request,
        "page_size": gpu.page_size,
        "state_slots": gpu.state_slots,
        "max_running_requests": gpu.max_running_requests,
        "kv_tokens": gpu.kv_tokens,
        "weights_gib": _gib(gpu.weights_bytes),
        "draft_gib": _gib(gpu.draft_bytes),
        "state_gib": _gib(gpu.state_bytes),
        "intermediate_gib": _gib(gpu.intermediate_bytes),
        "kv_gib": _gib(gpu.kv_bytes),
        "slack_gib": _gib(gpu.slack_bytes),
        "draft_kv_gib": _gib(gpu.draft_kv_bytes),
        "graphs_gib": _gib(gpu.graph_bytes),
        "prefill_graphs_gib": _gib(gpu.prefill_graph_bytes),
        "request_table_gib": _gib(gpu.request_table_bytes),
        "spare_gib": _gib(gpu.spare_bytes),
        "available_gib": _gib(gpu.available_bytes),
        "state_slot_mib": round(gpu.state_slot_bytes / MIB, 4),
        "kv_token_bytes": gpu.kv_token_bytes,
    }


def _instance_dict(instance: Instance) -> dict[str, Any]:
    unit, pools = instance.unit, instance.unit.pools
    return {
        "name": instance.name,
        "gpus": list(instance.gpus),
        "intent": settings(instance.intent),
        "gpu": gpu_dict(instance.gpu) if instance.gpu else None,
        "host": {
            "hicache_kv_gb": _gb(pools.kv_bytes),
            "hicache_state_gb": _gb(pools.state_bytes),
            "hicache_draft_gb": _gb(pools.draft_bytes),
            "hicache_index_gb": _gb(pools.index_bytes),
            "hicache_kv_tokens": pools.kv_tokens,
            "hicache_state_slots": pools.state_slots,
            "rss_gib": _gib(unit.rss_bytes),
            "ram_gib": _gib(unit.total_bytes),
            "numa_nodes": list(unit.nodes),
            "ram_per_hicache_gb": round(instance.tier_factor, 4),
        },
    }


def _budget_dict(budget: HostBudget) -> dict[str, Any]:
    return {
        "where": budget.where,
        "parts_gib": {name: _gib(size) for name, size in budget.parts},
        "needed_gib": _gib(budget.needed_bytes),
        "available_gib": _gib(budget.available_bytes),
        "shortfall_gib": _gib(budget.shortfall_bytes),
    }


def _proposal_dict(proposal: Proposal) -> dict[str, Any]:
    return {
        **settings(proposal.intent),
        "explanation": proposal.explanation,
        "gpu": gpu_dict(proposal.gpu),
        "alternatives": [
            {"setting": name, "value": value, "max_running_requests": requests}
            for name, value, requests in proposal.alternatives
        ],
    }


def plan(
    checkpoint: Checkpoint,
    release: Release,
    gpus: Sequence[Gpu],
    intent: Intent,
    host: Host,
    *,
    weights_gib: float | None = None,
    draft_gib: float | None = None,
    accelerator: str = "cuda",
    resolve: bool = False,
    allow_known_bad: bool = False,
) -> Plan:
    """Plan every instance of a host.

    Args:
        gpus: all GPUs that instances run on, `intent.tensor_parallel` of them each, in this order.
        intent: the same for all instances; values left open take the release's defaults.
        host: measured or declared memory.
        weights_gib, draft_gib: per GPU, as SGLang logs them, in place of the checkpoint's.
        accelerator: "cuda", or "cpu" for an engine that keeps everything in host memory (no GPU is planned).
        resolve: take what the intent leaves open from the proposal.
        allow_known_bad: warn about combinations that are known to fail, instead of refusing them.

    Raises FleetError where no plan can be made at all (bad input); what does not fit is in Plan.problems.
    """
    ranks = intent.tensor_parallel
    _check_shape(checkpoint, gpus, intent, accelerator)
    weights = loaded_weights(checkpoint, intent, weights_gib, draft_gib)
    groups = [tuple(gpus[start : start + ranks]) for start in range(0, len(gpus), ranks)]
    staged_bytes = _staged_bytes(checkpoint, weights, ranks, weights_gib is not None)
    peak_bytes = 2 * checkpoint.weights.largest_tensor_bytes if checkpoint.weights else 0

    weakest = min(groups, key=lambda group: min(gpu.free_gib for gpu in group))
    proposal = _propose(checkpoint, release, intent, weakest, weights) if accelerator == "cuda" else None
    if proposal and intent.mtp_where_faster and intent.mtp is not None:
        other = _propose(checkpoint, release, replace(intent, mtp=None), weakest, _without_draft(weights))
        if other and decode_rate(other.intent, other.gpu) > decode_rate(proposal.intent, proposal.gpu):
            proposal = other
            if resolve:
                intent, weights = replace(intent, mtp=None), _without_draft(weights)
    settled = {_memory(weakest): proposal.intent} if proposal else {}
    problems: list[FleetError] = []
    warnings: list[str] = []
    instances: list[Instance] = []
    rss_bytes = unit_rss_bytes(accelerator, ranks, staged_bytes, checkpoint)
    for group in groups:
        wanted = intent
        if resolve and proposal:
            if _memory(group) not in settled:
                split = _best_split(checkpoint, release, intent, group, weights)
                settled[_memory(group)] = split[0] if split else intent
            wanted = settled[_memory(group)]
        budget = allocate(checkpoint, release, wanted, group, weights) if accelerator == "cuda" else None
        pools = HostPools()
        try:
            pools = _pools(checkpoint, release, wanted, budget)
            warnings += _judge(checkpoint, release, wanted, accelerator, allow_known_bad)
        except FleetError as error:
            problems.append(error)
        if budget:
            problems += [*budget.problems, *filter(None, [tier_refusal(release, pools, budget)])]
        sample = _sized_pools(checkpoint, release, wanted, budget, _SAMPLE_GB)
        name = "-".join(str(gpu.index) for gpu in group)
        nodes = tuple(gpu.numa_node for gpu in group)
        instances.append(
            Instance(
                name=name,
                gpus=tuple(gpu.index for gpu in group),
                intent=wanted,
                gpu=budget,
                unit=Unit(name, ranks, nodes, pools, rss_bytes),
                tier_factor=sample.total_bytes / (_SAMPLE_GB * GB),
            )
        )

    def short(pools_of: Callable[[Instance], HostPools]) -> list[FleetError]:
        units = [replace(instance.unit, pools=pools_of(instance)) for instance in instances]
        return host_refusals(host, release, units, staged_bytes, peak_bytes)

    refusals = short(lambda instance: instance.unit.pools)
    largest_gb = largest(
        lambda size_gb: (
            not short(lambda instance: _sized_pools(checkpoint, release, instance.intent, instance.gpu, size_gb))
        ),
        host.total_bytes // GB,
    )
    small_tmpfs = shm_refusal(host, staged_bytes)
    if small_tmpfs and host.shm_may_grow:
        warnings.append(f"the tmpfs must grow: {small_tmpfs}")
    if proposal and intent.hicache and refusals and (host.shm_may_grow or not small_tmpfs):
        proposal = _with_hicache(proposal, largest_gb)
    if checkpoint.weights is not None and checkpoint.weights.estimated and weights_gib is None:
        warnings.append(f"{checkpoint.path} holds no shards: its weights are counted from config.json")
    warnings += _warnings(checkpoint, release, intent, instances, gpus, host)
    return Plan(
        checkpoint=checkpoint,
        release=release,
        instances=tuple(instances),
        host=host_budgets(host, [instance.unit for instance in instances], staged_bytes, peak_bytes),
        problems=tuple({str(problem): problem for problem in (*problems, *refusals)}.values()),
        warnings=tuple(dict.fromkeys(warnings)),
        proposal=proposal,
        largest_hicache_gb=largest_gb,
        weights_bytes=staged_bytes,
    )


def _memory(gpus: Sequence[Gpu]) -> tuple[tuple[int, float, Any], ...]:
    """What makes two groups of GPUs plan alike."""
    return tuple((gpu.total_mib, gpu.free_gib, gpu.compute_capability) for gpu in gpus)


def _check_shape(checkpoint: Checkpoint, gpus: Sequence[Gpu], intent: Intent, accelerator: str) -> None:
    if accelerator not in ACCELERATORS:
        raise FleetError(f"accelerator to be one of {', '.join(ACCELERATORS)}", repr(accelerator), "correct it")
    ranks = intent.tensor_parallel
    indexes = [gpu.index for gpu in gpus]
    if not gpus:
        raise FleetError("at least one GPU", "none declared or detected", "declare gpus, or check the driver")
    if len(set(indexes)) < len(indexes):
        raise FleetError("every GPU index once", ", ".join(map(str, indexes)), "correct gpus")
    if len(gpus) % ranks:
        raise FleetError(
            f"a multiple of tensor_parallel ({ranks}) GPUs", f"{len(gpus)}", "correct gpus or tensor_parallel"
        )
    linear = checkpoint.linear
    if linear is not None and (linear.key_heads % ranks or linear.value_heads % ranks):
        raise FleetError(
            f"a tensor_parallel that divides {linear.key_heads} key and {linear.value_heads} value heads",
            f"{ranks}",
            "correct tensor_parallel",
        )


def _judge(checkpoint: Checkpoint, release: Release, intent: Intent, accelerator: str, allow: bool) -> list[str]:
    """Warnings about the combination as the release will resolve it. Raises FleetError for one known to fail."""
    hybrid = checkpoint.linear is not None
    if hybrid:
        intent = replace(intent, state_strategy=resolve_strategy(checkpoint, memory_behaviour(release), intent))
    return judge(Candidate(intent, release, hybrid, checkpoint.model_type, accelerator, {}), allow)


def _staged_bytes(checkpoint: Checkpoint, weights: LoadedWeights, ranks: int, overridden: bool) -> int:
    if overridden or checkpoint.weights is None:
        return round(weights.target_gib * ranks * GIB)
    return checkpoint.weights.files_bytes


def _pools(checkpoint: Checkpoint, release: Release, intent: Intent, budget: GpuBudget | None) -> HostPools:
    if budget is not None:
        return host_pools(checkpoint, release, intent, budget)
    if intent.hicache_gb is None:
        return HostPools()
    twice = checkpoint.linear is not None and memory_behaviour(release).hicache_size_per_pool
    return HostPools(kv_bytes=intent.hicache_gb * GB, state_bytes=intent.hicache_gb * GB if twice else 0)


def _sized_pools(
    checkpoint: Checkpoint, release: Release, intent: Intent, budget: GpuBudget | None, hicache_gb: int
) -> HostPools:
    """The pools for another size; one that the release refuses for other reasons counts as nothing."""
    wanted = replace(intent, prefix_reuse=True, hicache_gb=hicache_gb, hicache_ratio=None)
    try:
        return _pools(checkpoint, release, wanted, budget)
    except FleetError:
        return HostPools()


def _with_hicache(proposal: Proposal, largest_gb: int) -> Proposal:
    if largest_gb:
        intent = replace(proposal.intent, hicache_gb=largest_gb, hicache_ratio=None)
        said = f" The host has room for hicache_gb {largest_gb} per GPU."
    else:
        intent = replace(proposal.intent, hicache_gb=None, hicache_ratio=None)
        said = " The host has no room for hicache, so it is dropped."
    return replace(proposal, intent=intent, explanation=proposal.explanation + said)


def _propose(
    checkpoint: Checkpoint, release: Release, intent: Intent, gpus: Sequence[Gpu], weights: LoadedWeights
) -> Proposal | None:
    """The split that runs the most of the wanted requests; None if not even one request fits."""
    best = _best_split(checkpoint, release, intent, gpus, weights)
    if best is None:
        return None
    chosen, budget = best
    alternatives = []
    for name, other, sensible in (
        ("state_dtype", replace(intent, state_dtype="bfloat16"), checkpoint.linear and intent.state_dtype is None),
        ("kv_dtype", replace(intent, kv_dtype="fp8_e4m3"), intent.kv_dtype == "auto" and not checkpoint.kv_quantized),
        (
            "prefix_reuse",
            replace(intent, prefix_reuse=False, hicache_gb=None, hicache_ratio=None),
            checkpoint.linear and intent.prefix_reuse,
        ),
    ):
        split = _best_split(checkpoint, release, other, gpus, weights) if sensible else None
        if split and split[1].max_running_requests > budget.max_running_requests:
            alternatives.append((name, getattr(other, name), split[1].max_running_requests))
    if intent.mtp is not None:
        split = _best_split(checkpoint, release, replace(intent, mtp=None), gpus, _without_draft(weights))
        if split and decode_rate(*split) > decode_rate(chosen, budget):
            alternatives.append(("mtp", False, split[1].max_running_requests))
    plain = allocate(checkpoint, release, intent, gpus, weights)
    return Proposal(chosen, budget, _explain(intent, budget, plain, alternatives), tuple(alternatives))


def _without_draft(weights: LoadedWeights) -> LoadedWeights:
    return replace(weights, draft_gib=0.0, returned_gib=0.0)


def decode_rate(intent: Intent, budget: GpuBudget) -> float:
    """Tokens per millisecond with every request running, for comparing settings with MTP and without it."""
    requests = budget.max_running_requests
    base_ms, request_ms = _STEP_MS if intent.mtp is None else _MTP_STEP_MS
    tokens = requests if intent.mtp is None else requests * _MTP_ACCEPTED_TOKENS
    return tokens / (base_ms + request_ms * requests)


def _best_split(
    checkpoint: Checkpoint, release: Release, intent: Intent, gpus: Sequence[Gpu], weights: LoadedWeights
) -> tuple[Intent, GpuBudget] | None:
    """Most requests over the state strategies that may be chosen; the earlier strategy wins a tie."""
    behaviour = memory_behaviour(release)
    strategies = [intent.state_strategy]
    if intent.state_strategy == "auto" and checkpoint.linear is not None and intent.prefix_reuse:
        lazy = behaviour.lazy_strategy_with_mtp if intent.mtp is not None else behaviour.lazy_strategy
        strategies = ["extra_buffer", *(["extra_buffer_lazy"] if lazy and not intent.hicache else [])]
    splits = []
    for strategy in strategies:
        split = _fill(checkpoint, release, replace(intent, state_strategy=strategy), gpus, weights)
        if split:
            splits.append(split)
    return max(splits, key=lambda split: split[1].max_running_requests, default=None)


def _fill(
    checkpoint: Checkpoint, release: Release, intent: Intent, gpus: Sequence[Gpu], weights: LoadedWeights
) -> tuple[Intent, GpuBudget] | None:
    """The largest number of requests, up to the wanted one, whose states and tokens fit."""
    tokens = _tokens_per_request(intent)
    drafts = intent.mtp.draft_tokens if intent.mtp is not None else 0

    def split(requests: int) -> tuple[Intent, GpuBudget]:
        wanted = replace(intent, max_running_requests=intent.max_running_requests or requests)
        if checkpoint.linear is not None and intent.prefix_reuse and intent.max_mamba_cache_size is None:
            per_request = allocate(checkpoint, release, wanted, gpus, weights).slots_per_request
            if intent.mamba_full_memory_ratio is None:
                spare = _TIER_SPARE_REQUESTS * per_request if intent.hicache else 1
                wanted = replace(wanted, max_mamba_cache_size=per_request * requests + spare)
        return _with_fraction(checkpoint, release, wanted, gpus, weights)

    def serves(requests: int) -> bool:
        _intent, budget = split(requests)
        needed = requests * (tokens + drafts + budget.page_size - 1)
        return not budget.problems and budget.max_running_requests >= requests and budget.kv_tokens >= needed

    most = intent.max_running_requests or intent.concurrency or _MOST_REQUESTS
    requests = largest(serves, most)
    if not requests:
        chosen, budget = split(1)
        return (chosen, budget) if not budget.problems else None
    return split(requests)


def _tokens_per_request(intent: Intent) -> int:
    tokens = intent.tokens_per_request or DEFAULT_TOKENS_PER_REQUEST
    return min(tokens, intent.context_length) if intent.context_length else tokens


def _with_fraction(
    checkpoint: Checkpoint, release: Release, intent: Intent, gpus: Sequence[Gpu], weights: LoadedWeights
) -> tuple[Intent, GpuBudget]:
    """The highest mem_fraction_static, in thousandths, that leaves activations their room; a given one stays."""
    room = activation_bytes(min(gpu.total_mib for gpu in gpus), release)

    def with_thousandths(thousandths: int) -> tuple[Intent, GpuBudget]:
        wanted = replace(intent, mem_fraction_static=thousandths / 1000)
        return wanted, allocate(checkpoint, release, wanted, gpus, weights)

    if intent.mem_fraction_static is not None:
        return intent, allocate(checkpoint, release, intent, gpus, weights)
    thousandths = largest(lambda value: with_thousandths(value)[1].spare_bytes >= room, 990)
    return with_thousandths(max(1, thousandths))


def _explain(intent: Intent, budget: GpuBudget, plain: GpuBudget, alternatives: Sequence[tuple[str, Any, int]]) -> str:
    tokens = _tokens_per_request(intent)
    requests = budget.max_running_requests
    wanted = intent.concurrency or requests
    said = f"{requests} requests of {tokens} tokens run at once"
    if plain.problems:
        said += " where the settings as given do not start"
    elif plain.max_running_requests != requests:
        said += f" where SGLang's own split of the same GPU runs {plain.max_running_requests}"
    if budget.state_slots:
        said += (
            f": {budget.state_slots} state slots of {budget.state_slot_bytes / MIB:.1f} MiB "
            f"({budget.slots_per_request} per request) take {budget.state_bytes / GIB:.1f} GiB and leave "
            f"{budget.kv_tokens} KV tokens"
        )
    else:
        said += f": the KV cache holds {budget.kv_tokens} tokens"
    said += (
        f" at mem_fraction_static {budget.mem_fraction_static:g}, with {budget.spare_bytes / GIB:.1f} GiB spare for "
        "activations"
    )
    if requests < wanted:
        said += f"; the wanted {wanted} do not fit"
        if alternatives:
            options = " or ".join(f"{name} {value} ({count})" for name, value, count in alternatives)
            said += f", more would with {options}, which is yours to decide"
    return said + "."


def _warnings(
    checkpoint: Checkpoint,
    release: Release,
    intent: Intent,
    instances: Sequence[Instance],
    gpus: Sequence[Gpu],
    host: Host,
) -> list[str]:
    behaviour = memory_behaviour(release)
    found = []
    note = coverage_note(release)
    if note:
        found.append(note)
    if intent.tensor_parallel > 1 and intent.mtp is not None and not behaviour.collects_before_sizing:
        found.append(
            f"SGLang {release} may size the pools far smaller than planned with tensor_parallel and mtp (garbage left "
            "from loading; fixed in 0.5.19): compare max_total_num_tokens after the start"
        )
    budget = instances[0].gpu
    if budget is not None:
        found += _gpu_warnings(intent, budget, chunked_prefill_tokens(min(gpu.total_mib for gpu in gpus), release))
    if intent.hicache:
        found += _hicache_warnings(checkpoint, intent, instances, host)
    return found


def _gpu_warnings(asked: Intent, budget: GpuBudget, chunk_tokens: int) -> list[str]:
    found = []
    scarce = round(_SCARCE_SPARE_MIB_PER_TOKEN * chunk_tokens * MIB)
    if budget.spare_bytes < scarce and not budget.problems:
        found.append(
            f"{budget.spare_bytes / GIB:.1f} GiB are left for activations: expect out-of-memory errors at run time; "
            f"lower mem_fraction_static from {budget.mem_fraction_static:g} until at least {scarce / GIB:.0f} GiB are"
        )
    if asked.concurrency and budget.max_running_requests < asked.concurrency and not budget.problems:
        found.append(
            f"{asked.concurrency} requests at once are wanted, {budget.max_running_requests} will run, the rest queue"
        )
    if asked.concurrency and asked.tokens_per_request:
        tokens = min(asked.concurrency, budget.max_running_requests) * asked.tokens_per_request
        if tokens > budget.kv_tokens and not budget.problems:
            found.append(
                f"the running requests want {tokens} KV tokens and there are {budget.kv_tokens}: some are retracted"
            )
    return found


def _hicache_warnings(checkpoint: Checkpoint, intent: Intent, instances: Sequence[Instance], host: Host) -> list[str]:
    found = []
    first = instances[0]
    pools, budget = first.unit.pools, first.gpu
    if checkpoint.linear is not None:
        found.append("hicache raises neither state slots nor max_running_requests")
    if budget is not None and pools.state_slots:
        per_slot = pools.kv_tokens / pools.state_slots
        if per_slot > (intent.tokens_per_request or _TOKENS_PER_STATE_SLOT):
            found.append(
                f"the host tier holds one state slot per {per_slot:.0f} KV tokens: too few states to find prefixes of "
                f"{intent.tokens_per_request or _TOKENS_PER_STATE_SLOT} tokens again"
            )
        spare_slots = budget.state_slots - budget.slots_per_request * budget.max_running_requests
        wanted_slots = _TIER_SPARE_REQUESTS * budget.slots_per_request
        if spare_slots < wanted_slots:
            found.append(
                f"spare state slots beside the running requests' own: {spare_slots}; loading states back from the host "
                f"wants {wanted_slots}: lower max_running_requests or raise max_mamba_cache_size"
            )
    if budget is not None and pools.kv_tokens and pools.kv_tokens <= budget.kv_tokens:
        found.append(
            f"the host's KV pool ({pools.kv_tokens} tokens) is not larger than the device's ({budget.kv_tokens}): it "
            "will hold little that the device does not"
        )
    total = sum(instance.unit.pools.total_bytes * instance.unit.ranks for instance in instances)
    if total > host.total_bytes / 2:
        found.append(
            f"the hicache pools take {total / GB:.0f} of {host.total_bytes / GB:.0f} GB of host memory, pinned: more "
            "than half"
        )
    return found
