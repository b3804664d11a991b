"""The HTTP client against scripted servers on loopback, under asyncio's loop and uvloop."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.errors import (
    BadCall,
    BrokenStream,
    ConfigError,
    Refused,
    Rejected,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.router.connection import HIGH_WATER_BYTES, Connection
from tierway.router.transport import Origin, Response, Transport

Run = Callable[[Callable[[], Awaitable[None]]], None]
Script = Callable[["Peer", bytes], None]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer(asyncio.Protocol):
    """The server's end of one connection; hands each whole request to the script."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream, self._data = upstream, b""
        self.lost = asyncio.Event()
        self.stuck = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._upstream.peers.append(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            if line.startswith(b"content-length: "):
                length = int(line[16:])
        if found and len(rest) >= length:
            request, self._data = self._data, b""
            self._upstream.requests.append(request)
            self._upstream.script(self, request)

    def pause_writing(self) -> None:
        self.stuck.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def write(self, data: bytes, *, end: bool = False) -> None:
        self.transport.write(data)
        if end:
            self.transport.close()


class Upstream:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.requests: list[bytes] = []
        self.origin = Origin("http", "127.0.0.1", 0)


@asynccontextmanager
async def upstream(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    up = Upstream(script)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Peer(up), "127.0.0.1", 0, ssl=tls)
    up.origin = Origin("https" if tls else "http", "127.0.0.1", _port(server))
    try:
        yield up
    finally:
        server.close()
        for peer in up.peers:
            peer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Transport]:
    transport = Transport(**{"connect_timeout_s": 5.0, **options})
    try:
        yield transport
    finally:
        await transport.aclose()


def _port(server: asyncio.AbstractServer) -> int:
    return int(server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]  # Server has it


def says(answer: bytes, *, end: bool = False) -> Script:
    return lambda peer, request: peer.write(answer, end=end)


def silent(peer: Peer, request: bytes) -> None:
    """Takes the request and says nothing."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def get(transport: Transport, up: Upstream, **over: Any) -> Response:
    ask = {"method": b"GET", "path": b"/x", "headers": (), "body": b"", **over}
    return await transport.request(up.origin, **ask)


async def fetch(transport: Transport, up: Upstream, **over: Any) -> tuple[int, bytes]:
    response = await get(transport, up, **over)
    try:
        return response.status, await response.read_all(1 << 20)
    finally:
        await response.aclose()


async def soon(true: Callable[[], object]) -> None:
    """Lets the loop run until `true`, five seconds at most."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  # what it waits for has no event
            await asyncio.sleep(0.001)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await main()

        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(bounded())

    return runner


class WarpLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be set forward, and which counts the timers it is given."""

    warped_s = 0.0
    timers = 0

    def time(self) -> float:
        return super().time() + self.warped_s

    def call_at(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **kwargs)


def warp(main: Callable[[WarpLoop], Awaitable[None]]) -> None:
    loop = WarpLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def bounded() -> None:
            await main(loop)

        runner.run(bounded())


# Requests.


def test_a_request_goes_out_with_host_and_length_and_nothing_else(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            based = Origin("http", up.origin.host, up.origin.port, "/base")
            headers = ((b"x-a", b"1"), (b"x-b", b""))
            response = await transport.request(based, b"POST", b"/v1/c?q=1", headers, b"{}")
            assert await response.read_all(10) == b"ok"
            await response.aclose()
            assert up.requests == [
                b"POST /base/v1/c?q=1 HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nx-a: 1\r\nx-b: \r\n"
                b"content-length: 2\r\n\r\n{}" % up.origin.port
            ]

    run(main)


def test_length_is_sent_for_an_empty_post_but_not_for_get(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            await fetch(transport, up)
            await fetch(transport, up, method=b"POST")
            assert b"content-length" not in up.requests[0]
            assert b"content-length: 0\r\n" in up.requests[1]

    run(main)


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"headers": ((b"x-a", b"1\r\nx-b: 2"),)}, "'x-a'"),
        ({"headers": ((b"x-a", b"1\n"),)}, "'x-a'"),
        ({"headers": ((b"x-a", b"1\0"),)}, "'x-a'"),
        ({"headers": ((b"x\r\ny", b"1"),)}, "line break"),
        ({"headers": ((b"Host", b"a"),)}, "'Host'"),
        ({"headers": ((b"transfer-encoding", b"chunked"),)}, "'transfer-encoding'"),
        ({"path": b"/a\r\nb"}, "line break"),
        ({"path": b"/a b"}, "space"),
    ],
)
def test_a_head_that_would_smuggle_is_refused_before_a_byte_is_sent(
    over: dict[str, Any], word: str
) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            with pytest.raises(BadCall, match=word):
                await get(transport, up, **over)
            assert up.peers == []

    asyncio.run(main())


# Answers.


@pytest.mark.parametrize(
    ("answer", "end", "status", "body"),
    [
        (OK, False, 200, b"ok"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", False, 404, b""),
        (b"HTTP/1.1 204 No\r\n\r\n", False, 204, b""),
        (CHUNKED + chunk(b"one") + chunk(b"two") + b"0\r\n\r\n", False, 200, b"onetwo"),
        (CHUNKED + chunk(b"a") + b"0\r\nx-sum: 1\r\n\r\n", False, 200, b"a"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, 200, b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", True, 200, b"old"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hi\r\nlink: x\r\n\r\n" + OK,
            False,
            200,
            b"ok",
        ),
    ],
)
def test_bodies_of_every_framing_are_read_whole(
    run: Run, answer: bytes, end: bool, status: int, body: bytes
) -> None:
    async def main() -> None:
        async with upstream(says(answer, end=end)) as up, client() as transport:
            assert await fetch(transport, up) == (status, body)

    run(main)


def test_header_names_are_lower_case_and_interim_headers_are_gone(run: Run) -> None:
    async def main() -> None:
        interim = b"HTTP/1.1 103 Hi\r\nLink: x\r\n\r\n"
        answer = interim + b"HTTP/1.1 200 OK\r\nX-A: B\r\nContent-Length: 0\r\n\r\n"
        async with upstream(says(answer)) as up, client() as transport:
            response = await get(transport, up)
            assert response.headers == ((b"x-a", b"B"), (b"content-length", b"0"))
            await response.aclose()

    run(main)


def test_an_answer_to_head_has_no_body(run: Run) -> None:
    async def main() -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n"
        async with upstream(says(answer)) as up, client() as transport:
            assert await fetch(transport, up, method=b"HEAD") == (200, b"")

    run(main)


def test_chunks_that_came_together_are_one_read_and_later_ones_another(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED + chunk(b"a") + chunk(b"b"))) as up, client() as transport:
            response = await get(transport, up)
            assert await response.read() == b"ab"
            reading = asyncio.ensure_future(response.read())
            up.peers[0].write(chunk(b"c"))
            assert await reading == b"c"
            up.peers[0].write(b"0\r\n\r\n")
            assert await response.read() == b""
            assert await response.read() == b""
            await response.aclose()
            assert await response.read() == b""

    run(main)


@settings(deadline=None)  # a busy machine is not a fault
@given(
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=20),
)
def test_the_body_does_not_depend_on_how_the_bytes_are_cut(
    parts: list[bytes], cuts: list[int]
) -> None:
    answer = CHUNKED + b"".join(map(chunk, parts)) + b"0\r\n\r\n"

    async def main() -> None:
        wire = _Wire()
        response, sent = asyncio.ensure_future(wire.connection.exchange(b"", bodiless=False)), 0
        await asyncio.sleep(0)
        for cut in cuts * len(answer):
            if sent >= len(answer):
                break
            wire.connection.data_received(answer[sent : sent + cut])
            sent += cut
        assert await (await response).read_all(1 << 20) == b"".join(parts)

    asyncio.run(main())


class _Wire(asyncio.Transport):
    """A socket that goes nowhere, for driving a Connection byte by byte."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection(
            asyncio.get_running_loop(), on_rest=lambda _: None, on_gone=lambda _: None
        )
        self.connection.connection_made(self)

    def write(self, data: Any) -> None:
        """Swallows what the client sends."""

    def is_closing(self) -> bool:
        return False


# Faults of the upstream.


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        CHUNKED + chunk(b"short"),
        CHUNKED + b"5\r\nshort",
    ],
)
def test_a_cut_body_gives_its_bytes_then_breaks(run: Run, answer: bytes) -> None:
    async def main() -> None:
        async with upstream(says(answer, end=True)) as up, client() as transport:
            response = await get(transport, up)
            assert await response.read() == b"short"
            for _ in range(2):
                with pytest.raises(BrokenStream):
                    await response.read()
            await response.aclose()

    run(main)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "too long"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "middle"),
    ],
)
def test_a_head_that_makes_no_sense_breaks(run: Run, answer: bytes, word: str) -> None:
    async def main() -> None:
        async with upstream(says(answer, end=True)) as up, client() as transport:
            with pytest.raises(BrokenStream, match=word):
                await fetch(transport, up)

    run(main)


def test_malformed_chunks_break_after_what_was_good_and_keep_the_cause(run: Run) -> None:
    async def main() -> None:
        async with (
            upstream(says(CHUNKED + chunk(b"good") + b"zz\r\n")) as up,
            client() as transport,
        ):
            response = await get(transport, up)
            assert await response.read() == b"good"
            with pytest.raises(BrokenStream) as caught:
                await response.read()
            assert caught.value.__cause__ is not None
            await up.peers[0].lost.wait()

    run(main)


def test_an_upstream_that_closes_before_a_byte_is_refused_after_one_try(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(b"", end=True)) as up, client() as transport:
            with pytest.raises(Refused):
                await fetch(transport, up)
            assert len(up.requests) == 1

    run(main)


def test_nobody_listening_and_unknown_hosts_are_refused_with_their_cause(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            closed = Origin("http", "127.0.0.1", bound.getsockname()[1])
            for origin in (closed, Origin("http", "a" * 64 + ".invalid", 80)):
                async with client() as transport:
                    with pytest.raises(Refused) as caught:
                        await transport.request(origin, b"GET", b"/", (), b"")
                    assert isinstance(caught.value.__cause__, OSError | UnicodeError)

    run(main)


def test_a_handshake_that_never_ends_is_a_connect_timeout(run: Run) -> None:
    async def main() -> None:
        async with upstream(silent) as up, client(connect_timeout_s=0.2) as transport:
            origin = Origin("https", "127.0.0.1", up.origin.port)
            with pytest.raises(UpstreamTimeout, match="connect_timeout_s") as caught:
                await transport.request(origin, b"GET", b"/", (), b"")
            assert caught.value.which == "connect"
            await up.peers[0].lost.wait()

    run(main)


# The pool.


def test_connections_are_kept_and_the_last_one_used_goes_first(run: Run) -> None:
    served: list[Peer] = []

    def script(peer: Peer, request: bytes) -> None:
        served.append(peer)
        peer.write(OK)

    async def main() -> None:
        async with upstream(script) as up, client() as transport:
            first, second = await get(transport, up), await get(transport, up)
            await second.aclose()
            await first.aclose()
            for _ in range(3):
                await fetch(transport, up)
            assert served == [up.peers[0], up.peers[1], *[up.peers[0]] * 3]

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + OK,
    ],
)
def test_a_connection_that_cannot_be_kept_is_closed(run: Run, answer: bytes) -> None:
    async def main() -> None:
        async with upstream(says(answer)) as up, client() as transport:
            for _ in range(2):
                assert await fetch(transport, up) == (200, b"ok")
            await up.peers[0].lost.wait()
            assert len(up.peers) == 2

    run(main)


def test_a_kept_connection_that_closes_unanswered_is_replaced_once(run: Run) -> None:
    def script(peer: Peer, request: bytes) -> None:
        first_on_it = peer is not peers[0] or len(requests) == 1
        peer.write(OK if first_on_it else b"", end=not first_on_it)

    peers: list[Peer] = []
    requests: list[bytes] = []

    async def main() -> None:
        async with upstream(script) as up, client() as transport:
            up.peers, up.requests = peers, requests
            for _ in range(2):
                assert await fetch(transport, up, method=b"POST", body=b"x") == (200, b"ok")
            assert (len(peers), len(requests)) == (2, 3)
            up.script = says(b"", end=True)
            with pytest.raises(Refused):
                await fetch(transport, up)
            assert (len(peers), len(requests)) == (3, 5)

    run(main)


def test_a_kept_connection_that_broke_midway_is_not_repeated(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            await fetch(transport, up)
            up.script = says(b"HTTP/1.1 2", end=True)
            with pytest.raises(BrokenStream):
                await fetch(transport, up)
            assert len(up.requests) == 2

    run(main)


def test_an_idle_connection_goes_when_the_server_closes_or_talks(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            for leave in (Peer.write, Peer.write):
                await fetch(transport, up)
                leave(up.peers[-1], b"HTTP/1.1 408 Late\r\n\r\n", end=len(up.peers) == 1)
                await up.peers[-1].lost.wait()
            await fetch(transport, up)
            assert (len(up.peers), len(up.requests)) == (3, 3)

    run(main)


def test_idle_connections_close_after_keepalive_oldest_first() -> None:
    async def main(loop: WarpLoop) -> None:
        async with upstream(says(OK)) as up, client(keepalive_s=10) as transport:
            old, young = await get(transport, up), await get(transport, up)
            await old.aclose()
            loop.warped_s += 6
            await young.aclose()
            loop.warped_s += 5
            await up.peers[0].lost.wait()
            assert not up.peers[1].lost.is_set()
            loop.warped_s += 6
            await up.peers[1].lost.wait()

    warp(main)


def test_no_more_connections_than_allowed_are_opened(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client(max_connections=2) as transport:
            busy = [await get(transport, up) for _ in range(2)]
            with pytest.raises(Rejected, match="503"):
                await get(transport, up)
            await busy[0].aclose()
            assert await fetch(transport, up) == (200, b"ok")
            await busy[1].aclose()
            assert len(up.peers) == 2

    run(main)


# Leaving early.


def test_closing_an_unread_body_closes_the_connection_at_once(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED + chunk(b"a"))) as up, client() as transport:
            response = await get(transport, up)
            assert await response.read() == b"a"
            await response.aclose()
            await response.aclose()
            await up.peers[0].lost.wait()
            with pytest.raises(BrokenStream):
                await response.read()

    run(main)


def test_a_body_that_has_arrived_but_was_not_read_keeps_the_connection(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            for _ in range(3):
                await (await get(transport, up)).aclose()
            assert len(up.peers) == 1

    run(main)


def test_cancelling_a_request_frees_its_connection(run: Run) -> None:
    async def main() -> None:
        async with upstream(silent) as up, client(max_connections=1) as transport:
            for scheme in ("http", "https", "http"):  # waiting for the head, in the handshake
                origin, seen = Origin(scheme, "127.0.0.1", up.origin.port), len(up.peers)
                asking = asyncio.ensure_future(transport.request(origin, b"GET", b"/", (), b""))
                await soon(lambda seen=seen: len(up.peers) > seen)  # type: ignore[misc]  # bound
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                await up.peers[-1].lost.wait()
            up.script = says(OK)
            assert await fetch(transport, up) == (200, b"ok")

    run(main)


@pytest.mark.parametrize("steps", range(8))
def test_a_request_cancelled_after_any_number_of_steps_leaks_nothing(run: Run, steps: int) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED)) as up, client(max_connections=1) as transport:
            asking = asyncio.ensure_future(get(transport, up))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            results = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(results[0], Response):
                await results[0].aclose()
            await soon(lambda: all(peer.lost.is_set() for peer in up.peers))
            up.script = says(OK)
            assert await fetch(transport, up) == (200, b"ok")

    run(main)


def test_a_cancelled_read_loses_nothing(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED)) as up, client() as transport:
            response = await get(transport, up)
            for late in (False, True):
                reading = asyncio.ensure_future(response.read())
                await asyncio.sleep(0)
                if late:
                    up.peers[0].write(chunk(b"kept"))
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            assert await response.read() == b"kept"
            await response.aclose()

    run(main)


def test_only_one_task_reads_at_a_time_and_closing_wakes_it(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED)) as up, client() as transport:
            response = await get(transport, up)
            reading = asyncio.ensure_future(response.read())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await response.read()
            await response.aclose()
            with pytest.raises(BrokenStream):
                await reading

    run(main)


def test_closing_the_transport_ends_streams_and_refuses_requests(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(CHUNKED)) as up, client() as transport:
            response = await get(transport, up)
            await transport.aclose()
            with pytest.raises(BrokenStream):
                await response.read()
            await response.aclose()
            with pytest.raises(Refused, match="closed"):
                await get(transport, up)

    run(main)


def test_closing_the_transport_ends_requests_that_wait(run: Run) -> None:
    async def main() -> None:
        async with upstream(silent) as up, client() as transport:
            asking = asyncio.ensure_future(get(transport, up))
            await soon(lambda: up.requests)
            await transport.aclose()
            with pytest.raises(UpstreamError):
                await asking
            assert len(up.peers) == 1

    run(main)


def test_read_all_stops_at_its_limit(run: Run) -> None:
    async def main() -> None:
        async with upstream(says(OK)) as up, client() as transport:
            response = await get(transport, up)
            with pytest.raises(BrokenStream, match="longer than 1 bytes"):
                await response.read_all(1)
            await response.aclose()

    run(main)


# Slow upstreams, slow readers.


def test_the_idle_timer_counts_from_the_last_byte_and_is_set_rarely() -> None:
    async def main(loop: WarpLoop) -> None:
        async with upstream(says(CHUNKED)) as up, client() as transport:
            response = await get(transport, up)
            response.idle_timeout_s = 10.0
            before = loop.timers
            for _ in range(50):
                loop.warped_s += 0.1
                up.peers[0].write(chunk(b"x"))
                assert await response.read() == b"x"
            assert loop.timers == before
            loop.warped_s += 6  # 11 s since it was set, 6 s since the last byte
            up.peers[0].write(chunk(b"y"))
            assert await response.read() == b"y"
            assert loop.timers <= before + 1
            loop.warped_s += 11
            with pytest.raises(UpstreamTimeout, match="idle_timeout_s = 10") as caught:
                await response.read()
            assert caught.value.which == "idle"
            await up.peers[0].lost.wait()

    warp(main)


def test_no_idle_timer_is_set_for_an_answer_that_has_arrived() -> None:
    async def main(loop: WarpLoop) -> None:
        async with upstream(says(OK)) as up, client() as transport:
            response = await get(transport, up)
            before = loop.timers
            response.idle_timeout_s = 10.0
            assert (response.idle_timeout_s, loop.timers) == (10.0, before)
            await response.aclose()

    warp(main)


def test_a_reader_that_waits_holds_the_upstream_back_and_is_not_idle() -> None:
    total = 24 << 20

    async def main(loop: WarpLoop) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total
        async with upstream(says(answer + bytes(total))) as up, client() as transport:
            response = await get(transport, up)
            response.idle_timeout_s = 10.0
            await up.peers[0].stuck.wait()
            for _ in range(3):
                loop.warped_s += 11
                for _ in range(20):
                    await asyncio.sleep(0)
            assert up.peers[0].transport.get_write_buffer_size() > 0
            first = await response.read()
            assert HIGH_WATER_BYTES <= len(first) <= 4 * HIGH_WATER_BYTES
            assert len(first) + len(await response.read_all(total)) == total
            await response.aclose()
            up.script = says(OK)
            assert await fetch(transport, up) == (200, b"ok")
            assert len(up.peers) == 1

    warp(main)


def test_a_long_answer_passes_whole_under_both_loops(run: Run) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 4096
        answer = CHUNKED + chunk(body) * 4 + b"0\r\n\r\n"
        async with upstream(says(answer)) as up, client() as transport:
            response = await get(transport, up)
            assert await response.read_all(len(body) * 4) == body * 4
            await response.aclose()

    run(main)


# TLS and addresses.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificate of this test")
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(pem), "-out", str(pem.with_suffix(".crt"))]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return pem


def test_https_is_spoken_with_servers_whose_certificate_is_trusted(
    run: Run, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.with_suffix(".crt"), certificate)

    async def main() -> None:
        async with upstream(says(OK), tls) as up:
            async with client() as transport:
                with pytest.raises(Refused) as caught:
                    await fetch(transport, up)
                assert isinstance(caught.value.__cause__, ssl.SSLError)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
            async with client() as transport:
                for _ in range(2):
                    assert await fetch(transport, up, method=b"POST", body=b"x") == (200, b"ok")
            assert len(up.requests) == 2
            await soon(lambda: all(peer.lost.is_set() for peer in up.peers))
        monkeypatch.delenv("SSL_CERT_FILE")

    run(main)


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://h:8000", Origin("http", "h", 8000), "h:8000"),
        ("http://h", Origin("http", "h", 80), "h"),
        ("HTTPS://H/v/", Origin("https", "h", 443, "/v"), "h"),
        ("http://[::1]:80/a/b", Origin("http", "::1", 80, "/a/b"), "[::1]"),
        ("https://h:80", Origin("https", "h", 80), "h:80"),
    ],
)
def test_origins_are_read_from_urls(url: str, origin: Origin, authority: str) -> None:
    assert Origin.parse(url) == origin
    assert origin.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:8000",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:99999",
        "http://h/?a=1",
        "http://h/a b",
    ],
)
def test_a_wrong_url_is_named_in_the_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Origin.parse(url)
    assert repr(url) in caught.value.faults[0]


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Origin.parse("http://me:hunter2@h:8000")
    assert "hunter2" not in str(caught.value)
    assert "'h'" in str(caught.value)
