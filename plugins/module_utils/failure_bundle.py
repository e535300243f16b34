"""What was seen when an engine failed, in one directory that only root reads; no secrets, for it may be passed on."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .errors import FleetError
from .generations import STATE_DIR
from .http_api import request
from .instance import ARGUMENTS, CONFIG_DIR, RECORD, Instance
from .systemd import journal

JOURNAL_LINES = 400
COMMANDS = {
    "units.txt": ("systemctl", "status", "--no-pager", "--full", "sglang@*", "sglang-weights*"),
    "memory.txt": ("cat", "/proc/meminfo"),
    "shm.txt": ("df", "/dev/shm"),
    "gpus.txt": ("nvidia-smi",),
    "ports.txt": ("ss", "--listening", "--tcp", "--numeric", "--processes"),
}
ENDPOINTS = ("server_info", "metrics")
TIMEOUT_S = 20.0


def collect(instance: Instance, phase: str, failure: FleetError, state_dir: Path = STATE_DIR) -> str:
    """Write the bundle and return its directory. What cannot be had is named in the file that lacks it.

    A disk that takes no bundle is no reason to leave the engine down: then the reason is returned.
    """
    try:
        return str(_write(instance, phase, failure, state_dir))
    except OSError as error:
        return f"no directory: {error}"


def _write(instance: Instance, phase: str, failure: FleetError, state_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    directory = state_dir / "failures" / f"{stamp}-{instance.name}"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    texts = {"failure.txt": f"{instance.unit} failed in `{phase}`\n{failure}\n"}
    texts["journal.txt"] = journal(instance.unit, JOURNAL_LINES)
    texts |= {name: _output(command) for name, command in COMMANDS.items()}
    texts |= {f"{endpoint}.txt": _answer(f"{instance.local_url}/{endpoint}") for endpoint in ENDPOINTS}
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    for name in (RECORD, ARGUMENTS):
        shutil.copy(CONFIG_DIR / instance.name / name, directory / name)
    return directory


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    return done.stdout + done.stderr


def _answer(url: str) -> str:
    try:
        return request("GET", url, timeout_s=TIMEOUT_S).body
    except OSError as error:
        return f"{url}: {error}\n"
