"""Identical requests in flight share one upstream answer.

A flight is one answer being made, with the chunks that came so far. Every asker holds a `Share`
and reads at its own pace; whoever finds no chunk left reads the next one from the upstream for
all of them. Because reading an Answer is safe to cancel, a reader that leaves just makes room
for the next: nobody owns the answer, the last one out closes it.

Opening runs in a task of its own for the same reason: the first asker may leave while others
wait. When it fails, one of those that waited leads once more; a second failure is everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Answer
from tierway.policies.types import Head, Source, Usage

Opener = Callable[[], Coroutine[Any, Any, Answer]]
Finisher = Callable[[Answer, bytes], None]
"""Called once with the whole body when an answer was read to its end."""


class Flights:
    """The answers in flight, by key. `limit_bytes` bounds what is kept of one answer for
    late joiners and for `finish`; past it the answer only passes through."""

    def __init__(self, *, limit_bytes: int = 4 << 20) -> None:
        self._limit = limit_bytes
        self._flights: dict[bytes, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def take(self, key: bytes, opener: Opener, finish: Finisher) -> Share:
        """Joins the flight of `key`, or leads one. Raises what opening raised; cancelling
        gives up this asker's share only."""
        waited = False
        while True:
            flight = self._flights.get(key)
            leads = flight is None or not flight.joinable
            if flight is None or leads:
                flight = _Flight(self, key, opener(), finish, self._limit)
                self._flights[key] = flight
            flight.refs += 1
            try:
                await flight.opened()
            except GatewayError:
                await flight.leave()
                if leads or waited:
                    raise
                waited = True
                continue
            except BaseException:
                await flight.leave()
                raise
            return Share(flight, led=leads)

    def forget(self, flight: _Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


class _Flight:
    __slots__ = (
        "_finish",
        "_flights",
        "_limit",
        "_reading",
        "_task",
        "answer",
        "base",
        "chunks",
        "complete",
        "error",
        "kept_bytes",
        "key",
        "overflown",
        "refs",
    )

    def __init__(
        self,
        flights: Flights,
        key: bytes,
        opening: Coroutine[Any, Any, Answer],
        finish: Finisher,
        limit: int,
    ) -> None:
        self._flights, self._finish, self._limit = flights, finish, limit
        self.key = key
        self._task: asyncio.Task[Answer] = asyncio.get_running_loop().create_task(opening)
        self._reading: asyncio.Future[None] | None = None
        self.answer: Answer | None = None
        self.chunks: list[bytes] = []
        self.base = 0  # chunks dropped from the front, once the answer outgrew the limit
        self.kept_bytes = 0
        self.overflown = False
        self.complete = False
        self.error: GatewayError | None = None
        self.refs = 0

    @property
    def joinable(self) -> bool:
        return not self.overflown and self.error is None and self.refs > 0

    async def opened(self) -> Answer:
        if self.answer is None:
            try:
                # shield: this waiter may be cancelled, the opening belongs to all.
                self.answer = await asyncio.shield(self._task)
            except GatewayError:
                self._flights.forget(self)
                raise
        return self.answer

    async def leave(self) -> None:
        self.refs -= 1
        if self.refs:
            return
        self._flights.forget(self)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._task.cancelled() or self._task.exception() is not None:
            return
        await self._task.result().aclose()

    async def advance(self) -> None:
        """Gets the next chunk, or waits for whoever is getting it."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
            return
        assert self.answer is not None
        self._reading = asyncio.get_running_loop().create_future()
        try:
            self._append(await self.answer.read())
        except GatewayError as error:
            self.error = error
            self._flights.forget(self)
        finally:
            self._reading.set_result(None)
            self._reading = None

    def _append(self, chunk: bytes) -> None:
        if not chunk:
            self.complete = True
            self._flights.forget(self)
            if not self.overflown and self.answer is not None:
                self._finish(self.answer, b"".join(self.chunks))
            return
        self.chunks.append(chunk)
        self.kept_bytes += len(chunk)
        if self.kept_bytes > self._limit:
            self.overflown = True

    def chunk(self, position: int) -> bytes | None:
        """The chunk at `position`, None while it has not come. A lone reader of an answer
        past the limit lets go of what it has read."""
        index = position - self.base
        if index >= len(self.chunks):
            return None
        if self.overflown and self.refs == 1:
            chunk = self.chunks[index]
            del self.chunks[: index + 1]
            self.base = position + 1
            return chunk
        return self.chunks[index]


class Share:
    """One asker's view of a flight: an Answer. `led` tells who asked first."""

    __slots__ = ("_closed", "_flight", "_position", "led")

    def __init__(self, flight: _Flight, *, led: bool) -> None:
        self._flight = flight
        self._position = 0
        self._closed = False
        self.led = led

    @property
    def _answer(self) -> Answer:
        assert self._flight.answer is not None
        return self._flight.answer

    @property
    def head(self) -> Head:
        return self._answer.head

    @property
    def source(self) -> Source:
        return self._answer.source

    @property
    def usage(self) -> Usage | None:
        return self._answer.usage

    async def read(self) -> bytes:
        flight = self._flight
        while True:
            chunk = flight.chunk(self._position)
            if chunk is not None:
                self._position += 1
                return chunk
            if flight.complete:
                return b""
            if flight.error is not None:
                raise flight.error
            await flight.advance()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._flight.leave()


async def read_all(answer: Answer) -> bytes:
    """The whole body of an answer."""
    chunks = []
    while chunk := await answer.read():
        chunks.append(chunk)
    return b"".join(chunks)
