"""The launches: which settings are started, how far, and under which load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONTEXT_TOKENS = 16384
SHORT, LONG = (256, 256), (3072, 1024)
POOLS_S, READY_S = 20, 70
# Capturing prefill graphs takes half a minute of each start; where they are left out, the name of the launch's free
# arguments says so.
NO_PREFILL_GRAPHS = ("--disable-piecewise-cuda-graph",)
VISION = ("--mm-attention-backend=triton_attn",)
TEXT_OF_VISION = (*NO_PREFILL_GRAPHS, *VISION)


@dataclass(frozen=True)
class Case:
    """One launch.

    Attributes:
        name: of the launch, its files and its results.
        shape: model shape.
        profile: baseline, mtp, mtp_hicache or bulk.
        intent: settings beside the profile.
        proposed: whether the planner fills in what the intent leaves open.
        until: "pools" ends it once the GPU's pools are allocated, "ready" once it has served.
        alone: nothing else is started meanwhile, so that its times count.
        loads: (concurrency, (input tokens, output tokens), seconds it may take).
        before: shell commands that run before its turn.
        load_format: of the weights.
        models: directory that the model lies in.
        stop: "term" as systemd stops it, "kill" where only its memory counts.
        extra_args: free arguments beside those that the kit needs.
        expected_s: device time to leave for it; 0 for the usual.
        refused: the planner and the engine must both refuse it.
        gpus: as in the inventory.
        in_turn: its units load one after another, because they share one GPU.
    """

    name: str
    shape: str = "qwen3.6-27b"
    profile: str = "baseline"
    intent: Mapping[str, Any] = field(default_factory=dict)
    proposed: bool = False
    until: str = "pools"
    alone: bool = False
    loads: tuple[tuple[int, tuple[int, int], int], ...] = ()
    before: tuple[str, ...] = ()
    load_format: str = "dummy"
    models: str = "/dev/shm/sglang"
    stop: str = "kill"
    extra_args: tuple[str, ...] = NO_PREFILL_GRAPHS
    expected_s: int = 0
    refused: bool = False
    gpus: tuple[Any, ...] = (0,)
    in_turn: bool = False


def settings(**values: Any) -> dict[str, Any]:
    """An intent of the grid: 85 % of the GPU and a context of 16 Ki tokens unless said otherwise."""
    return {"mem_fraction_static": 0.85, "context_length": CONTEXT_TOKENS, **values}


BF16_STATE = {"state_dtype": "bfloat16"}
FP8_KV = {"kv_dtype": "fp8_e4m3"}
LAZY = {"state_strategy": "extra_buffer_lazy"}
EXTRA = {"state_strategy": "extra_buffer"}

# What is allocated, setting by setting: each differs from the profile's plain launch in one or two settings.
ALLOCATIONS = (
    Case("baseline-f80", intent=settings(mem_fraction_static=0.80)),
    Case("baseline-f85", intent=settings()),
    Case("baseline-f90", intent=settings(mem_fraction_static=0.90)),
    Case("baseline-f-default", intent=settings(mem_fraction_static=None), extra_args=()),
    Case("baseline-m8", intent=settings(max_running_requests=8)),
    Case("baseline-m512", intent=settings(max_running_requests=512)),
    Case("baseline-no-radix", intent=settings(prefix_reuse=False)),
    Case("baseline-no-buffer", intent=settings(state_strategy="no_buffer")),
    Case("baseline-lazy", intent=settings(**LAZY)),
    Case("baseline-bf16-state", intent=settings(**BF16_STATE)),
    Case("baseline-fp8-kv", intent=settings(**FP8_KV)),
    Case("baseline-262k", intent=settings(context_length=262144)),
    Case("baseline-ratio-2", intent=settings(mamba_full_memory_ratio=2.0)),
    Case("mtp-f80", profile="mtp", intent=settings(mem_fraction_static=0.80)),
    Case("mtp-f90", profile="mtp", intent=settings(mem_fraction_static=0.90)),
    Case("mtp-f-default", profile="mtp", intent=settings(mem_fraction_static=None, **EXTRA), extra_args=()),
    Case("mtp-m8", profile="mtp", intent=settings(max_running_requests=8)),
    Case("mtp-m512", profile="mtp", intent=settings(max_running_requests=512)),
    Case("mtp-lazy", profile="mtp", intent=settings(**LAZY)),
    Case("mtp-bf16-state", profile="mtp", intent=settings(**BF16_STATE)),
    Case("mtp-fp8-kv-262k", profile="mtp", intent=settings(context_length=262144, **FP8_KV)),
    Case(
        "mtp-k321-m64", profile="mtp", intent=settings(max_mamba_cache_size=321, max_running_requests=64, **BF16_STATE)
    ),
    Case("bulk-m8", profile="bulk", intent=settings(max_running_requests=8)),
    Case("bulk-m64", profile="bulk", intent=settings(max_running_requests=64)),
    Case("bulk-m128-bf16", profile="bulk", intent=settings(max_running_requests=128, **BF16_STATE)),
    Case("moe-baseline", shape="qwen3.5-35b-a3b", intent=settings()),
    Case("moe-mtp", shape="qwen3.5-35b-a3b", profile="mtp", intent=settings()),
    Case("moe-bulk-m128", shape="qwen3.5-35b-a3b", profile="bulk", intent=settings(max_running_requests=128)),
    Case("attention-f85", shape="qwen3-32b", intent=settings()),
    Case("attention-fp8-kv", shape="qwen3-32b", intent=settings(**FP8_KV)),
    Case("mla-f85", shape="deepseek-v2-lite", intent=settings()),
    # `auto` is left unresolved for a model without a vision encoder (0.5.14 to 0.5.18), so extra_buffer is named too.
    Case("mtp-extra-f80", profile="mtp", intent=settings(mem_fraction_static=0.80, **EXTRA)),
    Case("mtp-extra-f85", profile="mtp", intent=settings(**EXTRA)),
    Case("mtp-extra-f90", profile="mtp", intent=settings(mem_fraction_static=0.90, **EXTRA)),
    Case("mtp-extra-m8", profile="mtp", intent=settings(max_running_requests=8, **EXTRA)),
    Case("mtp-extra-m512", profile="mtp", intent=settings(max_running_requests=512, **EXTRA)),
    Case("mtp-extra-bf16-state", profile="mtp", intent=settings(**EXTRA, **BF16_STATE)),
    Case("mtp-extra-fp8-kv-262k", profile="mtp", intent=settings(context_length=262144, **EXTRA, **FP8_KV)),
    Case("moe-mtp-extra", shape="qwen3.5-35b-a3b", profile="mtp", intent=settings(**EXTRA)),
    Case("vision-baseline", shape="qwen3.6-27b-vision", intent=settings(), extra_args=TEXT_OF_VISION),
    Case("vision-mtp", shape="qwen3.6-27b-vision", profile="mtp", intent=settings(), extra_args=TEXT_OF_VISION),
    Case("vision-f-default", shape="qwen3.6-27b-vision", intent=settings(mem_fraction_static=None), extra_args=VISION),
    Case("refused-f40", profile="mtp", intent=settings(mem_fraction_static=0.40), refused=True),
    Case("refused-bulk-m512", profile="bulk", intent=settings(max_running_requests=512), refused=True),
)

PLAIN = settings()


def wanted(concurrency: int, tokens: int, **values: Any) -> dict[str, Any]:
    """An expected load; the planner chooses the rest."""
    return {
        "concurrency": concurrency,
        "tokens_per_request": tokens,
        "context_length": CONTEXT_TOKENS,
        **values,
    }


def ladder(tokens: tuple[int, int], *rungs: tuple[int, int]) -> tuple[tuple[int, tuple[int, int], int], ...]:
    """(concurrency, seconds it may take) of each rung."""
    return tuple((concurrency, tokens, seconds) for concurrency, seconds in rungs)


def served(name: str, **values: Any) -> Case:
    """A launch that serves until it is stopped as systemd stops it."""
    return Case(name, until="ready", stop="term", **values)


COLD = (
    served(
        "mtp-cold", profile="mtp", intent=PLAIN, alone=True, loads=ladder(SHORT, (48, 15), (128, 30)), expected_s=220
    ),
)
PREFILL_GRAPHS = (served("mtp-prefill-graphs", profile="mtp", intent=PLAIN, extra_args=(), expected_s=120),)

# The engine's own split of 85 % of the GPU, and the planner's split for an expected load.
RUNGS = ((1, 5), (16, 10), (48, 15), (128, 40))
SPLITS = (
    served("mtp-own-split", profile="mtp", intent=settings(**EXTRA), loads=ladder(SHORT, *RUNGS)),
    served(
        "mtp-for-128x512",
        profile="mtp",
        intent=wanted(128, 512),
        proposed=True,
        loads=ladder(SHORT, *RUNGS, (512, 75)),
    ),
    served("baseline-own-split", intent=settings(**EXTRA), loads=ladder(SHORT, *RUNGS), expected_s=120),
    served("baseline-for-128x512", intent=wanted(128, 512), proposed=True, loads=ladder(SHORT, *RUNGS)),
)
# No prefix reuse, with and without MTP.
BULK = (
    served(
        "bulk-without-mtp-for-512x512",
        intent=wanted(512, 512, prefix_reuse=False),
        proposed=True,
        loads=ladder(SHORT, (48, 15), (128, 20), (512, 60)),
    ),
    served("bulk-for-128x512", profile="bulk", intent=wanted(128, 512), proposed=True, loads=ladder(SHORT, (128, 25))),
)
LONG_SPLITS = (
    served(
        "mtp-own-split-long",
        profile="mtp",
        intent=settings(**EXTRA),
        expected_s=90,
        loads=ladder(LONG, (48, 80)),
    ),
    served(
        "mtp-for-48x4096",
        profile="mtp",
        intent=wanted(48, 4096),
        proposed=True,
        loads=ladder(LONG, (48, 60)),
    ),
)


def host_tier(name: str, expected_s: int, **values: Any) -> Case:
    """A launch with a host tier of this size."""
    return Case(name, profile="mtp_hicache", intent=settings(**EXTRA, **values), until="ready", expected_s=expected_s)


HOST_POOLS = (
    host_tier("hicache-20", 60, hicache_gb=20),
    host_tier("hicache-8", 40, hicache_gb=8),
    host_tier("hicache-ratio", 40, hicache_ratio=0.1),
)
# Real bytes on the machine's disk, and the same in tmpfs.
DISK = "/var/tmp/models"
LOADING = tuple(
    Case(name, shape="qwen3-1.7b", intent=settings(), load_format="auto", models=models, before=before, expected_s=30)
    for name, models, before in (
        ("load-disk-cold", DISK, ("sync; echo 3 >/proc/sys/vm/drop_caches",)),
        ("load-disk-warm", DISK, ()),
        ("load-shm", "/dev/shm/sglang", ()),
    )
)
GRAPHS = (
    Case(
        "attention-prefill-graphs",
        shape="qwen3-32b",
        intent=settings(max_running_requests=64),
        extra_args=(),
        until="ready",
        expected_s=70,
    ),
)

# Saturation, and the rung at which the planned split had come out behind, three times over.
SIXTEEN = ((16, 5), (16, 5), (16, 5))
SATURATED = (
    served("mtp-own-split-to-512", profile="mtp", intent=settings(**EXTRA), loads=ladder(SHORT, *SIXTEEN, (512, 80))),
    served(
        "mtp-for-128x512-at-16", profile="mtp", intent=wanted(128, 512), proposed=True, loads=ladder(SHORT, *SIXTEEN)
    ),
    served("mtp-for-16x512", profile="mtp", intent=wanted(16, 512), proposed=True, loads=ladder(SHORT, *SIXTEEN)),
    served(
        "mtp-for-48x512", profile="mtp", intent=wanted(48, 512), proposed=True, loads=ladder(SHORT, (48, 8), (48, 8))
    ),
    served(
        "mtp-bf16-for-128x512",
        profile="mtp",
        intent=wanted(128, 512, **BF16_STATE),
        proposed=True,
        loads=ladder(SHORT, (48, 8), (128, 15), (512, 50)),
    ),
    served(
        "bulk-for-512x512",
        profile="bulk",
        intent=wanted(512, 512),
        proposed=True,
        loads=ladder(SHORT, (128, 15), (512, 45)),
    ),
    served(
        "baseline-own-split-to-512",
        intent=settings(**EXTRA),
        expected_s=30,
        loads=ladder(SHORT, (1, 5), *SIXTEEN, (48, 8), (512, 78)),
    ),
)

# The other state strategy for the same load, long requests, and models of other shapes beside a large host tier.
REST = (
    served(
        "mtp-extra-for-128x512",
        profile="mtp",
        intent=wanted(128, 512, **EXTRA),
        proposed=True,
        loads=ladder(SHORT, (16, 5), (16, 5), (48, 8), (128, 20), (512, 60)),
    ),
    served("mtp-own-split-128x4096", profile="mtp", intent=settings(**EXTRA), loads=ladder(LONG, (128, 140))),
    served(
        "bulk-for-128x4096", profile="bulk", intent=wanted(128, 4096), proposed=True, loads=ladder(LONG, (128, 110))
    ),
    Case(
        "moe-mtp-graphs",
        shape="qwen3.5-35b-a3b",
        profile="mtp",
        intent=settings(max_running_requests=64, **EXTRA),
        until="ready",
        expected_s=60,
    ),
    host_tier("hicache-40", 75, hicache_gb=40),
    Case(
        "mla-graphs",
        shape="deepseek-v2-lite",
        intent=settings(max_running_requests=64),
        until="ready",
        expected_s=35,
    ),
    served(
        "baseline-for-512x512", intent=wanted(512, 512), proposed=True, expected_s=70, loads=ladder(SHORT, (512, 55))
    ),
)

# Two GPUs: one unit over both, and two units side by side, which side_by_side.py also restarts in turn under load.
TENSOR_PARALLEL = tuple(
    served(
        name,
        profile=profile,
        intent=settings(tensor_parallel=2, **EXTRA, **values),
        gpus=(0, 1),
        expected_s=seconds,
        loads=ladder(SHORT, (48, 15), (128, 30)),
    )
    for name, profile, values, seconds in (
        ("tp2-mtp", "mtp", {}, 200),
        ("tp2-hicache-20", "mtp_hicache", {"hicache_gb": 20}, 120),
    )
)
SIDE_BY_SIDE = (
    Case("side-by-side", profile="mtp_hicache", intent=settings(hicache_gb=20, **EXTRA), gpus=(0, 1), until="ready"),
)
# A stand-in where there is one GPU: what unit 0 leaves of it is unit 1's.
ON_ONE_GPU = (
    Case(
        "side-by-side-on-one",
        shape="deepseek-v2-lite",
        intent=settings(mem_fraction_static=0.55, max_running_requests=32),
        gpus=({"index": 0, "minor": 0}, {"index": 1, "minor": 0}),
        in_turn=True,
        until="ready",
    ),
)

NAMED_LATER = ("mtp-extra", "moe-mtp-extra", "vision", "baseline-f-default", "mtp-f-default")
CALLS = {
    "first": COLD + tuple(case for case in ALLOCATIONS if not case.name.startswith(NAMED_LATER)) + PREFILL_GRAPHS,
    "second": tuple(case for case in ALLOCATIONS if case.name.startswith(NAMED_LATER)) + SPLITS,
    "fourth": (
        served("baseline-own-split", intent=settings(**EXTRA), loads=ladder(SHORT, (128, 5), (48, 5)), expected_s=20),
    ),
    "saturated": SATURATED,
    "rest": REST,
    "tier": tuple(case for case in REST if case.name == "hicache-40"),
    "tensor-parallel": TENSOR_PARALLEL,
    "side-by-side": SIDE_BY_SIDE,
    "side-by-side-on-one": ON_ONE_GPU,
    "third": HOST_POOLS + LOADING + BULK + LONG_SPLITS + GRAPHS,
}
