"""State slots, running requests and KV tokens against a hand-made table of three eras and against real launches."""

from __future__ import annotations

import re

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.fleet.plugins.module_utils.gpu_memory import Gpu, default_mem_fraction, usable_gib
from ansible_collections.llmops.fleet.plugins.module_utils.intent import Intent, Speculation
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB

from .planning import B200, FIXTURES, H200, MTP, RTX, SHAPES, WEIGHTS_27B_GIB, budget, planned

# (GPU, mem_fraction_static) to K / requests / thousands of tokens; None where the launch fails.
PLAIN_A = {
    (96, 0.80): (80, 16, 210),
    (96, 0.85): (95, 19, 252),
    (96, 0.90): (111, 22, 292),
    (96, 0.95): (127, 25, 332),
    (180, 0.80): (299, 59, 784),
    (180, 0.90): (358, 71, 936),
}
PLAIN_C = {
    (96, 0.80): (78, 15, 211),
    (96, 0.85): (94, 18, 251),
    (96, 0.90): (110, 22, 290),
    (96, 0.95): (125, 25, 333),
    (180, 0.80): (298, 59, 782),
    (180, 0.90): (356, 71, 937),
}
MTP_A = {
    (96, 0.80): None,
    (96, 0.85): None,
    (96, 0.90): (20, 4, 55),
    (96, 0.95): (36, 7, 95),
    (180, 0.80): (208, 41, 546),
    (180, 0.90): (267, 48, 699),
}
MTP_B = {
    (96, 0.80): (43, 8, 209),
    (96, 0.85): (51, 10, 249),
    (96, 0.90): (60, 12, 286),
    (96, 0.95): (69, 13, 333),
    (180, 0.80): (165, 33, 775),
    (180, 0.90): (197, 39, 935),
}
MTP_C = {
    (96, 0.80): (40, 8, 203),
    (96, 0.85): (48, 9, 252),
    (96, 0.90): (57, 11, 289),
    (96, 0.95): (66, 13, 327),
    (180, 0.80): (162, 32, 778),
    (180, 0.90): (194, 38, 938),
}
TABLE = [
    (release, mtp, card, fraction, expected)
    for releases, mtp, rows in (
        (("0.5.10", "0.5.12.post1", "0.5.16"), None, PLAIN_A),
        (("0.5.18", "0.5.23"), None, PLAIN_C),
        (("0.5.10", "0.5.12.post1"), MTP, MTP_A),
        (("0.5.14", "0.5.16"), MTP, MTP_B),
        (("0.5.18", "0.5.23"), MTP, MTP_C),
    )
    for release in releases
    for (card, fraction), expected in rows.items()
]


@pytest.mark.parametrize(("release", "mtp", "card", "fraction", "expected"), TABLE)
def test_table_of_the_eras(release, mtp, card, fraction, expected):
    gpu = budget(
        plan := planned(
            "qwen3.6-27b",
            release,
            gpus=[RTX if card == 96 else B200],
            mem_fraction_static=fraction,
            mtp=mtp,
            state_strategy="extra_buffer",
            weights_gib=WEIGHTS_27B_GIB,
            draft_gib=0.79,
        )
    )
    if expected is None:
        assert not plan.fits
        return
    slots, requests, thousands = expected
    assert (gpu.state_slots, gpu.max_running_requests) == (slots, requests)
    assert gpu.kv_tokens == pytest.approx(1000 * thousands, abs=520)
    assert plan.fits


@pytest.mark.parametrize(
    ("setting", "slots", "requests", "thousands"),
    [
        ({"state_dtype": "bfloat16"}, 98, 19, 247),
        ({"state_strategy": "extra_buffer_lazy"}, None, 10, 254),
        ({"mamba_full_memory_ratio": 2.0}, None, 13, 165),
    ],
)
def test_levers_at_96_gb(setting, slots, requests, thousands):
    gpu = budget(
        planned(
            "qwen3.6-27b",
            "0.5.23",
            mem_fraction_static=0.85,
            mtp=MTP,
            weights_gib=WEIGHTS_27B_GIB,
            draft_gib=0.79,
            **setting,
        )
    )
    assert (gpu.max_running_requests, round(gpu.kv_tokens / 1000)) == (requests, thousands)
    assert slots in (None, gpu.state_slots)


@pytest.mark.parametrize(
    ("release", "mtp", "slots", "rest_gib"),
    [
        ("0.5.12", MTP, 24, 34.8),
        ("0.5.13", MTP, 24, 13.1),
        ("0.5.17", MTP, 24, 14.6),
        ("0.5.12", MTP, 48, 42.1),
        ("0.5.13", MTP, 48, 26.2),
        ("0.5.17", MTP, 48, 27.7),
        ("0.5.12", None, 96, 29.1),
        ("0.5.16", None, 96, 29.1),
        ("0.5.17", None, 96, 29.4),
    ],
)
def test_least_memory_for_the_field_records_slots(release, mtp, slots, rest_gib):
    def slots_with(rest):
        plan = planned(
            "qwen3.6-27b-text",
            release,
            mem_fraction_static=0.5,
            mtp=mtp,
            state_strategy="extra_buffer",
            weights_gib=94.5 * 0.5 - rest,
            draft_gib=0.0,
        )
        return budget(plan).state_slots

    assert slots_with(rest_gib - 0.06) < slots
    assert slots_with(rest_gib + 0.06) >= slots


@pytest.mark.parametrize(("slots", "requests"), [(33, 6), (21, 4), (8, 1), (24, 4), (48, 9), (96, 19)])
def test_five_slots_per_request(slots, requests):
    gpu = budget(planned("qwen3.6-27b-text", "0.5.19", gpus=[B200], max_mamba_cache_size=slots, mtp=MTP))
    assert gpu.max_running_requests == requests


def test_an_explicit_limit_holds_where_slots_allow_more():
    gpu = budget(
        planned(
            "qwen3.6-27b-text",
            "0.5.19",
            mem_fraction_static=0.85,
            max_mamba_cache_size=55,
            max_running_requests=8,
            mtp=MTP,
        )
    )
    assert gpu.max_running_requests == 8


def test_state_and_intermediate_bytes_of_the_field_record():
    gpu = budget(
        planned(
            "qwen3.6-27b-text",
            "0.5.12",
            mem_fraction_static=0.95,
            max_mamba_cache_size=24,
            max_running_requests=4,
            mtp=MTP,
            state_strategy="extra_buffer",
        )
    )
    ssm_bytes = 144 * 2**20
    assert 25 * ssm_bytes / GIB == pytest.approx(3.52, abs=0.005)
    assert gpu.state_bytes == 25 * (ssm_bytes + 2_949_120)
    assert gpu.intermediate_bytes == 5 * 4 * (ssm_bytes + 2_949_120)


def test_512_requests_with_mtp_reserve_more_than_any_gpu_has():
    plan = planned(
        "qwen3.6-27b",
        "0.5.12",
        gpus=[B200],
        mem_fraction_static=0.9,
        mtp=MTP,
        max_running_requests=512,
        state_strategy="extra_buffer",
    )
    assert not plan.fits
    assert "293.6 GiB" in str(plan.problems[0])
    assert planned(
        "qwen3.6-27b",
        "0.5.13",
        gpus=[B200],
        mem_fraction_static=0.9,
        mtp=MTP,
        max_running_requests=512,
        state_strategy="extra_buffer",
    ).fits


@pytest.mark.parametrize(("mtp", "fraction"), [(None, 0.9113), (MTP, 0.9335)])
def test_least_fraction_for_large_weights(mtp, fraction):
    # Free before loading and after loading as two failed launches imply: 138.3 GiB, weights 126.03, draft 3.07.
    plan = planned(
        "deepseek-r1",
        "0.5.20",
        gpus=[{"index": 0, "total_mib": 143771, "free_gib": 138.3}],
        mem_fraction_static=0.88,
        weights_gib=126.03,
        draft_gib=3.07,
        mtp=mtp,
    )
    assert not plan.fits
    assert budget(plan).minimum_fraction == pytest.approx(fraction, abs=0.0002)
    assert f"above {fraction:.2f}" in str(plan.problems[0])


def test_a_gpu_too_small_for_the_weights_has_no_fraction():
    plan = planned("llama-3.1-8b", "0.5.20", gpus=[{"index": 0, "total_mib": 15360}])
    assert not plan.fits
    assert "larger GPUs" in str(plan.problems[0])


@pytest.mark.parametrize(
    ("release", "total_mib", "mtp", "fraction"),
    [
        ("0.5.16", 97887, None, 0.793),
        ("0.5.13", 97887, Speculation(), 0.755),
        ("0.5.14", 97887, Speculation(), 0.793),
        ("0.5.16", 183359, None, 0.790),
    ],
)
def test_default_mem_fraction(release, total_mib, mtp, fraction):
    checkpoint = read_checkpoint(SHAPES / "qwen3.6-27b")
    found = default_mem_fraction(checkpoint, Release.parse(release), Intent(mtp=mtp), total_mib)
    assert found == pytest.approx(fraction, abs=0.0005)


@pytest.mark.parametrize(("total_mib", "free_gib"), [(97887, 94.5), (143771, 139.09), (183359, 177.5)])
def test_estimated_free_memory(total_mib, free_gib):
    assert usable_gib(total_mib) == pytest.approx(free_gib, abs=0.05)
    assert Gpu.from_mapping({"index": 0, "free_gib": free_gib}).total_mib == pytest.approx(total_mib, rel=0.001)


LAUNCHES = {
    "mtp": {"mem_fraction_static": 0.80},
    "mtphic": {"mem_fraction_static": 0.80, "max_running_requests": 512, "hicache_gb": 20},
    "tunedradix": {
        "mem_fraction_static": 0.85,
        "state_dtype": "bfloat16",
        "max_mamba_cache_size": 321,
        "max_running_requests": 64,
    },
}


@pytest.mark.parametrize("weights", ["of the shape", "as logged"])
@pytest.mark.parametrize("launch", LAUNCHES)
def test_real_launch_on_an_h200(launch, weights):
    log = (FIXTURES / "h200-sglang-0.5.17" / f"{launch}.log").read_text()

    def logged(pattern):
        return [float(number) for number in re.findall(pattern, log)]

    target_gib, draft_gib = logged(r"type=\w+, .* mem usage=([\d.]+) GB")
    options = {"weights_gib": target_gib, "draft_gib": draft_gib} if weights == "as logged" else {}
    gpu = budget(
        plan := planned(
            "qwen3.6-27b-text",
            "0.5.17",
            gpus=[{**H200, "free_gib": logged(r"Load weight begin. avail mem=([\d.]+)")[0]}],
            mtp=MTP,
            state_strategy="extra_buffer",
            context_length=16384,
            **options,
            **LAUNCHES[launch],
        )
    )
    assert plan.fits
    assert gpu.weights_bytes / GIB == pytest.approx(target_gib, abs=0.03)
    assert gpu.draft_bytes / GIB == pytest.approx(draft_gib, abs=0.006)
    assert gpu.state_slots == logged(r"max_mamba_cache_size: (\d+)")[0]
    assert gpu.max_running_requests == logged(r"max_running_requests=(\d+), context_len")[0]
    assert gpu.kv_tokens == pytest.approx(logged(r"max_total_num_tokens=(\d+)")[0], rel=0.001)
    conv, ssm, intermediate, windows = (
        logged(rf"{name} size: ([\d.]+)GB")[0]
        for name in ("conv_state", "ssm_state", "intermediate_ssm_state_cache", "intermediate_conv_window_cache")
    )
    assert gpu.state_bytes / GIB == pytest.approx(conv + ssm, abs=0.01)
    assert gpu.intermediate_bytes / GIB == pytest.approx(intermediate + windows, abs=0.01)
    (key, draft_key), (value, draft_value) = logged(r"K size: ([\d.]+)"), logged(r"V size: ([\d.]+)")
    assert gpu.kv_bytes / GIB == pytest.approx(key + value, abs=0.04)
    assert gpu.draft_kv_bytes / GIB == pytest.approx(draft_key + draft_value, abs=0.011)
    assert gpu.slack_bytes / GIB == pytest.approx(logged(r"Memory pool end. avail mem=([\d.]+)")[0], abs=0.1)
    assert gpu.graph_bytes / GIB == pytest.approx(sum(logged(r"CUDA graph end.* mem usage=([\d.]+)")), abs=0.05)
    if weights == "of the shape":
        assert gpu.spare_bytes / GIB == pytest.approx(logged(r"available_gpu_mem=([\d.]+)")[0], abs=0.25)


def test_sm100_pages_of_64_with_extra_buffer():
    blackwell = {**B200, "compute_capability": "10.0"}
    assert budget(planned("qwen3.6-27b", "0.5.23", gpus=[blackwell], mtp=MTP)).page_size == 64
    assert budget(planned("qwen3.6-27b", "0.5.23", gpus=[RTX], mtp=MTP)).page_size == 1
    assert budget(planned("qwen3.6-27b", "0.5.23", gpus=[blackwell], mtp=MTP)).kv_tokens % 64 == 0


def test_tensor_parallel_divides_states_and_heads():
    four = [{**RTX, "index": index} for index in range(4)]
    gpu = budget(planned("qwen3.5-397b-fp8", "0.5.16", gpus=four, tensor_parallel=4, weights_gib=60.0))
    assert gpu.state_slot_bytes == 48_015_360
    assert gpu.kv_token_bytes == 15 * 512 * 2


def test_draft_kv_is_charged_where_the_config_announces_it():
    plain, mtp = (
        budget(
            planned(
                "deepseek-r1", "0.5.20", gpus=[H200], mem_fraction_static=0.9, weights_gib=80.0, draft_gib=0.0, mtp=mtp
            )
        )
        for mtp in (None, MTP)
    )
    assert mtp.kv_tokens == pytest.approx(plain.kv_tokens * 61 / 62, rel=0.0001)
    assert plain.kv_token_bytes == 61 * 576 * 2
