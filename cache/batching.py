"""The texts of many callers, gathered into few calls of one model.

A model costs a text less in company: its weights are read once for all. A text that comes while
nothing runs starts at once; what comes while a call runs goes into the next one, as far as there
is room. Callers that were answered tend to ask again, so where others wait too the next call
waits for them, `gather_s` at most: four callers would otherwise take turns in pairs.

Who asks for a few texts waits for them; who asks for many is storing. The former go first and the
latter get a quarter of each call, or a whole one when nobody waits: a text that somebody waits
for is held up by the one call that runs, and a long batch goes on all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tierway.policies.errors import CacheError

Row = TypeVar("Row")
Encode = Callable[[list[str]], Awaitable[Sequence[Row]]]
"""One call of the model: a row for each text. CacheError says that the model is in trouble, any
other exception that something is wrong with these texts."""

GATHER_S = 0.002
FEW_TEXTS = 2
QUEUED_TEXTS = 4096
_SHARE = 4


@dataclass(frozen=True, slots=True)
class Room:
    """What goes into one call; a text longer than `chars` goes alone."""

    texts: int = 32
    chars: int = 2048


@dataclass(slots=True, eq=False)
class _Ask(Generic[Row]):
    """The texts of one caller. `taken` of them are under way or done, `left` want a row."""

    texts: Sequence[str]
    answer: asyncio.Future[list[Row]]
    taken: int = 0
    left: int = 0
    rows: dict[int, Row] = field(default_factory=dict)

    def fill(self, place: int, row: Row) -> None:
        self.rows[place] = row
        if len(self.rows) == len(self.texts) and not self.answer.done():
            self.answer.set_result([self.rows[at] for at in range(len(self.texts))])

    def fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(CacheError(why))


_Place = tuple[_Ask[Row], int]


class Lane(Generic[Row]):
    """`parallel` calls at most run at a time. Belongs to one event loop."""

    def __init__(
        self,
        encode: Encode[Row],
        *,
        room: Room | None = None,
        parallel: int = 1,
        gather_s: float = GATHER_S,
        queued_texts: int = QUEUED_TEXTS,
    ) -> None:
        self._encode, self._room, self._parallel = encode, room or Room(), parallel
        self._gather_s, self._queued_texts = gather_s, queued_texts
        self._few: deque[_Ask[Row]] = deque()
        self._many: deque[_Ask[Row]] = deque()
        self.queued = 0
        self._running: set[asyncio.Task[None]] = set()
        self._company, self._gathers_until_s = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def encode(self, texts: Sequence[str]) -> list[Row]:
        """A row for each text. Raises CacheError: a full queue, or what the model complained
        of. Whoever is cancelled leaves the queue."""
        if not texts:
            return []
        if self.queued + len(texts) > self._queued_texts:
            raise CacheError("the encoder's queue is full")
        ask: _Ask[Row] = _Ask(texts, asyncio.get_running_loop().create_future())
        (self._few if len(texts) <= FEW_TEXTS else self._many).append(ask)
        self.queued += len(texts)
        self._start_calls()
        try:
            return await ask.answer
        finally:
            self.queued -= len(texts) - ask.taken
            ask.taken = len(texts)

    async def aclose(self) -> None:
        """Ends what runs; who waits gets CacheError."""
        if self._timer is not None:
            self._timer.cancel()
        for ask in (*self._few, *self._many):
            ask.fail("the encoder is closed")
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start_calls(self) -> None:
        while self.queued and len(self._running) < self._parallel and not self._gathers():
            batch = self._take()
            if not batch:
                return
            call = self._call(batch, full=self.queued > 0)
            task = asyncio.get_running_loop().create_task(call)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start_calls()

    def _gathers(self) -> bool:
        """True while company is waited for."""
        loop = asyncio.get_running_loop()
        left_s = self._gathers_until_s - loop.time()
        if left_s <= 0 or self.queued >= self._company:
            self._gathers_until_s = 0.0
            return False
        if self._timer is None:
            self._timer = loop.call_later(left_s, self._gathered)
        return True

    def _gathered(self) -> None:
        self._timer, self._gathers_until_s = None, 0.0
        self._start_calls()

    def _take(self) -> list[_Place[Row]]:
        texts, chars = self._room.texts, self._room.chars
        batch = list(self._next(self._few, texts, chars))
        if batch:
            spare = texts - len(batch), chars - sum(len(ask.texts[at]) for ask, at in batch)
            texts, chars = min(texts // _SHARE, spare[0]), min(chars // _SHARE, spare[1])
        batch += self._next(self._many, texts, chars, alone=not batch)
        self.queued -= len(batch)
        return batch

    def _next(
        self, asks: deque[_Ask[Row]], texts: int, chars: int, *, alone: bool = True
    ) -> Iterator[_Place[Row]]:
        """The next texts within the room; one beyond it too if it can be `alone`."""
        while asks:
            ask = asks[0]
            if ask.answer.done() or ask.taken == len(ask.texts):
                asks.popleft()
                continue
            chars -= len(ask.texts[ask.taken])
            texts -= 1
            if texts < 0 or (chars < 0 and not alone):
                return
            alone = False
            yield ask, ask.taken
            ask.taken += 1

    async def _call(self, batch: list[_Place[Row]], *, full: bool) -> None:
        try:
            await self._answer(batch)
        except asyncio.CancelledError:
            for ask, _ in batch:
                ask.fail("the encoder is closed")
            raise
        # Whoever was answered, and who waits already; a full call is followed at once.
        self._company = 0 if full else min(len(batch) + self.queued, self._room.texts)
        if self._company > 1:
            self._gathers_until_s = asyncio.get_running_loop().time() + self._gather_s

    async def _answer(self, batch: list[_Place[Row]]) -> None:
        asks = list(dict.fromkeys(ask for ask, _ in batch))
        try:
            rows = await self._encode([ask.texts[at] for ask, at in batch])
            if len(rows) != len(batch):
                raise CacheError(f"{len(rows)} vectors for {len(batch)} texts")
        except CacheError as fault:
            for ask in asks:
                ask.fail(fault.public)
        except Exception as fault:  # border: a model may be anybody's code
            await self._answer_each(batch, asks, fault)
        else:
            for (ask, at), row in zip(batch, rows, strict=True):
                ask.fill(at, row)

    async def _answer_each(
        self, batch: list[_Place[Row]], asks: list[_Ask[Row]], fault: Exception
    ) -> None:
        """Every caller by itself, so that one text the model refuses costs nobody else."""
        if len(asks) == 1:
            asks[0].fail(f"{type(fault).__name__}: {fault}")
            return
        for ask in asks:
            await self._answer([place for place in batch if place[0] is ask])
