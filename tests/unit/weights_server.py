"""A real HTTP server for weights that misbehaves on demand. By hand: weights_server.py DIRECTORY PORT."""

import re
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class WeightsServer(ThreadingHTTPServer):
    """Serves `directory` with ranges. `faults[path]` are spent one per GET of a range; `routes` answer first."""

    daemon_threads = True

    def __init__(self, directory, address=("127.0.0.1", 0)):
        super().__init__(address, Handler)
        self.directory = directory
        self.faults = {}
        self.routes = []
        self.token = None
        self.served = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), sent_bytes=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent_bytes])
        self.close_connection = True

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        for pattern, route in self.server.routes:
            if match := re.fullmatch(pattern, path):
                return route(self, match)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.answer(401)
        return self.serve_file(path.lstrip("/"))

    def serve_file(self, path):
        file = self.server.directory / path
        if not file.is_file():
            return self.answer(404)
        body, asked = file.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self.answer(200, body)
        with self.server.lock:
            waiting = self.server.faults.get(path, [])
            fault = waiting.pop(0) if waiting else None
            self.server.served.append((path, int(asked[1]), int(asked[2]), fault))
        first, last = int(asked[1]), int(asked[2])
        part = body[first : last + 1]
        headers = [("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(body)}")]
        if isinstance(fault, int):
            return self.answer(fault, b"no", [("Retry-After", "0")])
        if fault == "cut":
            return self.answer(206, part, headers, sent_bytes=len(part) // 2)
        if fault == "short":
            return self.answer(206, part[: len(part) // 2], headers)
        if fault == "wrong":
            return self.answer(206, part[:-1] + bytes([part[-1] ^ 1]), headers)
        if fault == "whole":
            return self.answer(200, body)
        if fault == "grown":
            return self.answer(206, part, [("Content-Range", f"bytes {first}-{last}/{len(body) + 1}")])
        if fault == "silent":
            time.sleep(1.5)
        return self.answer(206, part, headers)


@contextmanager
def serving(directory):
    server = WeightsServer(directory)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    WeightsServer(Path(sys.argv[1]), ("0.0.0.0", int(sys.argv[2]))).serve_forever()
