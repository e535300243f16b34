"""What SGLang will allocate on one GPU: weights, state slots, KV tokens, running requests, slack.

    allocate(checkpoint, release, intent, gpu) -> GpuBudget

The arithmetic follows the released packages' own, in the same order and in floating-point GiB, so that slots, requests
and tokens come out as the engine logs them. Sources: kv_cache_configurator and pool_configurator of the releases named
in releases.memory_behaviour; a run of 0.5.17 on an H200 for the draft's weights, the residue and the graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import MLA, Checkpoint
from .errors import FleetError
from .intent import Intent
from .releases import MemoryBehaviour, Release, memory_behaviour
from .units import GIB, MIB

DEFAULT_STATE_RATIO = 0.9
DEFAULT_SPECULATIVE_REQUESTS = 48
# From here on GPUs of 20 to 35 GiB get larger chunks and graphs by default.
_LARGER_SMALL_GPUS = Release(0, 5, 20)
_RADIX_SLOTS = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}

# Above this share nothing is left for the CUDA graphs of even one request.
_HIGHEST_FRACTION = 0.99

_TEXT_ONLY_HYBRIDS = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")

# CUDA context and driver reserve: free memory before loading was 139.09 of 140.40 GiB on an H200.
_CONTEXT_GIB = 0.525
_CONTEXT_SHARE = 0.0056
# mem_fraction_static is a share of what was free 106 MiB earlier, before the engine's own buffers: seen at three
# fractions on that GPU.
_EARLIER_GIB = 0.1038
# A vision encoder's many small tensors are padded to the allocator's segments.
_VISION_PADDING_GIB = 0.05
# The kernels of experts take a segment before loading.
_EXPERTS_GIB = 0.017
# Decode graphs for the largest batch: GiB, and GiB more per request, seen with 0.5.17 and the shape of Qwen3.6-27B at
# 44 to 429 requests without MTP, and at 16 to 119 with it; plain attention models took less, one with experts and MTP
# a little less.
_GRAPHS_GIB = (0.107, 0.00256)
_DRAFT_GRAPHS_GIB = (0.212, 0.0163)
_PLAIN_ATTENTION_SHARE = 0.45
_DRAFT_EXPERTS_SHARE = 0.92
# Prefill graphs keep 70 bytes per token of the largest chunk and element of the hidden state: seen with two models.
_PREFILL_GRAPH_BYTES = 70.4
_MLA_PREFILL_GRAPH_TOKENS = 2048


@dataclass(frozen=True)
class Gpu:
    """One GPU as declared or detected; memory in MiB as nvidia-smi shows it and GiB as SGLang does.

    Attributes:
        index: CUDA index on the host.
        total_mib: memory.total.
        free_gib: free before the model is loaded, with the process's CUDA context made.
        numa_node: the host's NUMA node it hangs on, or None.
        compute_capability: as (10, 0), or None.
    """

    index: int
    total_mib: int
    free_gib: float
    numa_node: int | None = None
    compute_capability: tuple[int, int] | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Gpu:
        """Build from `{index, total_mib, free_gib, …}`; either memory value is estimated from the other if absent."""
        index, total_mib, free_gib = values.get("index"), values.get("total_mib"), values.get("free_gib")
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise FleetError("an index of 0 or more for every GPU", repr(index), "correct gpus")
        for name, value in (("total_mib", total_mib), ("free_gib", free_gib)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise FleetError(f"{name} of GPU {index} above 0", repr(value), "correct gpus")
        if total_mib is None and free_gib is None:
            raise FleetError(f"total_mib or free_gib of GPU {index}", "neither", "declare what nvidia-smi shows")
        if total_mib is None:
            assert free_gib is not None
            total_mib = round((free_gib + _CONTEXT_GIB) / (1 - _CONTEXT_SHARE) * GIB / MIB)
        if free_gib is None:
            free_gib = usable_gib(int(total_mib))
        elif free_gib > total_mib * MIB / GIB:
            raise FleetError(
                f"free_gib of GPU {index} within its {total_mib * MIB / GIB:.2f} GiB", f"{free_gib} GiB", "correct gpus"
            )
        capability = values.get("compute_capability")
        if isinstance(capability, str):
            major, _dot, minor = capability.partition(".")
            capability = (int(major), int(minor or 0))
        return cls(
            index=index,
            total_mib=int(total_mib),
            free_gib=float(free_gib),
            numa_node=values.get("numa_node"),
            compute_capability=tuple(capability) if capability else None,
        )


def usable_gib(total_mib: int) -> float:
    """Free memory of an idle GPU once a process has made its CUDA context, in GiB: an estimate."""
    total_gib = total_mib * MIB / GIB
    return max(0.0, total_gib * (1 - _CONTEXT_SHARE) - _CONTEXT_GIB)


@dataclass(frozen=True)
class LoadedWeights:
    """What loading takes off one GPU's free memory, in GiB, residue included.

    Attributes:
        target_gib: the target model.
        draft_gib: the MTP draft with its own embedding and head, 0 without MTP.
        returned_gib: the part of draft_gib that comes back once embedding and head are shared.
        measured: given as a running engine logged them; then free memory counts as logged too, nothing is added.
    """

    target_gib: float
    draft_gib: float
    returned_gib: float
    measured: bool = False


def loaded_weights(
    checkpoint: Checkpoint, intent: Intent, weights_gib: float | None = None, draft_gib: float | None = None
) -> LoadedWeights:
    """Weights of one rank; the overrides are taken as measured per GPU (SGLang logs them as `mem usage`).

    Raises FleetError where neither the checkpoint nor the caller knows the weights, and for MTP without an MTP layer.
    """
    weights = checkpoint.weights
    ranks = intent.tensor_parallel
    if weights is None and weights_gib is None:
        raise FleetError(
            f"safetensors shards in {checkpoint.path}, or weights_gib",
            "neither",
            "download the shards or give weights_gib",
        )
    measured = weights_gib is not None
    if weights_gib is None:
        assert weights is not None
        weights_gib = (weights.target_bytes / ranks + checkpoint.derived_bytes(ranks)) / GIB
        if checkpoint.vision is not None:
            weights_gib += _VISION_PADDING_GIB
        if checkpoint.experts:
            weights_gib += _EXPERTS_GIB
    if intent.mtp is None:
        return LoadedWeights(weights_gib, 0.0, 0.0, measured)
    if draft_gib is not None:
        return LoadedWeights(weights_gib, draft_gib, 0.0, measured)
    if weights is None:
        raise FleetError("draft_gib beside weights_gib (mtp is on)", "only weights_gib", "give draft_gib")
    if not weights.draft_bytes:
        raise FleetError(
            f"MTP layers in {checkpoint.path} (mtp wants them)",
            "a checkpoint without any",
            "drop mtp, or download a revision of the model that keeps its MTP weights",
        )
    draft_gib, returned_gib = weights.draft_bytes / ranks / GIB, weights.shared_bytes / ranks / GIB
    return LoadedWeights(weights_gib, draft_gib, returned_gib, measured)


@dataclass(frozen=True)
class GpuBudget:
    """One GPU of an instance as SGLang will fill it; every rank of an instance has the same.

    weights + draft + state + intermediate + kv + slack = free_bytes. The draft's KV, graphs and activations live in
    the slack; `spare_bytes` estimates what is left of it while serving.

    Attributes:
        total_bytes, free_bytes: the smallest GPU's memory, and what of it is free before the model is loaded.
        mem_fraction_static: given, or SGLang's default for this GPU.
        state_strategy, slots_per_request, page_size: as resolved for the release.
        state_slots: max_mamba_cache_size; 0 for models without a recurrent state.
        max_running_requests: requests that run at the same time.
        kv_tokens: max_total_num_tokens.
        state_bytes: slots and the padding row; state_slot_bytes for one.
        intermediate_bytes: states of unverified draft tokens.
        kv_bytes: KV pool with its padding page; kv_token_bytes for one token.
        draft_kv_bytes, graph_bytes, prefill_graph_bytes: taken from the slack; so is request_table_bytes, which finds
            the KV rows of every position.
        minimum_fraction: mem_fraction_static at which the weights alone fill the static share.
        problems: why SGLang would not start.
    """

    total_bytes: int
    free_bytes: int
    mem_fraction_static: float
    state_strategy: str
    slots_per_request: int
    page_size: int
    state_slots: int
    max_running_requests: int
    kv_tokens: int
    weights_bytes: int
    draft_bytes: int
    state_bytes: int
    intermediate_bytes: int
    kv_bytes: int
    draft_kv_bytes: int
    graph_bytes: int
    prefill_graph_bytes: int
    request_table_bytes: int
    returned_bytes: int
    state_slot_bytes: int
    kv_token_bytes: int
    minimum_fraction: float
    problems: tuple[FleetError, ...]

    @property
    def slack_bytes(self) -> int:
        """What the static pools leave free."""
        pools = self.state_bytes + self.intermediate_bytes + self.kv_bytes
        return self.free_bytes - self.weights_bytes - self.draft_bytes - pools

    @property
    def spare_bytes(self) -> int:
        """Left for activations; those of prefill are held by its graphs."""
        taken = self.draft_kv_bytes + self.graph_bytes + self.request_table_bytes
        return self.slack_bytes - taken + self.returned_bytes

    @property
    def available_bytes(self) -> int:
        """Free after start, as SGLang logs it (available_gpu_mem)."""
        return self.spare_bytes - self.prefill_graph_bytes


def chunked_prefill_tokens(total_mib: int, release: Release) -> int:
    """SGLang's default chunked_prefill_size for a GPU of this size."""
    if total_mib < 35 * 1024:
        return 2048 if total_mib < 20 * 1024 or release < _LARGER_SMALL_GPUS else 4096
    if total_mib < 60 * 1024:
        return 4096
    return 8192 if total_mib < 160 * 1024 else 16384


def decode_graph_batch(total_mib: int, release: Release, intent: Intent) -> int:
    """The largest batch that SGLang captures decode graphs for by default."""
    many_ranks = intent.tensor_parallel >= 4
    if total_mib < 20 * 1024:
        batch = 8
    elif total_mib < 35 * 1024:
        batch = (80 if many_ranks else 24) if release < _LARGER_SMALL_GPUS else 160 if many_ranks else 48
    elif total_mib < 60 * 1024:
        batch = 160 if many_ranks else 32
    elif total_mib < 160 * 1024:
        batch = 512 if many_ranks else 256
    else:
        batch = 512
    if memory_behaviour(release).graph_batch_follows_requests and intent.max_running_requests is not None:
        batch = min(batch, intent.max_running_requests)
    return batch


def activation_bytes(total_mib: int, release: Release) -> int:
    """SGLang's own allowance for activations and metadata: 512 MiB and 1.5 MiB per token of a prefill chunk."""
    return round((512 + 1.5 * chunked_prefill_tokens(total_mib, release)) * MIB)


def default_mem_fraction(checkpoint: Checkpoint, release: Release, intent: Intent, total_mib: int) -> float:
    """mem_fraction_static that SGLang takes when none is given."""
    behaviour = memory_behaviour(release)
    chunk = chunked_prefill_tokens(total_mib, release)
    batch = decode_graph_batch(total_mib, release, intent)
    reserve_mib = 512 + 1.5 * chunk + 2 * batch + intent.tensor_parallel / 8 * 1024
    reserve_mib += 1.5 * 1024 if checkpoint.family == MLA else 8 * _prefill_graphs(chunk)
    if total_mib > 60 * 1024:
        reserve_mib = max(reserve_mib, 10 * 1024)
    if intent.mtp is not None:
        reserve_mib += behaviour.speculative_reserve_mib
    fraction = round((total_mib - reserve_mib) / total_mib, 3)
    if checkpoint.vision is not None:
        layers, hidden = checkpoint.vision
        complexity = layers * hidden**2 / (24 * 1024**2)
        fraction *= 0.95 * min(1.05, max(0.8, 1 - 0.1 * (complexity - 1)))
    return fraction


def _prefill_graphs(chunk: int) -> int:
    """How many prefill batch sizes SGLang captures up to `chunk` tokens."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, chunk + 1, 512))
    return sum(size <= chunk for start, stop, step in steps for size in range(start, stop, step))


def _decode_graph_bytes(checkpoint: Checkpoint, requests: int, speculative: bool) -> int:
    base_gib, request_gib = _DRAFT_GRAPHS_GIB if speculative else _GRAPHS_GIB
    share = 1.0
    if speculative and checkpoint.experts:
        share = _DRAFT_EXPERTS_SHARE
    elif not speculative and checkpoint.linear is None:
        share = _PLAIN_ATTENTION_SHARE
    return round((base_gib + request_gib * requests) * share * GIB)


def _prefill_graph_bytes(checkpoint: Checkpoint, chunk_tokens: int) -> int:
    tokens = min(chunk_tokens, _MLA_PREFILL_GRAPH_TOKENS) if checkpoint.family == MLA else chunk_tokens
    return round(_PREFILL_GRAPH_BYTES * tokens * checkpoint.hidden_size)


def resolve_page_size(release: Release, intent: Intent, strategy: str, gpu: Gpu) -> int:
    """Tokens per KV page where none is given: 64 on sm100 with extra_buffer or MTP (trtllm_mha), otherwise 1."""
    if intent.page_size is not None:
        return intent.page_size
    if gpu.compute_capability is not None and gpu.compute_capability[0] == 10:
        return 64 if strategy != "no_buffer" or intent.mtp is not None else 1
    return 1


def resolve_strategy(checkpoint: Checkpoint, behaviour: MemoryBehaviour, intent: Intent) -> str:
    """The state strategy that `auto` becomes."""
    if intent.state_strategy != "auto":
        return intent.state_strategy
    text_only = checkpoint.architecture in _TEXT_ONLY_HYBRIDS
    return behaviour.auto_strategy_text_only if text_only else behaviour.auto_strategy


def allocate(
    checkpoint: Checkpoint,
    release: Release,
    intent: Intent,
    gpus: Sequence[Gpu],
    weights: LoadedWeights,
) -> GpuBudget:
    """Fill the GPUs of one instance.

    Args:
        intent: values left open take the release's own defaults.
        gpus: the instance's GPUs; ranks agree on the smallest free memory.
        weights: what loading takes, from loaded_weights().
    """
    behaviour = memory_behaviour(release)
    total_mib, free_gib = min(gpu.total_mib for gpu in gpus), min(gpu.free_gib for gpu in gpus)
    if checkpoint.vision is not None and not weights.measured:
        free_gib -= behaviour.multimodal_transport_bytes / GIB
    fraction = intent.mem_fraction_static or default_mem_fraction(checkpoint, release, intent, total_mib)
    strategy = resolve_strategy(checkpoint, behaviour, intent)
    page = resolve_page_size(release, intent, strategy, gpus[0])
    problems: list[FleetError] = []

    available_gib = free_gib - weights.target_gib - (weights.draft_gib if behaviour.draft_before_sizing else 0.0)
    measured_gib = free_gib + (0.0 if weights.measured else _EARLIER_GIB)
    rest_gib = available_gib - measured_gib * (1 - fraction)
    if checkpoint.vision is not None:
        rest_gib -= behaviour.multimodal_reserve_bytes / GIB
    minimum_fraction = 1 - available_gib / measured_gib

    drafts = intent.mtp.draft_tokens if intent.mtp is not None else 0
    requests_cap = intent.max_running_requests
    if drafts and requests_cap is None:
        requests_cap = DEFAULT_SPECULATIVE_REQUESTS
    slots_per_request = _RADIX_SLOTS[strategy] if intent.prefix_reuse else 1

    slots = slot_bytes = 0
    if checkpoint.linear is not None:
        slot_bytes = checkpoint.linear.slot_bytes(intent.tensor_parallel, intent.state_dtype)
        if rest_gib > 0:
            slots, rest_gib, problem = _size_states(
                behaviour.era, intent, rest_gib, slot_bytes, slots_per_request, requests_cap, drafts
            )
            if problem:
                problems.append(problem)
    token_bytes = checkpoint.kv_token_bytes(intent.kv_dtype, intent.tensor_parallel)
    charged = token_bytes
    if drafts and behaviour.draft_kv_charged and checkpoint.draft_layers_announced:
        charged = int(token_bytes * (1 + checkpoint.draft_layers_announced / checkpoint.attention_layers))
    tokens = max(0, int(rest_gib * GIB) // charged // page * page)
    if tokens <= 0 and not problems:
        problems.append(
            FleetError(
                f"GPU memory for KV beside {free_gib - available_gib:.2f} GiB of weights",
                f"{rest_gib:.2f} GiB left of {free_gib:.2f} GiB free at mem_fraction_static {fraction:g}",
                f"raise mem_fraction_static above {math.ceil(minimum_fraction * 1000) / 1000:.3f}"
                if minimum_fraction < _HIGHEST_FRACTION
                else "use a smaller or quantised model, larger GPUs, or a higher tensor_parallel",
            )
        )

    requests = _running_requests(checkpoint, behaviour, intent, requests_cap, tokens)
    if checkpoint.linear is not None:
        requests = min(requests, slots // slots_per_request)
        if requests <= 0 and not problems:
            problems.append(
                FleetError(
                    f"{slots_per_request} state slots for at least one request",
                    f"{slots} slots of {slot_bytes / MIB:.1f} MiB",
                    "raise mem_fraction_static or mamba_full_memory_ratio, or lower max_running_requests",
                )
            )
    requests = requests if tokens > 0 else 0
    draft_token_bytes = checkpoint.draft_kv_token_bytes(intent.kv_dtype, intent.tensor_parallel) if drafts else 0
    # A given max_running_requests is rendered as the largest batch of the graphs, too.
    given = intent.max_running_requests is not None
    captured = requests if given else min(requests, decode_graph_batch(total_mib, release, intent))
    budget = GpuBudget(
        total_bytes=total_mib * MIB,
        free_bytes=round(free_gib * GIB),
        mem_fraction_static=fraction,
        state_strategy=strategy,
        slots_per_request=slots_per_request,
        page_size=page,
        state_slots=slots,
        max_running_requests=requests,
        kv_tokens=tokens,
        weights_bytes=round(weights.target_gib * GIB),
        draft_bytes=round(weights.draft_gib * GIB),
        state_bytes=(slots + 1) * slot_bytes,
        intermediate_bytes=(requests + 1) * _intermediate_bytes(checkpoint, behaviour, intent),
        kv_bytes=(tokens + page) * token_bytes,
        draft_kv_bytes=(tokens + page) * draft_token_bytes,
        graph_bytes=_decode_graph_bytes(checkpoint, captured, bool(drafts)),
        prefill_graph_bytes=_prefill_graph_bytes(checkpoint, chunked_prefill_tokens(total_mib, release)),
        request_table_bytes=requests * (intent.context_length or checkpoint.context_length) * 4,
        returned_bytes=round(weights.returned_gib * GIB),
        state_slot_bytes=slot_bytes,
        kv_token_bytes=token_bytes,
        minimum_fraction=minimum_fraction,
        problems=tuple(problems),
    )
    if budget.problems or budget.spare_bytes > 0:
        return budget
    outside = FleetError(
        f"{(budget.draft_kv_bytes + budget.graph_bytes - budget.returned_bytes) / GIB:.1f} GiB beside the pools for "
        "graphs and the draft's KV",
        f"{budget.slack_bytes / GIB:.1f} GiB of slack at mem_fraction_static {fraction:g}",
        "lower mem_fraction_static",
    )
    return replace(budget, problems=(outside,))


def _running_requests(
    checkpoint: Checkpoint, behaviour: MemoryBehaviour, intent: Intent, requests_cap: int | None, tokens: int
) -> int:
    """Requests that the KV tokens allow, before the state cache has its say."""
    context = intent.context_length or checkpoint.context_length
    estimate = max(2048, min(4096, int(tokens / context * 512)))
    if requests_cap is None:
        return min(estimate, tokens // 2)
    return min(requests_cap, tokens // 2 if behaviour.requests_bounded_by_tokens else estimate)


def _intermediate_bytes(checkpoint: Checkpoint, behaviour: MemoryBehaviour, intent: Intent) -> int:
    """States of the unverified draft tokens of one request."""
    if intent.mtp is None or checkpoint.linear is None:
        return 0
    drafts, kernel = intent.mtp.draft_tokens, checkpoint.linear.conv_kernel
    windows = float(drafts)
    if behaviour.deduplicated_conv_windows and intent.mtp.topk == 1:
        windows = (drafts + kernel - 2) / (kernel - 1)
    ssm_bytes = checkpoint.linear.ssm_bytes(intent.tensor_parallel, intent.state_dtype)
    return round(drafts * ssm_bytes + windows * checkpoint.linear.conv_bytes(intent.tensor_parallel))


def _size_states(
    era: str,
    intent: Intent,
    rest_gib: float,
    slot_bytes: int,
    slots_per_request: int,
    requests_cap: int | None,
    drafts: int,
) -> tuple[int, float, FleetError | None]:
    """Slots of the state cache, the GiB left for KV, and why it cannot be."""
    ratio = intent.mamba_full_memory_ratio or DEFAULT_STATE_RATIO
    padding = 1 if era == "C" else 0
    given = intent.max_mamba_cache_size
    if given is None and not intent.prefix_reuse:
        given = requests_cap
    whole_gib = rest_gib
    reserved_requests = 0
    if era == "A" and drafts:
        assert requests_cap is not None
        reserved_requests = requests_cap
        rest_gib -= slot_bytes * requests_cap * drafts / GIB
    budget = rest_gib * ratio / (1 + ratio) * GIB
    if given is not None:
        slots = given
    elif drafts and era != "A":
        slots = int((budget - padding * slot_bytes * (1 + drafts)) // (slot_bytes * (1 + drafts / slots_per_request)))
    else:
        slots = int((budget - padding * slot_bytes) // slot_bytes)
    slots = max(0, slots)
    if drafts and era != "A":
        assert requests_cap is not None
        reserved_requests = min(requests_cap, slots // slots_per_request) + padding
        rest_gib -= slot_bytes * reserved_requests * drafts / GIB
    rest_gib -= (slots + padding) * slot_bytes / GIB
    if slots > 0 and rest_gib > 0:
        return slots, rest_gib, None
    wanted = []
    if drafts:
        wanted.append(
            f"{reserved_requests} requests * {drafts} draft tokens * {slot_bytes / MIB:.1f} MiB = "
            f"{slot_bytes * reserved_requests * drafts / GIB:.1f} GiB of intermediate states"
        )
    if slots:
        rows = slots + padding
        wanted.append(f"{rows} state slots * {slot_bytes / MIB:.1f} MiB = {rows * slot_bytes / GIB:.1f} GiB")
    problem = FleetError(
        f"room for {' and '.join(wanted) or 'state slots'}, and for KV",
        f"{whole_gib:.1f} GiB beside the weights",
        "lower max_running_requests or max_mamba_cache_size, or raise mem_fraction_static",
    )
    return slots, rest_gib, problem
