#!/usr/bin/env python3
"""Run the load through a rolling restart of the test fleet, or through the same restart without draining.

Usage: bench.py [--control] [--requests 2000] [--rate 8]

The hosts of benchmarks/rolling/inventory must be deployed. Results go to benchmarks/rolling/results/. The last line is
`requests=<n> failed=<n> cut=<n> time_ratio=<x>`: time_ratio is the duration of the whole restart.yml over the sum of
the engines' load times (start to ready) in it. Ends with 1 where a request was lost, with --control where none was.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from fleet import HOSTS, INSTANCES, ROOT, ROUTERS, SSH, command, main_pid, on

HERE = Path(__file__).parent
METRIC = re.compile(r"^sglang:num_requests_total\{.*\} (\S+)$", re.M)


def served() -> dict[str, int]:
    """Requests that each engine has taken since its start."""
    counts = {}
    for host in HOSTS:
        for name in INSTANCES:
            text = on(host, f"curl -s -m 20 http://127.0.0.1:{30000 + int(name)}/metrics || true")
            counts[f"{host}/{name}"] = int(sum(float(value) for value in METRIC.findall(text)))
    return counts


def start_load(requests: int, rate: float) -> None:
    """Start the load on the first router's host and return once every engine has taken requests of it."""
    before = served()
    subprocess.run([*SSH, ROUTERS[0], "cat > /root/load.py"], input=(HERE / "load.py").read_bytes(), check=True)
    urls = ",".join(f"http://{router}:8000" for router in ROUTERS)
    on(
        ROUTERS[0],
        "rm -f /root/load.*.txt /root/load.jsonl; systemctl reset-failed load 2>/dev/null; "
        "systemd-run --quiet --unit=load "
        "--property=StandardOutput=file:/root/load.out.txt --property=StandardError=file:/root/load.err.txt "
        f"python3 /root/load.py --routers {urls} --key-file /etc/sglang-router/api_key --rate {rate} "
        f"--at-least {requests} --stop-file /root/load.stop.txt --out /root/load.jsonl",
    )
    deadline = time.monotonic() + 60
    while any(count <= before[engine] for engine, count in served().items()):
        if time.monotonic() > deadline:
            sys.exit(f"expected every engine to be busy; found {served()} requests, {before} before the load")
        time.sleep(2)


def stop_load() -> tuple[str, list[dict[str, object]]]:
    """Let the load end; returns its last line and all its requests."""
    on(ROUTERS[0], "touch /root/load.stop.txt; while systemctl --quiet is-active load; do sleep 1; done")
    lines = on(ROUTERS[0], "cat /root/load.jsonl").splitlines()
    return on(ROUTERS[0], "cat /root/load.out.txt /root/load.err.txt").strip(), [json.loads(line) for line in lines]


def load_times(since: float) -> dict[str, float]:
    """Seconds from start to ready of every engine that a roll started since then, from the hosts' journals."""
    seconds: dict[str, float] = {}
    for host in HOSTS:
        begun: dict[str, float] = {}
        for line in on(host, f"journalctl -t sglang-roll --output=json --since=@{since:.0f}").splitlines():
            entry = json.loads(line)
            unit, _, phase = entry["MESSAGE"].partition(": ")
            at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
            if phase == "start":
                begun[unit] = at
            elif phase == "look":
                seconds[f"{host}/{unit}"] = round(at - begun[unit], 1)
    return seconds


def rolling_restart() -> None:
    """The restart as an operator does it, both hosts at the same time, one engine of each."""
    subprocess.run(command("restart.yml", "rolling_serial=100%"), cwd=ROOT, check=True)


def restart_without_draining() -> None:
    """The control: the same order, but engines are killed while they have requests; the next when these serve again."""
    for name in INSTANCES:
        killed = {host: main_pid(host, name) for host in HOSTS}
        for host in HOSTS:
            metrics = f"http://127.0.0.1:{30000 + int(name)}/metrics"
            busy = f"curl -s {metrics} | grep -q '^sglang:num_running_reqs{{.*}} [1-9]'"
            on(host, f"until {busy}; do sleep 0.05; done; systemctl kill --signal=KILL sglang@{name}")
        for host, pid in killed.items():
            gone = f"test $(systemctl show --property=MainPID --value sglang@{name}) != {pid}"
            on(host, f"until {gone} && systemctl --quiet is-active sglang@{name}; do sleep 1; done")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", action="store_true", help="restart without draining: requests must be lost")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=8.0, help="requests per second")
    options = parser.parse_args()
    start_load(options.requests, options.rate)
    since = time.time()
    restart_without_draining() if options.control else rolling_restart()
    seconds = time.time() - since
    taken = served()
    said, requests = stop_load()
    loads = load_times(since)
    lost = [request for request in requests if request["outcome"] != "ok"]
    failed, cut = (sum(request["outcome"] == outcome for request in requests) for outcome in ("failed", "cut"))
    ratio = round(seconds / sum(loads.values()), 2) if loads else None
    results = HERE / "results" / ("control.json" if options.control else "rolling.json")
    results.parent.mkdir(exist_ok=True)
    summary = {
        "requests": len(requests),
        "failed": failed,
        "cut": cut,
        "streams": sum(bool(request["stream"]) for request in requests),
        "longest_s": max(float(str(request["seconds"])) for request in requests),
        "over_a_minute": sum(float(str(request["seconds"])) > 60 for request in requests),
        "restart_s": round(seconds, 1),
        "load_s": loads,
        "time_ratio": ratio,
        "taken_after_their_restart": taken,
        "lost": lost[:20],
    }
    results.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=2), said, sep="\n")
    print(f"requests={len(requests)} failed={failed} cut={cut} time_ratio={ratio}", flush=True)
    sys.exit(bool(lost) != options.control)


if __name__ == "__main__":
    main()
