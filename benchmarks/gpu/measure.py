"""Runs on the GPU machine: start engines from rendered files, read what they allocate, load them, stop them.

Usage: measure.py LAUNCHES OUT SECONDS

LAUNCHES holds launches.json and, for each launch, the directory that the role wrote for its instance (args, env,
instance.json). The host tool becomes the engine exactly as the unit's ExecStart does. OUT gets results.json and the
engines' logs. What does not fit into SECONDS is left out and listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pynvml

HERE = Path(__file__).resolve().parent
RUNTIME = Path("/run/sglang")
AHEAD = 8
POLL_S = 0.02
STOP_TIMEOUT_S = 60
WARMUP_REQUESTS, WARMUP_TOKENS = 8, 16
EVENTS = {
    "admitted": re.compile(r"^admitted"),
    "weights_begin": re.compile(r"Load weight begin"),
    "weights_end": re.compile(r"Load weight end"),
    "pools_end": re.compile(r"Memory pool end"),
    "graphs_end": re.compile(r"Capture .* CUDA graph end"),
    "host_pool": re.compile(r"Allocating .*host"),
    "tree_cache": re.compile(r"Tree cache initialized"),
    "engine_ready": re.compile(r"Engine startup timings"),
}


def gpu_used_bytes() -> int:
    """Of all GPUs together."""
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


def memory_kib() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {name[:-1]: int(size) for name, size, *_ in lines if name in ("MemAvailable:", "Shmem:", "MemTotal:")}


def session_processes(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(path.parent.name))
    return found


def resident_kib(session: int) -> list[dict[str, Any]]:
    """Resident memory of a session's processes, and the CPUs and NUMA nodes that they may use."""
    found = []
    for pid in session_processes(session):
        with contextlib.suppress(OSError, KeyError):  # it may end meanwhile
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            sizes = {key: int(status[key].split()[0]) for key in ("VmRSS", "RssAnon", "RssFile", "RssShmem")}
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:60].strip()
            placement = {key: status[key] for key in ("Cpus_allowed_list", "Mems_allowed_list")}
            found.append({"command": command, **sizes, **placement})
    return found


@dataclass
class Launch:
    """One engine: its rendered files (a directory for each unit), its process, and what was seen of it."""

    spec: dict[str, Any]
    files: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    begin: float = 0.0
    read: int = 0
    seen: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def unit(self) -> str:
        return str(self.spec["unit"])

    def tool(self, command: str) -> list[str]:
        """The host tool's command on this unit."""
        directories = ["--config-dir", str(self.files), "--runtime-dir", str(RUNTIME)]
        return [sys.executable, str(HERE / "sglang-fleet"), command, self.unit, *directories]

    def start(self, admitted: Path | None) -> None:
        environment = dict(os.environ)
        for line in (self.files / self.unit / "env").read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition("=")
                environment[name] = shlex.split(value)[0] if value else ""
        if admitted is not None:
            environment |= {"ADMITTED": str(admitted), "LAUNCH": self.name}
        (RUNTIME / self.unit).mkdir(parents=True, exist_ok=True)
        self.begin = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.tool("run"), env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def follow(self) -> str:
        """New log text; events are noted with the seconds since the start."""
        with self.log.open("rb") as log:
            log.seek(self.read)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self.read += len(text)
        for line in text.decode(errors="replace").splitlines():
            for event, pattern in EVENTS.items():
                if pattern.search(line):
                    self.events.append((round(time.monotonic() - self.begin, 2), event))
        return text.decode(errors="replace")

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def wait_pools(self, deadline: float) -> bool:
        """Wait until every pool of the GPU is allocated."""
        wanted = 2 if self.spec["mtp"] else 1
        while sum(event == "pools_end" for _, event in self.events) < wanted:
            if self.ended() or time.monotonic() > deadline:
                self.follow()
                return False
            time.sleep(POLL_S)
            self.follow()
        return True

    def wait_ready(self, deadline: float) -> bool:
        """Wait until the engine answers `/health`, which generates a token."""
        while time.monotonic() < deadline and not self.ended():
            self.follow()
            if any(event == "engine_ready" for _, event in self.events):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.spec['url']}/health", timeout=120):
                    self.seen["ready_s"] = round(time.monotonic() - self.begin, 2)
                    return True
            time.sleep(POLL_S)
        return False

    def observe(self) -> None:
        """Everything that a serving engine shows of its memory."""
        assert self.process is not None
        with urllib.request.urlopen(f"{self.spec['url']}/server_info", timeout=60) as answer:
            info = json.load(answer)
        state = info.get("internal_states", [{}])[0]
        self.seen["server_info"] = {
            key: info.get(key)
            for key in ("max_total_num_tokens", "max_req_input_len", "mem_fraction_static", "startup_time", "version")
        } | {
            key: state.get(key)
            for key in (
                "effective_max_running_requests_per_dp",
                "memory_usage",
                "max_mamba_cache_size",
                "page_size",
                "mamba_radix_cache_strategy",
                "chunked_prefill_size",
                "cuda_graph_max_bs",
                "cuda_graph_max_bs_decode",
            )
        }
        self.seen["processes_kib"] = resident_kib(self.process.pid)
        self.seen["gpu_used_bytes"] = gpu_used_bytes()
        self.seen["memory_kib"] = memory_kib()

    def stop(self, how: signal.Signals, idle_bytes: int) -> None:
        """End the engine and wait until it has given the GPU's memory back."""
        assert self.process is not None
        begin = time.monotonic()
        if how == signal.SIGTERM:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        gone = time.monotonic()
        for pid in session_processes(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while gpu_used_bytes() > idle_bytes + 2**26 and time.monotonic() < gone + STOP_TIMEOUT_S:
            time.sleep(POLL_S)
        if how == signal.SIGTERM:
            self.seen["stop_s"] = round(gone - begin, 2)
            self.seen["exit_status"] = self.process.returncode
        self.seen["gpu_released_s"] = round(time.monotonic() - gone, 2)
        self.seen["gpu_left_bytes"] = gpu_used_bytes()


async def wave(url: str, concurrency: int, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """`concurrency` requests at once; throughput counts generated tokens."""
    timeout, limit = aiohttp.ClientTimeout(total=500), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=limit) as session:

        async def generate() -> tuple[int, float | None]:
            prompt = [random.randrange(100, 500) for _ in range(input_tokens)]
            sampling = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
            body = {"input_ids": prompt, "sampling_params": sampling}
            async with session.post(f"{url}/generate", json=body) as answer:
                found = await answer.json() if answer.status == 200 else {}
            meta = found.get("meta_info", {})
            return meta.get("completion_tokens", 0), meta.get("spec_accept_length")

        begin = time.monotonic()
        answers = await asyncio.gather(*(generate() for _ in range(concurrency)), return_exceptions=True)
        seconds = time.monotonic() - begin
    good = [answer for answer in answers if isinstance(answer, tuple) and answer[0] == output_tokens]
    tokens = sum(count for count, _ in good)
    return {
        "concurrency": concurrency,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "completed": len(good),
        "seconds": round(seconds, 2),
        "tokens_per_s": round(tokens / seconds, 1),
        "accept_length": good[0][1] if good else None,
    }


def rungs(launch: Launch, deadline: float) -> list[dict[str, Any]]:
    """The launch's ladder; the engine's own decode rates during each rung come along."""
    found = []
    asyncio.run(wave(launch.spec["url"], WARMUP_REQUESTS, launch.spec["loads"][0]["input_tokens"], WARMUP_TOKENS))
    for load in launch.spec["loads"]:
        if time.monotonic() + load["seconds"] > deadline:
            found.append({**load, "left_out": "no device time left"})
            continue
        launch.follow()
        sizes = (load[key] for key in ("concurrency", "input_tokens", "output_tokens"))
        rung = asyncio.run(wave(launch.spec["url"], *sizes))
        text = launch.follow()
        rung["engine_running"] = [int(n) for n in re.findall(r"Decode batch.*?#running-req: (\d+)", text)]
        rung["engine_tokens_per_s"] = [float(n) for n in re.findall(r"gen throughput \(token/s\): ([\d.]+)", text)]
        found.append(rung)
        print("   ", {k: v for k, v in rung.items() if not k.startswith("engine")}, flush=True)
    return found


def measure(launch: Launch, admitted: Path | None, idle_bytes: int, deadline: float) -> dict[str, Any]:
    """One launch from admission to the GPU's release."""
    if launch.process is None:
        launch.start(admitted)
    for command in launch.spec["before"]:
        subprocess.run(["bash", "-c", command], check=True)
    if admitted is not None:
        admitted.write_text(launch.name)
    limit = min(deadline, time.monotonic() + launch.spec["timeout_s"])
    how = signal.SIGKILL
    if launch.wait_pools(limit):
        launch.seen["pools_gpu_used_bytes"] = gpu_used_bytes()
        if launch.spec["until"] == "ready" and launch.wait_ready(limit):
            launch.observe()
            if launch.spec["loads"]:
                launch.seen["loads"] = rungs(launch, deadline)
                launch.seen["loaded_processes_kib"] = resident_kib(launch.process.pid)
                launch.seen["loaded_gpu_used_bytes"] = gpu_used_bytes()
            how = signal.SIGTERM if launch.spec["until"] == "ready" and launch.spec["stop"] == "term" else how
    launch.seen["ended_by_itself"] = launch.ended()
    launch.stop(how, idle_bytes)
    launch.follow()
    launch.seen["events"] = launch.events
    return launch.seen


def main() -> None:
    launches_dir, out, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    begin = time.monotonic()
    deadline = begin + seconds
    pynvml.nvmlInit()
    admitted = Path("/tmp/admitted")
    admitted.write_text("")
    (out / "logs").mkdir(parents=True, exist_ok=True)
    specs = json.loads((launches_dir / "launches.json").read_text())
    launches = [Launch(spec, launches_dir / spec["config"], out / "logs" / f"{spec['name']}.log") for spec in specs]
    results: dict[str, Any] = {
        "gpu": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "gpu_total_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total),
        "idle_bytes": gpu_used_bytes(),
        "memory_kib": memory_kib(),
        "launches": {},
        "left_out": [],
    }
    for number, launch in enumerate(launches):
        if time.monotonic() + launch.spec["expected_s"] > deadline:
            results["left_out"].append(launch.name)
            if launch.process is not None:
                launch.stop(signal.SIGKILL, results["idle_bytes"])
            continue
        if not launch.spec["alone"]:
            ahead = launches[number : number + AHEAD]
            for other in ahead[: next((i for i, o in enumerate(ahead) if o.spec["alone"]), len(ahead))]:
                if other.process is None:
                    other.start(admitted)
        at = time.monotonic() - begin
        gate = None if launch.spec["alone"] else admitted
        try:
            seen = measure(launch, gate, results["idle_bytes"], deadline)
        except Exception as error:  # one launch must not cost the others their turn
            seen = {**launch.seen, "events": launch.events, "error": repr(error)}
            launch.stop(signal.SIGKILL, results["idle_bytes"])
        results["launches"][launch.name] = {"at_s": round(at, 1), **seen}
        took = round(time.monotonic() - begin - at, 1)
        print(f"{at:6.1f} {launch.name}: {took} s, ready {seen.get('ready_s')}, {seen['events'][-1:]}", flush=True)
        (out / "results.json").write_text(json.dumps(results))
    shutil.rmtree(RUNTIME, ignore_errors=True)


if __name__ == "__main__":
    main()
