"""Stored answers given out at a pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fakes import FakeClock, completion, make_call
from hypothesis import given
from hypothesis import strategies as st

from tierway.cache.lookup import Hit
from tierway.cache.replay import as_events
from tierway.cache.replayed import TICK_S, PacedReplay, Replay, replayed
from tierway.policies.errors import CacheError
from tierway.policies.types import Source

SOURCE = Source("small", "m", "cache")
TEXT = "One two three four five six seven eight nine ten."


def hit(text: str = TEXT) -> Hit:
    return Hit("e_1", orjson.dumps(completion(text)), SOURCE, 0.0)


class Rig:
    """A paced answer whose clock moves only while it sleeps."""

    def __init__(
        self, rate: float, text: str = TEXT, *, deadline_s: float = float("inf"), **fields: Any
    ) -> None:
        self.clock = FakeClock()
        self.slept: list[float] = []
        call = replace(make_call(stream=True, **fields), deadline_s=deadline_s)
        self.answer = PacedReplay(call, hit(text), rate, clock=self.clock, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    async def rest(self) -> list[tuple[float, bytes]]:
        """What came when, in seconds from the start."""
        began, found = self.clock.now, []
        while chunk := await self.answer.read():
            found.append((round(self.clock.now - began, 6), chunk))
        return found


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def said(stream: bytes) -> str:
    events = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_word_at_a_time_and_the_end_with_the_last() -> None:
    async def main() -> None:
        rig = Rig(10)
        came = await rig.rest()
        assert said(b"".join(chunk for _, chunk in came)) == TEXT
        assert [at for at, _ in came] == [round(0.1 * n, 6) for n in range(11)]
        assert [said(chunk + b"data: [DONE]\n\n") for _, chunk in came[1:4]] == [
            "One",
            " two",
            " three",
        ]
        assert came[-1][1].count(b"data: ") == 3  # the word, the finish and [DONE]

    run(main)


def test_a_character_at_a_time_where_there_are_no_blanks() -> None:
    async def main() -> None:
        came = await Rig(5, "潮汐由月球引起。").rest()
        assert len(came) == 9
        assert came[-1][0] == pytest.approx(1.6)

    run(main)


def test_at_high_rates_events_go_together() -> None:
    async def main() -> None:
        rig = Rig(1000)
        came = await rig.rest()
        assert len(came) == 2
        assert rig.slept == [TICK_S]

    run(main)


def test_usage_comes_with_the_end() -> None:
    async def main() -> None:
        came = await Rig(10, stream_options={"include_usage": True}).rest()
        assert len(came) == 11
        assert b'"cached":true' in came[-1][1]

    run(main)


def test_the_deadline_ends_the_waiting() -> None:
    async def main() -> None:
        rig = Rig(0.5, deadline_s=1003.0)
        came = await rig.rest()
        assert came[-1][0] == 3.0
        assert said(b"".join(chunk for _, chunk in came)) == TEXT

    run(main)


def test_a_read_that_is_cancelled_loses_nothing() -> None:
    async def main() -> None:
        answer = PacedReplay(make_call(stream=True), hit(), 30)
        chunks = [await answer.read()]
        waiting = asyncio.ensure_future(answer.read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while chunk := await answer.read():
            chunks.append(chunk)
        assert said(b"".join(chunks)) == TEXT

    run(main)


def test_closing_ends_it() -> None:
    async def main() -> None:
        rig = Rig(10)
        await rig.answer.read()
        await rig.answer.aclose()
        assert await rig.rest() == []
        assert rig.slept == []

    run(main)


def test_only_streams_are_paced() -> None:
    assert isinstance(replayed(make_call(stream=True), hit(), tokens_per_s=10), PacedReplay)
    assert isinstance(replayed(make_call(stream=True), hit()), Replay)
    assert isinstance(replayed(make_call(), hit(), tokens_per_s=10), Replay)


def test_what_cannot_be_shown_is_told_before_anything_is_sent() -> None:
    broken = Hit("e_1", b'{"choices":[]}', SOURCE, 0.0)
    with pytest.raises(CacheError):
        replayed(make_call(stream=True), broken, tokens_per_s=10)


@given(st.text())
def test_whatever_the_text_nothing_is_lost_in_small_pieces(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    events = as_events(completion(text), include_usage=False, fine=True)
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-1]]
    pieces = [delta["content"] for delta in deltas if delta.get("content")]
    assert "".join(pieces) == text
    assert all(len(piece.strip()) <= 12 for piece in pieces)
