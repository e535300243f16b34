"""Puts a model where engines load it from: parallel, verified while it is copied, resumed, published by one rename.

A model is written to `<path>.partial`. READY is written last, then the
directory is renamed to `<path>`: whoever finds READY there finds a whole model. The same calls run in the module
`stage_weights` and, without Ansible, in the boot unit (`sglang-fleet stage`).
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import pwd
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import FleetError
from .manifest import READY, FileRecord, Manifest, require_ready
from .safetensors import check_model
from .tmpfs import large_page_options
from .units import GIB, MIB, gib
from .weights_http import Access, HttpFiles
from .weights_source import Directory, Source, SourceFile
from .weights_use import processes_using

LAST_SYSTEM_UID = 999
DIRECTORY_MODE = 0o755
FILE_MODE = 0o644
_RENAME_EXCHANGE = 2
_SAVE_EVERY_S = 0.25


@dataclass(frozen=True)
class Target:
    """Where and how a model is staged.

    Attributes:
        path: directory that the engines are given.
        name, revision: what READY says of it; the revision may be empty.
        owner: system user that will own the files, None to leave them to the caller.
        state_dir: where digests that were learned from the source are kept.
        threads: copying threads.
        wait_s: how long to wait for another run on the same path.
        stall_s: give up after so many seconds without one byte.
        reserve_bytes: memory that staging must leave available.
        tmpfs_bytes: size of the tmpfs that will be mounted as the parent of `path`, where that is not done yet.
        growable: a tmpfs that is too small is no reason to refuse, only to grow it before staging.
    """

    path: Path
    name: str
    revision: str = ""
    owner: str | None = None
    state_dir: Path = Path("/var/lib/sglang")
    threads: int = min(16, max(4, 2 * (os.cpu_count() or 1)))
    wait_s: float = 1800
    stall_s: float = 300
    reserve_bytes: int = GIB
    tmpfs_bytes: int | None = None
    growable: bool = False

    @property
    def partial(self) -> Path:
        """Directory of the unfinished copy."""
        return self.path.with_name(self.path.name + ".partial")

    @property
    def progress(self) -> Path:
        """File that says how far the copy is, for whoever waits and for the run that resumes it; not on the tmpfs."""
        return self._state("progress.json")

    @property
    def learned(self) -> Path:
        """File of the digests that were learned from a source that states none."""
        return self._state("learned.json")

    def _state(self, kind: str) -> Path:
        return self.state_dir / "weights" / f"{str(self.path).strip('/').replace('/', '-')}.{kind}"


@dataclass(frozen=True)
class Step:
    """One file to stage: `reuse` it from the published directory, or copy it from byte `staged_bytes` on."""

    file: SourceFile
    expected_sha256: str | None
    reuse: bool
    staged_bytes: int


@dataclass(frozen=True)
class Room:
    """The file system that will take the model: its mount point, type, size and what is free."""

    mount_point: str
    kind: str
    size_bytes: int
    free_bytes: int
    free_files: int | None

    @classmethod
    def of(cls, target: Target, mounts: str | None = None) -> Room:
        """Look at the file system of `target`, or at the tmpfs that is going to be mounted there."""
        parent = target.path.parent
        if target.tmpfs_bytes is not None and not parent.is_mount():
            return cls(str(parent), "tmpfs", target.tmpfs_bytes, target.tmpfs_bytes, None)
        existing = next(directory for directory in target.path.parents if directory.exists())
        mount_point, kind = file_system(existing, mounts)
        status = os.statvfs(existing)
        return cls(
            mount_point,
            kind,
            status.f_blocks * status.f_frsize,
            status.f_bavail * status.f_frsize,
            status.f_favail if status.f_files else None,
        )

    def grown_bytes(self, remaining_bytes: int) -> int:
        """Size at which a tmpfs takes `remaining_bytes` more, in whole MiB; its present size where that suffices."""
        if self.kind != "tmpfs" or remaining_bytes <= self.free_bytes:
            return self.size_bytes
        return -(-(self.size_bytes - self.free_bytes + remaining_bytes + GIB) // MIB) * MIB


@dataclass(frozen=True)
class Staging:
    """What staging would do, decided before anything is written."""

    source: str
    steps: tuple[Step, ...]
    published: Manifest | None
    up_to_date: bool
    room: Room

    @property
    def size_bytes(self) -> int:
        """Bytes of the model."""
        return sum(step.file.size_bytes for step in self.steps)

    @property
    def remaining_bytes(self) -> int:
        """Bytes still to copy: neither reused nor staged by an interrupted run."""
        if self.up_to_date:
            return 0
        return sum(step.file.size_bytes - step.staged_bytes for step in self.steps if not step.reuse)

    def tmpfs(self) -> dict[str, object] | None:
        """The tmpfs that takes the model: mount point, least size in GiB, mount options that suit it; else None."""
        if self.room.kind != "tmpfs":
            return None
        return {
            "mount_point": self.room.mount_point,
            "size_gib": self.room.grown_bytes(self.remaining_bytes) / GIB,
            "options": large_page_options(),
        }

    def listing(self) -> dict[str, str]:
        """Path -> size and digest as they will be, for a diff."""
        return {step.file.path: _shown(step.file.size_bytes, step.expected_sha256) for step in self.steps}


@dataclass(frozen=True)
class Staged:
    """What staging did."""

    manifest: Manifest
    copied_bytes: int
    reused_bytes: int
    seconds: float
    reading: str


def _shown(size_bytes: int, sha256: str | None) -> str:
    return f"{size_bytes} bytes, sha256 {sha256[:16] if sha256 else 'learned while copying'}"


def published_listing(manifest: Manifest | None) -> dict[str, str]:
    """Path -> size and digest of what is published, in the form of `Staging.listing`."""
    return {
        path: _shown(record.size_bytes, record.sha256) for path, record in (manifest.files if manifest else {}).items()
    }


def open_source(
    address: str,
    exclude: Sequence[str],
    access: Access,
    files: Sequence[Mapping[str, object]] | None = None,
    manifest: str | None = None,
) -> Source:
    """The source at `address`: `files` that somebody listed, a server with a known manifest, a mirror, a directory."""
    if files is not None:
        return HttpFiles.signed(address, files, access)
    if manifest is not None:
        return HttpFiles.listed(address, Manifest.parse(manifest, f"the manifest given for {address}"), exclude, access)
    if address.startswith(("http://", "https://")):
        return HttpFiles.mirror(address, exclude, access)
    return Directory(Path(address), exclude)


def plan(source: Source, target: Target) -> Staging:
    """Decide what to do and refuse what cannot end well. Changes nothing.

    Raises FleetError when the source holds no model, a shard is not whole, the owner is no system user, or space,
    inodes or memory do not suffice for the bytes that remain.
    """
    _check_owner(target.owner)
    files = source.files()
    if isinstance(source, Directory):
        check_model(Path(source.address), frozenset(file.path for file in files))
    learned = _load(target.learned)
    known: Mapping[str, Any] = learned.get("files", {}) if learned.get("source") == source.address else {}
    progress: Mapping[str, Any] = _load(target.progress).get("files", {})
    published = _published(target.path)
    steps = []
    for file in files:
        expected = file.sha256
        if expected is None and _same_file(known.get(file.path), file):
            expected = str(known[file.path]["sha256"])
        there = published.files.get(file.path) if published else None
        reuse = there is not None and there == FileRecord(file.size_bytes, expected or "")
        staged_bytes = 0
        if not reuse and _same_file(progress.get(file.path), file) and (target.partial / file.path).is_file():
            staged_bytes = min(int(progress[file.path]["staged_bytes"]), file.size_bytes)
        steps.append(Step(file, expected, reuse, staged_bytes))
    up_to_date = (
        published is not None
        and published.revision == target.revision
        and len(published.files) == len(steps)
        and all(step.reuse for step in steps)
        and _owned(target.path, target.owner)
    )
    staging = Staging(source.address, tuple(steps), published, up_to_date, Room.of(target))
    if not up_to_date:
        _check_room(staging, target)
    return staging


def stage(source: Source, target: Target) -> Staged | None:
    """Make `target.path` hold the source's model; None when it already did.

    A source whose files look changed but turn out equal changes nothing either. Other content is not put under a path
    that a process uses.

    Raises FleetError for whatever `plan` refuses, for bytes that differ from their digest, for a source that stalls
    or fails, and when another run holds the path for longer than `wait_s`. What was copied by then is resumed by the
    next run.
    """
    for directory in (target.path.parent, target.progress.parent):
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    with _only_run(target), _full_said(target):
        staging = plan(source, target)
        if staging.up_to_date:
            _discard_partial(target)
            return None
        started = time.monotonic()
        _drop_strangers(target.partial, staging)
        for step in staging.steps:
            destination = target.partial / step.file.path
            destination.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if step.reuse:
                destination.unlink(missing_ok=True)
                os.link(target.path / step.file.path, destination)
        copy = Copy(source, target, [step for step in staging.steps if not step.reuse])
        records = copy.run()
        records |= {
            step.file.path: FileRecord(step.file.size_bytes, step.expected_sha256 or "")
            for step in staging.steps
            if step.reuse
        }
        check_model(target.partial, frozenset(records))
        manifest = Manifest(target.name, target.revision, source.address, records)
        if _same_content(staging.published, manifest) and _owned(target.path, target.owner):
            _keep_learned(target, source, staging, records)
            _discard_partial(target)
            return None
        _check_unused(staging.published, manifest, target)
        _keep_learned(target, source, staging, records)
        _publish(target, manifest)
        return Staged(
            manifest,
            staging.remaining_bytes,
            staging.size_bytes - staging.remaining_bytes,
            time.monotonic() - started,
            source.describe(),
        )


@dataclass
class _File:
    """One file on its way: blocks are taken in order, hashed in order, finished in any order."""

    step: Step
    destination: Path
    block_bytes: int
    safe_bytes: int
    taken_bytes: int = 0
    hashed_bytes: int = 0
    hashing: bool = False
    done: dict[int, int] = field(default_factory=dict)
    hashers: tuple[Any, ...] = ()
    descriptor: int = -1
    sha256: str | None = None
    again: bool = False

    def __post_init__(self) -> None:
        self.start_over(self.safe_bytes)

    @property
    def size_bytes(self) -> int:
        return self.step.file.size_bytes

    def take(self) -> tuple[int, int] | None:
        """Offset and size of the next block nobody works on."""
        offset = self.taken_bytes
        size = min(self.block_bytes, self.size_bytes - offset)
        if size <= 0:
            return None
        self.taken_bytes += size
        return offset, size

    def start_over(self, safe_bytes: int) -> None:
        """Begin with `safe_bytes` already there and not hashed."""
        self.safe_bytes = safe_bytes
        self.taken_bytes = self.hashed_bytes = 0
        self.hashers = (hashlib.sha256(),)
        if self.step.file.git_sha1 is not None:
            self.hashers += (hashlib.sha1(f"blob {self.size_bytes}\0".encode(), usedforsecurity=False),)

    def hash(self, view: memoryview) -> None:
        """Hash the next bytes."""
        for hasher in self.hashers:
            hasher.update(view)

    def difference(self) -> tuple[str, str] | None:
        """Expected and found digest, None where they agree or nothing is expected."""
        expected = (self.step.expected_sha256, self.step.file.git_sha1)
        for name, wanted, hasher in zip(("sha256", "Git blob"), expected, self.hashers, strict=False):
            if wanted not in (None, hasher.hexdigest()):
                return f"{name} {wanted}", str(hasher.hexdigest())
        return None


class Copy:
    """Copies files with several threads; each byte is hashed once, as it passes.

    A thread keeps to one file while it has blocks, so that its blocks arrive in the order in which they are hashed.
    When every file has its thread, idle ones help with the file that has most left; their blocks are hashed from the
    target once the ones before are done.
    """

    def __init__(self, source: Source, target: Target, steps: Sequence[Step], verify: bool = True) -> None:
        self._source = source
        self._target = target
        self._verify = verify
        self._files = [
            _File(step, target.partial / step.file.path, source.block_bytes, safe_bytes=step.staged_bytes)
            for step in sorted(steps, key=lambda step: -step.file.size_bytes)
        ]
        self._waiting = list(reversed(self._files))
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._moved_bytes = 0
        self._resumed_bytes = sum(step.staged_bytes for step in steps)
        self._total_bytes = sum(step.file.size_bytes for step in steps)
        self._started = time.monotonic()

    def run(self) -> dict[str, FileRecord]:
        """Copy everything; path -> record. Raises what the first failing thread raised."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._target.threads)]
        for worker in workers:
            worker.start()
        try:
            self._watch(workers)
        except BaseException as error:
            self._error = self._error or error
        if self._error is not None:
            raise self._error
        return {file.step.file.path: FileRecord(file.size_bytes, file.sha256 or "") for file in self._files}

    def _watch(self, workers: Sequence[threading.Thread]) -> None:
        """Save the progress until all is copied; raises FleetError when nothing moves any more."""
        moved_bytes, moved_at = 0, time.monotonic()
        while alive := [worker for worker in workers if worker.is_alive()]:
            alive[0].join(_SAVE_EVERY_S)
            self._save_progress()
            if self._moved_bytes != moved_bytes:
                moved_bytes, moved_at = self._moved_bytes, time.monotonic()
            elif time.monotonic() - moved_at > self._target.stall_s:
                raise FleetError(
                    f"a byte from {self._source.address} at least every {self._target.stall_s:g} s",
                    f"none since {moved_bytes} bytes",
                    "look at the source and its network or mount; run again to resume",
                )
        self._save_progress()
        for file in self._files:
            if file.descriptor >= 0:
                os.close(file.descriptor)

    def _work(self) -> None:
        _interleave_memory()
        buffer = memoryview(mmap.mmap(-1, self._source.block_bytes))
        try:
            while self._error is None:
                file = self._next_file()
                if file is None:
                    return
                self._carry(file, buffer)
        except BaseException as error:
            self._error = self._error or error

    def _next_file(self) -> _File | None:
        with self._lock:
            if self._waiting:
                return self._waiting.pop()
        helped = max(self._files, key=lambda file: file.size_bytes - file.taken_bytes)
        return helped if helped.descriptor >= 0 and helped.taken_bytes < helped.size_bytes else None

    def _carry(self, file: _File, buffer: memoryview) -> None:
        if file.descriptor < 0:
            self._begin(file, buffer)
        with self._source.open(file.step.file) as reader:
            while self._error is None:
                with self._lock:
                    block = file.take()
                if block is None:
                    return
                offset, size = block
                view = buffer[:size]
                reader.read_into(offset, view)
                self._write(file, offset, view)
                self._hash(file, offset, size, buffer)

    def _begin(self, file: _File, buffer: memoryview) -> None:
        """Open the destination, hash what an interrupted run left in it, and finish a file without bytes to copy."""
        staged_bytes = file.step.staged_bytes
        descriptor = os.open(file.destination, os.O_RDWR | os.O_CREAT, FILE_MODE)
        os.ftruncate(descriptor, staged_bytes)
        # With huge=within_size a tmpfs takes large pages only below a file's end; so the end comes first.
        os.ftruncate(descriptor, file.size_bytes)
        while file.hashed_bytes < staged_bytes:
            count = os.preadv(descriptor, [buffer[: staged_bytes - file.hashed_bytes]], file.hashed_bytes)
            file.hash(buffer[:count])
            file.hashed_bytes += count
        file.taken_bytes = staged_bytes
        file.descriptor = descriptor
        if file.hashed_bytes == file.size_bytes:
            self._finish(file)

    def _write(self, file: _File, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(file.descriptor, view[done:], offset + done)
        with self._lock:
            self._moved_bytes += len(view)

    def _hash(self, file: _File, offset: int, size: int, buffer: memoryview) -> None:
        """Hash the block in `buffer` if it is the file's next, and then any that others finished before their turn."""
        with self._lock:
            file.done[offset] = size
            if file.hashing or offset != file.hashed_bytes:
                return
            file.hashing = True
        while True:
            if self._verify:
                file.hash(buffer[:size])
            with self._lock:
                del file.done[file.hashed_bytes]
                file.hashed_bytes += size
                file.safe_bytes = max(file.safe_bytes, file.hashed_bytes)
                following = file.done.get(file.hashed_bytes)
                if following is None:
                    file.hashing = False
                    break
            size = following
            if self._verify:
                os.preadv(file.descriptor, [buffer[:size]], file.hashed_bytes)
        if file.hashed_bytes == file.size_bytes:
            self._finish(file)

    def _finish(self, file: _File) -> None:
        difference = file.difference() if self._verify else None
        if difference:
            with self._lock:
                file.start_over(0)
            if not file.again:
                file.again = True
                return
            raise FleetError(
                f"{file.step.file.path} from {self._source.address} with {difference[0]}",
                f"{difference[1]}, twice",
                "restore the file at the source, or make the source's manifest again if the change is wanted",
            )
        file.sha256 = file.hashers[0].hexdigest()
        os.fsync(file.descriptor)
        os.close(file.descriptor)
        file.descriptor = -1

    def _save_progress(self) -> None:
        seconds = time.monotonic() - self._started
        rate = self._moved_bytes / seconds if seconds else 0.0
        left_bytes = self._total_bytes - self._resumed_bytes - self._moved_bytes
        _save(
            self._target.progress,
            {
                "total_bytes": self._total_bytes,
                "staged_bytes": self._resumed_bytes + self._moved_bytes,
                "bytes_per_s": round(rate),
                "seconds_left": round(left_bytes / rate) if rate else None,
                "files": {
                    file.step.file.path: {
                        "size_bytes": file.size_bytes,
                        "fingerprint": file.step.file.fingerprint,
                        "staged_bytes": file.safe_bytes,
                    }
                    for file in self._files
                    if file.safe_bytes
                },
            },
        )


def _interleave_memory() -> None:
    """Spread the pages that this thread fills over the NUMA nodes; a tmpfs mount's own `mpol` has precedence."""
    nodes = [int(node.name[4:]) for node in Path("/sys/devices/system/node").glob("node[0-9]*")]
    number = {"x86_64": 238, "aarch64": 237}.get(os.uname().machine)
    if len(nodes) > 1 and number is not None:
        mask = ctypes.c_ulong(sum(1 << node for node in nodes))
        interleave = 3
        # A kernel that refuses leaves the pages where they would be without this.
        ctypes.CDLL(None, use_errno=True).syscall(number, interleave, ctypes.byref(mask), 8 * ctypes.sizeof(mask))


def _check_owner(owner: str | None) -> None:
    try:
        uid = pwd.getpwnam(owner).pw_uid if owner else 0
    except KeyError:
        return
    if uid > LAST_SYSTEM_UID:
        raise FleetError(
            "a system user as the owner of weights (systemd removes other users' files from /dev/shm at logout)",
            f"{owner} with uid {uid}",
            f"name a user with a uid of at most {LAST_SYSTEM_UID}",
        )


def _owner_ids(owner: str | None) -> tuple[int, int]:
    if owner is None:
        return -1, -1
    try:
        entry = pwd.getpwnam(owner)
    except KeyError:
        raise FleetError("the owner of the weights to exist", f"no user {owner}", "run the role sglang_host") from None
    return entry.pw_uid, entry.pw_gid


def _published(path: Path) -> Manifest | None:
    """The manifest of what is published at `path`, None where nothing is or where it is not whole any more."""
    if not path.exists():
        return None
    if not (path / READY).exists():
        raise FleetError(
            f"{path} to be absent, or staged earlier",
            f"something without {READY}",
            "move it away, or choose another sglang_weights_name",
        )
    try:
        return require_ready(path)
    except FleetError:
        return None


def _owned(path: Path, owner: str | None) -> bool:
    try:
        return owner is None or path.stat().st_uid == pwd.getpwnam(owner).pw_uid
    except KeyError:
        return False


def _check_room(staging: Staging, target: Target) -> None:
    room = staging.room
    remaining_bytes = staging.remaining_bytes
    in_memory = room.kind in ("tmpfs", "ramfs")
    if remaining_bytes > room.free_bytes and not (target.growable and room.kind == "tmpfs"):
        raise FleetError(
            f"{gib(remaining_bytes)} GiB free in {room.mount_point} for the bytes that remain",
            f"{gib(room.free_bytes)} GiB of {gib(room.size_bytes)} GiB",
            "enlarge it, or remove what is not needed there",
        )
    if room.free_files is not None and len(staging.steps) + 16 > room.free_files:
        raise FleetError(
            f"{len(staging.steps) + 16} free inodes in {room.mount_point}", str(room.free_files), "remove files there"
        )
    available_bytes = available_memory_bytes()
    if in_memory and remaining_bytes + target.reserve_bytes > available_bytes:
        raise FleetError(
            f"{gib(remaining_bytes + target.reserve_bytes)} GiB of RAM available: what remains to be staged and "
            f"{gib(target.reserve_bytes)} GiB of reserve",
            f"{gib(available_bytes)} GiB",
            "free RAM on the host; weights in a tmpfs are RAM, those of other revisions included",
        )


def available_memory_bytes(meminfo: str | None = None) -> int:
    """MemAvailable of the host. Source: /proc/meminfo."""
    for line in (meminfo or Path("/proc/meminfo").read_text()).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise FleetError("MemAvailable in /proc/meminfo", "none", "use a Linux kernel of 3.14 or later")


def file_system(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """Mount point and type of the file system that holds `path`. Source: /proc/self/mounts, the last mount wins."""
    best, kind = "", ""
    for line in (mounts or Path("/proc/self/mounts").read_text()).splitlines():
        _, mount_point, fstype, *_ = line.split()
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, fstype
    return best, kind


@contextmanager
def _full_said(target: Target) -> Iterator[None]:
    """Turn the system's word for a full file system into a refusal."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FleetError(
            f"room in {target.path.parent} until {target.name} is whole",
            f"a full file system ({error})",
            "free space or enlarge it; run again to resume",
        ) from None


@contextmanager
def _only_run(target: Target) -> Iterator[None]:
    """Hold the path against other runs; waits for `wait_s`, then fails with the holder's process id."""
    deadline = time.monotonic() + target.wait_s
    lock = target.path.with_name(f".{target.path.name}.lock")
    with lock.open("a+") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    held.seek(0)
                    raise FleetError(
                        f"no other run to stage {target.path}",
                        f"process {held.read().strip() or 'unknown'} doing so for more than {target.wait_s:g} s",
                        "wait for it, or stop it and run again",
                    ) from None
                time.sleep(0.2)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def _same_content(published: Manifest | None, manifest: Manifest) -> bool:
    return published is not None and (published.revision, published.files) == (manifest.revision, manifest.files)


def _check_unused(published: Manifest | None, manifest: Manifest, target: Target) -> None:
    """Refuse to put other content where a running engine has, or would find after a crash, the old."""
    if published is None or published.files == manifest.files:
        return
    users = [process for process in processes_using(target.path) if process.pid != os.getpid()]
    if users:
        raise FleetError(
            f"nobody to use {target.path} while its content changes",
            f"{users[0]}" + (f" and {len(users) - 1} more" if len(users) > 1 else ""),
            "stage the new content beside it: give it a sglang_weights_revision or another sglang_weights_name",
        )


def _drop_strangers(partial: Path, staging: Staging) -> None:
    wanted = {partial / step.file.path for step in staging.steps}
    for path in partial.rglob("*"):
        if not path.is_dir() and path not in wanted:
            path.unlink()


def _discard_partial(target: Target) -> None:
    shutil.rmtree(target.partial, ignore_errors=True)
    target.progress.unlink(missing_ok=True)


def _publish(target: Target, manifest: Manifest) -> None:
    uid, gid = _owner_ids(target.owner)
    (target.partial / READY).write_text(manifest.text())
    for path in (target.partial, *target.partial.rglob("*")):
        os.chown(path, uid, gid)
        path.chmod(DIRECTORY_MODE if path.is_dir() else FILE_MODE)
    if target.path.exists():
        _exchange(target.partial, target.path)
    else:
        target.partial.rename(target.path)
    _discard_partial(target)


def _exchange(first: Path, second: Path) -> None:
    """Swap two directories in one step, so that there is always a whole model at `second`."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_working_directory = -100
    names = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(at_working_directory, names[0], at_working_directory, names[1], _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(second))


def _same_file(record: Mapping[str, Any] | None, file: SourceFile) -> bool:
    return (
        record is not None
        and record.get("size_bytes") == file.size_bytes
        and record.get("fingerprint") == file.fingerprint
    )


def _keep_learned(target: Target, source: Source, staging: Staging, records: Mapping[str, FileRecord]) -> None:
    _save(
        target.learned,
        {
            "source": source.address,
            "files": {
                step.file.path: {
                    "size_bytes": step.file.size_bytes,
                    "fingerprint": step.file.fingerprint,
                    "sha256": records[step.file.path].sha256,
                }
                for step in staging.steps
            },
        },
    )


def _load(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is none or where it was cut off."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _save(path: Path, content: Mapping[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content))
    new.replace(path)


def verify(path: Path) -> Manifest:
    """Read a whole staged model again, several files at a time, and compare it with its READY manifest.

    Raises FleetError that names every file whose bytes differ.
    """
    manifest = require_ready(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(manifest.files, pool.map(lambda name: _sha256(path / name), manifest.files), strict=True))
    wrong = sorted(name for name, record in manifest.files.items() if digests[name] != record.sha256)
    if wrong:
        raise FleetError(
            f"every file in {path} with its sha256 as in {READY}",
            f"{len(wrong)} that differ: {', '.join(wrong)}",
            f"stop the engines that use it, remove {path} and stage the model again",
        )
    return manifest


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb", buffering=0) as file, mmap.mmap(-1, 4 * MIB) as memory, memoryview(memory) as buffer:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sglang-fleet stage`, which the boot unit calls, and `sglang-fleet verify`."""
    parser = subparsers.add_parser("stage", help="stage a model directory, as the role sglang_weights does")
    parser.add_argument("--source", type=Path, required=True, help="model directory to copy from")
    parser.add_argument("--path", type=Path, required=True, help="directory to publish it at")
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--revision", default="", help="revision of the model")
    parser.add_argument("--owner", help="system user that will own the files")
    parser.add_argument("--state-dir", type=Path, default=Target.state_dir, help="where learned digests are kept")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="files to leave out")
    parser.set_defaults(run=_run_stage)
    parser = subparsers.add_parser("verify", help="read a staged model again and compare every byte with READY")
    parser.add_argument("path", type=Path, help="directory of the staged model")
    parser.set_defaults(run=_run_verify)


def _run_verify(arguments: argparse.Namespace) -> int:
    manifest = verify(arguments.path)
    print(f"{arguments.path} is right: {len(manifest.files)} files, {gib(manifest.size_bytes)} GiB")
    return 0


def _run_stage(arguments: argparse.Namespace) -> int:
    target = Target(arguments.path, arguments.name, arguments.revision, arguments.owner, state_dir=arguments.state_dir)
    staged = stage(Directory(arguments.source, arguments.exclude), target)
    if staged is None:
        print(f"{target.path} is ready already")
    else:
        rate = staged.copied_bytes / staged.seconds / 1e9
        print(f"{target.path} is ready: {gib(staged.copied_bytes)} GiB at {rate:.2f} GB/s, {staged.reading}")
    return 0
