"""Packs the core itself into one executable file, so that a host runs exactly the code that planned for it."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

_SHEBANG = b"#!/usr/bin/python3\n"
_MAIN = "import sys\nfrom fleet.cli import main\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build() -> bytes:
    """The host tool: a zip archive behind a shebang line, the same bytes for the same sources."""
    package = resources.files(__package__)
    sources = {
        f"fleet/{entry.name}": entry.read_text(encoding="utf-8")
        for entry in package.iterdir()
        if entry.name.endswith(".py")
    }
    sources |= {"fleet/__init__.py": "", "__main__.py": _MAIN}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in sorted(sources.items()):
            packed.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
    return _SHEBANG + archive.getvalue()
