"""The contract of an Upstream: a replica, a cloud model through litellm, and the fake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fakes import JSON, FakeAnswer, ScriptedUpstream, completion, make_call, stream_of, until

from tierway.policies.errors import Refused, Rejected, UpstreamError
from tierway.policies.protocols import Upstream
from tierway.policies.types import Call, Model, Source
from tierway.router.cloud import LitellmUpstream
from tierway.router.transport import Transport
from tierway.router.upstreams import HttpUpstream, Timeouts, api_origin

# litellm ignores these itself when it is imported, but pytest resets the filters for each test.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*ReadOnly. qualifier"),
    pytest.mark.filterwarnings("ignore:.*attribute on the instance is deprecated"),
]

SOURCE = Source("small", "m", "m@a:1", {"small": 0.9})
MODEL = Model("m", "small", served_name="fake")
REFUSAL = b'{"error": {"message": "no", "type": "t", "param": null, "code": "c"}}'


class Place:
    """What answers at the other end, and how: `behaviour` is whole, stream, hang or a status."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.asked = 0
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            self.asked += 1
            if self.behaviour != "hang":
                writer.write(self.answer())
                await writer.drain()
            await reader.read()
            self.left.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    def answer(self) -> bytes:
        status, kind, body = 200, b"application/json", orjson.dumps(completion())
        if self.behaviour == "stream":
            kind, body = b"text/event-stream", b"".join(stream_of("Pa", "ris."))
        elif self.behaviour.isdigit():
            status, body = int(self.behaviour), REFUSAL
        return b"HTTP/1.1 %d x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            status,
            kind,
            len(body),
            body,
        )


Opened = tuple[Upstream, Place]
Make = Callable[[str], Any]


@asynccontextmanager
async def scripted(behaviour: str) -> AsyncIterator[Opened]:
    place = Place(behaviour)

    async def script(call: Call) -> FakeAnswer:
        place.asked += 1
        try:
            if behaviour == "hang":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            place.left.set()
            raise
        if behaviour == "gone":
            raise Refused("nobody there")
        if behaviour.isdigit():
            raise Rejected(int(behaviour), JSON, REFUSAL, replica=SOURCE.replica)
        if behaviour == "stream":
            return FakeAnswer(list(stream_of("Pa", "ris.")), stream=True)
        return FakeAnswer([orjson.dumps(completion())])

    yield ScriptedUpstream(script), place


@asynccontextmanager
async def there(behaviour: str) -> AsyncIterator[tuple[Place, str]]:
    """A place on the loopback with its URL; `gone`: a port where nobody listens."""
    place = Place(behaviour)
    server = await asyncio.start_server(
        place.serve, "127.0.0.1", 0, start_serving=behaviour != "gone"
    )
    try:
        yield place, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def http(behaviour: str) -> AsyncIterator[Opened]:
    transport = Transport(connect_timeout_s=2)
    async with there(behaviour) as (place, url):
        upstream = HttpUpstream(
            transport, api_origin(url), MODEL, timeouts=Timeouts(), clock=time.monotonic
        )
        try:
            yield upstream, place
        finally:
            await transport.aclose()


@asynccontextmanager
async def litellm(behaviour: str) -> AsyncIterator[Opened]:
    async with there(behaviour) as (place, url):
        yield (
            LitellmUpstream(
                "openai/m",
                MODEL,
                timeouts=Timeouts(),
                clock=time.monotonic,
                api_key="k",
                api_base=url + "/v1",
            ),
            place,
        )


anybody = pytest.mark.parametrize("make", [scripted, http, litellm], ids=lambda m: m.__name__)


def run(
    make: Make, behaviour: str, test: Callable[[Upstream, Place], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with make(behaviour) as (upstream, place):
            try:
                await asyncio.wait_for(test(upstream, place), 60)  # litellm is long to import
            finally:
                await upstream.aclose()
                await upstream.aclose()

    asyncio.run(main())


def ask(*, stream: bool = False) -> Call:
    now = time.monotonic()
    return replace(make_call(stream=stream), arrived_s=now, deadline_s=now + 60)


@anybody
def test_a_whole_answer_is_there_when_open_returns(make: Make) -> None:
    async def main(upstream: Upstream, place: Place) -> None:
        answer = await upstream.open(ask(), SOURCE)
        assert (answer.head.status, answer.head.wire, answer.head.stream) == (200, "chat", False)
        assert answer.source == SOURCE
        said = orjson.loads(await answer.read())
        assert said["choices"][0]["message"]["content"] == "Paris."
        assert await answer.read() == b""
        await answer.aclose()
        assert place.asked == 1

    run(make, "whole", main)


@anybody
def test_a_stream_is_openais_events_to_its_done(make: Make) -> None:
    async def main(upstream: Upstream, place: Place) -> None:
        answer = await upstream.open(ask(stream=True), SOURCE)
        assert (answer.head.status, answer.head.stream) == (200, True)
        body = b""
        while chunk := await answer.read():
            body += chunk
        await answer.aclose()
        *events, done, rest = body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        choices = [orjson.loads(event[6:])["choices"][0] for event in events]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert (text, choices[-1]["finish_reason"]) == ("Paris.", "stop")

    run(make, "stream", main)


@anybody
@pytest.mark.parametrize(
    ("status", "retryable", "overload"),
    [("400", False, False), ("429", True, True), ("500", True, False), ("503", True, True)],
)
def test_an_error_status_is_a_rejection(
    make: Make, status: str, retryable: bool, overload: bool
) -> None:
    async def main(upstream: Upstream, place: Place) -> None:
        with pytest.raises(Rejected) as caught:
            await upstream.open(ask(), SOURCE)
        error = caught.value
        assert (error.status, error.replica) == (int(status), SOURCE.replica)
        assert (error.retryable, error.overload) == (retryable, overload)
        assert place.asked == 1

    run(make, status, main)


@anybody
def test_nobody_there_may_be_tried_elsewhere(make: Make) -> None:
    async def main(upstream: Upstream, place: Place) -> None:
        with pytest.raises(UpstreamError) as caught:
            await upstream.open(ask(), SOURCE)
        assert isinstance(caught.value, Refused)
        assert caught.value.retryable

    run(make, "gone", main)


@anybody
def test_cancelling_open_leaves_the_other_end(make: Make) -> None:
    async def main(upstream: Upstream, place: Place) -> None:
        opening = asyncio.ensure_future(upstream.open(ask(), SOURCE))
        await until(lambda: bool(place.asked), rounds=1_000_000)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(place.left.wait(), 5)

    run(make, "hang", main)
