from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes import FakeAnswer, until

from tierway.cache.coalesce import Flights
from tierway.policies.errors import BrokenStream, Refused


class Opener:
    """Counts openings; each waits for its gate, then gives its answer or raises."""

    def __init__(self, *results: FakeAnswer | Exception) -> None:
        self.results = list(results)
        self.gate = asyncio.Event()
        self.opened = 0
        self.cancelled = 0

    async def __call__(self) -> FakeAnswer:
        self.opened += 1
        result = self.results.pop(0)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(result, Exception):
            raise result
        return result


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


async def drain(share: Any) -> bytes:
    chunks = []
    while piece := await share.read():
        chunks.append(piece)
    await share.aclose()
    return b"".join(chunks)


def test_identical_requests_share_one_opening() -> None:
    async def main() -> None:
        flights, kept = Flights(), []
        opener = Opener(FakeAnswer([b"one", b"two"]))
        takes = [
            asyncio.create_task(flights.take(b"k", opener, lambda a, body: kept.append(body)))
            for _ in range(5)
        ]
        await until(lambda: opener.opened == 1)
        opener.gate.set()
        shares = await asyncio.gather(*takes)
        assert [share.led for share in shares] == [True, False, False, False, False]
        assert await asyncio.gather(*map(drain, shares)) == [b"onetwo"] * 5
        assert opener.opened == 1
        assert kept == [b"onetwo"]
        assert len(flights) == 0

    run(main)


def test_different_keys_do_not_meet() -> None:
    async def main() -> None:
        flights = Flights()
        opener = Opener(FakeAnswer([b"1"]), FakeAnswer([b"2"]))
        opener.gate.set()
        one = await flights.take(b"a", opener, lambda *_: None)
        two = await flights.take(b"b", opener, lambda *_: None)
        assert (await drain(one), await drain(two)) == (b"1", b"2")

    run(main)


def test_a_leader_that_leaves_before_the_answer_does_not_cancel_its_followers() -> None:
    async def main() -> None:
        flights, answer = Flights(), FakeAnswer([b"x"])
        opener = Opener(answer)
        leader = asyncio.create_task(flights.take(b"k", opener, lambda *_: None))
        await until(lambda: opener.opened == 1)
        follower = asyncio.create_task(flights.take(b"k", opener, lambda *_: None))
        await asyncio.sleep(0)
        leader.cancel()
        await asyncio.wait({leader})
        opener.gate.set()
        assert await drain(await follower) == b"x"
        assert (opener.opened, opener.cancelled, answer.closed) == (1, 0, 1)

    run(main)


def test_a_reader_that_leaves_midway_hands_over() -> None:
    async def main() -> None:
        flights, gate = Flights(), asyncio.Event()
        answer = FakeAnswer([b"a", gate, b"b"])
        opener = Opener(answer)
        opener.gate.set()
        leader = await flights.take(b"k", opener, lambda *_: None)
        follower = await flights.take(b"k", opener, lambda *_: None)
        assert await leader.read() == b"a"
        reading = asyncio.create_task(leader.read())
        following = asyncio.create_task(drain(follower))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        await leader.aclose()
        assert answer.closed == 0
        gate.set()
        assert await following == b"ab"
        assert answer.closed == 1

    run(main)


def test_the_last_to_leave_cancels_the_opening() -> None:
    async def main() -> None:
        flights, opener = Flights(), Opener(FakeAnswer([b"x"]))
        takes = [asyncio.create_task(flights.take(b"k", opener, lambda *_: None)) for _ in range(3)]
        await until(lambda: opener.opened == 1)
        for task in takes:
            task.cancel()
        await asyncio.wait(takes)
        assert opener.cancelled == 1
        assert len(flights) == 0

    run(main)


def test_when_the_leader_fails_one_follower_leads() -> None:
    async def main() -> None:
        flights = Flights()
        opener = Opener(Refused("no"), FakeAnswer([b"ok"]))
        takes = [asyncio.create_task(flights.take(b"k", opener, lambda *_: None)) for _ in range(4)]
        await until(lambda: opener.opened == 1)
        opener.gate.set()
        results = await asyncio.gather(*takes, return_exceptions=True)
        assert isinstance(results[0], Refused)
        assert opener.opened == 2
        assert [await drain(share) for share in results[1:]] == [b"ok"] * 3

    run(main)


def test_a_second_failure_is_everybodys() -> None:
    async def main() -> None:
        flights = Flights()
        opener = Opener(Refused("first"), Refused("second"))
        takes = [asyncio.create_task(flights.take(b"k", opener, lambda *_: None)) for _ in range(4)]
        await until(lambda: opener.opened == 1)
        opener.gate.set()
        results = await asyncio.gather(*takes, return_exceptions=True)
        assert [str(result) for result in results] == ["first", "second", "second", "second"]
        assert opener.opened == 2
        assert len(flights) == 0

    run(main)


def test_a_break_midway_reaches_every_reader_and_is_not_kept() -> None:
    async def main() -> None:
        flights, kept = Flights(), []
        answer = FakeAnswer([b"a", BrokenStream("cut")])
        opener = Opener(answer)
        opener.gate.set()
        keep = lambda _, body: kept.append(body)  # noqa: E731
        shares = [await flights.take(b"k", opener, keep) for _ in range(2)]
        for share in shares:
            assert await share.read() == b"a"
            with pytest.raises(BrokenStream):
                await share.read()
            await share.aclose()
        assert kept == []
        assert answer.closed == 1

    run(main)


def test_a_late_joiner_reads_from_the_beginning() -> None:
    async def main() -> None:
        flights, gate = Flights(), asyncio.Event()
        opener = Opener(FakeAnswer([b"a", b"b", gate, b"c"]))
        opener.gate.set()
        first = await flights.take(b"k", opener, lambda *_: None)
        assert await first.read() + await first.read() == b"ab"
        late = await flights.take(b"k", opener, lambda *_: None)
        gate.set()
        assert await drain(late) == b"abc"
        assert await drain(first) == b"c"

    run(main)


def test_an_answer_past_the_limit_takes_no_joiners_and_frees_what_was_read() -> None:
    async def main() -> None:
        flights, kept = Flights(limit_bytes=10), []
        opener = Opener(FakeAnswer([b"x" * 8] * 5), FakeAnswer([b"y"]))
        opener.gate.set()
        keep = lambda _, body: kept.append(body)  # noqa: E731
        big = await flights.take(b"k", opener, keep)
        for _ in range(3):
            await big.read()
        other = await flights.take(b"k", opener, keep)
        assert other.led
        assert await drain(big) == b"x" * 16
        assert await drain(other) == b"y"
        assert kept == [b"y"]

    run(main)


def test_closing_twice_frees_once() -> None:
    async def main() -> None:
        flights, answer = Flights(), FakeAnswer([b"a"])
        opener = Opener(answer)
        opener.gate.set()
        one = await flights.take(b"k", opener, lambda *_: None)
        two = await flights.take(b"k", opener, lambda *_: None)
        await one.aclose()
        await one.aclose()
        assert answer.closed == 0
        await two.aclose()
        assert answer.closed == 1

    run(main)
