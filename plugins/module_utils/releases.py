"""SGLang releases: parsing and ordering of version strings, and how each release sizes its memory pools."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from .errors import FleetError
from .units import MIB

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?")


@dataclass(frozen=True, order=True)
class Release:
    """One SGLang release; ordered as PyPI orders them (0.5.10 < 0.5.10.post1 < 0.5.11)."""

    major: int
    minor: int
    patch: int
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read "0.5.10.post1". Raises FleetError for anything else (ranges, "latest", dev builds)."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise FleetError(
                "an exact SGLang release such as 0.5.23 or 0.5.10.post1",
                repr(text),
                "pin the engine version",
            )
        major, minor, patch, post = (int(part or 0) for part in match.groups())
        return cls(major, minor, patch, post)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


OLDEST_KNOWN = Release(0, 5, 7)
NEWEST_KNOWN = Release(0, 5, 23)


@dataclass(frozen=True)
class MemoryBehaviour:
    """How one release sizes its pools, read from the released packages' source.

    Attributes:
        era: "A" (up to 0.5.12) reserves intermediate states for all of max_running_requests before it sizes the state
            cache; "B" (0.5.13 to 0.5.16) solves for both together; "C" (0.5.17 and later) also counts padding rows.
        draft_before_sizing: draft weights are loaded before pools are sized, so that they shrink the pools (0.5.14 and
            later); before that they come out of the slack.
        draft_kv_charged: the KV of a draft that the target's own config announces is charged per token (0.5.14).
        requests_bounded_by_tokens: an explicit max_running_requests is bounded by half the KV tokens (0.5.14).
        deduplicated_conv_windows: intermediate convolution windows overlap in memory (0.5.14).
        multimodal_reserve_bytes: kept out of the pools for a multimodal model's embedding cache.
        multimodal_transport_bytes: what the launcher takes of the GPU beside the engine for a multimodal model: a pool
            of features and its own CUDA context, seen with 0.5.17, the only release that does so by default.
        speculative_reserve_mib: added to the default reserve behind mem_fraction_static with speculation.
        graph_batch_follows_requests: graphs are captured for at most max_running_requests (0.5.22).
        auto_strategy: what the state strategy `auto` means.
        auto_strategy_text_only: the same for the Qwen3.5 architectures without a vision encoder; until 0.5.18 `auto`
            is left unresolved for them, which takes the slots of no_buffer.
        lazy_strategy, lazy_strategy_with_mtp: extra_buffer_lazy exists, and together with MTP.
        hybrid_hicache: the host tier exists for hybrid models.
        hicache_size_per_pool: `--hicache-size` is given to the KV pool and again to the state pool (to 0.5.16).
        hicache_draft_pool: "none", "outside" the size (0.5.11 to 0.5.17), or "packed" into the KV rows (0.5.18).
        hicache_index_pool: index keys of sparse attention have a host pool of their own, outside the size (0.5.11).
        hicache_must_exceed_device: a host pool not larger than its device pool is an error (to 0.5.14).
        hicache_check_per_rank: the engine's own check divides the host's memory by the ranks of the launch (0.5.19).
        hicache_check_cgroup: the engine's own check honours cgroup limits (0.5.21).
        collects_before_sizing: garbage left from loading no longer shrinks the pools (0.5.19).
    """

    era: str
    draft_before_sizing: bool
    draft_kv_charged: bool
    requests_bounded_by_tokens: bool
    deduplicated_conv_windows: bool
    multimodal_reserve_bytes: int
    multimodal_transport_bytes: int
    speculative_reserve_mib: int
    graph_batch_follows_requests: bool
    auto_strategy: str
    auto_strategy_text_only: str
    lazy_strategy: bool
    lazy_strategy_with_mtp: bool
    hybrid_hicache: bool
    hicache_size_per_pool: bool
    hicache_draft_pool: str
    hicache_index_pool: bool
    hicache_must_exceed_device: bool
    hicache_check_per_rank: bool
    hicache_check_cgroup: bool
    collects_before_sizing: bool


@cache
def memory_behaviour(release: Release) -> MemoryBehaviour:
    """The sizing rules of a release; releases outside the known range behave as the nearest known one."""

    def since(patch: int) -> bool:
        return release >= Release(0, 5, patch)

    return MemoryBehaviour(
        era="C" if since(17) else "B" if since(13) else "A",
        draft_before_sizing=since(14),
        draft_kv_charged=since(14),
        requests_bounded_by_tokens=since(14),
        deduplicated_conv_windows=since(14),
        multimodal_reserve_bytes=100 * MIB if since(18) else 0,
        multimodal_transport_bytes=1548 * MIB if since(17) and not since(18) else 0,
        speculative_reserve_mib=0 if since(14) else 4096 if since(10) else 2048,
        graph_batch_follows_requests=since(22),
        auto_strategy="extra_buffer" if since(14) else "no_buffer",
        auto_strategy_text_only="extra_buffer" if since(19) else "no_buffer",
        lazy_strategy=since(13),
        lazy_strategy_with_mtp=since(17),
        hybrid_hicache=since(10),
        hicache_size_per_pool=not since(17),
        hicache_draft_pool="packed" if since(18) else "outside" if since(11) else "none",
        hicache_index_pool=since(11),
        hicache_must_exceed_device=not since(15),
        hicache_check_per_rank=since(19),
        hicache_check_cgroup=since(21),
        collects_before_sizing=since(19),
    )


def known_release(release: Release) -> Release:
    """The release whose rules a plan follows: itself within the range whose source was read, else the nearest."""
    return min(max(release, OLDEST_KNOWN), NEWEST_KNOWN)


def coverage_note(release: Release) -> str | None:
    """A sentence for a release outside the range whose source was read, or None."""
    known = known_release(release)
    if known == release:
        return None
    which = "newer" if release > known else "older"
    return f"SGLang {release} is {which} than any known release: planned with the rules of {known}"
