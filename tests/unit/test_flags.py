"""Rendering, refusals of free arguments and known-bad combinations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.flag_lists import LISTED, fate, flags_of
from ansible_collections.llmops.fleet.plugins.module_utils.flags import (
    MANAGED,
    CommandLine,
    Launch,
    parse_extra,
    render,
)
from ansible_collections.llmops.fleet.plugins.module_utils.intent import Intent, Speculation
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from hypothesis import given
from hypothesis import strategies as st

from ..check_flags import FIELD_RECORD, LAUNCH, command_lines, main, objection, read_list

V10, V15, V17, V20, V23 = (Release.parse(version) for version in LISTED)
PLAIN = Launch("/dev/shm/sglang/m", "m", "127.0.0.1", 30000, 31000)
MTP = Speculation()


def line(intent: Intent, release: Release = V23, **launch: object) -> CommandLine:
    return render(intent, release, replace(PLAIN, **launch))


def test_every_profile_is_taken_by_the_list_of_every_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "20 rendered, 0 rejected"


def test_the_check_finds_what_a_list_rejects() -> None:
    _, _, rendered = next(command_lines())
    old = {argument.flag: argument for argument in rendered.arguments}
    new = read_list("0.5.23")
    assert objection(new.get("--cuda-graph-max-bs"), old["--cuda-graph-max-bs"]) == "is unknown"
    assert objection(new["--kv-cache-dtype"], replace(old["--kv-cache-dtype"], value="fp3")).startswith("is not one of")
    assert objection(new["--port"], replace(old["--port"], value="http")) == "is no int"
    assert objection(new["--enable-metrics"], replace(old["--enable-metrics"], value="1")) == "is a switch"
    assert objection(read_list("0.5.17")["--cuda-graph-max-bs"], old["--cuda-graph-max-bs"]) == "is deprecated"


@pytest.mark.parametrize("version", LISTED)
def test_the_core_knows_the_flags_of_the_lists(version: str) -> None:
    assert flags_of(Release.parse(version)) == set(read_list(version))


@pytest.mark.parametrize("version", LISTED)
def test_every_managed_name_is_in_the_list_of_its_release(version: str) -> None:
    flags = read_list(version)
    later = {"hicache_fraction"}
    for key, managed in MANAGED.items():
        name = managed.name(Release.parse(version))
        assert key in later or not flags[name].get("deprecated"), name


@pytest.mark.parametrize("version", LISTED)
def test_no_free_flag_is_short_for_a_managed_one(version: str) -> None:
    spellings = frozenset().union(*(managed.spellings for managed in MANAGED.values()))
    shorter = [flag for flag in set(read_list(version)) - spellings if any(s.startswith(flag) for s in spellings)]
    assert shorter == []


def test_a_release_between_two_lists_may_take_the_flags_of_both() -> None:
    between = flags_of(Release.parse("0.5.18"))
    assert {"--mamba-scheduler-strategy", "--hicache-host-memory-mode"} <= between
    assert flags_of(Release.parse("0.5.24")) == flags_of(V23)


def test_the_field_record_is_translated_for_the_newest_release() -> None:
    argv = render(replace(FIELD_RECORD, mtp=MTP, max_running_requests=512), V23, LAUNCH, allow_known_bad=True).argv()
    assert "--speculative-algorithm=NEXTN" in argv
    assert "--mamba-radix-cache-strategy=extra_buffer" in argv
    assert "--cuda-graph-max-bs-decode=512" in argv
    assert "--max-running-requests=512" in argv
    assert "--hicache-size=20" in argv


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--speculative-algorithm=EAGLE", "set sglang_instances_intent.mtp"),
        ("--mamba-scheduler-strategy=extra_buffer", "gone by 0.5.20, now --mamba-radix-cache-strategy"),
        ("--enable-hierarchical-cache", "hicache_gb"),
        ("--hicache-size=150", "hicache_gb"),
        ("--max-running-requests=512", "max_running_requests"),
        ("--cuda-graph-max-bs=512", "gone by 0.5.20, now --cuda-graph-max-bs-decode"),
        ("--mem-fraction-static=0.95", "mem_fraction_static"),
        ("--max-hierarchical-cache-size=200", "no SGLang release .* has it"),
    ],
)
def test_the_field_records_own_flags_are_refused_by_name(argument: str, words: str) -> None:
    with pytest.raises(FleetError, match=words) as refusal:
        line(Intent(), extra_args=(argument,))
    assert argument.split("=")[0] in str(refusal.value)


def test_the_field_records_environment_is_refused_where_it_is_gone() -> None:
    with pytest.raises(FleetError, match=r"SGLANG_ENABLE_SPEC_V2, gone in 0\.5\.14"):
        line(Intent(), environment={"SGLANG_ENABLE_SPEC_V2": "1"})
    names = [name for name, _, _ in line(Intent(mtp=MTP), Release.parse("0.5.11")).environment]
    assert "SGLANG_ENABLE_SPEC_V2" not in names
    names = [name for name, _, _ in line(Intent(mtp=MTP), V10).environment]
    assert "SGLANG_ENABLE_SPEC_V2" in names


@pytest.mark.parametrize(
    "spelling",
    [
        ("--mem-fraction-static=0.9",),
        ("--mem-fraction-static", "0.9"),
        ("--mem-fraction-static 0.9",),
        ("--mem-frac=0.9",),
        ("--mem-f 0.9",),
        ("--model", "/x"),
        ("--tensor-parallel-size=2",),
        ("--enable-hicache",),
        ("--speculative-eagle", "4"),
        ("--hicache",),
    ],
)
def test_managed_flags_are_refused_in_any_spelling(spelling: tuple[str, ...]) -> None:
    with pytest.raises(FleetError, match="sglang_instances_extra_args"):
        line(Intent(), extra_args=spelling)


@given(st.sampled_from(sorted({name for each in MANAGED.values() for name in each.spellings})), st.data())
def test_no_abbreviation_of_a_managed_flag_passes(name: str, data: st.DataObject) -> None:
    short = name[: data.draw(st.integers(3, len(name)))]
    with pytest.raises(FleetError):
        line(Intent(), accelerator="cpu", extra_args=(f"{short}=1",))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--schedule-conservativenes=1",), "short for --schedule-conservativeness"),
        (("--no-such-flag",), "drop it or correct the spelling"),
        (("--cuda-graph-bs", "1", "2"), "write --cuda-graph-bs-decode"),
        (("--config=/etc/x.yml",), "escape every check"),
        (("--dp-size=2",), "tensor_parallel"),
        (("--base-gpu-id", "1"), "sglang_instances_gpus"),
        (("value",), "a flag before every value"),
        (("--log-level=info", "--log-level=debug"), "once"),
    ],
)
def test_unfit_free_arguments_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        line(Intent(), extra_args=arguments)


def test_a_key_in_argv_is_refused_without_repeating_it() -> None:
    with pytest.raises(FleetError, match="end authentication at the router") as refusal:
        line(Intent(), extra_args=("--api-key=s3cret",))
    assert "s3cret" not in str(refusal.value)


def test_free_arguments_pass_through() -> None:
    argv = line(
        Intent(), extra_args=("--cuda-graph-bs-decode", "1", "2", "--random-seed", "-1", "--log-requests")
    ).argv()
    assert argv[-5:] == ["--cuda-graph-bs-decode", "1", "2", "--random-seed=-1", "--log-requests"]
    assert parse_extra(["--json-model-override-args", '{"a": 1}']) == {"--json-model-override-args": ('{"a": 1}',)}


def test_what_a_cpu_needs() -> None:
    argv = line(Intent(mem_fraction_static=0.8, max_running_requests=4), accelerator="cpu").argv()
    assert {"--device=cpu", "--cuda-graph-backend-decode=disabled", "--sleep-on-idle"} <= set(argv)
    assert not [each for each in argv if each.startswith(("--mem-fraction", "--cuda-graph-max"))]
    assert "--hicache-io-backend=direct" in line(Intent(hicache_gb=1), accelerator="cpu").argv()
    with pytest.raises(FleetError, match="nothing on a CPU"):
        line(Intent(), accelerator="cpu", extra_args=("--sleep-on-idle",))
    assert "--sleep-on-idle" in line(Intent(), extra_args=("--sleep-on-idle",)).argv()


@pytest.mark.parametrize(
    ("version", "layout"),
    [("0.5.10", "page_first_direct"), ("0.5.15", "page_first_direct"), ("0.5.16", "page_first")],
)
def test_hybrid_models_get_the_layout_that_the_release_takes(version: str, layout: str) -> None:
    argv = line(Intent(hicache_gb=1), Release.parse(version), hybrid=True).argv()
    assert f"--hicache-mem-layout={layout}" in argv


def test_releases_out_of_reach() -> None:
    with pytest.raises(FleetError, match=r"0\.5\.10 or later"):
        line(Intent(), Release.parse("0.5.9"))
    assert "newer than 0.5.23" in line(Intent(), Release.parse("0.6.0"), extra_args=("--new-flag=1",)).warnings[0]
    with pytest.raises(FleetError, match="short for --mem-fraction-static"):
        line(Intent(), Release.parse("0.6.0"), extra_args=("--mem-frac=0.9",))
    assert fate("--hicache-host-memory-fraction", V20) == "it is there from 0.5.23 on"


HICACHE = Intent(hicache_gb=1)
STATE = Intent(mtp=MTP, state_strategy="extra_buffer")


@pytest.mark.parametrize(
    ("intent", "release", "launch", "words"),
    [
        (HICACHE, "0.5.21", {"model_type": "qwen4_exp"}, "sglang#39830"),
        (Intent(hicache_ratio=0.5), "0.5.14", {}, "larger than its GPU pool"),
        (replace(HICACHE, mem_fraction_static=0.95), "0.5.23", {}, "sglang#5372"),
        (HICACHE, "0.5.23", {"extra_args": ("--enable-lmcache",)}, "exclude one another"),
        (HICACHE, "0.5.23", {"extra_args": ("--enable-int8-mamba-checkpoint",)}, "int8"),
        (replace(HICACHE, mtp=MTP), "0.5.23", {"extra_args": ("--enable-unified-memory",)}, "private pool"),
        (HICACHE, "0.5.23", {"extra_args": ("--hicache-host-memory-mode=buffer_only",)}, "staging buffer"),
        (
            replace(HICACHE, hicache_storage_backend="file"),
            "0.5.21",
            {"hybrid": True, "extra_args": ("--hicache-host-memory-mode=buffer_only",)},
            "state pools refuse",
        ),
        (replace(STATE, state_strategy="no_buffer"), "0.5.23", {}, "does not overlap"),
        (Intent(state_strategy="no_buffer", page_size=64), "0.5.23", {}, "only supports page_size 1"),
        (Intent(state_strategy="extra_buffer_lazy"), "0.5.12", {}, "does not have it"),
        (replace(STATE, state_strategy="extra_buffer_lazy"), "0.5.16", {}, "asserts against it"),
        (replace(STATE, max_mamba_cache_size=45, max_running_requests=9), "0.5.23", {}, "sglang#37066"),
        (replace(STATE, page_size=48), "0.5.23", {}, "falls back to triton"),
        (STATE, "0.5.23", {"extra_args": ("--mamba-track-interval=100",)}, "ends of pages"),
        (Intent(mtp=Speculation(3, 1, 8)), "0.5.23", {}, "steps \\+ 1"),
        (Intent(mtp=Speculation(3, 4, 8)), "0.5.23", {"extra_args": ("--attention-backend=trtllm_mha",)}, "one branch"),
        (
            Intent(mtp=MTP),
            "0.5.23",
            {"extra_args": ("--speculative-draft-model-path=/d",)},
            "no room for a draft model",
        ),
        (Intent(), "0.5.23", {"extra_args": ("--weight-loader-disable-mmap",)}, "private memory"),
    ],
)
def test_known_bad_combinations_are_refused_with_a_reason(
    intent: Intent, release: str, launch: dict[str, object], words: str
) -> None:
    with pytest.raises(FleetError, match=words):
        line(intent, Release.parse(release), **launch)
    allowed = render(intent, Release.parse(release), replace(PLAIN, **launch), allow_known_bad=True)
    assert any(warning for warning in allowed.warnings)


@pytest.mark.parametrize(
    ("intent", "release", "launch", "words"),
    [
        (HICACHE, "0.5.23", {"hybrid": True}, "sglang#33713"),
        (HICACHE, "0.5.16", {"hybrid": True}, "allocated twice"),
        (replace(HICACHE, mtp=MTP), "0.5.17", {}, "sglang#31600"),
        (replace(HICACHE, hicache_storage_backend="shm"), "0.5.23", {}, "/dev/shm"),
        (Intent(mtp=Speculation(3, 4, 8)), "0.5.23", {}, "topk above 1"),
        (Intent(state_dtype="bfloat16"), "0.5.23", {}, "flashinfer"),
        (replace(STATE, page_size=64), "0.5.23", {}, "leave page_size out"),
        (STATE, "0.5.23", {"extra_args": ("--disable-overlap-schedule",)}, "four state slots"),
    ],
)
def test_doubtful_combinations_are_warned_about(
    intent: Intent, release: str, launch: dict[str, object], words: str
) -> None:
    assert words in " ".join(line(intent, Release.parse(release), **launch).warnings)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.23"])
def test_what_is_mended_is_not_refused(version: str) -> None:
    assert line(HICACHE, Release.parse(version), model_type="qwen4_exp").warnings == ()
    assert line(replace(STATE, max_mamba_cache_size=46, max_running_requests=9), Release.parse(version)).warnings == ()
