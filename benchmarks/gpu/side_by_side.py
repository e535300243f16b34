"""Runs on the GPU machine: the units of one host side by side, and their rolling restart behind the router under load.

Usage: side_by_side.py LAUNCHES OUT SECONDS          (as measure.py)

Every step of a unit's life is the host tool's command that its systemd unit runs (prestart, run, ready, drain, leave),
because such a machine may have no systemd; CPUAffinity= and NUMAPolicy= of the unit are then not in force. OUT gets
results.json, with the roll in it, and the logs.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml
from measure import HERE, RUNTIME, Launch, gpu_used_bytes, memory_kib

IN_FLIGHT, MOST_TOKENS = 512, 128
LOAD_S, READY_S, ROLL_S = 4, 240, 45
ADMITTED = Path("/tmp/admitted")
ROUTER = json.loads((HERE / "router.json").read_text())


def run(launch: Launch, command: str) -> float:
    """A command of the host tool on a unit; returns the seconds that it took."""
    begin = time.monotonic()
    environment = os.environ | {"MAINPID": str(launch.process.pid if launch.process else 0)}
    subprocess.run(launch.tool(command), env=environment, check=True)
    return round(time.monotonic() - begin, 2)


def start(launch: Launch) -> None:
    launch.seen["prestart_s"] = run(launch, "prestart")
    launch.start(ADMITTED if launch.spec["in_turn"] else None)


def become_ready(launch: Launch) -> None:
    """Wait until it serves and is in the router's list."""
    ADMITTED.write_text(launch.name)
    if not launch.wait_ready(time.monotonic() + READY_S):
        raise RuntimeError(f"{launch.name} did not become ready: see its log")
    launch.seen["register_s"] = run(launch, "ready")


def start_router(out: Path) -> subprocess.Popen[bytes]:
    """The router with the role's arguments."""
    key = Path(ROUTER["key_file"])
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(16))
    command = ["/opt/sglang/0.5.17/bin/python", HERE / "sglang-fleet", "router-serve", "--api-key-file", key, "--"]
    with (out / "logs/router.log").open("wb") as log:
        return subprocess.Popen([*command, *ROUTER["arguments"]], stdout=log, stderr=log)


def start_load(model: str, out: Path) -> subprocess.Popen[bytes]:
    """Streaming and plain requests, always IN_FLIGHT of them."""
    command = [sys.executable, HERE / "load.py", "--routers", ROUTER["url"], "--key-file", ROUTER["key_file"]]
    command += ["--model", model, "--in-flight", str(IN_FLIGHT), "--tokens", str(MOST_TOKENS), "--rate", "5000"]
    command += ["--long-every", "1000000000", "--stop-file", out / "load.stop", "--out", out / "logs/load.jsonl"]
    return subprocess.Popen(command)


def most_at_once(requests: list[dict[str, Any]]) -> int:
    """The greatest number of requests in flight at the same time."""
    edges = [(request["sent_s"], 1) for request in requests]
    edges += [(request["sent_s"] + request["seconds"], -1) for request in requests]
    return max(itertools.accumulate(change for _at, change in sorted(edges)))


def roll(launches: list[Launch], out: Path, deadline: float) -> dict[str, Any]:
    """Restart the units in turn under load; returns what became of the requests, and the seconds of every step.

    Units that no time is left for before the deadline are left out.
    """
    load = start_load(launches[0].spec["model"], out)
    time.sleep(LOAD_S)
    steps = {}
    begin = time.monotonic()
    for number, launch in enumerate(launches):
        if time.monotonic() + ROLL_S > deadline:
            continue
        steps[launch.unit] = {"drain": run(launch, "drain")}
        launch.stop(signal.SIGTERM, sys.maxsize)
        steps[launch.unit] |= {"stop": launch.seen["stop_s"], "leave": run(launch, "leave")}
        launches[number] = again = Launch(launch.spec, launch.files, launch.log.with_suffix(".again.log"))
        start(again)
        become_ready(again)
        steps[launch.unit] |= {"start": again.seen["ready_s"], "register": again.seen["register_s"]}
    seconds = time.monotonic() - begin
    time.sleep(LOAD_S)
    (out / "load.stop").touch()
    load.wait()
    requests = [json.loads(line) for line in (out / "logs/load.jsonl").read_text().splitlines()]
    lost = [request for request in requests if request["outcome"] != "ok"]
    return {
        "requests": len(requests),
        "streams": sum(request["stream"] for request in requests),
        "failed": sum(request["outcome"] == "failed" for request in lost),
        "cut": sum(request["outcome"] == "cut" for request in lost),
        "most_at_once": most_at_once(requests),
        "longest_s": max(request["seconds"] for request in requests),
        "roll_s": round(seconds, 1),
        "starts_s": round(sum(step["start"] for step in steps.values()), 1),
        "steps_s": steps,
        "left_out": [launch.unit for launch in launches if launch.unit not in steps],
        "lost": lost[:20],
    }


def main() -> None:
    launches_dir, out, deadline = Path(sys.argv[1]), Path(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    pynvml.nvmlInit()
    for directory in (RUNTIME, out / "logs"):
        directory.mkdir(parents=True, exist_ok=True)
    specs = json.loads((launches_dir / "launches.json").read_text())
    launches = [Launch(spec, launches_dir / spec["config"], out / "logs" / f"{spec['name']}.log") for spec in specs]
    results: dict[str, Any] = {"idle_bytes": gpu_used_bytes(), "memory_kib": memory_kib(), "launches": {}}
    systemd = Path("/run/systemd/system").is_dir()
    print(f"systemd here: {systemd}; host memory {results['memory_kib']}", flush=True)
    router = start_router(out)
    try:
        for launch in launches:
            start(launch)
        for launch in launches:
            become_ready(launch)
        for launch in launches:
            launch.observe()
            launch.seen["events"] = launch.events
            results["launches"][launch.name] = launch.seen
            print(launch.name, launch.seen["ready_s"], launch.seen["memory_kib"], flush=True)
        (out / "results.json").write_text(json.dumps(results))
        results["roll"] = {"systemd": systemd, **roll(launches, out, deadline)}
        print(json.dumps(results["roll"], indent=1), flush=True)
    finally:
        for launch in launches:
            if launch.process is not None:
                launch.stop(signal.SIGKILL, results["idle_bytes"])
        router.terminate()
        (out / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
