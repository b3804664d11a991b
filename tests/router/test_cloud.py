"""The litellm upstream against a scripted OpenAI server on the loopback.

litellm takes seconds to import, so everything of it is in this one file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tierway.policies.errors import (
    BrokenStream,
    Refused,
    Rejected,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.policies.types import Ask, Call, Model, Source, Usage
from tierway.router.cloud import LitellmUpstream
from tierway.router.cloud_stream import CloudStream
from tierway.router.sse import payloads
from tierway.router.upstreams import Timeouts, WholeAnswer

# litellm ignores these itself when it is imported, but pytest resets the filters for each test.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ReadOnly. qualifier"),
    pytest.mark.filterwarnings("ignore:.*attribute on the instance is deprecated"),
]

SOURCE = Source("cloud", "gpt", "gpt")
MODEL = Model("gpt", "cloud", served_name="public-name", cloud=True)


class Exchange:
    """One request as the server got it, and the hands to answer it."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path = head.split(b" ", 2)[1].decode()
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        self.body: dict[str, Any] = orjson.loads(body)
        self.writer = writer
        self.left = asyncio.Event()

    def reply(self, status: int, document: Any, *headers: str) -> None:
        body = orjson.dumps(document)
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", *headers]
        lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def begin(self) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
        self.writer.write(head.encode() + b"\r\n\r\n")

    def event(self, document: Any) -> None:
        data = document if isinstance(document, bytes) else orjson.dumps(document)
        event = b"data: " + data + b"\n\n"
        self.writer.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end(self) -> None:
        self.event(b"[DONE]")
        self.writer.write(b"0\r\n\r\n")


Script = Callable[[Exchange], Awaitable[None] | None]


class Server:
    """Answers each request by the script; keeps all exchanges."""

    def __init__(self, script: Script) -> None:
        self.script, self.exchanges = script, list[Exchange]()
        self.tasks = set[asyncio.Task[Any] | None]()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        exchange = None
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                exchange = Exchange(head.strip(), await reader.readexactly(length), writer)
                self.exchanges.append(exchange)
                if (answering := self.script(exchange)) is not None:
                    await answering
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client or the test is done
        finally:
            if exchange is not None:
                exchange.left.set()
            writer.close()


@asynccontextmanager
async def cloud(script: Script, *, timeouts: Timeouts | None = None, **fields: Any) -> Any:
    """An upstream before a server with this script; gives (upstream, server)."""
    server = Server(script)
    listener = await asyncio.start_server(server._connected, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    upstream = LitellmUpstream(
        "openai/provider-name",
        dataclasses.replace(MODEL, **fields),
        timeouts=timeouts or Timeouts(),
        clock=time.monotonic,
        api_key="sk-ours",
        api_base=f"http://127.0.0.1:{port}/v1",
    )
    try:
        await upstream.warm()
        yield upstream, server
    finally:
        await upstream.aclose()
        listener.close()
        for task in server.tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, server.tasks), return_exceptions=True)


def call(wire: str = "chat", *, stream: bool = False, seconds: float = 60.0, **body: Any) -> Call:
    if wire in ("chat", "messages"):
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
    whole = {"model": "auto", **({"stream": True} if stream else {}), **body}
    return Call(
        id="req_1",
        wire=wire,  # type: ignore[arg-type]  # a literal, in short
        raw=orjson.dumps(whole),
        body=whole,
        ask=Ask((), "hi"),
        model="auto",
        stream=stream,
        deadline_s=time.monotonic() + seconds,
    )


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "inner"}
    return {**head, "choices": [choice], **fields}


ROLE = chunk({"role": "assistant", "content": ""})
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "inner",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris."},
            "finish_reason": "stop",
        }
    ],
    "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}},
}
ERROR = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate"}}


def streams(exchange: Exchange) -> None:
    """Two tokens, finish, usage."""
    exchange.begin()
    for document in (ROLE, chunk({"content": "Pa"}), chunk({"content": "ris"}), chunk({}, "stop")):
        exchange.event(document)
    exchange.event({**ROLE, "choices": [], "usage": USAGE})
    exchange.end()


def answers(exchange: Exchange) -> None:
    exchange.reply(200, COMPLETION)


async def read_all(answer: Any, parts: list[bytes] | None = None) -> list[bytes]:
    parts = [] if parts is None else parts
    while part := await answer.read():
        parts.append(part)
    return parts


def documents(parts: Sequence[bytes]) -> list[dict[str, Any]]:
    """The events before `[DONE]`, which must be the last."""
    found = [payload for part in parts for payload in payloads(part)]
    assert found[-1] == b"[DONE]"
    return [orjson.loads(payload) for payload in found[:-1]]


async def open_fails(upstream: LitellmUpstream, asked: Call) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await upstream.open(asked, SOURCE)
    assert caught.value.replica == "gpt"
    return caught.value


def test_a_whole_answer_carries_the_public_name_and_the_usage() -> None:
    async def main() -> None:
        async with cloud(answers) as (upstream, _):
            answer = await upstream.open(call(), SOURCE)
            assert isinstance(answer, WholeAnswer)
            document = orjson.loads(await answer.read())
            assert await answer.read() == b""
            await answer.aclose()
        assert (document["object"], document["model"]) == ("chat.completion", "public-name")
        assert document["choices"][0]["message"]["content"] == "Paris."
        assert answer.usage == Usage(7, 2, 3)
        assert (answer.head.status, answer.head.wire, answer.head.stream) == (200, "chat", False)
        assert answer.source is SOURCE

    asyncio.run(main())


def test_the_provider_gets_the_clients_fields_and_none_of_ours() -> None:
    asked = call(
        temperature=0.5,
        max_tokens=5,
        seed=None,
        metadata={"user_id": "u"},
        cache={"ttl": 1},
        tierway={"tier": "cloud"},
        stream_options={"include_usage": True},
    )
    asked = dataclasses.replace(asked, traceparent=b"00-1-2-01")
    forced = {
        "max_tokens": 9,
        "reasoning_effort": "low",
        "allowed_openai_params": ["reasoning_effort"],
    }

    async def main() -> None:
        async with cloud(answers, set=forced) as (upstream, server):
            await upstream.open(asked, SOURCE)
            (exchange,) = server.exchanges
        assert exchange.path == "/v1/chat/completions"
        assert exchange.body == {
            "model": "provider-name",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "max_tokens": 9,
            "reasoning_effort": "low",
        }
        assert exchange.headers[b"authorization"] == b"Bearer sk-ours"
        assert exchange.headers[b"traceparent"] == b"00-1-2-01"

    asyncio.run(main())


@pytest.mark.parametrize(
    "field",
    ["api_base", "base_url", "mock_response", "extra_headers", "aws_role_name", "fallbacks"],
)
def test_a_client_cannot_reach_the_settings_of_litellm(field: str) -> None:
    async def main() -> None:
        async with cloud(answers) as (upstream, server):
            error = await open_fails(upstream, call(**{field: "http://169.254.169.254"}))
            assert server.exchanges == []
        assert isinstance(error, Rejected)
        assert (error.status, error.retryable) == (400, False)
        told = orjson.loads(error.body)["error"]
        assert (told["param"], told["code"]) == (field, "unsupported_parameter")

    asyncio.run(main())


@pytest.mark.parametrize("shows_usage", [False, True])
def test_a_stream_is_openai_events_with_the_usage_only_when_asked(shows_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if shows_usage else {}

    async def main() -> None:
        async with cloud(streams) as (upstream, server):
            answer = await upstream.open(call(stream=True, **options), SOURCE)
            assert answer.head.headers == ((b"content-type", b"text/event-stream"),)
            assert answer.head.stream
            found = documents(await read_all(answer))
            assert await answer.read() == b""
            await answer.aclose()
            await answer.aclose()
            (exchange,) = server.exchanges
        assert exchange.body["stream_options"] == {"include_usage": True}
        assert {document["model"] for document in found} == {"public-name"}
        told = [document for document in found if "usage" in document]
        assert answer.usage == Usage(7, 2, 0)
        assert [d["choices"] for d in told] == ([[]] if shows_usage else [])
        spoken = [document["choices"][0] for document in found if document["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in spoken)
        assert text == "Paris"
        assert [choice["finish_reason"] for choice in spoken] == [None, None, None, "stop"]

    asyncio.run(main())


def test_tool_calls_stream_through() -> None:
    calls = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    ]
    more = [{"index": 0, "function": {"arguments": "{}"}}]

    def script(exchange: Exchange) -> None:
        exchange.begin()
        for document in (ROLE, chunk({"tool_calls": calls}), chunk({"tool_calls": more})):
            exchange.event(document)
        exchange.event(chunk({}, "tool_calls"))
        exchange.end()

    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

    async def main() -> None:
        async with cloud(script) as (upstream, server):
            answer = await upstream.open(call(stream=True, tools=tools), SOURCE)
            found = documents(await read_all(answer))
            await answer.aclose()
            assert server.exchanges[0].body["tools"] == tools
        pieces = [t for d in found for t in d["choices"][0]["delta"].get("tool_calls", ())]
        assert pieces[0]["id"] == "c1"
        assert pieces[0]["function"]["name"] == "f"
        assert "".join(piece["function"]["arguments"] for piece in pieces) == "{}"
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"

    asyncio.run(main())


def test_a_stream_opens_only_at_its_first_token() -> None:
    async def main() -> None:
        go = asyncio.Event()
        began = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(ROLE)
            began.set()
            await go.wait()
            exchange.event(chunk({"content": "x"}))
            exchange.event(chunk({}, "stop"))
            exchange.end()

        async with cloud(script) as (upstream, _):
            opening = asyncio.create_task(upstream.open(call(stream=True), SOURCE))
            await began.wait()
            assert not (await asyncio.wait({opening}, timeout=0.05))[0]
            go.set()
            answer = await opening
            assert b'"x"' in await answer.read()
            await answer.aclose()

    asyncio.run(main())


def test_completions_and_embeddings_take_their_own_functions() -> None:
    text = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "inner"}

    def script(exchange: Exchange) -> None:
        if exchange.path == "/v1/embeddings":
            row = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
            usage = {"prompt_tokens": 2, "total_tokens": 2}
            exchange.reply(200, {"object": "list", "data": [row], "model": "inner", "usage": usage})
        elif exchange.body.get("stream"):
            exchange.begin()
            for piece, finish in (("a", None), ("b", None), ("", "stop")):
                choice = {"index": 0, "text": piece, "finish_reason": finish}
                exchange.event({**text, "choices": [choice]})
            exchange.event({**text, "choices": [], "usage": USAGE})
            exchange.end()
        else:
            choice = {"index": 0, "text": "ab", "finish_reason": "stop"}
            exchange.reply(200, {**text, "choices": [choice], "usage": USAGE})

    async def main() -> None:
        async with cloud(script) as (upstream, server):
            whole = await upstream.open(call("completions", prompt="say", echo=False), SOURCE)
            document = orjson.loads(await whole.read())
            assert (document["object"], document["model"]) == ("text_completion", "public-name")
            assert document["choices"][0]["text"] == "ab"
            assert whole.usage == Usage(7, 2, 0)

            streamed = await upstream.open(call("completions", stream=True, prompt="say"), SOURCE)
            found = documents(await read_all(streamed))
            await streamed.aclose()
            assert "".join(d["choices"][0]["text"] for d in found) == "ab"
            assert streamed.usage == Usage(7, 2, 0)

            vectors = await upstream.open(call("embeddings", input=["a"]), SOURCE)
            document = orjson.loads(await vectors.read())
            assert document["data"][0]["embedding"] == [0.5, 0.25]
            assert document["model"] == "public-name"
            assert vectors.usage == Usage(2, 0, 0)
            paths = [exchange.path for exchange in server.exchanges]
        assert paths == ["/v1/completions", "/v1/completions", "/v1/embeddings"]

    asyncio.run(main())


def test_an_answer_to_the_messages_wire_is_a_chat_answer() -> None:
    async def main() -> None:
        async with cloud(answers) as (upstream, _):
            answer = await upstream.open(call("messages", max_tokens=5), SOURCE)
            assert answer.head.wire == "chat"

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 402, 404, 408, 422, 429, 500, 503, 504, 529])
def test_an_error_status_passes_with_body_and_retry_after_and_is_asked_once(
    status: int, stream: bool
) -> None:
    async def main() -> None:
        def script(exchange: Exchange) -> None:
            exchange.reply(status, ERROR, "retry-after: 7")

        async with cloud(script) as (upstream, server):
            error = await open_fails(upstream, call(stream=stream))
            assert len(server.exchanges) == 1
        assert isinstance(error, Rejected)
        assert error.status == status
        assert error.retry_after_s == 7
        assert orjson.loads(error.body)["error"]["message"] == "slow down"
        assert b"litellm" not in error.body

    asyncio.run(main())


def test_a_prompt_too_long_is_told_by_its_code() -> None:
    message = "This model's maximum context length is 10 tokens."

    def script(exchange: Exchange) -> None:
        exchange.reply(400, {"error": {"message": message, "type": "invalid_request_error"}})

    async def main() -> None:
        async with cloud(script) as (upstream, _):
            error = await open_fails(upstream, call())
        assert isinstance(error, Rejected)
        told = orjson.loads(error.body)["error"]
        assert (error.status, told["code"]) == (400, "context_length_exceeded")
        assert message in told["message"]

    asyncio.run(main())


def test_nobody_there_is_refused() -> None:
    async def main() -> None:
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        await listener.wait_closed()
        upstream = LitellmUpstream(
            "openai/m",
            MODEL,
            timeouts=Timeouts(),
            clock=time.monotonic,
            api_key="k",
            api_base=f"http://127.0.0.1:{port}/v1",
        )
        for stream in (False, True):
            error = await open_fails(upstream, call(stream=stream))
            assert isinstance(error, Refused)
            assert error.retryable
        await upstream.aclose()

    asyncio.run(main())


def test_a_model_string_that_litellm_does_not_know_is_an_error_answer() -> None:
    async def main() -> None:
        upstream = LitellmUpstream("nobody", MODEL, timeouts=Timeouts(), clock=time.monotonic)
        error = await open_fails(upstream, call())
        assert isinstance(error, Rejected)
        await upstream.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_silence_before_the_first_token_is_a_timeout_and_closes_the_connection(
    stream: bool,
) -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            if stream:
                exchange.begin()
                exchange.event(ROLE)
            await exchange.writer.drain()

        timeouts = Timeouts(first_token_s=0.2)
        async with cloud(script, timeouts=timeouts) as (upstream, server):
            seconds = 60.0 if stream else 0.2
            error = await open_fails(upstream, call(stream=stream, seconds=seconds))
            await asyncio.wait_for(server.exchanges[0].left.wait(), 5)
        assert isinstance(error, UpstreamTimeout)
        assert error.which == ("first_token" if stream else "total")
        assert error.retryable is stream

    asyncio.run(main())


def test_a_call_whose_time_is_over_is_not_sent() -> None:
    async def main() -> None:
        async with cloud(answers) as (upstream, server):
            error = await open_fails(upstream, call(seconds=-1))
            assert server.exchanges == []
        assert isinstance(error, UpstreamTimeout)

    asyncio.run(main())


def cut(exchange: Exchange) -> None:
    exchange.writer.close()


def error_event(exchange: Exchange) -> None:
    exchange.event(ERROR)
    exchange.end()


def bad_json(exchange: Exchange) -> None:
    exchange.event(b'{"choices": [')
    exchange.end()


def end_without_finish(exchange: Exchange) -> None:
    exchange.writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize("fault", [cut, error_event, bad_json, end_without_finish])
@pytest.mark.parametrize("tokens", [0, 2])
def test_a_stream_that_breaks_is_a_fault_before_and_after_its_first_token(
    fault: Callable[[Exchange], None], tokens: int
) -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(ROLE)
            for number in range(tokens):
                exchange.event(chunk({"content": f"t{number}"}))
            await exchange.writer.drain()
            fault(exchange)

        async with cloud(script) as (upstream, server):
            if tokens == 0:
                error = await open_fails(upstream, call(stream=True))
                assert error.retryable
            else:
                answer = await upstream.open(call(stream=True), SOURCE)
                parts: list[bytes] = []
                with pytest.raises(BrokenStream) as caught:
                    await read_all(answer, parts)
                assert caught.value.replica == "gpt"
                assert b"[DONE]" not in b"".join(parts)
                assert b"stop" not in b"".join(parts)
                await answer.aclose()
            assert len(server.exchanges) == 1

    asyncio.run(main())


def test_silence_after_the_first_token_is_an_idle_timeout() -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(chunk({"content": "x"}))

        async with cloud(script, timeouts=Timeouts(idle_s=0.1)) as (upstream, server):
            answer = await upstream.open(call(stream=True), SOURCE)
            await answer.read()
            with pytest.raises(UpstreamTimeout) as caught:
                await answer.read()
            assert caught.value.which == "idle"
            await answer.aclose()
            await asyncio.wait_for(server.exchanges[0].left.wait(), 5)

    asyncio.run(main())


def test_the_deadline_bounds_a_stream_that_goes_on() -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(chunk({"content": "x"}))

        async with cloud(script) as (upstream, _):
            answer = await upstream.open(call(stream=True, seconds=0.5), SOURCE)
            await answer.read()
            with pytest.raises(UpstreamTimeout) as caught:
                await answer.read()
            assert (caught.value.which, caught.value.retryable) == ("total", False)
            await answer.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("wire", ["chat", "completions"])
def test_closing_midway_closes_the_provider_and_leaves_no_task(wire: str) -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            exchange.begin()
            choice = {"index": 0, "text": "x", "delta": {"content": "x"}, "finish_reason": None}
            exchange.event({**ROLE, "choices": [choice]})

        async with cloud(script) as (upstream, server):
            prompt = {"prompt": "say"} if wire == "completions" else {}
            answer = await upstream.open(call(wire, stream=True, **prompt), SOURCE)
            await answer.read()
            reading = asyncio.create_task(answer.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
            assert not server.exchanges[0].left.is_set()
            await answer.aclose()
            await asyncio.wait_for(server.exchanges[0].left.wait(), 5)
            assert await answer.read() == b""
            pulling = [t for t in asyncio.all_tasks() if "_after" in repr(t.get_coro())]
            assert pulling == []

    asyncio.run(main())


def test_closing_wakes_a_reader() -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(chunk({"content": "x"}))

        async with cloud(script) as (upstream, _):
            answer = await upstream.open(call(stream=True), SOURCE)
            await answer.read()
            reading = asyncio.create_task(answer.read())
            await asyncio.sleep(0)
            await answer.aclose()
            with pytest.raises(BrokenStream):
                await reading

    asyncio.run(main())


def test_a_client_that_leaves_while_the_provider_thinks_cancels_it() -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            arrived.set()

        async with cloud(script) as (upstream, server):
            opening = asyncio.create_task(upstream.open(call(), SOURCE))
            await arrived.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await asyncio.wait_for(server.exchanges[0].left.wait(), 5)

    asyncio.run(main())


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            exchange.begin()
            exchange.event(chunk({"content": "t0"}))
            await go.wait()
            for number in range(1, 6):
                exchange.event(chunk({"content": f"t{number}"}))
            exchange.event(chunk({}, "stop"))
            exchange.end()

        async with cloud(script) as (upstream, _):
            answer = await upstream.open(call(stream=True), SOURCE)
            parts = [await answer.read()]
            for _ in range(3):
                reading = asyncio.create_task(answer.read())
                await asyncio.sleep(0)
                reading.cancel()
                assert isinstance(
                    (await asyncio.gather(reading, return_exceptions=True))[0], BaseException
                )
            go.set()
            parts += await read_all(answer)
            await answer.aclose()
        found = documents(parts)
        text = [d["choices"][0]["delta"].get("content") for d in found]
        assert [piece for piece in text if piece] == [f"t{number}" for number in range(6)]

    asyncio.run(main())


def test_a_hundred_equal_chunks_are_no_fault() -> None:
    def script(exchange: Exchange) -> None:
        exchange.begin()
        for _ in range(120):
            exchange.event(chunk({"content": "0, 0, "}))
        exchange.event(chunk({}, "stop"))
        exchange.end()

    async def main() -> None:
        async with cloud(script) as (upstream, _):
            answer = await upstream.open(call(stream=True), SOURCE)
            assert isinstance(answer, CloudStream)
            body = b"".join(await read_all(answer))
            await answer.aclose()
        assert body.count(b"0, 0, ") == 120

    asyncio.run(main())


def test_closing_one_of_two_upstreams_leaves_the_other_working() -> None:
    async def main() -> None:
        async with cloud(answers) as (first, _), cloud(answers) as (second, _):
            await first.open(call(), SOURCE)
            await second.open(call(), SOURCE)
            await first.aclose()
            answer = await second.open(call(), SOURCE)
            assert b"Paris" in await answer.read()

    asyncio.run(main())


def test_the_clients_body_is_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}]
    asked = call(messages=messages)
    before = orjson.dumps(asked.body)

    async def main() -> None:
        async with cloud(answers) as (upstream, _):
            await upstream.open(asked, SOURCE)

    asyncio.run(main())
    assert orjson.dumps(asked.body) == before
