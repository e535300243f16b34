"""Where weights come from: each source lists its files and reads ranges of them; the copying is `staging`'s."""

from __future__ import annotations

import errno
import fnmatch
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from .errors import FleetError
from .manifest import READY, SUMS, Manifest, parse_sums
from .units import MIB


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        path: relative to the model directory.
        size_bytes: its size.
        fingerprint: changes whenever the source's file changes; tells whether what was learned earlier still holds.
        sha256: digest that the source itself states, None where it states none.
        git_sha1: the same as the identity of a Git blob, for what a hub keeps outside its large-file store.
    """

    path: str
    size_bytes: int
    fingerprint: str
    sha256: str | None = None
    git_sha1: str | None = None


class Reader(Protocol):
    """Reads ranges of one file; used by one thread at a time."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the file's bytes from `offset` on, all of it, or raise FleetError or OSError."""

    def __enter__(self) -> Reader: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """A place that holds a model."""

    address: str
    block_bytes: int

    def files(self) -> tuple[SourceFile, ...]:
        """All files of the model. Raises FleetError where there is no usable model."""

    def open(self, file: SourceFile) -> Reader:
        """A reader of one file."""

    def describe(self) -> str:
        """How it was read, for the report."""


def selected(path: str, exclude: Iterable[str]) -> bool:
    """Whether a path belongs to the model: not hidden, not a manifest, matched by no pattern of `exclude`."""
    parts = path.split("/")
    return not (
        any(part.startswith(".") for part in parts)
        or path in (READY, SUMS)
        or any(fnmatch.fnmatch(path, pattern) for pattern in exclude)
    )


class Directory:
    """A local or mounted directory, read through the page cache or around it (O_DIRECT), whichever proves faster.

    A source of at least `TRIAL_BYTES` is tried both ways first: windows of blocks alternate between the two while
    time per byte is added up; the rest is read the faster way. Pages that reading left in the cache are dropped.
    """

    block_bytes = MIB
    TRIAL_BYTES = 1024 * MIB
    _WINDOW_BLOCKS = 16
    _TRIAL_BLOCKS = 128

    def __init__(self, directory: Path, exclude: Iterable[str] = (), read_mode: str = "auto") -> None:
        self.address = str(directory)
        self._directory = directory
        self._exclude = tuple(exclude)
        self._read_mode = read_mode
        self._lock = threading.Lock()
        self._blocks = 0
        self._seconds = {"direct": 0.0, "buffered": 0.0}
        self._bytes = {"direct": 0, "buffered": 0}

    def files(self) -> tuple[SourceFile, ...]:
        if not self._directory.is_dir():
            raise FleetError(
                "a model directory as the weights' source",
                f"no directory {self._directory}",
                "correct sglang_weights_source, or mount its file system",
            )
        manifest = Manifest.read(self._directory)
        sums_path = self._directory / SUMS
        sums = parse_sums(sums_path.read_text(), str(sums_path)) if sums_path.is_file() else {}
        if manifest is not None:
            sums |= {path: record.sha256 for path, record in manifest.files.items()}
        files = []
        for parent, _, names in os.walk(self._directory, followlinks=True):
            for name in names:
                full = Path(parent, name)
                path = str(full.relative_to(self._directory))
                if selected(path, self._exclude):
                    try:
                        status = full.stat()
                    except FileNotFoundError:
                        raise FleetError(
                            f"{full} to be a file", "a link to nothing", "complete the model directory"
                        ) from None
                    files.append(
                        SourceFile(path, status.st_size, f"mtime_ns={status.st_mtime_ns}", sums.pop(path, None))
                    )
        missing = sorted(path for path in sums if selected(path, self._exclude))
        if missing:
            raise FleetError(
                f"every file that the manifest in {self._directory} lists",
                f"{len(missing)} missing: {', '.join(missing[:3])}",
                "complete the model directory, or make its manifest again",
            )
        if self._read_mode == "auto" and sum(file.size_bytes for file in files) < self.TRIAL_BYTES:
            self._read_mode = "buffered"
        return tuple(sorted(files, key=lambda file: file.path))

    def open(self, file: SourceFile) -> Reader:
        return _DirectoryReader(self, self._directory / file.path)

    def describe(self) -> str:
        rates = ", ".join(
            f"{mode} {self._bytes[mode] / self._seconds[mode] / 1e9:.2f} GB/s a thread"
            for mode in ("direct", "buffered")
            if self._seconds[mode]
        )
        return f"read {self._best()} ({rates})" if rates else "nothing read"

    def _best(self) -> str:
        if self._read_mode != "auto":
            return self._read_mode
        cost = {mode: self._seconds[mode] / (self._bytes[mode] or 1) for mode in self._seconds}
        return min(cost, key=lambda mode: cost[mode])

    def next_mode(self) -> str:
        """How the next block is to be read: "direct" or "buffered"."""
        with self._lock:
            block, self._blocks = self._blocks, self._blocks + 1
            if self._read_mode != "auto":
                return self._read_mode
            if block < self._TRIAL_BLOCKS:
                return ("buffered", "direct")[block // self._WINDOW_BLOCKS % 2]
            self._read_mode = self._best()
            return self._read_mode

    def direct_refused(self) -> None:
        """The file system does not read around its cache: buffered from here on."""
        with self._lock:
            self._read_mode = "buffered"

    def spent(self, mode: str, read_bytes: int, seconds: float) -> None:
        """Account for one block."""
        with self._lock:
            self._seconds[mode] += seconds
            self._bytes[mode] += read_bytes


class _DirectoryReader:
    def __init__(self, source: Directory, path: Path) -> None:
        self._source = source
        self._path = path
        self._buffered = os.open(path, os.O_RDONLY)
        self._direct: int | None = None

    def __enter__(self) -> _DirectoryReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._buffered)
        if self._direct is not None:
            os.close(self._direct)

    def read_into(self, offset: int, view: memoryview) -> None:
        mode = self._source.next_mode()
        started = time.monotonic()
        done = self._read_direct(offset, view) if mode == "direct" else 0
        if done < len(view):
            # The tail of a file is no multiple of the device's block; the page cache serves it.
            self._read_buffered(offset + done, view[done:])
        self._source.spent(mode, len(view), time.monotonic() - started)

    def _read_direct(self, offset: int, view: memoryview) -> int:
        aligned = len(view) // 4096 * 4096
        try:
            if self._direct is None:
                self._direct = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
            return os.preadv(self._direct, [view[:aligned]], offset) if aligned else 0
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._source.direct_refused()
            return 0

    def _read_buffered(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self._buffered, [view[done:]], offset + done)
            if not count:
                raise FleetError(
                    f"{self._path} to keep its size while it is copied",
                    f"its end at byte {offset + done}",
                    "let nothing write to the source and run again",
                )
            done += count
        # A large page of the cache may have begun in the block before; only whole ones are dropped.
        begin = max(0, offset - self._source.block_bytes)
        os.posix_fadvise(self._buffered, begin, offset + len(view) - begin, os.POSIX_FADV_DONTNEED)
