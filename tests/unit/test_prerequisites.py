"""What releases need of a host."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from ansible_collections.llmops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.llmops.fleet.plugins.module_utils.prerequisites import Found, Needs, needs, observe, require
from ansible_collections.llmops.fleet.plugins.module_utils.releases import Release

V10, V21, V22 = (Release.parse(version) for version in ("0.5.10.post1", "0.5.21", "0.5.22"))
GPU_HOST = Found("3.11.2", "580.95.05", compiler=True, nvcc=True, python_headers=True, libnuma=True)
PACKAGES = {"sglang", "ninja", "nvidia-cuda-nvcc"}


@pytest.mark.parametrize(
    ("release", "wanted"),
    [(V10, Needs((3, 10), "12.8", 570)), (V21, Needs((3, 10), "13.0", 580)), (V22, Needs((3, 11), "13.0", 580))],
)
def test_needs_by_release(release: Release, wanted: Needs) -> None:
    assert needs(release) == wanted


def test_a_fit_host_is_taken() -> None:
    require(V22, "cuda", GPU_HOST, PACKAGES)
    require(V22, "cuda", replace(GPU_HOST, nvcc=False), PACKAGES)
    require(V10, "cuda", replace(GPU_HOST, python="3.10.12", driver="570.133.20"), PACKAGES)
    require(V22, "cpu", Found("3.11.2"), ())


@pytest.mark.parametrize(
    ("lack", "packages", "words"),
    [
        ({"python": "3.10.12"}, PACKAGES, "Python 3.11 or later; found 3.10.12"),
        ({"driver": "570.133.20"}, PACKAGES, "driver 580 or later for CUDA 13.0; found driver 570"),
        ({"driver": ""}, PACKAGES, "no NVIDIA driver loaded"),
        ({"compiler": False}, PACKAGES, "install g"),
        ({"nvcc": False}, {"sglang", "ninja"}, "nvcc"),
        ({"python_headers": False}, PACKAGES, "python3-dev"),
        ({"libnuma": False}, PACKAGES, "libnuma1"),
    ],
)
def test_what_is_missing_is_named(lack: dict[str, object], packages: set[str], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        require(V22, "cuda", replace(GPU_HOST, **lack), packages)


def test_everything_missing_is_named_at_once() -> None:
    with pytest.raises(FleetError, match=r"Python 3\.11 .*NVIDIA driver.*C\+\+.*libnuma"):
        require(V22, "cuda", Found("3.10.12"), PACKAGES)


def test_this_machine_is_observed() -> None:
    assert observe(sys.executable).python == sys.version.split()[0]
    with pytest.raises(FleetError, match="/no-python to run"):
        observe("/no-python")
