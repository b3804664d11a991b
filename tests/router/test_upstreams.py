"""One OpenAI-wire server as an Upstream, over real sockets with scripted answers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fakes import chunk, completion, event, make_call, stream_of, until

from tierway.policies.errors import (
    BrokenStream,
    ConfigError,
    Refused,
    Rejected,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.policies.protocols import Answer
from tierway.policies.types import Call, Model, Source
from tierway.router.facts import LoadReport
from tierway.router.transport import Transport
from tierway.router.upstreams import HttpUpstream, Timeouts, api_origin, root_url

SOURCE = Source("small", "m", "m@a:1")
MODEL = Model("m", "small", served_name="served")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
Script = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request as the server sees it, and the pen for its answer."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = head.decode().split("\r\n")
        self.line = lines[0]
        self.headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        self.body = orjson.loads(body)
        self.writer = writer

    async def whole(self, body: bytes, *, status: int = 200, headers: str = "") -> None:
        kind = "" if "content-type" in headers else "content-type: application/json\r\n"
        head = f"HTTP/1.1 {status} x\r\n{kind}{headers}content-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def events(self, *chunks: bytes, end: bool = True) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for data in chunks:
            await self.piece(data)
        if end:
            await self.piece(b"")

    async def piece(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


class Server:
    """A server with one script for all requests; `gone` is set when a client has left."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.gone = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                exchange = Exchange(head, await reader.readexactly(length), writer)
                self.exchanges.append(exchange)
                await self.script(exchange)
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()


@asynccontextmanager
async def server(script: Script) -> AsyncIterator[Server]:
    made = Server(script)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listening.close()


def run(
    script: Script,
    test: Callable[[HttpUpstream, Server], Coroutine[Any, Any, None]],
    *,
    timeouts: Timeouts = Timeouts(5, 5, 10),  # noqa: B008 - frozen
    model: Model = MODEL,
    **options: Any,
) -> None:
    async def main() -> None:
        transport = Transport(connect_timeout_s=2)
        async with server(script) as there:
            upstream = HttpUpstream(
                transport,
                api_origin(there.url),
                model,
                timeouts=timeouts,
                clock=time.monotonic,
                **options,
            )
            try:
                await asyncio.wait_for(test(upstream, there), 10)
            finally:
                await transport.aclose()

    asyncio.run(main())


def ask(*, seconds: float = 10, **fields: Any) -> Call:
    now = time.monotonic()
    return replace(make_call(**fields), arrived_s=now, deadline_s=now + seconds)


async def body_of(upstream: HttpUpstream, call: Call) -> bytes:
    answer = await upstream.open(call, SOURCE)
    body = await rest_of(answer)
    await answer.aclose()
    return body


async def rest_of(answer: Answer) -> bytes:
    chunks = []
    while data := await answer.read():
        chunks.append(data)
    return b"".join(chunks)


def streams(*chunks: bytes, end: bool = True) -> Script:
    return lambda exchange: exchange.events(*chunks, end=end)


def answers(body: bytes, **options: Any) -> Script:
    return lambda exchange: exchange.whole(body, **options)


def test_a_whole_answer_passes_as_it_came() -> None:
    body = orjson.dumps(completion(), option=orjson.OPT_INDENT_2)

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(), SOURCE)
        assert (answer.head.status, answer.head.wire, answer.head.stream) == (200, "chat", False)
        assert answer.head.headers == ((b"content-type", b"application/json"),)
        assert answer.source is SOURCE
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 2)
        assert [await answer.read(), await answer.read()] == [body, b""]
        await answer.aclose()
        await answer.aclose()

    run(answers(body), main)


def test_what_an_upstream_is_told() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        call = replace(ask(tierway={"tier": "small"}), traceparent=b"00-1-2-03")
        await body_of(upstream, call)
        (exchange,) = there.exchanges
        assert exchange.line == "POST /v1/chat/completions HTTP/1.1"
        wanted = {
            "content-type": "application/json",
            "accept": "application/json",
            "authorization": "Bearer a key",
            "x-request-id": "req_test",
            "traceparent": "00-1-2-03",
            "user-agent": "tierway",
        }
        assert wanted.items() <= exchange.headers.items()
        assert exchange.body["model"] == "served"
        assert "tierway" not in exchange.body

    run(answers(orjson.dumps(completion())), main, api_key="a key")


def test_no_key_no_trace_no_header() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        await body_of(upstream, ask(stream=True))
        headers = there.exchanges[0].headers
        assert headers["accept"] == "text/event-stream"
        assert not {"authorization", "traceparent"} & headers.keys()

    run(streams(*stream_of("Hi")), main)


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        ("chat", "/v1/chat/completions"),
        ("messages", "/v1/chat/completions"),
        ("completions", "/v1/completions"),
        ("embeddings", "/v1/embeddings"),
    ],
)
def test_the_path_follows_the_wire(wire: Any, path: str) -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(replace(ask(), wire=wire), SOURCE)
        assert there.exchanges[0].line.split(" ")[1] == path
        assert answer.head.wire == ("chat" if wire == "messages" else wire)

    run(answers(orjson.dumps(completion())), main)


def test_a_stream_passes_event_by_event_with_the_usage_kept_back() -> None:
    events = stream_of("Pa", "ris.")
    sent = [*events[:-1], USAGE, events[-1]]

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert answer.head.stream
        assert answer.head.headers == ((b"content-type", b"text/event-stream"),)
        assert answer.usage is None
        assert await rest_of(answer) == b"".join(events)
        assert answer.usage is not None
        assert answer.usage.output_tokens == 2
        assert await answer.read() == b""
        await answer.aclose()

    run(streams(*sent), main)


def test_a_client_that_asked_for_the_usage_chunk_gets_it() -> None:
    events = stream_of("Paris.")
    sent = [*events[:-1], USAGE, events[-1]]

    async def main(upstream: HttpUpstream, there: Server) -> None:
        call = ask(stream=True, stream_options={"include_usage": True})
        assert await body_of(upstream, call) == b"".join(sent)

    run(streams(*sent), main)


def test_the_connection_of_an_answer_read_to_its_end_is_used_again() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        for _ in range(3):
            await body_of(upstream, ask(stream=True))
        assert (len(there.exchanges), there.connections) == (3, 1)

    run(streams(*stream_of("Hi")), main)


def test_closing_a_stream_midway_closes_the_upstream() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.events(*stream_of("Hi")[:2], end=False)

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert await answer.read()
        await answer.aclose()
        await answer.aclose()
        await asyncio.wait_for(there.gone.wait(), 5)

    run(script, main)


def test_cancelling_open_closes_the_upstream() -> None:
    async def silent(exchange: Exchange) -> None:
        pass

    async def main(upstream: HttpUpstream, there: Server) -> None:
        opening = asyncio.create_task(upstream.open(ask(), SOURCE))
        await until(lambda: bool(there.exchanges), rounds=100_000)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(there.gone.wait(), 5)

    run(silent, main)


def test_a_cancelled_read_loses_nothing() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        first, second, *rest = stream_of("Pa", "ris.")
        await exchange.events(first, second, end=False)
        await gate.wait()
        for data in [*rest, b""]:
            await exchange.piece(data)

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        body = await answer.read()
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        gate.set()
        body += await rest_of(answer)
        assert body == b"".join(stream_of("Pa", "ris."))
        await answer.aclose()

    run(script, main)


def test_the_role_chunk_is_no_first_token() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        role, *rest = stream_of("Hi")
        await exchange.events(role, end=False)
        await gate.wait()
        for data in [*rest, b""]:
            await exchange.piece(data)

    async def main(upstream: HttpUpstream, there: Server) -> None:
        opening = asyncio.create_task(upstream.open(ask(stream=True), SOURCE))
        await until(lambda: bool(there.exchanges), rounds=100_000)
        assert not opening.done()
        gate.set()
        answer = await opening
        assert b"Hi" in await answer.read()
        await answer.aclose()

    run(script, main)


@pytest.mark.parametrize(
    ("status", "retryable", "overload"),
    [
        (400, False, False),
        (404, False, False),
        (302, False, False),
        (429, True, True),
        (500, True, False),
        (503, True, True),
    ],
)
def test_an_error_status_comes_with_its_body(status: int, retryable: bool, overload: bool) -> None:
    body = b'{"error": {"message": "no", "type": "t"}}'

    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(Rejected) as caught:
            await upstream.open(ask(), SOURCE)
        error = caught.value
        assert (error.status, error.body, error.replica) == (status, body, "m@a:1")
        assert (error.retryable, error.overload, error.retry_after_s) == (retryable, overload, 7)

    run(answers(body, status=status, headers="retry-after: 7\r\n"), main)


@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_word_about_our_own_key_is_not_the_clients(status: int) -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(UpstreamError) as caught:
            await upstream.open(ask(), SOURCE)
        assert not isinstance(caught.value, Rejected)
        assert (caught.value.status, caught.value.retryable) == (502, True)
        assert "sk-secret" not in caught.value.public

    run(answers(b'{"error": "bad key sk-secret"}', status=status), main, api_key="sk-secret")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"message": "too long", "code": 400}}, 400),
        ({"error": {"message": "broken", "code": "internal"}}, 500),
        ({"error": "broken"}, 500),
        ({"object": "error", "message": "too long", "code": 400}, 400),
    ],
)
def test_an_error_with_status_200_is_an_error(body: dict[str, Any], status: int) -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(Rejected) as caught:
            await upstream.open(ask(), SOURCE)
        assert caught.value.status == status

    run(answers(orjson.dumps(body)), main)


@pytest.mark.parametrize(
    "script",
    [answers(b"<html>"), answers(b""), streams(), streams(b": only a comment\n\n")],
    ids=["html", "empty", "no events", "comments"],
)
def test_an_answer_without_sense_may_be_tried_elsewhere(script: Script) -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(BrokenStream) as caught:
            await upstream.open(ask(stream=True), SOURCE)
        assert caught.value.retryable

    run(script, main)


def test_a_stream_of_nothing_is_given_up() -> None:
    comment = b": " + b"x" * (256 << 10) + b"\n\n"

    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(BrokenStream, match="no content"):
            await upstream.open(ask(stream=True), SOURCE)

    run(streams(*[comment] * 6, end=False), main)


def test_an_error_event_before_the_first_token_is_a_rejection() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(Rejected) as caught:
            await upstream.open(ask(stream=True), SOURCE)
        assert caught.value.status == 503

    run(streams(chunk(role="assistant"), event({"error": {"message": "m", "code": 503}})), main)


def test_an_error_event_after_it_breaks_the_stream_off() -> None:
    sent = [*stream_of("Pa")[:2], event({"error": {"message": "out of memory"}})]

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert b"Pa" in await answer.read()
        for _ in range(2):
            with pytest.raises(BrokenStream, match="out of memory"):
                await answer.read()
        await answer.aclose()

    run(streams(*sent, b"data: [DONE]\n\n"), main)


@pytest.mark.parametrize("end", [True, False], ids=["no done", "cut"])
def test_a_stream_that_ends_without_done_is_broken(end: bool) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.events(*stream_of("Pa", "ris.")[:-1], end=end)
        exchange.writer.close()

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        with pytest.raises(BrokenStream):
            await rest_of(answer)
        await answer.aclose()

    run(script, main)


def test_a_last_event_may_lack_its_blank_line() -> None:
    events = stream_of("Paris.")
    sent = [*events[:-1], b"data: [DONE]"]

    async def main(upstream: HttpUpstream, there: Server) -> None:
        assert await body_of(upstream, ask(stream=True)) == b"".join(sent)

    run(streams(*sent), main)


def test_json_in_place_of_a_stream_is_a_whole_answer() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert not answer.head.stream
        assert orjson.loads(await answer.read()) == completion()

    run(answers(orjson.dumps(completion())), main)


def test_an_answer_longer_than_the_limit_is_refused() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(BrokenStream, match="longer than 100 bytes"):
            await upstream.open(ask(), SOURCE)

    run(answers(orjson.dumps(completion("x" * 200))), main, max_body_bytes=100)


async def hang(exchange: Exchange) -> None:
    await exchange.events(stream_of("Hi")[0], end=False)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("seconds", "stream", "which"),
    [(10, True, "first_token"), (0.05, True, "total"), (0.05, False, "total"), (0, True, "total")],
)
def test_the_timeout_that_ran_out_is_named(seconds: float, stream: bool, which: str) -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(UpstreamTimeout) as caught:
            await upstream.open(ask(stream=stream, seconds=seconds), SOURCE)
        assert (caught.value.which, caught.value.replica) == (which, "m@a:1")
        assert caught.value.retryable is (which != "total")
        assert bool(there.exchanges) is (seconds > 0)

    run(hang, main, timeouts=Timeouts(0.1, 5, 10))


def test_a_silence_after_the_first_token_is_an_idle_timeout() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.events(*stream_of("Hi")[:2], end=False)
        await asyncio.Event().wait()

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert await answer.read()
        with pytest.raises(UpstreamTimeout) as caught:
            await answer.read()
        assert caught.value.which == "idle"
        await answer.aclose()

    run(script, main, timeouts=Timeouts(5, 0.05, 10))


def test_a_stream_that_never_rests_ends_at_the_calls_deadline() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.events(*stream_of("Hi")[:2], end=False)
        while True:
            await exchange.piece(chunk("x"))
            await asyncio.sleep(0.005)

    async def main(upstream: HttpUpstream, there: Server) -> None:
        answer = await upstream.open(ask(stream=True, seconds=0.1), SOURCE)
        with pytest.raises(UpstreamTimeout) as caught:
            await rest_of(answer)
        assert caught.value.which == "total"
        await answer.aclose()
        await asyncio.wait_for(there.gone.wait(), 5)

    run(script, main)


def test_nobody_there_is_refused() -> None:
    async def main() -> None:
        transport = Transport(connect_timeout_s=2)
        with socket.socket() as taken:  # and nobody listens
            taken.bind(("127.0.0.1", 0))
            origin = api_origin(f"http://127.0.0.1:{taken.getsockname()[1]}")
            upstream = HttpUpstream(
                transport, origin, MODEL, timeouts=Timeouts(), clock=time.monotonic
            )
            with pytest.raises(Refused):
                await upstream.open(ask(), SOURCE)
        await upstream.aclose()
        await transport.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://h:8000", "/v1", "http://h:8000"),
        ("http://h:8000/", "/v1", "http://h:8000"),
        ("http://h:8000/v1", "/v1", "http://h:8000"),
        ("http://h/api/paas/v4/", "/api/paas/v4", "http://h/api/paas"),
        ("http://h/v1beta", "/v1beta", "http://h"),
        ("http://h/pool", "/pool/v1", "http://h/pool"),
        ("http://h/vision", "/vision/v1", "http://h/vision"),
    ],
)
def test_where_the_api_and_the_probes_of_an_address_lie(url: str, api: str, root: str) -> None:
    assert api_origin(url).base_path == api
    assert root_url(url) == root


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="ftp://h"):
        api_origin("ftp://h")


LOAD = "endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=4\r\n"


def test_an_engine_that_reports_its_load_is_asked_to_and_heard() -> None:
    heard: list[LoadReport] = []

    async def main(upstream: HttpUpstream, there: Server) -> None:
        await body_of(upstream, ask())
        asked = there.exchanges[0].headers
        assert asked["endpoint-load-metrics-format"] == "TEXT"
        assert heard == [LoadReport(waiting=4)]

    run(answers(orjson.dumps(completion()), headers=LOAD), main, on_load=heard.append)


def test_also_the_head_of_a_refusal_tells_of_the_load() -> None:
    heard: list[LoadReport] = []

    async def main(upstream: HttpUpstream, there: Server) -> None:
        with pytest.raises(Rejected):
            await upstream.open(ask(), SOURCE)
        assert heard == [LoadReport(waiting=4)]

    run(answers(b"{}", status=503, headers=LOAD), main, on_load=heard.append)


def test_other_servers_are_not_asked_for_their_load() -> None:
    async def main(upstream: HttpUpstream, there: Server) -> None:
        await body_of(upstream, ask())
        assert "endpoint-load-metrics-format" not in there.exchanges[0].headers

    run(answers(orjson.dumps(completion()), headers=LOAD), main)
