"""Hands a staged model to other hosts: fetched once from outside, then fanned out over the fleet."""

from __future__ import annotations

import argparse
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from .manifest import READY, Manifest, require_ready

IDLE_S = 120.0
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Share(ThreadingHTTPServer):
    """An HTTP server for one staged model: the files that READY lists, in ranges, to whoever has the token."""

    daemon_threads = True

    def __init__(self, directory: Path, address: tuple[str, int], token: str) -> None:
        """Raises FleetError when `directory` holds no whole model."""
        self.directory = directory
        self.manifest: Manifest = require_ready(directory)
        self.token = token
        self.last_used = time.monotonic()
        super().__init__(address, _Handler)

    def serve_until_idle(self, idle_s: float) -> None:
        """Serve until nobody has asked for anything for `idle_s`."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        while (rest_s := self.last_used + idle_s - time.monotonic()) > 0:
            time.sleep(rest_s)
        self.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Share
    timeout = 60

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: each model takes thousands of requests."""

    def do_GET(self) -> None:
        """Send one file, or the range that was asked for."""
        self.server.last_used = time.monotonic()
        offered = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(offered, f"Bearer {self.server.token}".encode()):
            return self.send_error(401)
        path = unquote(self.path).lstrip("/")
        if path != READY and path not in self.server.manifest.files:
            return self.send_error(404)
        with (self.server.directory / path).open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2]), size_bytes - 1)) if asked else (0, size_bytes - 1)
            if asked and first > last:
                return self.send_error(416)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size_bytes}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)
                self.server.last_used = time.monotonic()


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sglang-fleet share`."""
    parser = subparsers.add_parser("share", help="hand a staged model to other hosts until nobody asks any more")
    parser.add_argument("path", type=Path, help="directory of the staged model")
    parser.add_argument("--listen", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="end after so many seconds without a request")
    parser.set_defaults(run=lambda arguments: share(arguments, os.environ))


def share(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Serve with a new token, which is left in the unit's runtime directory for root to read."""
    token = secrets.token_urlsafe(32)
    server = Share(arguments.path, (arguments.listen, arguments.port), token)
    descriptor = os.open(Path(environment["RUNTIME_DIRECTORY"], "token"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    server.serve_until_idle(arguments.idle_s)
    return 0
