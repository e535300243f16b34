"""How fast weights reach memory: the collection's staging against what people use, and against the machine's limits.

Makes shards of random bytes on disk, copies them into a tmpfs in every way, cold (page cache dropped) and warm, and
prints rates in GB/s (1e9 bytes), the median of the repetitions. The ways take turns, so that a noisy moment hits all.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / ".collections"))
from ansible_collections.llmops.fleet.plugins.module_utils.staging import Copy, Target, plan, stage
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory

SHARDS = 8
BLOCK_BYTES = 16 * 2**20


def write_model(directory: Path, size_bytes: int) -> None:
    """Safetensors shards of random bytes; random, so that no layer below can shorten them."""
    tensor_bytes = size_bytes // SHARDS
    header = json.dumps({"t": {"dtype": "U8", "shape": [tensor_bytes], "data_offsets": [0, tensor_bytes]}}).encode()
    (directory / "config.json").write_text("{}")
    for number in range(SHARDS):
        with (directory / f"model-{number}.safetensors").open("wb") as shard:
            shard.write(struct.pack("<Q", len(header)) + header)
            for offset in range(0, tensor_bytes, BLOCK_BYTES):
                shard.write(os.urandom(min(BLOCK_BYTES, tensor_bytes - offset)))
            os.fsync(shard.fileno())


def in_parallel(work: Callable[[Path], None], paths: list[Path], threads: int) -> None:
    waiting, lock = list(paths), threading.Lock()

    def loop() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                path = waiting.pop()
            work(path)

    workers = [threading.Thread(target=loop) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Bench:
    def __init__(self, source: Path, memory: Path, threads: int) -> None:
        self.source = source
        self.memory = memory
        self.shards = sorted(source.iterdir())
        self.size_bytes = sum(path.stat().st_size for path in self.shards)
        self.threads = threads

    def target(self) -> Target:
        return Target(self.memory / "model", "model", state_dir=self.memory / "state", threads=self.threads)

    def ours(self) -> None:
        stage(Directory(self.source), self.target())

    def ours_unverified(self) -> None:
        source, target = Directory(self.source), self.target()
        target.partial.mkdir(parents=True)
        Copy(source, target, plan(source, target).steps, verify=False).run()

    def command(self, *command: str) -> Callable[[], None]:
        return lambda: subprocess.run(command, check=True)

    def parallel_cp(self) -> None:
        copies = [subprocess.Popen(["cp", path, self.memory / path.name]) for path in self.shards]
        if any(copy.wait() for copy in copies):
            raise RuntimeError("cp failed")

    def dd(self) -> None:
        for path in self.shards:
            subprocess.run(["dd", "bs=16M", "status=none", f"if={path}", f"of={self.memory / path.name}"], check=True)

    def read(self, flags: int) -> Callable[[], None]:
        def work(path: Path) -> None:
            descriptor = os.open(path, os.O_RDONLY | flags)
            buffer, offset = mmap.mmap(-1, BLOCK_BYTES), 0
            while count := os.preadv(descriptor, [buffer], offset):
                offset += count
                if count % 4096:
                    break
            os.close(descriptor)

        return lambda: in_parallel(work, self.shards, self.threads)

    def memory_to_memory(self) -> None:
        def work(path: Path) -> None:
            buffer = memoryview(mmap.mmap(-1, 4 * 2**20))
            buffer[:] = os.urandom(1) * len(buffer)
            descriptor = os.open(self.memory / path.name, os.O_RDWR | os.O_CREAT)
            for offset in range(0, path.stat().st_size, len(buffer)):
                os.pwrite(descriptor, buffer, offset)
            os.close(descriptor)

        in_parallel(work, self.shards, self.threads)

    def cool(self) -> None:
        for path in self.shards:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def warm(self) -> None:
        for path in self.shards:
            with path.open("rb", buffering=0) as file:
                while file.read(BLOCK_BYTES):
                    pass

    def rate(self, way: Callable[[], None], prepare: Callable[[], None]) -> float:
        prepare()
        started = time.monotonic()
        way()
        seconds = time.monotonic() - started
        for path in self.memory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.size_bytes / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-gb", type=float, default=4.0, help="size of the model in GB (1e9 bytes)")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="directory on the disk to read from")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="tmpfs to copy into")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=Target.threads, help="of ours and of the limits")
    parser.add_argument("--json", type=Path, help="file to write the rates to")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.disk, prefix="bench-staging-") as disk,
        tempfile.TemporaryDirectory(dir=arguments.memory, prefix="bench-staging-") as memory,
    ):
        write_model(Path(disk), int(arguments.size_gb * 1e9))
        bench = Bench(Path(disk), Path(memory), arguments.threads)
        ways: dict[str, Callable[[], None]] = {
            "ours": bench.ours,
            "ours, not verified": bench.ours_unverified,
            "cp -r": bench.command("cp", "-r", disk, memory),
            "dd bs=16M": bench.dd,
            f"{SHARDS} cp at once": bench.parallel_cp,
            "read to nowhere, direct": bench.read(os.O_DIRECT),
            "read to nowhere, buffered": bench.read(0),
            "memory to tmpfs": bench.memory_to_memory,
        }
        if shutil.which("rsync"):
            ways["rsync -a"] = bench.command("rsync", "-a", disk, memory)
        rates: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.repeat):
            for name, way in ways.items():
                for state, prepare in (("cold", bench.cool), ("warm", bench.warm)):
                    rates.setdefault((name, state), []).append(bench.rate(way, prepare))
    middle = {key: statistics.median(values) for key, values in rates.items()}
    print(f"{arguments.size_gb:g} GB in {SHARDS} shards, {os.cpu_count()} cores, {arguments.threads} threads, GB/s")
    print(f"{'':28}{'cold':>8}{'warm':>8}   lowest to highest, cold; warm")
    for name in ways:
        cold, warm = rates[name, "cold"], rates[name, "warm"]
        print(
            f"{name:28}{middle[name, 'cold']:8.2f}{middle[name, 'warm']:8.2f}"
            f"   {min(cold):.2f} to {max(cold):.2f}; {min(warm):.2f} to {max(warm):.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({f"{name}, {state}": values for (name, state), values in rates.items()}))
    limit = max(middle[f"read to nowhere, {mode}", "cold"] for mode in ("direct", "buffered"))
    print(
        f"cold_vs_limit={middle['ours', 'cold'] / limit:.2f}"
        f" cold_vs_cp={middle['ours', 'cold'] / middle['cp -r', 'cold']:.2f}"
        f" warm_vs_cp={middle['ours', 'warm'] / middle['cp -r', 'warm']:.2f}"
        f" verify_cost={1 - middle['ours', 'cold'] / middle['ours, not verified', 'cold']:.2f}"
    )


if __name__ == "__main__":
    main()
