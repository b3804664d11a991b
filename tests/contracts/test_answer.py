"""The contract of an Answer, over everything that is one: upstreams', shared, stored and fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import orjson
import pytest
from fakes import EVENTS, FakeAnswer, FakeClock, completion, make_call, stream_of

from tierway.cache.coalesce import Flights
from tierway.cache.lookup import Hit
from tierway.cache.replayed import PacedReplay, Replay
from tierway.policies.errors import BrokenStream
from tierway.policies.protocols import Answer
from tierway.policies.types import Head, Source, Work
from tierway.router.cloud_stream import CloudStream
from tierway.router.dispatch import LeasedAnswer
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec
from tierway.router.sse import Framer
from tierway.router.upstreams import StreamAnswer, WholeAnswer, _Deadline

SOURCE = Source("small", "m", "m@a:1")
STREAM = Head(200, EVENTS, "chat", stream=True)
WHOLE = Head(200, ((b"content-type", b"application/json"),), "chat", stream=False)
EVENTS_SENT = stream_of("Pa", "ris.")
BODY = orjson.dumps(completion())


class Script:
    """What an upstream says piece by piece: it pauses before the last ones until told to go on,
    and breaks off there when it is `broken`."""

    def __init__(self, *, broken: bool = False) -> None:
        self.go_on = asyncio.Event()
        self.broken = broken
        self.closed = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in EVENTS_SENT[:2]:
            yield piece
        await self.go_on.wait()
        if self.broken:
            raise BrokenStream("broken by the script")
        for piece in EVENTS_SENT[2:]:
            yield piece


class FakeResponse:
    """What `StreamAnswer` uses of a transport's response."""

    def __init__(self, script: Script) -> None:
        self._script, self._at = script, 1  # the first piece was read before

    async def read(self) -> bytes:
        if self._at >= 2:
            await self._script.go_on.wait()
            if self._script.broken:
                raise BrokenStream("broken by the script")
        piece = EVENTS_SENT[self._at] if self._at < len(EVENTS_SENT) else b""
        self._at += 1
        return piece

    async def aclose(self) -> None:
        self._script.closed += 1


class FakeCloud:
    """litellm's stream, as far as `CloudStream` looks at it."""

    def __init__(self, script: Script) -> None:
        self._script, self._pieces = script, script.pieces()

    def __aiter__(self) -> FakeCloud:
        return self

    async def __anext__(self) -> Any:
        piece = await anext(self._pieces)
        if piece.startswith(b"data: [DONE]"):
            raise StopAsyncIteration
        return _Chunk(orjson.loads(piece[6:]))

    async def aclose(self) -> None:
        self._script.closed += 1


class _Chunk:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def model_dump(self, *, exclude_none: bool) -> dict[str, Any]:
        return self._document


def fake(script: Script) -> FakeAnswer:
    stop: Any = BrokenStream("broken by the script") if script.broken else EVENTS_SENT[2]
    made = FakeAnswer([*EVENTS_SENT[:2], script.go_on, stop, *EVENTS_SENT[3:]], stream=True)
    made.source = SOURCE
    return made


async def make_fake(script: Script) -> Answer:
    return fake(script)


async def make_stream(script: Script) -> Answer:
    framer = Framer(strip_usage=True)
    first = framer.feed(EVENTS_SENT[0])
    deadline = _Deadline(2000.0, 10.0, FakeClock())
    response: Any = FakeResponse(script)
    return StreamAnswer(STREAM, SOURCE, response, framer, first, deadline)


async def make_cloud(script: Script) -> Answer:
    made = CloudStream(
        STREAM,
        SOURCE,
        FakeCloud(script),
        name="fake",
        shows_usage=False,
        idle_s=30,
        total_s=600,
        deadline_s=2000.0,
        clock=FakeClock(),
    )
    await made.start()
    return made


async def make_leased(script: Script) -> Answer:
    fleet = Fleet([ReplicaSpec("m@a:1", "m", "small", "")], clock=FakeClock())
    return LeasedAnswer(fake(script), fleet.lease("m@a:1", Work(1, 1)))


async def make_share(script: Script) -> Answer:
    async def opener() -> Answer:
        return fake(script)

    return await Flights().take(b"k", opener, lambda answer, body: None)


async def make_whole(script: Script) -> Answer:
    return WholeAnswer(WHOLE, SOURCE, BODY, None)


async def make_replay(script: Script) -> Answer:
    return Replay(make_call(stream=True), Hit("e_1", BODY, SOURCE, 0.0))


async def make_paced(script: Script) -> Answer:
    return PacedReplay(make_call(stream=True), Hit("e_1", BODY, SOURCE, 0.0), 1e6)


Make = Callable[[Script], Awaitable[Answer]]
PAUSING = [make_fake, make_stream, make_cloud, make_leased, make_share]
ALL = [*PAUSING, make_whole, make_replay, make_paced]
anybody = pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__[5:])
pausing = pytest.mark.parametrize("make", PAUSING, ids=lambda make: make.__name__[5:])


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


async def rest_of(answer: Answer) -> bytes:
    chunks: list[bytes] = []
    await read_into(answer, chunks)
    return b"".join(chunks)


async def read_into(answer: Answer, chunks: list[bytes]) -> None:
    while chunk := await answer.read():
        chunks.append(chunk)


async def undisturbed(make: Make) -> bytes:
    script = Script()
    script.go_on.set()
    answer = await make(script)
    body = await rest_of(answer)
    await answer.aclose()
    return body


@anybody
def test_it_is_read_to_its_end_which_stays_the_end(make: Make) -> None:
    async def main() -> None:
        script = Script()
        script.go_on.set()
        answer = await make(script)
        assert answer.head.status == 200
        assert answer.source == SOURCE
        body = await rest_of(answer)
        assert b"Pa" in body
        assert b"ris." in body
        assert body.endswith(b"data: [DONE]\n\n") is answer.head.stream
        assert [await answer.read(), await answer.read()] == [b"", b""]
        await answer.aclose()

    run(main)


@anybody
def test_it_may_be_closed_twice_before_and_after_its_end(make: Make) -> None:
    async def main() -> None:
        for read in (False, True):
            script = Script()
            script.go_on.set()
            answer = await make(script)
            if read:
                await rest_of(answer)
            await answer.aclose()
            await answer.aclose()

    run(main)


@pausing
def test_a_cancelled_read_loses_nothing(make: Make) -> None:
    async def main() -> None:
        script = Script()
        answer = await make(script)
        body = b""
        for _ in range(3):
            while True:
                reading = asyncio.ensure_future(answer.read())
                for _ in range(10):
                    await asyncio.sleep(0)
                if not reading.done():
                    break
                body += await reading
            reading.cancel()
            await asyncio.wait({reading})
            assert reading.cancelled()
        script.go_on.set()
        assert body + await rest_of(answer) == await undisturbed(make)
        await answer.aclose()

    run(main)


@pausing
def test_what_came_before_a_fault_is_read_before_it_is_raised(make: Make) -> None:
    async def main() -> None:
        script = Script(broken=True)
        script.go_on.set()
        answer = await make(script)
        chunks: list[bytes] = []
        with pytest.raises(BrokenStream):
            await read_into(answer, chunks)
        assert b"Pa" in b"".join(chunks)
        await answer.aclose()

    run(main)


@pytest.mark.parametrize("make", [make_stream, make_cloud], ids=["stream", "cloud"])
def test_closing_midway_closes_the_upstream(make: Make) -> None:
    async def main() -> None:
        script = Script()
        answer = await make(script)
        assert await answer.read()
        await answer.aclose()
        assert script.closed == 1

    run(main)


def test_closing_midway_frees_the_slot_and_says_nothing_of_the_replica() -> None:
    async def main() -> None:
        fleet = Fleet([ReplicaSpec("m@a:1", "m", "small", "")], clock=FakeClock())
        answer = LeasedAnswer(fake(Script()), fleet.lease("m@a:1", Work(1, 1)))
        await answer.read()
        assert fleet.inflight() == {"m@a:1": 1}
        await answer.aclose()
        await answer.aclose()
        assert fleet.inflight() == {"m@a:1": 0}
        assert fleet.totals("m@a:1") == (0, 0)

    run(main)
