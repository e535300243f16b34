"""Host pools by release, sums over all units, and the engine's own check."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_memory import Gpu
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import (
    Host,
    engine_refusal,
    reserve_bytes,
)
from ansible_collections.llmops.fleet.plugins.module_utils.intent import Intent
from ansible_collections.llmops.fleet.plugins.module_utils.planner import plan as make_plan
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.units import GB, GIB

from .planning import B200, FIXTURES, H200, MTP, RTX, SHAPES, WEIGHTS_27B_GIB, budget, planned


def gpus(count, card=RTX, nodes=None):
    return [{**card, "index": index, "numa_node": nodes[index] if nodes else None} for index in range(count)]


@pytest.mark.parametrize(
    ("tier", "kv_gb", "state_gb", "slots"),
    [
        ({"hicache_gb": 20}, 10.9, 9.1, 59),
        ({"hicache_gb": 150}, 82.0, 68.2, 443),
        ({"hicache_ratio": 2.0}, 35.1, 14.9, 97),
    ],
)
def test_split_of_the_size(tier, kv_gb, state_gb, slots):
    plan = planned(
        "qwen3.6-27b", "0.5.18", mem_fraction_static=0.85, mtp=MTP, weights_gib=WEIGHTS_27B_GIB, draft_gib=0.79, **tier
    )
    pools = plan.instances[0].unit.pools
    assert pools.kv_bytes / GB == pytest.approx(kv_gb, abs=0.05)
    assert pools.state_bytes / GB == pytest.approx(state_gb, abs=0.05)
    assert pools.state_slots == slots
    assert pools.draft_bytes == 0


def test_pools_of_a_real_launch():
    log = (FIXTURES / "h200-sglang-0.5.17" / "mtphic.log").read_text()
    tokens, kv_gb = re.search(r"kv hierarchical KV host pool: (\d+) tokens, ([\d.]+) GB", log).groups()
    state_gb = re.search(r"Allocating ([\d.]+) GB host memory for hierarchical Mamba", log).group(1)
    slots = re.search(r"host KV pool \((\d+) tokens\)", log).group(1)
    draft_gb = re.search(r"draft hierarchical KV host pool: \d+ tokens, ([\d.]+) GB", log).group(1)
    plan = planned(
        "qwen3.6-27b-text",
        "0.5.17",
        gpus=[H200],
        mem_fraction_static=0.8,
        max_running_requests=512,
        state_strategy="extra_buffer",
        mtp=MTP,
        hicache_gb=20,
    )
    pools = plan.instances[0].unit.pools
    assert pools.kv_tokens == pytest.approx(int(tokens), abs=3)
    assert pools.state_slots == int(slots)
    for size, logged in ((pools.kv_bytes, kv_gb), (pools.state_bytes, state_gb), (pools.draft_bytes, draft_gb)):
        assert round(size / GB, 2) == float(logged)
    assert pools.total_bytes / GB == pytest.approx(20.77, abs=0.005)


@pytest.mark.parametrize(
    ("release", "draft_gb", "needed_gb"), [("0.5.10", 0.0, 300.1), ("0.5.11", 9.4, 309.5), ("0.5.16", 9.4, 309.5)]
)
def test_field_record_is_refused_with_the_sum(release, draft_gb, needed_gb):
    plan = planned(
        "qwen3.6-27b",
        release,
        gpus=[B200],
        mtp=MTP,
        state_strategy="extra_buffer",
        hicache_gb=150,
        host={"mem_total_gib": 512, "mem_available_gib": 200e9 / GIB, "shm_size_gib": 256, "shm_used_gib": 52},
    )
    pools = plan.instances[0].unit.pools
    assert pools.state_slots == 975
    assert pools.state_bytes / GB == pytest.approx(150.1, abs=0.05)
    assert pools.draft_bytes / GB == pytest.approx(draft_gb, abs=0.05)
    assert pools.total_bytes / GB == pytest.approx(needed_gb, abs=0.05)
    assert not plan.fits
    refusals = " ".join(map(str, plan.problems))
    assert f"{needed_gb} GB of it hicache" in refusals
    assert "hicache KV 150.0 + hicache state 150.1" in refusals
    assert 0 < plan.largest_hicache_gb < 100


@pytest.mark.parametrize(("staged_gib", "fits"), [(52, True), (0, False)])
def test_field_record_on_a_later_release(staged_gib, fits):
    plan = planned(
        "qwen3.6-27b",
        "0.5.18",
        gpus=[B200],
        mtp=MTP,
        hicache_gb=150,
        host={"mem_total_gib": 256, "mem_available_gib": 200e9 / GIB, "shm_size_gib": 128, "shm_used_gib": staged_gib},
    )
    assert plan.instances[0].unit.pools.total_bytes / GB == pytest.approx(150.1, abs=0.1)
    assert plan.fits is fits


def test_ranks_multiply_fixed_ratio_case_per_pool():
    # Qwen3.5-397B, TP 8, size 20 on a release that gives it to both pools: 20.00 + 20.02 GB per rank.
    plan = planned("qwen3.5-397b-fp8", "0.5.12", gpus=gpus(8), tensor_parallel=8, weights_gib=50.0, hicache_gb=20)
    pools = plan.instances[0].unit.pools
    assert pools.state_slots == 834
    assert (round(pools.kv_bytes / GB, 2), round(pools.state_bytes / GB, 2)) == (20.0, 20.02)
    assert 8 * pools.total_bytes / GB == pytest.approx(320.2, abs=0.05)
    assert plan.host[0].needed_bytes > 320 * GB


def test_ratio_of_slots():
    plan = planned(
        "qwen3.5-397b-fp8",
        "0.5.12",
        gpus=gpus(4),
        tensor_parallel=4,
        weights_gib=60.0,
        kv_dtype="fp8_e4m3",
        max_mamba_cache_size=131,
        hicache_ratio=2.0,
    )
    pools = plan.instances[0].unit.pools
    assert (pools.state_slots, round(pools.state_bytes / GB, 2)) == (263, 12.63)


def test_ratio_4_of_a_small_model():
    # 134 GB of states and 149 GB of KV: 650 slots and 1.137 million tokens on the device.
    plan = planned(
        "qwen3.5-4b",
        "0.5.16",
        gpus=[{"index": 0, "total_mib": 97887, "free_gib": 90.0}],
        weights_gib=9.0,
        mem_fraction_static=0.8308,
        max_mamba_cache_size=650,
        hicache_ratio=4.0,
    )
    pools = plan.instances[0].unit.pools
    assert pools.state_bytes / GB == pytest.approx(134, abs=0.5)
    assert pools.total_bytes / GB == pytest.approx(283, abs=1.5)


def test_index_pool_of_sparse_attention_lies_outside_the_size():
    plan = planned(
        "glm-5.2-nvfp4",
        "0.5.13",
        gpus=gpus(4, B200),
        tensor_parallel=4,
        weights_gib=100.0,
        kv_dtype="fp8_e4m3",
        hicache_gb=150,
    )
    pools = plan.instances[0].unit.pools
    assert pools.index_bytes / GB == pytest.approx(34.38, abs=0.01)
    assert 4 * pools.total_bytes / GB == pytest.approx(737.5, abs=0.1)


def test_ranks_of_a_plain_model_multiply():
    plan = planned(
        "llama-3.1-8b",
        "0.5.16",
        gpus=gpus(4),
        tensor_parallel=4,
        hicache_gb=40,
        host={"mem_total_gib": 256, "mem_available_gib": 240, "shm_size_gib": 128, "shm_used_gib": 16},
    )
    assert dict(plan.host[0].parts)["hicache KV"] / GB == pytest.approx(160, abs=0.1)
    assert any("more than half" in warning for warning in plan.warnings)


@pytest.mark.parametrize(("size_gb", "fits"), [(40, False), (34, True)])
def test_the_engine_keeps_10_gib(size_gb, fits):
    # Free memory of 44.87 GB: 34.13 GB may be pinned. Processes are taken off by the plan, so they are added here.
    plan = planned(
        "llama-3.1-8b",
        "0.5.16",
        hicache_gb=size_gb,
        host={
            "mem_total_gib": 100,
            "mem_available_gib": (44.87e9 + 4.449e9) / GIB,
            "shm_size_gib": 32,
            "shm_used_gib": 16,
        },
    )
    instance = plan.instances[0]
    unit = instance.unit
    host = Host(total_bytes=100 * GIB, available_bytes=round(44.87e9 + 4.449e9))
    refusal = engine_refusal(host, plan.release, [unit], 0)
    assert (refusal is None) is fits
    if refusal:
        assert "34.13 GB" in str(refusal)
        assert "40.00 GB" in str(refusal)


@pytest.mark.parametrize(("release", "refused"), [("0.5.18", False), ("0.5.19", True)])
def test_releases_that_divide_their_check_by_ranks(release, refused):
    plan = planned("llama-3.1-8b", release, gpus=gpus(4), tensor_parallel=4, hicache_gb=90)
    unit = plan.instances[0].unit
    host = Host(total_bytes=400 * GIB, available_bytes=350 * GIB)
    assert bool(engine_refusal(host, plan.release, [unit], 0)) is refused


def test_all_units_of_the_host_are_summed():
    host = {"mem_total_gib": 512, "mem_available_gib": 300, "shm_size_gib": 128, "shm_used_gib": 60}
    alone = planned("qwen3.6-27b", "0.5.23", gpus=gpus(1), mtp=MTP, hicache_gb=60, host=host)
    eight = planned("qwen3.6-27b", "0.5.23", gpus=gpus(8), mtp=MTP, hicache_gb=60, host=host)
    assert alone.fits
    assert not eight.fits
    assert eight.largest_hicache_gb < 60
    assert planned("qwen3.6-27b", "0.5.23", gpus=gpus(8), mtp=MTP, hicache_gb=eight.largest_hicache_gb, host=host).fits
    assert not planned(
        "qwen3.6-27b", "0.5.23", gpus=gpus(8), mtp=MTP, hicache_gb=eight.largest_hicache_gb + 1, host=host
    ).fits


def test_memory_of_running_units_is_credited():
    host = {"mem_total_gib": 512, "mem_available_gib": 60, "shm_size_gib": 128, "shm_used_gib": 60}
    options = {"gpus": gpus(2), "mtp": MTP, "hicache_gb": 60}
    assert not planned("qwen3.6-27b", "0.5.23", host=host, **options).fits
    assert planned("qwen3.6-27b", "0.5.23", host={**host, "held_gib": 125}, **options).fits


def test_a_cgroup_limit_counts():
    host = {"mem_total_gib": 512, "mem_available_gib": 400, "shm_size_gib": 128, "shm_used_gib": 60}
    assert planned("qwen3.6-27b", "0.5.23", hicache_gb=60, host=host).fits
    plan = planned("qwen3.6-27b", "0.5.23", hicache_gb=60, host={**host, "cgroup_available_gib": 50})
    assert plan.host[0].available_bytes == 50 * GIB
    assert not plan.fits


def test_each_numa_node_must_hold_its_own_units():
    nodes = [
        {"node": 0, "total_gib": 256, "available_gib": 60},
        {"node": 1, "total_gib": 256, "available_gib": 240},
    ]
    host = {"mem_total_gib": 512, "mem_available_gib": 300, "shm_size_gib": 128, "shm_used_gib": 60, "nodes": nodes}
    options = {"gpus": gpus(2, nodes=[0, 1]), "mtp": MTP, "hicache_gb": 60, "host": host}
    bound = planned("qwen3.6-27b", "0.5.18", **options)
    assert not bound.fits
    assert "NUMA node 0" in str(bound.problems[0])
    assert planned("qwen3.6-27b", "0.5.18", **{**options, "gpus": gpus(2, nodes=[1, 1])}).fits


def test_weights_are_counted_once_and_only_where_not_yet_written():
    host = {"mem_total_gib": 512, "mem_available_gib": 300, "shm_size_gib": 128}
    absent = planned("qwen3.6-27b", "0.5.23", gpus=gpus(8), host={**host, "shm_used_gib": 0})
    staged = planned("qwen3.6-27b", "0.5.23", gpus=gpus(8), host={**host, "shm_used_gib": 52})
    assert dict(absent.host[0].parts)["weights still to be written to tmpfs"] / GB == pytest.approx(55.55, abs=0.01)
    assert dict(staged.host[0].parts)["weights still to be written to tmpfs"] == 0
    small = planned("qwen3.6-27b", "0.5.23", host={**host, "shm_size_gib": 48, "shm_used_gib": 0})
    assert "tmpfs" in str(small.problems[0])


def test_a_tmpfs_that_staging_enlarges_is_no_reason_to_refuse():
    host = Host(total_bytes=512 * GIB, available_bytes=300 * GIB, shm_size_bytes=48 * GIB, shm_used_bytes=0)
    gpu = Gpu.from_mapping(RTX)
    checkpoint, release = read_checkpoint(SHAPES / "qwen3.6-27b"), Release.parse("0.5.23")
    assert not make_plan(checkpoint, release, [gpu], Intent(), host).fits
    growing = make_plan(checkpoint, release, [gpu], Intent(), replace(host, shm_may_grow=True))
    assert growing.fits
    assert any("tmpfs must grow" in warning for warning in growing.warnings)


@pytest.mark.parametrize(
    ("release", "shape", "tier", "message"),
    [
        ("0.5.9", "qwen3.6-27b", {"hicache_gb": 60}, "0.5.10 or newer for hicache"),
        ("0.5.14", "qwen3.6-27b", {"hicache_gb": 5}, "larger than the device's"),
    ],
)
def test_tiers_that_a_release_refuses(release, shape, tier, message):
    plan = planned(shape, release, mem_fraction_static=0.85, **tier)
    assert any(message in str(problem) for problem in plan.problems)


def test_plain_models_have_a_tier_on_old_releases():
    assert planned("llama-3.1-8b", "0.5.9", hicache_gb=100).fits


def test_gb_and_gib_stay_apart():
    plan = planned("llama-3.1-8b", "0.5.23", hicache_gb=100)
    assert plan.as_dict()["instances"][0]["host"]["hicache_kv_gb"] == pytest.approx(100, abs=0.001)
    assert plan.as_dict()["host"]["parts_gib"]["hicache KV"] == pytest.approx(93.13, abs=0.01)


@pytest.mark.parametrize(("total_gib", "reserve_gib"), [(24, 2.4), (100, 10), (128, 10), (1024, 51.2)])
def test_reserve(total_gib, reserve_gib):
    assert reserve_bytes(total_gib * GIB) / GIB == pytest.approx(reserve_gib, abs=0.01)


@pytest.mark.parametrize(
    "host",
    [
        {"mem_total_gib": 100},
        {"mem_total_gib": 100, "mem_available_gib": 200},
        {"mem_available_gib": -1},
        {"mem_available_gib": "much"},
        {"mem_available_gb": 100},
    ],
)
def test_bad_hosts(host):
    with pytest.raises(FleetError, match=r"expected .* found .*"):
        Host.from_mapping(host)


def test_host_warnings():
    low = planned(
        "qwen3.6-27b",
        "0.5.23",
        mem_fraction_static=0.85,
        max_mamba_cache_size=28,
        max_running_requests=4,
        hicache_gb=32,
    )
    assert any("own: 8; loading" in warning for warning in low.warnings)
    assert any("raises neither state slots" in warning for warning in low.warnings)
    assert any(re.search(r"one state slot per \d+ KV tokens", warning) for warning in low.warnings)
    assert budget(low).state_slots == 28
