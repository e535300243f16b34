"""The planner's choice, its refusals, and what must hold whatever the numbers are."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils import capacity
from ansible_collections.llmops.fleet.plugins.module_utils.capacity import plan_from_options
from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_facts import GpuProcess, Observation, ObservedGpu
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_memory import Gpu
from ansible_collections.llmops.fleet.plugins.module_utils.host_memory import Host
from ansible_collections.llmops.fleet.plugins.module_utils.intent import Intent, Speculation
from ansible_collections.llmops.fleet.plugins.module_utils.planner import plan
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB
from hypothesis import given, settings
from hypothesis import strategies as st

from .planning import B200, H200, MTP, ROOMY, RTX, SHAPES, budget, planned

PARTS = ("weights_gib", "draft_gib", "state_gib", "intermediate_gib", "kv_gib", "slack_gib")
RELEASES = ("0.5.10.post1", "0.5.12.post1", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.18", "0.5.20", "0.5.23")
CHECKPOINTS = {shape: read_checkpoint(SHAPES / shape) for shape in ("qwen3.6-27b", "llama-3.1-8b", "deepseek-r1")}


def test_the_split_that_was_measured_at_64_requests():
    """321 slots, 64 requests and 327,732 tokens served 1.8 times the default split's throughput on an H200."""
    plan = planned(
        "qwen3.6-27b-text",
        "0.5.17",
        gpus=[H200],
        mtp=MTP,
        mem_fraction_static=0.85,
        state_dtype="bfloat16",
        context_length=16384,
        concurrency=64,
        tokens_per_request=512,
    )
    proposal = plan.proposal
    assert (proposal.intent.max_mamba_cache_size, proposal.intent.max_running_requests) == (321, 64)
    assert proposal.gpu.kv_tokens == pytest.approx(327_732, rel=0.001)
    assert proposal.intent.state_dtype == "bfloat16"
    assert "64 requests of 512 tokens" in proposal.explanation
    assert proposal.explanation.count(". ") == 0


@pytest.mark.parametrize(("concurrency", "mtp", "requests"), [(48, True, 48), (128, False, 128), (512, False, 429)])
def test_bulk_leaves_mtp_out_where_it_is_slower(concurrency, mtp, requests):
    """Measured on an H200: 2,247 with and 1,912 tokens/s without MTP at 48; 2,419 and 3,145 at 128; 3,466 at 512."""
    wanted = {"concurrency": concurrency, "tokens_per_request": 512, "context_length": 16384}
    plan = planned("qwen3.6-27b-text", "0.5.17", gpus=[H200], profile="bulk", resolve=True, **wanted)
    assert (plan.instances[0].intent.mtp is not None, budget(plan).max_running_requests) == (mtp, requests)
    assert plan.proposal.gpu == budget(plan)
    assert (budget(plan).draft_bytes > 0) is mtp
    asked = planned("qwen3.6-27b-text", "0.5.17", gpus=[H200], profile="bulk", resolve=True, mtp=MTP, **wanted)
    assert asked.instances[0].intent.mtp is not None


def test_mtp_off_is_named_where_it_should_be_faster():
    """Measured on an H200 with 128 requests at once: 62 run with MTP at 2,192 tokens/s, 123 without it at 2,264."""
    proposal = planned(
        "qwen3.6-27b-text", "0.5.17", gpus=[H200], profile="mtp", concurrency=128, tokens_per_request=512
    ).proposal
    assert proposal.intent.mtp is not None
    assert "mtp" in [name for name, _value, _requests in proposal.alternatives]


def test_accuracy_is_proposed_and_never_taken():
    proposal = planned("qwen3.6-27b", "0.5.23", mtp=MTP, concurrency=64, tokens_per_request=8192).proposal
    assert proposal.intent.state_dtype is None
    assert proposal.intent.kv_dtype == "auto"
    assert proposal.intent.prefix_reuse
    assert proposal.gpu.max_running_requests < 64
    names = [name for name, _value, _requests in proposal.alternatives]
    assert names == ["state_dtype", "kv_dtype", "prefix_reuse"]
    assert all(requests > proposal.gpu.max_running_requests for _name, _value, requests in proposal.alternatives)
    assert "yours to decide" in proposal.explanation


def test_what_a_person_chose_stays():
    chosen = {
        "mem_fraction_static": 0.8,
        "state_strategy": "extra_buffer",
        "max_mamba_cache_size": 51,
        "max_running_requests": 10,
    }
    intent = planned("qwen3.6-27b", "0.5.23", mtp=MTP, resolve=True, **chosen).instances[0].intent
    assert {name: getattr(intent, name) for name in chosen} == chosen


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("mtp", [None, MTP])
@pytest.mark.parametrize("reuse", [True, False])
def test_the_proposal_serves_more_than_the_default_and_fits(release, mtp, reuse):
    options = {"gpus": [B200], "mtp": mtp, "prefix_reuse": reuse, "concurrency": 64, "tokens_per_request": 4096}
    plain = planned("qwen3.6-27b", release, **options)
    resolved = planned("qwen3.6-27b", release, resolve=True, **options)
    gpu = budget(resolved)
    assert resolved.fits
    assert gpu == resolved.proposal.gpu
    assert gpu.max_running_requests >= min(64, budget(plain).max_running_requests)
    assert gpu.max_running_requests * 4096 <= gpu.kv_tokens
    assert gpu.spare_bytes > 10 * GIB
    if reuse:
        assert gpu.state_slots == gpu.slots_per_request * gpu.max_running_requests + 1


def test_plain_models_take_the_wanted_concurrency():
    plan = planned("llama-3.1-8b", "0.5.23", concurrency=200, tokens_per_request=2000, resolve=True)
    assert budget(plan).max_running_requests == 200
    assert budget(plan).kv_tokens >= 200 * 2000


def test_a_lazy_strategy_is_taken_only_where_it_serves_more():
    few = planned("qwen3.6-27b", "0.5.23", mtp=MTP, concurrency=4).proposal
    many = planned("qwen3.6-27b", "0.5.23", mtp=MTP, concurrency=64).proposal
    tier = planned("qwen3.6-27b", "0.5.23", mtp=MTP, concurrency=64, hicache_gb=30).proposal
    assert few.intent.state_strategy == "extra_buffer"
    assert many.intent.state_strategy == "extra_buffer_lazy"
    assert tier.intent.state_strategy == "extra_buffer"


def test_a_host_too_small_for_the_tier_gets_a_smaller_one_or_none():
    host = {"mem_total_gib": 256, "mem_available_gib": 100, "shm_size_gib": 128, "shm_used_gib": 60}
    short = planned("qwen3.6-27b", "0.5.23", mtp=MTP, hicache_gb=150, host=host)
    assert not short.fits
    assert 0 < short.proposal.intent.hicache_gb == short.largest_hicache_gb < 150
    again = {"hicache_gb": short.proposal.intent.hicache_gb, "host": host}
    assert planned("qwen3.6-27b", "0.5.23", mtp=MTP, **again).fits
    none = planned("qwen3.6-27b", "0.5.23", mtp=MTP, hicache_gb=150, host={**host, "mem_available_gib": 12})
    assert none.proposal.intent.hicache_gb is None


def test_unequal_gpus_are_planned_each_and_the_proposal_suits_the_smallest():
    plan = planned(
        "qwen3.6-27b",
        "0.5.23",
        gpus=[{**B200, "index": 0}, {**RTX, "index": 1}],
        mtp=MTP,
        concurrency=200,
        resolve=True,
    )
    large, small = (instance.gpu.max_running_requests for instance in plan.instances)
    assert large > small == plan.proposal.gpu.max_running_requests


def test_instances_of_several_gpus():
    four = [{**RTX, "index": index} for index in range(4)]
    plan = planned("qwen3.6-27b", "0.5.23", gpus=four, tensor_parallel=2)
    assert [(instance.name, instance.gpus) for instance in plan.instances] == [("0-1", (0, 1)), ("2-3", (2, 3))]


def test_on_cpu_only_the_host_is_planned():
    plan = planned(
        "qwen3.6-27b",
        "0.5.23",
        gpus=[{"index": 0, "total_mib": 1}, {"index": 1, "total_mib": 1}],
        accelerator="cpu",
        weights_gib=0.1,
        host={"mem_total_gib": 16, "mem_available_gib": 12},
    )
    assert plan.fits
    assert [instance.gpu for instance in plan.instances] == [None, None]
    assert plan.host[0].needed_bytes / GIB == pytest.approx(2 * (1.49 + 0.1) + 0.1 + 1.6 + 4.74, abs=0.1)


def test_a_newer_release_is_planned_like_the_newest_known_and_says_so():
    newer = planned("qwen3.6-27b", "0.6.1", mtp=MTP)
    assert budget(newer) == budget(planned("qwen3.6-27b", "0.5.23", mtp=MTP))
    assert any("with the rules of 0.5.23" in warning for warning in newer.warnings)
    assert newer.as_dict()["planned_as"] == "0.5.23"


@pytest.mark.parametrize(
    ("shape", "release", "options", "message"),
    [
        ("qwen3.6-27b", "0.5.13.post1", {"mtp": MTP}, "prefix reuse with state_strategy no_buffer"),
        (
            "qwen3.6-27b",
            "0.5.23",
            {"mtp": MTP, "state_strategy": "no_buffer"},
            "prefix reuse with state_strategy no_buffer",
        ),
        ("qwen3.6-27b", "0.5.16", {"mtp": MTP, "state_strategy": "extra_buffer_lazy"}, "lazy with MTP"),
        ("qwen3.6-27b", "0.5.12", {"state_strategy": "extra_buffer_lazy"}, "does not have it"),
        ("qwen3.6-27b", "0.5.23", {"page_size": 48}, "neither divides 64"),
    ],
)
def test_combinations_that_do_not_start(shape, release, options, message):
    plan = planned(shape, release, gpus=[B200], **options)
    assert any(message in str(problem) for problem in plan.problems)


def test_a_person_may_overrule_what_is_known_to_fail():
    options = {"gpus": [B200], "mtp": MTP, "max_mamba_cache_size": 30, "max_running_requests": 6}
    assert not planned("qwen3.6-27b", "0.5.23", **options).fits
    overruled = planned("qwen3.6-27b", "0.5.23", allow_known_bad=True, **options)
    assert overruled.fits
    assert any("add one to max_mamba_cache_size" in warning for warning in overruled.warnings)


def test_corrupting_host_tier_is_blocked(tmp_path):
    config = (SHAPES / "qwen3.6-27b-text" / "config.json").read_text()
    config = config.replace("Qwen3_5ForCausalLM", "Qwen4ExpForCausalLM").replace("qwen3_5_text", "qwen4_exp")
    (tmp_path / "config.json").write_text(config)
    options = {"checkpoint": tmp_path, "gpus": [B200], "hicache_gb": 60, "host": ROOMY}
    assert "output is wrong" in str(plan_from_options({**options, "engine_version": "0.5.21"}).problems[0])
    assert plan_from_options({**options, "engine_version": "0.5.22"}).fits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_fraction_static": 1.2}, "between 0 and 1"),
        ({"mem_fraction_static": 0.0}, "between 0 and 1"),
        ({"hicache_gb": 20, "prefix_reuse": False}, "prefix_reuse off"),
        ({"hicache_gb": 20, "hicache_ratio": 2.0}, "one of hicache_gb and hicache_ratio"),
        ({"gpus": []}, "a driver that shows them"),
        ({"gpus": [RTX, RTX]}, "every GPU index once"),
        ({"gpus": [RTX], "tensor_parallel": 2}, "a multiple of tensor_parallel"),
        ({"gpus": [{"index": 0}]}, "a driver that shows them"),
        ({"gpus": [{"index": 0, "total_mib": 1000, "free_gib": 94}]}, "within its"),
        ({"gpus": [{"index": -1, "total_mib": 1000}]}, "index of 0 or more"),
        ({"gpus": [{**RTX, "index": index} for index in range(7)], "tensor_parallel": 7}, "divides 16 key"),
        ({"gpus": [], "accelerator": "cpu"}, "at least one GPU"),
        ({"engine_version": "latest"}, "exact SGLang release"),
        ({"accelerator": "tpu"}, "accelerator"),
        ({"checkpoint": "/nowhere"}, "no such file"),
        ({"max_running_requests": 0}, "at least 1"),
    ],
)
def test_bad_input_has_its_own_message(options, message):
    base = {"checkpoint": SHAPES / "qwen3.6-27b", "engine_version": "0.5.23", "gpus": [RTX], "host": ROOMY}
    with pytest.raises(FleetError, match=message):
        plan_from_options({**base, **options})


def test_what_is_not_declared_is_asked_of_the_driver(monkeypatch):
    """Memory of strangers is not free, that of our own engines is."""
    ours = GpuProcess(pid=1, command="python", used_mib=60_000, unit="sglang@1.service")
    stranger = GpuProcess(pid=2, command="python", used_mib=10_240, unit="")
    cards = [
        ObservedGpu(index, f"GPU-{index}", "a card", 97_887, 1, "0000:00:00.0", "12.0", index, 1, None, processes)
        for index, processes in enumerate(((), (ours,), (ours, stranger)))
    ]
    monkeypatch.setattr(capacity, "observe", lambda: Observation("580", None, tuple(cards)))
    base = {"checkpoint": SHAPES / "qwen3.6-27b", "engine_version": "0.5.23", "host": ROOMY}
    idle, running, shared = (instance.gpu for instance in plan_from_options(base).instances)
    assert idle.free_bytes == running.free_bytes == shared.free_bytes + 10 * GIB
    chosen = plan_from_options({**base, "gpus": [2, {"index": 0, "uuid": "GPU-0", "free_gib": 90.0}]}).instances
    assert [instance.name for instance in chosen] == ["2", "0"]
    assert chosen[1].gpu.free_bytes == 90 * GIB


def test_too_little_room_for_activations_is_said():
    risky = planned("qwen3.6-27b", "0.5.23", mem_fraction_static=0.95)
    assert any("expect out-of-memory errors at run time" in warning for warning in risky.warnings)
    assert not any("out-of-memory" in warning for warning in planned("qwen3.6-27b", "0.5.23").warnings)


def test_counted_weights_are_said():
    assert any("holds no shards" in warning for warning in planned("qwen3.6-27b", "0.5.23").warnings)
    assert planned("qwen3.6-27b", "0.5.23", weights_gib=51.31).warnings == ()


def test_garbage_from_loading_is_said():
    four = [{**H200, "index": index} for index in range(4)]
    old, new = (
        planned("qwen3.6-27b", release, gpus=four, tensor_parallel=4, mtp=MTP) for release in ("0.5.18", "0.5.19")
    )
    assert any("fixed in 0.5.19" in warning for warning in old.warnings)
    assert not any("fixed in 0.5.19" in warning for warning in new.warnings)


def test_the_result_is_plain_and_complete():
    result = planned("qwen3.6-27b", "0.5.23", mtp=MTP, hicache_gb=50, concurrency=8).as_dict()
    assert {"fits", "problems", "warnings", "instances", "host", "proposal"} <= set(result)
    assert {"state_slots", "max_running_requests", "kv_tokens", *PARTS} <= set(result["instances"][0]["gpu"])
    assert set(result["instances"][0]["host"]) >= {
        "hicache_kv_gb",
        "hicache_state_gb",
        "hicache_draft_gb",
        "hicache_kv_tokens",
        "hicache_state_slots",
        "rss_gib",
    }
    assert {"needed_gib", "available_gib", "shortfall_gib"} <= set(result["host"])
    assert {"max_running_requests", "max_mamba_cache_size", "mem_fraction_static"} <= set(result["proposal"])


def test_eight_gpus_are_planned_within_50_ms():
    checkpoint = CHECKPOINTS["qwen3.6-27b"]
    host = Host.from_mapping(ROOMY)
    gpus = [Gpu.from_mapping({"index": index, "total_mib": 97887}) for index in range(8)]
    intent = Intent(mtp=Speculation(), concurrency=64, tokens_per_request=8192, hicache_gb=20)

    def seconds():
        start = time.perf_counter()
        plan(checkpoint, Release.parse("0.5.23"), gpus, intent, host, resolve=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.05


@st.composite
def situations(draw):
    """A checkpoint, a release, GPUs and an intent, as keyword arguments of plan()."""
    shape = draw(st.sampled_from(sorted(CHECKPOINTS)))
    hybrid = shape == "qwen3.6-27b"
    release = Release.parse(draw(st.sampled_from(RELEASES)))
    mtp = draw(st.sampled_from([None, Speculation(), Speculation(1, 1, 2)])) if shape != "llama-3.1-8b" else None
    reuse = draw(st.booleans())
    intent = Intent(
        mtp=mtp,
        prefix_reuse=reuse,
        state_strategy="extra_buffer",
        mem_fraction_static=draw(st.none() | st.floats(0.3, 0.97)),
        state_dtype=draw(st.sampled_from([None, "bfloat16"])),
        page_size=draw(st.sampled_from([None, 64])),
        max_running_requests=draw(st.none() | st.integers(1, 256)),
        max_mamba_cache_size=draw(st.none() | st.integers(1, 400)) if hybrid else None,
        concurrency=draw(st.none() | st.integers(1, 128)),
        tokens_per_request=draw(st.none() | st.integers(64, 32768)),
    )
    return {"checkpoint": CHECKPOINTS[shape], "release": release, "intent": intent}


def gpu_of(free_gib):
    return [Gpu(0, round((free_gib + 2) * 1024), free_gib)]


def weights_of(checkpoint):
    return {"weights_gib": 60.0, "draft_gib": 4.0} if checkpoint.weights is None else {}


@settings(max_examples=80, deadline=None)
@given(situations(), st.floats(10, 400))
def test_parts_sum_to_the_whole(situation, free_gib):
    result = plan(
        gpus=gpu_of(free_gib), host=Host.from_mapping(ROOMY), **situation, **weights_of(situation["checkpoint"])
    )
    gpu = result.instances[0].gpu
    pools = gpu.weights_bytes + gpu.draft_bytes + gpu.state_bytes + gpu.intermediate_bytes + gpu.kv_bytes
    assert pools + gpu.slack_bytes == gpu.free_bytes
    shown = result.as_dict()["instances"][0]["gpu"]
    assert sum(shown[part] for part in PARTS) == pytest.approx(shown["free_gib"], abs=0.0005)
    assert sum(size for _name, size in result.host[0].parts) == result.host[0].needed_bytes
    if result.fits:
        assert min(gpu.kv_tokens, gpu.max_running_requests) > 0
        assert gpu.slack_bytes > 0


@settings(max_examples=40, deadline=None)
@given(situations(), st.lists(st.floats(60, 150), min_size=3, max_size=3))
def test_more_memory_never_plans_less(situation, sizes):
    """Within a class of GPUs: at 60 and 160 GiB the engine itself takes larger chunks and graphs."""
    intent = situation["intent"]
    if intent.mem_fraction_static is None:
        situation["intent"] = intent = Intent(**{**intent.__dict__, "mem_fraction_static": 0.85})
    budgets = []
    for free_gib in sorted(sizes):
        result = plan(
            gpus=gpu_of(free_gib), host=Host.from_mapping(ROOMY), **situation, **weights_of(situation["checkpoint"])
        )
        budgets.append((result.instances[0].gpu, result.proposal))
    for (less, less_proposal), (more, more_proposal) in pairwise(budgets):
        assert more.state_slots >= less.state_slots
        assert more.max_running_requests >= less.max_running_requests
        if less_proposal:
            assert more_proposal.gpu.max_running_requests >= less_proposal.gpu.max_running_requests


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from(RELEASES))
def test_a_larger_tier_never_needs_less(size_gb, other_gb, release):
    small, large = (
        planned("qwen3.6-27b", release, gpus=[B200], mtp=MTP, state_strategy="extra_buffer", hicache_gb=size)
        for size in sorted((size_gb, other_gb))
    )
    assert large.instances[0].unit.pools.total_bytes >= small.instances[0].unit.pools.total_bytes
    assert large.largest_hicache_gb == small.largest_hicache_gb


@settings(max_examples=30, deadline=None)
@given(st.floats(20, 900), st.floats(20, 900))
def test_more_host_memory_never_allows_a_smaller_tier(available_gib, other_gib):
    small, large = (
        planned(
            "qwen3.6-27b",
            "0.5.23",
            mtp=MTP,
            host={"mem_total_gib": 1024, "mem_available_gib": size, "shm_size_gib": 128, "shm_used_gib": 60},
        ).largest_hicache_gb
        for size in sorted((available_gib, other_gib))
    )
    assert large >= small
