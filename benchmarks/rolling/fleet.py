"""The test fleet of benchmarks/rolling/inventory, as its tests see and disturb it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
INVENTORY = "benchmarks/rolling/inventory"
SSH = ["ssh", "-F", str(ROOT / ".cache/test-hosts/ssh_config")]
ROUTERS = ("roll-router-1", "roll-router-2")
HOSTS = ("roll-host-1", "roll-host-2")
INSTANCES = ("0", "1")
ENGINES = tuple((host, name) for host in HOSTS for name in INSTANCES)


def on(host: str, command: str) -> str:
    """Run a command on a test host; returns its output. Raises CalledProcessError."""
    return subprocess.run([*SSH, host, command], check=True, capture_output=True, text=True).stdout


def command(name: str, *variables: str, limit: str = "all") -> list[str]:
    """The command that runs a playbook on the fleet, with `-e` for each variable."""
    extra = [word for variable in variables for word in ("-e", variable)]
    return ["ansible-playbook", "-i", INVENTORY, name, "-l", limit, *extra]


def playbook(name: str, *variables: str, limit: str = "all") -> subprocess.CompletedProcess[str]:
    """Run a playbook on the fleet; returns its end and its words."""
    words = command(name, *variables, limit=limit)
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def key() -> str:
    """The API key of the routers."""
    return on(ROUTERS[0], "cat /etc/sglang-router/api_key").strip()


def healthy(router: str) -> set[str]:
    """URLs of the workers that a router sends requests to; none where it does not answer."""
    answer = on(router, f"curl -s -H 'Authorization: Bearer {key()}' http://127.0.0.1:8000/workers || true")
    return {worker["url"] for worker in json.loads(answer or '{"workers": []}')["workers"] if worker["is_healthy"]}


def complete(router: str, tokens: int = 4) -> str:
    """A completion through a router; raises CalledProcessError where it gives none."""
    body = json.dumps({"model": "tiny-qwen3", "prompt": f"{time.time()}", "max_tokens": tokens})
    command = f"curl -sf -m 60 -H 'Authorization: Bearer {key()}' -H 'Content-Type: application/json' -d '{body}'"
    return on(router, f"{command} http://127.0.0.1:8000/v1/completions")


def eventually(probe: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until the probe holds. Raises AssertionError where it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(1)


def all_serve(seconds: float = 5) -> None:
    """Every engine is in every router's list, and both routers complete a prompt. Raises AssertionError."""
    wanted = {f"http://{host}:{30000 + int(name)}" for host, name in ENGINES}
    for router in ROUTERS:
        eventually(lambda router=router: healthy(router) == wanted, seconds, f"{router} lists all engines as healthy")
        assert json.loads(complete(router))["usage"]["completion_tokens"] == 4


def main_pid(host: str, name: str) -> str:
    """Process number of an engine."""
    return on(host, f"systemctl show --property=MainPID --value sglang@{name}").strip()


def main_pids() -> dict[tuple[str, str], str]:
    """Process number of every engine."""
    return {engine: main_pid(*engine) for engine in ENGINES}


def wait_for_phase(host: str, phase: str, since: float, seconds: float = 120) -> None:
    """Wait until a roll on the host reaches the phase."""
    journal = f"journalctl -t sglang-roll --output=cat --since=@{since:.0f}"
    eventually(lambda: f": {phase}" in on(host, journal), seconds, f"{phase} on {host}")
