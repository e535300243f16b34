"""Combinations that are known to fail, to do nothing or to give wrong output, by release, with their public references.

`sglang#N` is an issue or pull request of sgl-project/sglang. A rule without a reference states what the release's own
resolution does, seen by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import FleetError
from .intent import Intent
from .releases import Release

_EVER = Release(0, 0, 0)
_NEVER = Release(99, 0, 0)
_SLOTS_PER_REQUEST = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}


@dataclass(frozen=True)
class Candidate:
    """What is about to be rendered.

    Attributes:
        hybrid: whether the model has linear-attention (Mamba or GDN) layers.
        model_type: `model_type` of config.json; "" where unknown.
        accelerator: "cuda" or "cpu".
        extra: free arguments, flag → values.
    """

    intent: Intent
    release: Release
    hybrid: bool
    model_type: str
    accelerator: str
    extra: Mapping[str, tuple[str, ...]]

    def extra_value(self, flag: str) -> str:
        """The first value of a free argument, or ""."""
        return next(iter(self.extra.get(flag, ())), "")


@dataclass(frozen=True)
class Rule:
    """A combination: `applies` from release `since` until before `until`; `fails` says whether it is refused."""

    combination: str
    reason: str
    change: str
    applies: Callable[[Candidate], bool]
    since: Release = _EVER
    until: Release = _NEVER
    reference: str = ""
    fails: bool = True

    def matches(self, candidate: Candidate) -> bool:
        """Whether the candidate is this combination."""
        return self.since <= candidate.release < self.until and self.applies(candidate)

    def __str__(self) -> str:
        return self.reason + (f" ({self.reference})" if self.reference else "")


def judge(candidate: Candidate, allow_known_bad: bool = False) -> list[str]:
    """Warnings about a candidate. Raises FleetError for a combination that fails, unless that is allowed."""
    matching = [rule for rule in RULES if rule.matches(candidate)]
    for rule in matching:
        if rule.fails and not allow_known_bad:
            raise FleetError(
                f"no {rule.combination} on SGLang {candidate.release}",
                f"it: {rule}",
                f"{rule.change}, or set sglang_instances_allow_known_bad if you know better",
            )
    return [f"{rule.combination} on SGLang {candidate.release}: {rule}; {rule.change}" for rule in matching]


def _hybrid_hicache(candidate: Candidate) -> bool:
    return candidate.hybrid and candidate.intent.hicache


def _tight_slots(candidate: Candidate) -> bool:
    intent = candidate.intent
    slots = _SLOTS_PER_REQUEST.get(intent.state_strategy)
    if slots is None or not intent.prefix_reuse or intent.max_running_requests is None:
        return False
    return intent.max_mamba_cache_size == slots * intent.max_running_requests


def _odd_page(candidate: Candidate) -> bool:
    page = candidate.intent.page_size or 64
    return candidate.hybrid and 64 % page != 0 and page % 64 != 0


def _misaligned_track_interval(candidate: Candidate) -> bool:
    interval = candidate.extra_value("--mamba-track-interval")
    return interval.isdigit() and int(interval) % (candidate.intent.page_size or 64) != 0


RULES: tuple[Rule, ...] = (
    Rule(
        "hicache with qwen4_exp",
        "host hits restore the wrong side state and the output is wrong",
        "drop hicache or take 0.5.22",
        lambda c: c.intent.hicache and c.model_type == "qwen4_exp",
        until=Release(0, 5, 22),
        reference="sglang#39830",
    ),
    Rule(
        "hicache with a hybrid model",
        "the host tier may be filled and never hit, since state nodes are pruned; chunked prompts are never backed up",
        "watch sglang:load_back_tokens_total, and drop hicache where it stays at 0",
        _hybrid_hicache,
        reference="sglang#33713, sglang#36647",
        fails=False,
    ),
    Rule(
        "hicache with a hybrid model",
        "its size is allocated twice, for KV and for state",
        "the plan counts both; take 0.5.17 to have it split",
        _hybrid_hicache,
        until=Release(0, 5, 17),
        reference="sglang#29034, sglang#32915",
        fails=False,
    ),
    Rule(
        "hicache with MTP",
        "the draft layer's KV is not restored from the host and the accept length collapses",
        "take 0.5.18 or drop one of them",
        lambda c: c.intent.hicache and c.intent.mtp is not None,
        until=Release(0, 5, 18),
        reference="sglang#31600, sglang#30393",
        fails=False,
    ),
    Rule(
        "hicache_ratio up to 1",
        "every host pool must be larger than its GPU pool",
        "set hicache_ratio above 1",
        lambda c: c.intent.hicache_ratio is not None and c.intent.hicache_ratio <= 1,
        until=Release(0, 5, 15),
    ),
    Rule(
        "hicache with mem_fraction_static from 0.95 on",
        "host transfers need GPU memory outside the pools and run out of it",
        "set mem_fraction_static to 0.9 or less",
        lambda c: c.intent.hicache and (c.intent.mem_fraction_static or 0) >= 0.95,
        reference="sglang#5372",
    ),
    Rule(
        "hicache with --enable-lmcache",
        "the two host tiers exclude one another",
        "drop one of them",
        lambda c: c.intent.hicache and "--enable-lmcache" in c.extra,
    ),
    Rule(
        "hicache with --enable-int8-mamba-checkpoint",
        "the host copies do not know int8 state",
        "drop one of them",
        lambda c: c.intent.hicache and "--enable-int8-mamba-checkpoint" in c.extra,
    ),
    Rule(
        "hicache and MTP with --enable-unified-memory",
        "the draft's private pool cannot be loaded from the host's packed pool",
        "drop one of them",
        lambda c: c.intent.hicache and c.intent.mtp is not None and "--enable-unified-memory" in c.extra,
    ),
    Rule(
        "--hicache-host-memory-mode buffer_only without hicache_storage_backend",
        "host memory is then only a staging buffer and nothing is kept",
        "add a storage backend or drop buffer_only",
        lambda c: (
            c.extra_value("--hicache-host-memory-mode") == "buffer_only" and c.intent.hicache_storage_backend is None
        ),
    ),
    Rule(
        "--hicache-host-memory-mode buffer_only with a hybrid model",
        "state pools refuse it",
        "drop buffer_only or take 0.5.22",
        lambda c: c.hybrid and c.extra_value("--hicache-host-memory-mode") == "buffer_only",
        until=Release(0, 5, 22),
    ),
    Rule(
        "hicache_storage_backend shm",
        "its pools lie in /dev/shm beside the weights, outside the plan",
        "leave room for it in sglang_host_shm_size_gib",
        lambda c: c.intent.hicache and c.intent.hicache_storage_backend == "shm",
        fails=False,
    ),
    Rule(
        "MTP and prefix reuse with state_strategy no_buffer",
        "it needs pages of one token and a scheduler that does not overlap",
        "set state_strategy to extra_buffer",
        lambda c: c.intent.mtp is not None and c.intent.prefix_reuse and c.intent.state_strategy == "no_buffer",
    ),
    Rule(
        "state_strategy no_buffer with pages of more than one token",
        "it only supports page_size 1",
        "set state_strategy to extra_buffer or drop page_size",
        lambda c: c.intent.state_strategy == "no_buffer" and (c.intent.page_size or 1) > 1,
    ),
    Rule(
        "state_strategy extra_buffer_lazy",
        "the release does not have it",
        "set state_strategy to extra_buffer or take 0.5.13",
        lambda c: c.intent.state_strategy == "extra_buffer_lazy",
        until=Release(0, 5, 13),
    ),
    Rule(
        "state_strategy extra_buffer_lazy with MTP",
        "the release asserts against it",
        "set state_strategy to extra_buffer or take 0.5.17",
        lambda c: c.intent.state_strategy == "extra_buffer_lazy" and c.intent.mtp is not None,
        since=Release(0, 5, 13),
        until=Release(0, 5, 17),
    ),
    Rule(
        "max_mamba_cache_size of exactly the slots that the running requests take",
        "the scheduler was seen to crash without a spare slot",
        "add one to max_mamba_cache_size",
        _tight_slots,
        reference="sglang#37066",
    ),
    Rule(
        "a page_size that neither divides 64 nor is a multiple of it, with a hybrid model",
        "attention silently falls back to triton with pages of one token",
        "set page_size to 64 or leave it out",
        _odd_page,
    ),
    Rule(
        "MTP with a page_size above 1",
        "the fastest attention backend is not chosen then; a B200 falls back to triton with pages of one token",
        "leave page_size out",
        lambda c: c.intent.mtp is not None and (c.intent.page_size or 1) > 1,
        fails=False,
    ),
    Rule(
        "a --mamba-track-interval that is no multiple of page_size",
        "state is tracked at the ends of pages",
        "make it a multiple of page_size",
        _misaligned_track_interval,
    ),
    Rule(
        "MTP with draft_tokens other than steps + 1 at topk 1",
        "the release silently adjusts them, and the plan would count other states than are allocated",
        "set draft_tokens to steps + 1",
        lambda c: (
            c.intent.mtp is not None and c.intent.mtp.topk == 1 and c.intent.mtp.draft_tokens != c.intent.mtp.steps + 1
        ),
    ),
    Rule(
        "MTP with topk above 1 and --attention-backend trtllm_mha",
        "that backend verifies one branch only",
        "set topk to 1 or leave the backend out",
        lambda c: (
            c.intent.mtp is not None and c.intent.mtp.topk > 1 and c.extra_value("--attention-backend") == "trtllm_mha"
        ),
    ),
    Rule(
        "--speculative-draft-model-path",
        "the plan has no room for a draft model of its own",
        "drop it: mtp uses the model's own layer",
        lambda c: "--speculative-draft-model-path" in c.extra or "--speculative-draft-model" in c.extra,
    ),
    Rule(
        "MTP with topk above 1",
        "attention falls back to triton with pages of one token",
        "set topk to 1 unless the wider tree was measured to pay",
        lambda c: c.intent.mtp is not None and c.intent.mtp.topk > 1,
        fails=False,
    ),
    Rule(
        "bfloat16 or float16 state",
        "decoding takes another kernel (flashinfer), and accuracy may change",
        "compare answers before it serves",
        lambda c: c.intent.state_dtype in ("bfloat16", "float16"),
        since=Release(0, 5, 20),
        fails=False,
    ),
    Rule(
        "--weight-loader-disable-mmap with weights in /dev/shm",
        "every instance reads whole shards into private memory, about ten at a time",
        "drop it: mapped weights are shared by all instances",
        lambda c: "--weight-loader-disable-mmap" in c.extra,
    ),
    Rule(
        "--disable-overlap-schedule with state_strategy extra_buffer",
        "a request then takes four state slots, not the five that are planned",
        "drop it",
        lambda c: c.intent.state_strategy == "extra_buffer" and "--disable-overlap-schedule" in c.extra,
        fails=False,
    ),
)
