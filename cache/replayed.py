"""A stored answer as an Answer, in the form that its asker wants: at once, or at a pace.

Some clients show text as it comes and look broken when all of it is there in a millisecond. For
them the events of a stream are cut finely and given out at a rate. There is no task behind it:
a reader sleeps until the next event is due, so whoever leaves just stops reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import orjson

from tierway.cache.lookup import Hit
from tierway.cache.replay import as_events, fast_cached_json
from tierway.policies.protocols import Answer, Clock
from tierway.policies.types import Call, Head, Source, Usage, WireName

TICK_S = 0.02
"""The shortest sleep: at high rates some events go out together, and a stream costs at most
fifty wake-ups a second."""

_EVENT_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"),)
_JSON = ((b"content-type", b"application/json"),)


def replayed(call: Call, hit: Hit, *, tokens_per_s: float | None = None) -> Answer:
    """The answer to `call` out of a hit; `tokens_per_s` holds for streams. Raises CacheError
    for an entry that cannot be shown so."""
    if tokens_per_s is not None and _streams(call):
        return PacedReplay(call, hit, tokens_per_s)
    return Replay(call, hit)


class Replay:
    """All at once."""

    __slots__ = ("_chunk", "head", "source", "usage")

    def __init__(self, call: Call, hit: Hit) -> None:
        self.source: Source = hit.source
        self.usage: Usage | None = hit.usage
        if _streams(call):
            events = as_events(orjson.loads(hit.answer), include_usage=call.includes_usage)
            self._chunk = b"".join(events)
            self.head = Head(200, _EVENT_STREAM, _wire(call), stream=True)
        else:
            self._chunk = fast_cached_json(hit.answer)
            self.head = Head(200, _JSON, _wire(call), stream=False)

    async def read(self) -> bytes:
        chunk, self._chunk = self._chunk, b""
        return chunk

    async def aclose(self) -> None:
        self._chunk = b""


class PacedReplay:
    """A word or a character of text for each of `tokens_per_s`; what is left at the call's
    deadline goes out at once."""

    def __init__(
        self,
        call: Call,
        hit: Hit,
        tokens_per_s: float,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.source: Source = hit.source
        self.usage: Usage | None = hit.usage
        self.head = Head(200, _EVENT_STREAM, _wire(call), stream=True)
        answer = orjson.loads(hit.answer)
        self._events = as_events(answer, include_usage=call.includes_usage, fine=True)
        # The finish, the usage and [DONE] hold no text: they come with the last of it.
        self._texts = len(self._events) - (3 if call.includes_usage else 2)
        self._rate, self._deadline_s = tokens_per_s, call.deadline_s
        self._clock, self._sleep = clock, sleep
        self._at = 0
        self._began_s: float | None = None

    async def read(self) -> bytes:
        if self._at >= len(self._events):
            return b""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        if self._due(self._began_s) <= self._at:
            wait_s = self._began_s + self._at / self._rate - now_s
            await self._sleep(max(TICK_S, min(wait_s, self._deadline_s - now_s)))
        end = max(self._due(self._began_s), self._at + 1)
        chunk = b"".join(self._events[self._at : end])
        self._at = end
        return chunk

    def _due(self, began_s: float) -> int:
        """How many events should be out by now."""
        now_s = self._clock()
        due = int((now_s - began_s) * self._rate) + 1
        over = due >= self._texts or now_s >= self._deadline_s
        return len(self._events) if over else due

    async def aclose(self) -> None:
        self._at = len(self._events)


def _streams(call: Call) -> bool:
    return call.stream and call.wire != "embeddings"


def _wire(call: Call) -> WireName:
    return "chat" if call.wire == "messages" else call.wire
