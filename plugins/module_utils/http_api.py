"""The little HTTP that the core speaks: JSON to routers and engines, and Prometheus text from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

# A proxy of the host's environment must never stand between the fleet's own machines.
_OPENER = build_opener(ProxyHandler({}))
_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Response:
    """An HTTP answer of any status.

    Attributes:
        status: the HTTP status code.
        body: the decoded body.
    """

    status: int
    body: str

    def json(self) -> Any:
        """The body as JSON; raises ValueError where it is none."""
        return json.loads(self.body)


def request(
    method: str,
    url: str,
    *,
    body: Mapping[str, Any] | None = None,
    api_key: str = "",
    timeout_s: float = 10.0,
) -> Response:
    """Send one request, `body` as JSON, and return the answer whatever its status.

    Raises OSError where there is no answer within timeout_s (URLError, ConnectionError and time-outs are OSErrors).
    """
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = json.dumps(body).encode() if body is not None else None
    try:
        with _OPENER.open(Request(url, data, headers, method=method), timeout=timeout_s) as answer:
            return Response(answer.status, answer.read().decode(errors="replace"))
    except HTTPError as error:
        with error:
            return Response(error.code, error.read().decode(errors="replace"))


@dataclass(frozen=True)
class Sample:
    """One line of a Prometheus text exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> tuple[Sample, ...]:
    """The samples of a Prometheus text exposition; comments and unreadable lines are left out."""
    samples = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            samples.append(Sample(match["name"], labels, float(match["value"])))
    return tuple(samples)
