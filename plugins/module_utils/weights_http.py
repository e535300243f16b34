"""Weights from an HTTP(S) server with range requests: a mirror, a peer, or signed addresses of a hub or a bucket."""

from __future__ import annotations

import http.client
import random
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from time import sleep

from .errors import FleetError
from .manifest import READY, SUMS, Manifest, parse_sums
from .units import MIB
from .weights_source import SourceFile, selected

FINAL_STATUSES = {
    400: "correct the address",
    401: "give a token that may read it",
    403: "give a token that may read it",
    404: "correct the address or the revision",
    410: "correct the address or the revision",
    416: "let nothing change the source while it is copied, and run again",
}
_LONGEST_PAUSE_S = 60.0
_LARGEST_MANIFEST_BYTES = 64 * MIB
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True)
class Access:
    """How a server is asked.

    Attributes:
        token: bearer token, sent to the server that was named and to none that it redirects to.
        timeout_s: longest silence on a connection.
        attempts: tries in a row without one new byte before giving up.
    """

    token: str | None = None
    timeout_s: float = 60
    attempts: int = 6

    def request(self, url: str, first: int | None = None, last: int | None = None) -> urllib.request.Request:
        """A GET request, of a range of bytes where one is given."""
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
        if first is not None:
            request.add_header("Range", f"bytes={first}-{last}")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        return request


class HttpFiles:
    """Files at known addresses."""

    block_bytes = 16 * MIB

    def __init__(self, address: str, files: Mapping[SourceFile, str], access: Access) -> None:
        self.address = address
        self._access = access
        self._urls = {file.path: url for file, url in files.items()}
        self._files = tuple(sorted(files, key=lambda file: file.path))
        self._lock = threading.Lock()
        self._resolved: dict[str, str] = {}
        self._retries = 0

    @classmethod
    def mirror(cls, address: str, exclude: Iterable[str], access: Access) -> HttpFiles:
        """A directory on a server that brings its manifest, READY or SHA256SUMS.

        Raises FleetError when there is neither, or a file that it lists is not there.
        """
        base = address.rstrip("/") + "/"
        exclude = tuple(exclude)
        for name in (READY, SUMS):
            answer = _answer(access.request(base + name), access)
            if answer is not None:
                break
        else:
            raise FleetError(
                f"a manifest at {base}{SUMS} to prove the bytes with",
                "none",
                f"make one where the model lies: sha256sum * > {SUMS}",
            )
        if name == READY:
            return cls.listed(base, Manifest.parse(answer[0], base + name), exclude, access)
        sums = {path: sha256 for path, sha256 in parse_sums(answer[0], base + name).items() if selected(path, exclude)}
        urls = {path: base + urllib.parse.quote(path) for path in sums}
        with ThreadPoolExecutor(8) as pool:
            sizes = dict(zip(sums, pool.map(lambda path: _size_bytes(urls[path], access), sums), strict=True))
        files = {SourceFile(path, sizes[path], sha256, sha256): urls[path] for path, sha256 in sums.items()}
        return cls(base, files, access)

    @classmethod
    def listed(cls, address: str, manifest: Manifest, exclude: Iterable[str], access: Access) -> HttpFiles:
        """A directory on a server whose READY manifest is known already; asks the server nothing."""
        base = address.rstrip("/") + "/"
        files = {
            SourceFile(path, record.size_bytes, record.sha256, record.sha256): base + urllib.parse.quote(path)
            for path, record in manifest.files.items()
            if selected(path, exclude)
        }
        return cls(base, files, access)

    @classmethod
    def signed(cls, address: str, files: Iterable[Mapping[str, object]], access: Access) -> HttpFiles:
        """Files that a hub or a bucket listed.

        Args:
            address: what the source is called, without secrets.
            files: mappings with path, url, size_bytes and sha256 or git_sha1.
        """
        listed = {}
        for entry in files:
            path, sha256, git_sha1 = str(entry["path"]), entry.get("sha256"), entry.get("git_sha1")
            file = SourceFile(
                path,
                int(str(entry["size_bytes"])),
                str(sha256 or git_sha1),
                str(sha256) if sha256 else None,
                str(git_sha1) if git_sha1 else None,
            )
            listed[file] = str(entry["url"])
        return cls(address, listed, access)

    def files(self) -> tuple[SourceFile, ...]:
        for file in self._files:
            if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
                raise FleetError(
                    f"files of {self.address} to lie below the model directory", file.path, "correct its manifest"
                )
        return self._files

    def open(self, file: SourceFile) -> HttpReader:
        return HttpReader(self, file)

    def describe(self) -> str:
        return f"read over HTTP, {self._retries} requests repeated"

    def read_into(self, file: SourceFile, offset: int, view: memoryview) -> None:
        """Fill `view`; resumes within it after a cut connection. Raises FleetError when the server does not recover."""
        done = failures = 0
        while done < len(view):
            before = done
            redirected = self._resolved.get(file.path)
            try:
                with self._ask(file, redirected, offset + done, offset + len(view) - 1) as response:
                    while done < len(view) and (count := response.readinto(view[done:])):
                        done += count
                reason, pause_s = "a body that ended early", None
            except urllib.error.HTTPError as error:
                reason, pause_s = f"HTTP {error.code}", _retry_after_s(error)
                if redirected and error.code in (401, 403, 404, 410):
                    # The address that the server redirected to may have expired; the server gives another one.
                    self._resolved.pop(file.path, None)
                    continue
                if error.code in FINAL_STATUSES:
                    raise FleetError(f"{file.path} from {self.address}", reason, FINAL_STATUSES[error.code]) from None
            except (OSError, http.client.HTTPException) as error:
                reason, pause_s = f"{type(error).__name__}: {error}", None
            if done == len(view):
                return
            failures = 1 if done > before else failures + 1
            if failures >= self._access.attempts:
                raise FleetError(
                    f"{file.path} from {self.address} within {self._access.attempts} tries",
                    f"{reason} at byte {offset + done}",
                    "look at the server and the network; run again to resume",
                )
            with self._lock:
                self._retries += 1
            sleep(pause_s if pause_s is not None else min(2**failures / 4, 30) * random.uniform(0.5, 1))

    def _ask(self, file: SourceFile, redirected: str | None, first: int, last: int) -> http.client.HTTPResponse:
        request = (
            self._access.request(self._urls[file.path], first, last)
            if redirected is None
            else Access().request(redirected, first, last)
        )
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self._access.timeout_s)
        if response.geturl() != self._urls[file.path]:
            self._resolved[file.path] = response.geturl()
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        whole = response.status == 200 and first == 0 and last == file.size_bytes - 1
        if not whole and (match is None or int(match[1]) != first or int(match[3]) != file.size_bytes):
            response.close()
            raise FleetError(
                f"{self.address} to answer a request for bytes {first} to {last} of the {file.size_bytes} of "
                f"{file.path}",
                f"status {response.status}, Content-Range {match[0] if match else 'missing'}",
                "use a server that honours range requests and whose files match its manifest",
            )
        return response


class HttpReader:
    """One file of `HttpFiles`."""

    def __init__(self, source: HttpFiles, file: SourceFile) -> None:
        self._source = source
        self._file = file

    def __enter__(self) -> HttpReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the file's bytes from `offset` on."""
        self._source.read_into(self._file, offset, view)


def _retry_after_s(error: urllib.error.HTTPError) -> float | None:
    text = error.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE_S) if text.isdigit() else None


def _answer(
    request: urllib.request.Request, access: Access, largest_bytes: int = _LARGEST_MANIFEST_BYTES
) -> tuple[str, http.client.HTTPMessage] | None:
    """Body and headers of a small answer, None for 404; other failures are repeated, then raised as FleetError."""
    for attempt in range(1, access.attempts + 1):
        pause_s = None
        try:
            with urllib.request.urlopen(request, timeout=access.timeout_s) as response:
                return response.read(largest_bytes).decode(), response.headers
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            reason, pause_s = f"HTTP {error.code}", _retry_after_s(error)
            if error.code in FINAL_STATUSES:
                raise FleetError(f"an answer from {request.full_url}", reason, FINAL_STATUSES[error.code]) from None
        except (OSError, http.client.HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
        if attempt < access.attempts:
            sleep(pause_s if pause_s is not None else 2**attempt / 8)
    raise FleetError(
        f"an answer from {request.full_url} within {access.attempts} tries",
        reason,
        "look at the server and the network",
    )


def _size_bytes(url: str, access: Access) -> int:
    answer = _answer(access.request(url), access, largest_bytes=0)
    if answer is None:
        raise FleetError(f"every file that {SUMS} lists on the server", f"no {url}", "complete the mirror")
    return int(answer[1]["Content-Length"])
