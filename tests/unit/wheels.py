"""Tiny wheels for tests of what installs wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(directory: Path, name: str, version: str, tag: str = "py3-none-any") -> Path:
    """A wheel with one module of the package's name."""
    path = directory / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 1\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
