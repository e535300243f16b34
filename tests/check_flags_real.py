"""Have the real parsers of the five releases judge every profile; the newest also resolves them as GPUs would.

The engine for a CPU is installed from the demo's wheelhouse, the other releases lie over it; nothing needs a GPU. The
last line says how many command lines were judged and how many of them were rejected.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ansible_collections.llmops.fleet.plugins.module_utils.engine_install import Engines, Source
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.flag_lists import LISTED
from ansible_collections.llmops.fleet.plugins.module_utils.flags import CommandLine, render
from ansible_collections.llmops.fleet.plugins.module_utils.intent import PROFILES, with_profile
from ansible_collections.llmops.fleet.plugins.module_utils.parser_check import Verdict, check
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release
from check_flags import FIELD_RECORD, LAUNCH

ROOT = Path(__file__).parents[1]
PARSERS = ROOT / ".cache/parsers"
WHEELHOUSE = ROOT / ".cache/wheelhouse/0.5.23-cpu"
MODEL = ROOT / "tests/fixtures/checkpoints/qwen3.6-27b"
NEWEST = LISTED[-1]
OVERLAY = ("transformers==5.12.1", "tokenizers==0.22.2")
"""What the older releases need in place of the newest one's."""

WITHOUT_PLATFORM = """
import importlib.metadata
_entry_points = importlib.metadata.entry_points
importlib.metadata.entry_points = (
    lambda **which: () if which.get("group") == "sglang.srt.platforms" else _entry_points(**which)
)
"""
"""Keeps the demo's CPU platform, which is made for the newest release, from an older one and from a GPU's questions."""

AS_GPU = """
import torch
import sglang.srt.arg_groups.memory_hook as _memory
from sglang.srt import runtime_context as _context
_memory.get_device_memory_capacity = lambda device=None: {memory_mib}
torch.version.cuda = "13.0"
torch.cuda.get_device_capability = lambda device=None: {capability}
_context.override_platform(
    is_cuda=True, is_hip=False, is_npu=False, is_xpu=False, is_musa=False, is_mps=False, has_amx=False,
    is_sm90={sm} == 90, is_sm100={sm} == 100, is_sm100_or_sm110={sm} == 100, is_sm110=False, is_sm120={sm} == 120,
    is_blackwell={sm} in (100, 120), is_hopper_with_cuda_12_3={sm} == 90, has_flashinfer=True, device_sm={sm},
    device_capability={capability},
).install()
"""
"""Answers SGLang's questions about the hardware as the named GPU would, through its own seam for that."""

GPUS = {
    "B200": {"memory_mib": 183359, "sm": 100, "capability": (10, 0)},
    "H200": {"memory_mib": 143771, "sm": 90, "capability": (9, 0)},
    "RTX PRO 6000": {"memory_mib": 97887, "sm": 120, "capability": (12, 0)},
}


def engine() -> str:
    """The newest release's Python, installed once."""
    Engines(PARSERS).ensure(NEWEST, Release.parse(NEWEST), Source(wheelhouse=WHEELHOUSE), sys.executable)
    return str(PARSERS / NEWEST / "bin/python")


def path_of(version: str) -> str:
    """PYTHONPATH that lays a release over the newest one's environment, installed once."""
    target = PARSERS / version
    if version == NEWEST:
        return ""
    if not (target / "sglang").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*command, f"sglang=={version}", *OVERLAY], check=True)
    return str(target)


def profiles(version: str, **launch: object) -> Iterator[tuple[str, CommandLine]]:
    """(profile, command line) for a release."""
    for profile in PROFILES:
        yield (
            profile,
            render(with_profile(FIELD_RECORD, profile), Release.parse(version), replace(LAUNCH, **launch)),
        )


def judge(version: str, as_gpu: str = "") -> list[Verdict]:
    """Verdicts on all profiles: of the parser, or with a GPU's name of the whole resolution."""
    lines = dict(profiles(version, model_path=str(MODEL)))
    environment = {name: value for name, value, _ in next(iter(lines.values())).environment}
    environment |= {"PYTHONPATH": path_of(version), "SGLANG_PLUGINS": "none"}
    prelude = WITHOUT_PLATFORM + (AS_GPU.format(**GPUS[as_gpu]) if as_gpu else "")
    return check(
        engine(),
        {profile: line.argv() for profile, line in lines.items()},
        environment,
        resolve=bool(as_gpu),
        prelude=prelude,
    )


def main(versions: list[str]) -> int:
    judged = rejected = 0
    for version, as_gpu in [*((version, "") for version in versions), *((NEWEST, gpu) for gpu in GPUS)]:
        for verdict in judge(version, as_gpu):
            try:
                verdict.require(Release.parse(version))
                word = "; ".join(verdict.said()) or "taken"
            except FleetError as error:
                word = str(error)
                rejected += 1
            judged += 1
            print(f"{version:12} {as_gpu or 'parser':12} {verdict.name:12} {word}", flush=True)
    print(f"{judged} judged, {rejected} rejected")
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(LISTED)))
