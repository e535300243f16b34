"""What a SGLang release needs of a host before it is installed: Python, driver, tools for kernels compiled at start.

Python and torch versions are those of the releases' own metadata; torch's CUDA decides the driver.
"""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import FleetError
from .releases import Release

DRIVER_VERSION = Path("/sys/module/nvidia/version")
SYSTEM_NVCC = Path("/usr/local/cuda/bin/nvcc")


@dataclass(frozen=True)
class Needs:
    """Least Python (major, minor), CUDA that torch is built for, and the first driver branch that runs it."""

    python: tuple[int, int]
    cuda: str
    driver: int


def needs(release: Release) -> Needs:
    """What a release needs."""
    python = (3, 11) if release >= Release(0, 5, 22) else (3, 10)
    if release < Release(0, 5, 11):
        return Needs(python, "12.8", 570)
    return Needs(python, "13.0", 580)


@dataclass(frozen=True)
class Found:
    """What a host has.

    Attributes:
        python: version of the Python that the environment is made with.
        driver: version of the loaded NVIDIA kernel module; "" without one.
        compiler, nvcc, python_headers, libnuma: whether they are there.
    """

    python: str
    driver: str = ""
    compiler: bool = False
    nvcc: bool = False
    python_headers: bool = False
    libnuma: bool = False


def observe(python: str) -> Found:
    """Look at this host. Raises FleetError where `python` does not run."""
    question = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_paths()['include'])"
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise FleetError(f"{python} to run", str(error), "install it or correct sglang_engine_python") from error
    version, include = answer.split(maxsplit=1)
    return Found(
        python=version,
        driver=DRIVER_VERSION.read_text().strip() if DRIVER_VERSION.exists() else "",
        compiler=any(shutil.which(name) for name in ("g++", "c++")),
        nvcc=shutil.which("nvcc") is not None or SYSTEM_NVCC.exists(),
        python_headers=Path(include.strip(), "Python.h").exists(),
        libnuma=ctypes.util.find_library("numa") is not None,
    )


def require(release: Release, accelerator: str, found: Found, packages: Collection[str]) -> None:
    """Raise FleetError, naming everything that is missing at once, where the host cannot run the release.

    `packages` are names of the Python packages that will be installed: they may bring nvcc and ninja themselves.
    """
    wanted = needs(release)
    minor = ".".join(map(str, wanted.python))
    lacks = []
    if tuple(int(part) for part in found.python.split(".")[:2]) < wanted.python:
        lacks.append((f"Python {minor} or later", found.python, f"set sglang_engine_python to Python {minor}"))
    if accelerator == "cuda":
        branch = found.driver.partition(".")[0]
        if not branch.isdigit() or int(branch) < wanted.driver:
            lacks.append(
                (
                    f"NVIDIA driver {wanted.driver} or later for CUDA {wanted.cuda}",
                    f"driver {found.driver}" if found.driver else "no NVIDIA driver loaded",
                    "install the driver, or take an older release",
                )
            )
        for present, what, package in (
            (found.compiler, "a C++ compiler for kernels compiled at start", "g++"),
            (found.nvcc or "nvidia-cuda-nvcc" in packages, "nvcc for kernels compiled at start", "the CUDA toolkit"),
            (found.python_headers, "Python.h for Triton's launchers", "python3-dev"),
            (found.libnuma, "libnuma", "libnuma1"),
            ("ninja" in packages or shutil.which("ninja") is not None, "ninja for kernels", "ninja-build"),
        ):
            if not present:
                lacks.append((what, "none", f"install {package}"))
    if lacks:
        expected, missing, change = ("; ".join(dict.fromkeys(words)) for words in zip(*lacks, strict=True))
        raise FleetError(f"for SGLang {release} {expected}", missing, change)
