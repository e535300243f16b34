"""Judging the installed parser's answers; the real parsers are asked in tests/integration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.parser_check import Verdict, _verdict, check_all, explain
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release

V20, V23 = Release.parse("0.5.20"), Release.parse("0.5.23")


def test_a_vanished_flag_is_told_with_its_new_name() -> None:
    words = explain("sglang: error: unrecognized arguments: --mamba-scheduler-strategy extra_buffer", V23)
    assert words == "; --mamba-scheduler-strategy: it is gone by 0.5.20, now --mamba-radix-cache-strategy"
    words = explain("ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode", V20)
    assert words == "; --cuda-graph-max-bs: it is gone by 0.5.20, now --cuda-graph-max-bs-decode"
    assert explain("argument --page-size: invalid int value: 'x'", V23) == ""


def test_what_was_asked_for_and_changes_is_undone_and_what_was_open_is_chosen() -> None:
    # As 0.5.23 resolves it on a B200.
    verdict = _verdict(
        "0",
        {
            "error": "",
            "asked": {
                "page_size": 64,
                "attention_backend": None,
                "speculative_algorithm": "NEXTN",
                "mem_fraction_static": None,
            },
            "given": ["page_size", "speculative_algorithm"],
            "resolved": {
                "page_size": 1,
                "attention_backend": "triton",
                "speculative_algorithm": "EAGLE",
                "mem_fraction_static": 0.79,
            },
            "log": ["a warning"],
        },
    )
    assert verdict.undone == (("page_size", 64, 1),)
    assert verdict.chosen == (("attention_backend", "triton"),)
    with pytest.raises(FleetError, match="silently change page_size 64 -> 1; a warning"):
        verdict.require(V23)
    verdict.require(V23, allow_known_bad=True)
    assert verdict.said() == [
        "it would silently change page_size 64 -> 1",
        "left open, the engine chooses attention_backend triton",
        "the engine says: a warning",
    ]


def test_a_rejection_is_never_allowed() -> None:
    with pytest.raises(FleetError, match="instance 3; found no such thing"):
        Verdict("3", "no such thing").require(V23, allow_known_bad=True)


def test_without_an_engine_the_table_judges(tmp_path: Path) -> None:
    missing = tmp_path / "bin/python"
    taken = {"0": ["--model-path=/m", "--mamba-radix-cache-strategy=extra_buffer", "--cuda-graph-bs-decode", "1", "2"]}
    assert check_all(missing, V23, taken, {}, tmp_path) == ("table", [])
    with pytest.raises(FleetError, match=r"unknown --mamba-scheduler-strategy; .* gone by 0\.5\.20"):
        check_all(missing, V23, {"0": ["--mamba-scheduler-strategy=extra_buffer"]}, {}, tmp_path)


def test_an_engine_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="No module named 'sglang'"):
        check_all(Path(sys.executable), V23, {"0": []}, {}, tmp_path)
