"""What is wanted of one engine instance, in the words of the inventory and independent of any SGLang release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .errors import FleetError

STATE_STRATEGIES = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
STATE_DTYPES = ("float32", "bfloat16", "float16")
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
KV_DTYPES = ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Speculation:
    """Multi-token prediction (MTP): draft `steps` times with `topk` branches, verify `draft_tokens` tokens."""

    steps: int = 3
    topk: int = 1
    draft_tokens: int = 4


@dataclass(frozen=True)
class Intent:
    """The wanted load and the choices that a person made; None means "let the planner or SGLang decide".

    Attributes:
        concurrency: requests that should run at the same time on one instance.
        tokens_per_request: prompt plus generated tokens of a typical request.
        context_length: longest sequence, in tokens.
        tensor_parallel: GPUs that one instance spans.
        mtp: speculation with the model's own MTP layer, or None.
        mtp_where_faster: whether a proposal may leave MTP out where more requests without it should decode faster.
        prefix_reuse: radix cache on or off.
        hicache_gb: `--hicache-size` in GB (1e9 bytes) per rank; excludes hicache_ratio.
        hicache_ratio: `--hicache-ratio`, host pool over device pool.
        hicache_write_policy: when a prefix goes to the host tier: at once, once it is reused, or when it is evicted.
        hicache_storage_backend: a third tier behind the host's, such as "file" or "mooncake"; its own settings are
            free arguments.
        mem_fraction_static: share of GPU memory for weights and pools, 0 < f < 1.
        state_strategy: Mamba radix cache strategy.
        state_dtype: dtype of the SSM state (accuracy-relevant, never chosen by the planner).
        kv_dtype: dtype of the KV cache (accuracy-relevant, never chosen by the planner).
        page_size: KV page, in tokens.
        max_running_requests, max_total_tokens, max_mamba_cache_size, mamba_full_memory_ratio: as SGLang's flags of
            these names.
    """

    concurrency: int | None = None
    tokens_per_request: int | None = None
    context_length: int | None = None
    tensor_parallel: int = 1
    mtp: Speculation | None = None
    mtp_where_faster: bool = False
    prefix_reuse: bool = True
    hicache_gb: int | None = None
    hicache_ratio: float | None = None
    hicache_write_policy: str | None = None
    hicache_storage_backend: str | None = None
    mem_fraction_static: float | None = None
    state_strategy: str = "auto"
    state_dtype: str | None = None
    kv_dtype: str = "auto"
    page_size: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "concurrency",
            "tokens_per_request",
            "context_length",
            "tensor_parallel",
            "hicache_gb",
            "page_size",
            "max_running_requests",
            "max_total_tokens",
            "max_mamba_cache_size",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise FleetError(f"{name} to be a whole number of at least 1", repr(value), f"correct {name}")
        for name in ("hicache_ratio", "mamba_full_memory_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise FleetError(f"{name} to be above 0", repr(value), f"correct {name}")
        if self.mem_fraction_static is not None and not 0 < self.mem_fraction_static < 1:
            raise FleetError(
                "mem_fraction_static between 0 and 1",
                repr(self.mem_fraction_static),
                "give a fraction such as 0.85, or leave it out to have it planned",
            )
        for name, allowed in (
            ("state_strategy", STATE_STRATEGIES),
            ("state_dtype", (None, *STATE_DTYPES)),
            ("kv_dtype", KV_DTYPES),
            ("hicache_write_policy", (None, *WRITE_POLICIES)),
        ):
            if getattr(self, name) not in allowed:
                raise FleetError(
                    f"{name} to be one of {', '.join(str(a) for a in allowed)}",
                    repr(getattr(self, name)),
                    f"correct {name}",
                )
        if self.hicache and not self.prefix_reuse:
            raise FleetError(
                "prefix_reuse with hicache (the host tier extends the radix cache)",
                "hicache with prefix_reuse off",
                "turn prefix_reuse on or drop hicache",
            )
        if self.hicache_gb is not None and self.hicache_ratio is not None:
            raise FleetError("one of hicache_gb and hicache_ratio", "both", "drop one of them")

    @property
    def hicache(self) -> bool:
        """Whether a host tier is wanted at all."""
        return self.hicache_gb is not None or self.hicache_ratio is not None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Intent:
        """Build from inventory values; keys are this class's attributes, `mtp` a mapping, true or absent.

        Raises FleetError for an unknown key or an impossible value.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise FleetError(f"keys among {', '.join(sorted(known))}", ", ".join(unknown), "correct the spelling")
        given = {key: value for key, value in values.items() if value is not None}
        mtp = given.pop("mtp", None)
        if mtp is True:
            mtp = {}
        if isinstance(mtp, Mapping):
            unknown = sorted(set(mtp) - {"steps", "topk", "draft_tokens"})
            if unknown:
                raise FleetError("mtp with steps, topk, draft_tokens", ", ".join(unknown), "correct the spelling")
            given["mtp"] = Speculation(**mtp)
        return cls(**given)


PROFILES = ("baseline", "mtp", "mtp_hicache", "bulk")


def with_profile(intent: Intent, profile: str) -> Intent:
    """The intent as one of the field record's four configurations.

    `baseline`: no MTP, no host tier. `mtp`: MTP. `mtp_hicache`: MTP and the intent's host tier (ratio 2.0 where it
    names none). `bulk`: no prefix reuse, for the highest throughput, and MTP where it is faster or asked for. Raises
    FleetError for other names.
    """
    speculation = intent.mtp or Speculation()
    if profile == "baseline":
        return replace(intent, mtp=None, hicache_gb=None, hicache_ratio=None)
    if profile == "mtp":
        return replace(intent, mtp=speculation, hicache_gb=None, hicache_ratio=None)
    if profile == "mtp_hicache":
        ratio = intent.hicache_ratio if intent.hicache else 2.0
        return replace(intent, mtp=speculation, prefix_reuse=True, hicache_ratio=ratio)
    if profile == "bulk":
        bulk = replace(intent, mtp=speculation, prefix_reuse=False, hicache_gb=None, hicache_ratio=None)
        return replace(bulk, mtp_where_faster=intent.mtp is None)
    raise FleetError(f"a profile among {', '.join(PROFILES)}", repr(profile), "correct the profile")
