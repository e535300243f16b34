"""How fast weights reach memory: the collection's staging against what people use, and against the machine's limits.

Makes shards of random bytes on disk, copies them into a tmpfs in every way, cold (page cache dropped) and warm, and
prints rates in GB/s (1e9 bytes), the median of the repetitions. The ways take turns, so that a noisy moment hits all.
Ours copies into a tmpfs with large pages, as the role sets it up; the others into the tmpfs as it is.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2] / ".collections"))
from ansible_collections.llmops.fleet.plugins.module_utils.staging import (
    Copy,
    Target,
    available_memory_bytes,
    plan,
    stage,
)
from ansible_collections.llmops.fleet.plugins.module_utils.tmpfs import LARGE_PAGES
from ansible_collections.llmops.fleet.plugins.module_utils.units import GIB, gib
from ansible_collections.llmops.fleet.plugins.module_utils.weights_source import Directory

SHARDS = 8
BLOCK_BYTES = 4 * 2**20


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
        target.progress.parent.mkdir(parents=True)
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
            buffer = memoryview(mmap.mmap(-1, BLOCK_BYTES))
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
            if path.is_mount():
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return self.size_bytes / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-gb", type=float, default=4.0, help="size of the model in GB (1e9 bytes)")
    parser.add_argument("--disk", type=Path, default=Path(".cache"), help="directory on the disk to read from")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="tmpfs to copy into")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=Target.threads, help="of ours and of the limits")
    parser.add_argument("--json", type=Path, help="file to write the rates to")
    arguments = parser.parse_args()
    size_bytes = int(arguments.size_gb * 1e9)
    check_room(arguments.disk, arguments.memory, size_bytes)
    with (
        tempfile.TemporaryDirectory(dir=arguments.disk, prefix="bench-staging-") as disk,
        tempfile.TemporaryDirectory(dir=arguments.memory, prefix="bench-staging-") as memory,
        large_pages(Path(memory), size_bytes) as large,
    ):
        write_model(Path(disk), size_bytes)
        staging, plain = Bench(Path(disk), large, arguments.threads), Bench(Path(disk), Path(memory), arguments.threads)
        copying, reading = ("cold", "warm"), ("cold",)
        ways: dict[str, tuple[Bench, Callable[[], None], tuple[str, ...]]] = {
            "ours": (staging, staging.ours, copying),
            "ours, not verified": (staging, staging.ours_unverified, copying),
            "ours, small pages": (plain, plain.ours, copying),
            "cp -r": (plain, plain.command("cp", "-r", disk, memory), copying),
            "cp -r, large pages": (staging, staging.command("cp", "-r", disk, str(large)), copying),
            "rsync -a": (plain, plain.command("rsync", "-a", disk, memory), copying),
            "dd bs=16M": (plain, plain.dd, copying),
            f"{SHARDS} cp at once": (plain, plain.parallel_cp, copying),
            "read to nowhere, direct": (plain, plain.read(os.O_DIRECT), reading),
            "read to nowhere, buffered": (plain, plain.read(0), reading),
            "memory to tmpfs": (plain, plain.memory_to_memory, reading),
        }
        if not shutil.which("rsync"):
            del ways["rsync -a"]
        # A virtual machine gets its memory page by page when it first uses it; that is not what is measured.
        plain.rate(ways["cp -r"][1], plain.warm)
        rates: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
        for _ in range(arguments.repeat):
            # What the way before has freed comes back at a cost; so none is always behind the same one.
            for name, (bench, way, states) in random.sample(list(ways.items()), len(ways)):
                for state in states:
                    rate = bench.rate(way, bench.cool if state == "cold" else bench.warm)
                    rates[name].setdefault(state, []).append(rate)
    print(f"{arguments.size_gb:g} GB in {SHARDS} shards, {os.cpu_count()} cores, {arguments.threads} threads")
    print("GB/s, the median and (lowest to highest)")
    for name, by_state in rates.items():
        shown = (f"{state} {median(r):6.2f} ({min(r):.2f} to {max(r):.2f})" for state, r in by_state.items())
        print(f"{name:28}" + "    ".join(shown))
    if arguments.json:
        arguments.json.write_text(json.dumps(rates))
    cold = {name: median(by_state["cold"]) for name, by_state in rates.items()}
    limit = max(cold["read to nowhere, direct"], cold["read to nowhere, buffered"])
    print(
        f"cold_vs_limit={cold['ours'] / limit:.2f}"
        f" cold_vs_cp={cold['ours'] / cold['cp -r']:.2f}"
        f" warm_vs_cp={median(rates['ours']['warm']) / median(rates['cp -r']['warm']):.2f}"
        f" verify_cost={1 - cold['ours'] / cold['ours, not verified']:.2f}"
    )


@contextmanager
def large_pages(memory: Path, size_bytes: int) -> Iterator[Path]:
    """A tmpfs with large pages, below `memory`; `memory` itself where none can be mounted."""
    mount = memory / "large"
    mount.mkdir()
    options = f"size={size_bytes + GIB},{LARGE_PAGES}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", mount]).returncode:
        mount.rmdir()
        print("no tmpfs with large pages can be mounted here: ours copies into small ones")
        yield memory
        return
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True)
        mount.rmdir()


def check_room(disk: Path, memory: Path, size_bytes: int) -> None:
    """Refuse a size that the disk, the tmpfs or the RAM cannot take: the page cache and the copy are both RAM."""
    disk.mkdir(exist_ok=True)
    for place, needed_bytes, free_bytes in (
        (str(disk), size_bytes, shutil.disk_usage(disk).free),
        (str(memory), size_bytes, shutil.disk_usage(memory).free),
        ("RAM", 2 * size_bytes + GIB, available_memory_bytes()),
    ):
        if needed_bytes > free_bytes:
            sys.exit(
                f"expected {gib(needed_bytes)} GiB free in {place}; found {gib(free_bytes)} GiB; give a smaller SIZE_GB"
            )


if __name__ == "__main__":
    main()
