#!/usr/bin/env python3
"""Open-loop load on the routers: requests come at their own times, whether or not earlier ones are answered.

Usage: load.py --routers URL,URL --key-file FILE --rate 8 --seconds 300 --out FILE [--stop-file FILE]

Streaming and plain completions alternate, prompts differ (one and the same prompt would go to one worker), and every
--long-every-th request generates --long-tokens tokens, which takes minutes on a busy CPU. A request *failed* when it
got an error or no answer; one was *cut* when its answer ended before all its tokens. Only a refused connection and a
503 are tried at the other router, as a load balancer does: a router that has just started answers 503 until it has its
workers back. A 503 of both is a failure.

Writes one JSON line per request to --out; the last line on stdout sums them up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

WORDS = ("batch", "cache", "chat", "drain", "engine", "fleet", "graph", "host", "key", "layer", "model", "node", "roll")
ANSWER_TIMEOUT_S = 1200.0


@dataclass
class Request:
    """One request and what became of it.

    Attributes:
        sent_s: when it was sent, in seconds since the start.
        stream: whether it streams.
        tokens: how many it asked for.
        outcome: "ok", "failed" or "cut".
        seconds: until its last byte.
        detail: what went wrong.
    """

    sent_s: float
    stream: bool
    tokens: int
    outcome: str = "failed"
    seconds: float = 0.0
    detail: str = ""


async def post(router: str, key: str, body: dict[str, object]) -> tuple[int, bytes]:
    """One POST over a connection of its own: status and whole body. Raises ConnectionError for a body cut short."""
    url = urlsplit(router)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await writer.drain()
        status_line = (await reader.readuntil(b"\r\n")).split()
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" not in headers:
            length = next(
                (int(h.split(b":")[1]) for h in headers.split(b"\r\n") if h.startswith(b"content-length")), None
            )
            answer = await reader.read(-1) if length is None else await reader.readexactly(length)
            return int(status_line[1]), answer
        answer = b""
        while True:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            chunk = await reader.readexactly(size + 2)
            if size == 0:
                return int(status_line[1]), answer
            answer += chunk[:-2]
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        partial = getattr(error, "partial", b"")
        raise ConnectionError(f"{type(error).__name__} after {len(partial)} bytes") from error
    finally:
        writer.close()


def judge(request: Request, status: int, answer: bytes) -> None:
    """Set the request's outcome from a complete answer."""
    if status != 200:
        request.detail = f"status {status}: {answer[:200].decode(errors='replace')}"
        return
    if not request.stream:
        generated = json.loads(answer)["usage"]["completion_tokens"]
        request.outcome = "ok" if generated == request.tokens else "cut"
        request.detail = "" if generated == request.tokens else f"{generated} of {request.tokens} tokens"
        return
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: ")]
    texts = [event for event in events if event != b"[DONE]"]
    errors = [event for event in texts if b'"error"' in event]
    reasons = [choice["finish_reason"] for event in texts for choice in json.loads(event).get("choices", ())]
    whole = events[-1:] == [b"[DONE]"] and not errors and reasons[-1:] == ["length"]
    request.outcome = "ok" if whole else "cut"
    request.detail = "" if whole else f"{len(texts)} events, finish reasons {reasons[-1:]}, {errors[:1]}"


async def send(request: Request, number: int, routers: list[str], key: str, model: str) -> None:
    """Send it and wait for its end."""
    rng = random.Random(number)
    prompt = f"{number} " + " ".join(rng.choices(WORDS, k=rng.randint(4, 60)))
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": request.tokens,
        "stream": request.stream,
        "ignore_eos": True,
    }
    begin = time.monotonic()
    first = number % len(routers)
    order = routers[first:] + routers[:first]
    try:
        for router in order:
            try:
                status, answer = await asyncio.wait_for(post(router, key, body), ANSWER_TIMEOUT_S)
            except ConnectionRefusedError as error:
                request.detail = str(error)
                continue
            if status == 503 and router != order[-1]:
                continue
            judge(request, status, answer)
            break
    except (OSError, ValueError, KeyError, asyncio.TimeoutError) as error:
        request.outcome = "cut" if request.stream else "failed"
        request.detail = f"{type(error).__name__}: {error}"
    request.seconds = round(time.monotonic() - begin, 3)


async def run(options: argparse.Namespace) -> list[Request]:
    """Send requests at random intervals of the wanted mean until the time is over or the stop file appears."""
    key = options.key_file.read_text(encoding="utf-8").strip()
    rng = random.Random(options.seed)
    requests: list[Request] = []
    tasks = []
    begin = time.monotonic()
    stopped = False
    free = asyncio.Semaphore(options.in_flight)
    while not stopped and time.monotonic() - begin < options.seconds:
        number = len(requests)
        is_long = number % options.long_every == options.long_every - 1
        tokens = options.long_tokens if is_long else rng.randint(4, options.tokens)
        await free.acquire()
        request = Request(round(time.monotonic() - begin, 3), is_long or number % 2 == 0, tokens)
        requests.append(request)
        tasks.append(asyncio.create_task(send(request, number, options.routers.split(","), key, options.model)))
        tasks[-1].add_done_callback(lambda _task: free.release())
        await asyncio.sleep(rng.expovariate(options.rate))
        stopped = bool(options.stop_file and options.stop_file.exists() and len(requests) >= options.at_least)
    await asyncio.gather(*tasks)
    return requests


def main() -> None:
    """Run the load and sum it up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routers", required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--model", default="tiny-qwen3")
    parser.add_argument("--rate", type=float, default=8.0, help="requests per second")
    parser.add_argument("--in-flight", type=int, default=100_000, help="most requests at the same time")
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of a request that is not long")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--at-least", type=int, default=0, help="requests to send even after the stop file is there")
    parser.add_argument("--long-every", type=int, default=250)
    parser.add_argument("--long-tokens", type=int, default=3900)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stop-file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    requests = asyncio.run(run(options))
    options.out.write_text("".join(json.dumps(asdict(request)) + "\n" for request in requests), encoding="utf-8")
    count = {outcome: sum(request.outcome == outcome for request in requests) for outcome in ("failed", "cut")}
    longest = max((request.seconds for request in requests), default=0.0)
    print(f"requests={len(requests)} failed={count['failed']} cut={count['cut']} longest_s={longest:.0f}")


if __name__ == "__main__":
    main()
