"""What a relay costs: CPU microseconds per request and per streamed token.

Two bare relays, minimal raw-ASGI apps on uvicorn (uvloop, httptools), differ only in their
HTTP client: ours (router/transport.py) or aiohttp. Both stand before the same fast upstream.
A gateway that already runs can be put beside them: start an upstream for it with
`--serve-upstream PORT`, point the gateway there, measure with `--url U --pid P --model M`.

Relay, upstream and load client are three processes; a figure is the user and system time of
the relay's own process (/proc/PID/stat, children not included) over what it carried. Rounds
of the targets alternate, so that a noisy neighbour meets all of them; sums are over rounds,
since the kernel counts in ticks of 10 ms. A stream's tokens leave the upstream one per tick,
one write each; `pieces_per_token` near 1 says that they also arrived one by one.

It does not measure latency, nor the most a relay can carry: the client shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import uvloop

from tierway.policies.errors import ConfigError, UpstreamError
from tierway.router.transport import Origin, Transport

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Pieces = AsyncIterator[bytes | tuple[int, list[tuple[bytes, bytes]]]]
Fetch = Callable[[str, bytes], Pieces]

ANSWER_BYTES = 500
_PASSED = (b"content-type", b"content-length")
_JSON = [(b"content-type", b"application/json")]


# The upstream.


def _answer() -> bytes:
    def filled(padding: int) -> bytes:
        message = {"role": "assistant", "content": "x" * padding}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 90, "total_tokens": 99}
        head = {"id": "chatcmpl-relay", "object": "chat.completion", "created": 1, "model": "fake"}
        return json.dumps({**head, "choices": [choice], "usage": usage}).encode()

    body = filled(ANSWER_BYTES - len(filled(0)))
    return _head(b"application/json", b"content-length: %d" % len(body)) + body


def _head(content_type: bytes, framing: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (content_type, framing)


def _event(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _delta(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-relay", "object": "chat.completion.chunk", "created": 1}
    return _event(json.dumps({**head, "model": "fake", "choices": [choice]}).encode())


_ANSWER = _answer()
_MODELS = b'{"object":"list","data":[{"id":"fake","object":"model"}]}'
_LISTING = _head(b"application/json", b"content-length: %d" % len(_MODELS)) + _MODELS
_STREAM_HEAD = _head(b"text/event-stream", b"transfer-encoding: chunked")
_TOKEN = _delta({"content": " token"}, None)
_STREAM_END = _delta({}, "stop") + _event(b"[DONE]") + b"0\r\n\r\n"


@dataclass
class _Pace:
    """All running streams, moved on together: one token each per tick."""

    tokens: int
    tick_s: float
    left: dict[asyncio.Transport, int] = field(default_factory=dict)

    def start(self, transport: asyncio.Transport) -> None:
        if not self.left:
            asyncio.get_running_loop().call_later(self.tick_s, self._tick)
        self.left[transport] = self.tokens
        transport.write(_STREAM_HEAD)

    def _tick(self) -> None:
        for transport, left in list(self.left.items()):
            if left and not transport.is_closing():
                transport.write(_TOKEN)
                self.left[transport] = left - 1
            else:
                del self.left[transport]
                if not transport.is_closing():
                    transport.write(_STREAM_END)
        if self.left:
            asyncio.get_running_loop().call_later(self.tick_s, self._tick)


class _Upstream(asyncio.Protocol):
    """Answers every POST with 500 bytes of JSON, or with events if its body says stream."""

    def __init__(self, pace: _Pace) -> None:
        self._pace, self._data = pace, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        self._data = b""
        if head.startswith(b"GET "):
            self._transport.write(_LISTING)
        elif b'"stream":true' in body.replace(b" ", b""):
            self._pace.start(self._transport)
        else:
            self._transport.write(_ANSWER)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _serve_upstream(tell: Connection | None, port: int, tokens: int, tick_s: float) -> None:
    async def serve() -> None:
        pace = _Pace(tokens, tick_s)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Upstream(pace), "127.0.0.1", port, backlog=1024)
        bound = server.sockets[0].getsockname()[1]
        if tell is not None:
            tell.send(bound)
        else:
            print(f"upstream on http://127.0.0.1:{bound}/v1, model fake", flush=True)
        await server.serve_forever()

    uvloop.run(serve())


# The relays.


def _through_transport(origin: str) -> Fetch:
    transport = Transport(connect_timeout_s=5.0)
    to = Origin.parse(origin)

    async def fetch(path: str, body: bytes) -> Pieces:
        response = await transport.request(to, b"POST", path.encode(), _JSON, body)
        try:
            yield response.status, list(response.headers)
            while data := await response.read():
                yield data
        finally:
            await response.aclose()

    return fetch


def _through_aiohttp(origin: str) -> Fetch:
    import aiohttp

    sessions: list[aiohttp.ClientSession] = []
    headers = {"content-type": "application/json"}

    async def fetch(path: str, body: bytes) -> Pieces:
        if not sessions:
            connector = aiohttp.TCPConnector(limit=0)
            sessions.append(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        async with sessions[0].post(origin + path, data=body, headers=headers) as response:
            raw = [(name.lower(), value) for name, value in response.raw_headers]
            yield response.status, raw
            async for data in response.content.iter_any():
                yield data

    return fetch


RELAYS: dict[str, Callable[[str], Fetch]] = {
    "transport": _through_transport,
    "aiohttp": _through_aiohttp,
}


class _Relay:
    """The least an ASGI app can do: read the request, send it on, pass the answer back."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        async for piece in self._fetch(scope["path"], body):
            if isinstance(piece, bytes):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            else:
                status, headers = piece
                kept = [header for header in headers if header[0] in _PASSED]
                await send({"type": "http.response.start", "status": status, "headers": kept})
        await send({"type": "http.response.body", "body": b""})


def _serve_relay(tell: Connection, kind: str, origin: str) -> None:
    import uvicorn

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)
    tell.send(sock.getsockname()[1])
    config = uvicorn.Config(
        _Relay(RELAYS[kind](origin)),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="critical",
    )
    uvicorn.Server(config).run(sockets=[sock])


@contextmanager
def _child(serve: Callable[..., None], *args: object) -> Iterator[tuple[int, int]]:
    """Runs `serve(tell, *args)` in a process of its own; gives (pid, port)."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        if not mine.poll(30):
            raise TimeoutError("a process of the benchmark did not start within 30 s")
        assert process.pid is not None
        yield process.pid, mine.recv()
    finally:
        process.terminate()
        process.join(10)
        mine.close()


# The load.


@dataclass(frozen=True, slots=True)
class Load:
    rounds: int
    requests: int
    concurrency: int
    streams: int
    tokens: int


@dataclass(slots=True)
class Tally:
    """Sums over rounds."""

    done: int = 0
    errors: int = 0
    pieces: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(slots=True)
class Target:
    """A relay or gateway under test; its origin's base path ends in `/v1`."""

    name: str
    origin: Origin
    pid: int
    model: str
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: list(_JSON))
    plain: Tally = field(default_factory=Tally)
    stream: Tally = field(default_factory=Tally)


def cpu_s(pid: int) -> float:
    """User and system seconds of a process and its threads, without its children."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ask(transport: Transport, target: Target, number: str, tokens: int) -> int:
    """One exchange, a stream where `tokens` > 0; the pieces it came in, 0 if it was wrong."""
    # Every question is another, so that nobody's cache or coalescing can answer it.
    message = {"role": "user", "content": f"Question {number}"}
    ask = {"model": target.model, "messages": [message], "stream": tokens > 0}
    parts: list[bytes] = []
    try:
        response = await transport.request(
            target.origin,
            b"POST",
            b"/chat/completions",
            target.headers,
            json.dumps(ask).encode(),
        )
        try:
            while data := await response.read():
                parts.append(data)
        finally:
            await response.aclose()
    except UpstreamError:
        return 0
    body = b"".join(parts)
    if tokens:
        good = body.count(b"data: ") >= tokens and body.rstrip().endswith(b"data: [DONE]")
    else:
        good = b'"choices"' in body
    return len(parts) if good and response.status == 200 else 0


async def _drive(target: Target, tally: Tally, *, count: int, at_once: int, tokens: int) -> None:
    transport = Transport(connect_timeout_s=10.0, max_connections=at_once)
    stamp = time.time_ns()
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            pieces = await _ask(transport, target, f"{stamp}-{number}", tokens)
            tally.done += pieces > 0
            tally.errors += pieces == 0
            tally.pieces += pieces

    began, cpu_before = time.monotonic(), cpu_s(target.pid)
    await asyncio.gather(*(worker() for _ in range(at_once)))
    tally.cpu_s += cpu_s(target.pid) - cpu_before
    tally.wall_s += time.monotonic() - began
    await transport.aclose()


async def _measure(targets: list[Target], load: Load) -> None:
    plain = {"count": load.requests, "at_once": load.concurrency, "tokens": 0}
    stream = {"count": load.streams, "at_once": load.streams, "tokens": load.tokens}
    for target in targets:
        warm = Tally()
        await _drive(target, warm, count=min(200, load.requests), at_once=8, tokens=0)
        await _drive(target, warm, count=1, at_once=1, tokens=load.tokens)
        if not warm.done:
            raise ConnectionError(f"{target.name}: no right answer came from {target.origin}")
    for _ in range(load.rounds):
        for target in targets:
            await _drive(target, target.plain, **plain)
        for target in targets:
            await _drive(target, target.stream, **stream)


def _row(target: Target, tokens: int) -> dict[str, Any]:
    plain, stream = target.plain, target.stream
    streamed = max(1, stream.done * tokens)
    return {
        "name": target.name,
        "cpu_us_per_request": round(1e6 * plain.cpu_s / max(1, plain.done), 1),
        "cpu_us_per_token": round(1e6 * stream.cpu_s / streamed, 1),
        "requests_per_s": round(plain.done / plain.wall_s),
        "pieces_per_token": round(stream.pieces / streamed, 2),
        "requests": plain.done,
        "streams": stream.done,
        "errors": plain.errors + stream.errors,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


# The command.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="relay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=_positive, default=3)
    parser.add_argument("--requests", type=_positive, default=3000, help="per round and target")
    parser.add_argument("--concurrency", type=_positive, default=32)
    parser.add_argument("--streams", type=_positive, default=64, help="per round, all at once")
    parser.add_argument("--tokens", type=_positive, default=200, help="per stream")
    parser.add_argument("--tick-ms", type=_positive, default=5, help="between a stream's tokens")
    parser.add_argument("--only", choices=[*RELAYS, "gateway"], help="measure just this one")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--url", help="base URL of a running gateway, with its /v1")
    parser.add_argument("--pid", type=_positive, help="its process")
    parser.add_argument("--model", default="fake", help="the model to ask it for")
    parser.add_argument("--key-env", help="environment variable that holds its API key")
    parser.add_argument("--serve-upstream", type=int, metavar="PORT", help="do only this")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on is needed")
    return value


def _gateway(options: argparse.Namespace) -> Target:
    # No-store keeps the measured answers out of its cache.
    headers = [*_JSON, (b"cache-control", b"no-cache, no-store")]
    if options.key_env:
        headers.append((b"authorization", b"Bearer " + os.environ[options.key_env].encode()))
    return Target("gateway", Origin.parse(options.url), options.pid, options.model, headers)


@contextmanager
def _relays(names: list[str], options: argparse.Namespace) -> Iterator[list[Target]]:
    """The bare relays of these names, before an upstream of their own."""
    with ExitStack() as stack:
        targets = []
        if names:
            pace = (0, options.tokens, options.tick_ms / 1000)
            _, upstream = stack.enter_context(_child(_serve_upstream, *pace))
        for name in names:
            relay = _child(_serve_relay, name, f"http://127.0.0.1:{upstream}")
            pid, port = stack.enter_context(relay)
            targets.append(Target(name, Origin("http", "127.0.0.1", port, "/v1"), pid, "fake"))
        yield targets


def _benchmark(options: argparse.Namespace) -> dict[str, Any]:
    load = Load(
        options.rounds, options.requests, options.concurrency, options.streams, options.tokens
    )
    gateway = [_gateway(options)] if options.url else []
    names = [name for name in RELAYS if options.only in (None, name)]
    with _relays(names, options) as relays:
        targets = [*relays, *(gateway if options.only in (None, "gateway") else ())]
        uvloop.run(_measure(targets, load))
    rows = [_row(target, load.tokens) for target in targets]
    return {"benchmark": "relay", "python": sys.version.split()[0], "targets": rows}


def main(argv: list[str]) -> int:
    """Exit status: 0 measured, 1 an answer was wrong or something was not there, 2 wrong use."""
    parser = _parser()
    options = parser.parse_args(argv)
    if (options.url is None) != (options.pid is None):
        parser.error("--url and --pid are needed together")
    if options.only == "gateway" and options.url is None:
        parser.error("--only gateway needs --url and --pid")
    if options.key_env and options.key_env not in os.environ:
        parser.error(f"--key-env {options.key_env}: there is no such environment variable")
    if options.serve_upstream is not None:
        _serve_upstream(None, options.serve_upstream, options.tokens, options.tick_ms / 1000)
        return 0
    try:
        result = _benchmark(options)
    except (OSError, ConfigError) as error:
        print(f"relay: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    print(json.dumps(result) if options.json else _table(result["targets"]))
    return 1 if any(row["errors"] for row in result["targets"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
