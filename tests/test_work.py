"""A guard on counted work: Python calls per request inside the gateway, not seconds.

The count is the same on every machine, so it can hold a line that a timing cannot. Raise a limit
only with a reason in the commit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fakes import completion, stream_of

from tierway.middleware import Gateway

PASS_THROUGH = 480
HIT = 170
PER_TOKEN = 22

TOKENS = 100
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Why is it so?"}]})
STREAM = BODY[:-1] + b',"stream":true}'


def settings(url: str, mode: str) -> dict[str, Any]:
    return {
        "cache": {"mode": mode, "store": {"kind": "memory"}},
        "tiers": {"small": {"class": "7b"}},
        "models": {"m": {"tier": "small", "served_name": "m", "context_tokens": 8192,
                         "replicas": [{"url": url, "engine": "ollama"}]}},
    }  # fmt: skip


class Upstream(asyncio.Protocol):
    """Answers every request with the same bytes, streams token by token."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if b"/chat/completions" not in data:
            body, kind = b"{}", b"application/json"
        elif b'"stream":true' in data:
            asyncio.get_running_loop().create_task(self.stream())
            return
        else:
            body, kind = orjson.dumps(completion()), b"application/json"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (kind, len(body)) + body)

    async def stream(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        self.transport.write(head + b"transfer-encoding: chunked\r\n\r\n")
        for event in stream_of(*["word "] * TOKENS):
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            for _ in range(4):  # so that each event arrives on its own
                await asyncio.sleep(0)
        self.transport.write(b"0\r\n\r\n")


class Client:
    """One ASGI request without a server."""

    def __init__(self, body: bytes) -> None:
        self.incoming = [{"type": "http.request", "body": body, "more_body": False}]
        self.sent: list[dict[str, Any]] = []
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"content-type", b"application/json"), (b"host", b"gateway")],
        }

    async def receive(self) -> dict[str, Any]:
        if self.incoming:
            return self.incoming.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


async def calls_of(action: Callable[[], Any]) -> int:
    """Python calls into the gateway's own modules while `action` runs."""
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_globals.get("__name__", "").startswith("tierway."):
            count += 1

    sys.setprofile(profile)
    try:
        await action()
    finally:
        sys.setprofile(None)
    return count


async def measure(mode: str, body: bytes) -> tuple[int, list[dict[str, Any]]]:
    """The calls of the third request alike: the first two fill pools and caches."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    gateway = Gateway(settings(url, mode), environ={})
    client = Client(body)
    async with gateway.lifespan():
        for _ in range(2):
            first = Client(body)
            await gateway(first.scope, first.receive, first.send)
        await gateway.parts.stage.cache.settled()
        count = await calls_of(lambda: gateway(client.scope, client.receive, client.send))
    server.close()
    await server.wait_closed()
    assert client.sent[0]["status"] == 200
    return count, client.sent


def run(mode: str, body: bytes) -> tuple[int, list[dict[str, Any]]]:
    return asyncio.run(asyncio.wait_for(measure(mode, body), 60))


def test_passing_a_request_through_costs_a_bounded_number_of_calls() -> None:
    count, sent = run("off", BODY)
    assert dict(sent[0]["headers"])[b"x-tierway-cache"] == b"bypass"
    print(f"pass-through: {count} calls")
    assert count <= PASS_THROUGH


def test_an_exact_hit_costs_a_bounded_number_of_calls() -> None:
    count, sent = run("serve", BODY)
    assert dict(sent[0]["headers"])[b"x-tierway-cache"] == b"hit"
    print(f"exact hit: {count} calls")
    assert count <= HIT


def test_a_streamed_token_costs_a_bounded_number_of_calls() -> None:
    whole, sent = run("off", STREAM)
    events = [message for message in sent if message.get("body")]
    if len(events) < TOKENS:
        pytest.fail(f"{TOKENS} tokens came in {len(events)} pieces: nothing was measured")
    short, _ = run("off", BODY)
    per_token = (whole - short) / len(events)
    print(f"per token: {per_token:.1f} calls")
    assert per_token <= PER_TOKEN
