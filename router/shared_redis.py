"""Counts and placements shared through Redis by all gateways before the same replicas.

Requests wait for one script (shared_scripts.py) that chooses among the best replicas of a
ranking with everybody's counts. One script is under way at a time and takes along whatever
waits, so that a call is always placed with all earlier calls of its gateway counted. Where a
ranking has no prices, or one candidate, there is nothing to ask: it becomes known with the next
refresh.

A Redis that does not answer within `HURRY_S` costs those calls that were waiting just then that
time. From then on the gateway counts alone, with what it last heard of the others until that is
too old, until a refresh in the background has found Redis back. No request fails of it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock
from tierway.policies.sharing import Offer, cheapest, plus, with_work
from tierway.policies.types import Counts, StateStatus
from tierway.router.fleet import Fleet
from tierway.router.shared import REFRESH_S, ROW_TTL_S, TICK_S
from tierway.router.shared_scripts import (
    PLACE,
    SYNC,
    Keys,
    pack_ask,
    pack_counts,
    pack_placements,
    unpack_counts,
    unpack_placements,
)

logger = logging.getLogger(__name__)

_ROW_S = 2e-4
"""A refresh reads every gateway's row for every replica: before many of both it comes less often,
so that all of them take Redis no more than some hundredths of its time."""
_SLOWEST_S = 1.0
_ASKS = 64  # in one script, which holds up everybody else in Redis
_KEYS = 64
_ENTRIES = 8192  # of the stream: at ten a second from each of 16 gateways, most of a minute
_STREAM_TTL_S = 600.0
_ENTRY_BLOCKS = 4096  # 32 KiB
_WAITING_BLOCKS = 16 * _ENTRY_BLOCKS
_PAGE = 64


class Link(Protocol):
    """A connection to Redis with deadlines; what cannot be had is a CacheError. A script in a
    `hurry` is one that a request waits for."""

    def open(self) -> None: ...
    async def script(
        self,
        source: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *,
        hurry: bool = False,
    ) -> Any: ...
    async def command(self, *command: Any) -> Any: ...
    async def aclose(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Asked:
    """A call that waits for its place; `place` None means that nobody chose for it."""

    offers: tuple[Offer, ...]
    draw: float
    done: asyncio.Future[None]
    place: int | None = None


class RedisState:
    """`gateway` names this process among all. `on_placed` is told of what others sent where.
    What a gateway says again every `refresh_s` counts for `row_ttl_s` after it died."""

    def __init__(
        self,
        link: Link,
        fleet: Fleet,
        *,
        name: str,
        gateway: str,
        clock: Clock,
        on_placed: Callable[[str, Sequence[int]], None] | None = None,
        refresh_s: float = REFRESH_S,
        row_ttl_s: float = ROW_TTL_S,
    ) -> None:
        self._link, self._fleet, self._clock = link, fleet, clock
        self._keys, self._gateway = Keys(name), gateway
        self._on_placed = on_placed
        self._refresh_s, self._row_ttl_s = refresh_s, row_ttl_s
        self._up, self._error, self._living = False, "", 1
        self._heard_s = self._due_s = clock()
        self._refreshes = 0  # begun and ended ones: odd while one is under way
        self._queue: deque[_Asked] = deque()
        self._promised: set[_Asked] = set()
        self._lane: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._outgoing: deque[tuple[str, tuple[int, ...]]] = deque()
        self._outgoing_blocks = 0
        self._last = "0"

    async def start(self) -> None:
        self._link.open()
        self._up = True
        await self._try(self.refresh)
        self._beat = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        for task in (self._beat, self._lane):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._up:
            await self._try(self._leave)
        self._up = False
        await self._link.aclose()

    def status(self) -> StateStatus:
        return StateStatus("redis", self._up, self._living if self._up else 1, self._error)

    # ---- choosing ----------------------------------------------------------------------------

    async def pick(self, offers: Iterable[Offer], draw: float) -> int:
        if not self._up:
            return 0
        loop = asyncio.get_running_loop()
        asked = _Asked(tuple(offers), draw, loop.create_future())
        if len(asked.offers) < 2:
            return 0
        self._queue.append(asked)
        if self._lane is None:
            self._lane = loop.create_task(self._decide())
        try:
            await asked.done
        finally:
            # From here to the caller's own count nothing else runs.
            self._promised.discard(asked)
        return self._alone(asked) if asked.place is None else asked.place

    def _alone(self, asked: _Asked) -> int:
        now = [self._here(offer.replica) for offer in asked.offers]
        return cheapest(asked.offers, now, asked.draw)

    def _here(self, replica: str) -> Counts:
        return plus(self._fleet.own(replica), self._fleet.others(replica))

    async def _decide(self) -> None:
        """Places whatever waits, and what comes meanwhile."""
        try:
            while self._queue and self._up:
                count = min(_ASKS, len(self._queue))
                batch = [self._queue.popleft() for _ in range(count)]
                try:
                    await self._try(self._place, batch)
                finally:
                    _release(batch)
        finally:
            self._lane = None
            _release(self._queue)
            self._queue.clear()

    async def _place(self, batch: Sequence[_Asked]) -> None:
        waiting = [asked for asked in batch if not asked.done.done()]
        if not waiting:
            return
        replicas = list(dict.fromkeys(o.replica for asked in waiting for o in asked.offers))
        number = {replica: at for at, replica in enumerate(replicas, 1)}
        asks = [
            pack_ask(asked.offers, asked.draw, [number[o.replica] for o in asked.offers])
            for asked in waiting
        ]
        refreshes = self._refreshes
        places, _ = await self._sync(replicas, asks, hurry=True)
        for asked, place in zip(waiting, places, strict=True):
            if not asked.done.done():
                asked.place = place
                self._promised.add(asked)
        crossed = refreshes % 2 or refreshes != self._refreshes
        if crossed or any(asked.place is None for asked in waiting):
            self._due_s = self._clock()  # the row may not be as it is here: say it again

    # ---- the script --------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Says all that is in flight here, and hears of the others. Raises CacheError."""
        rows = len(self._fleet.specs()) * self._living
        self._due_s = self._clock() + max(self._refresh_s, min(_SLOWEST_S, rows * _ROW_S))
        self._refreshes += 1
        try:
            for replicas in self._pages():
                _, self._living = await self._sync(replicas)
        finally:
            self._refreshes += 1
        self._heard_s = self._clock()

    async def _leave(self) -> None:
        for replicas in self._pages():
            await self._sync(replicas, leaving=True)

    def _pages(self) -> list[list[str]]:
        replicas = [spec.id for spec in self._fleet.specs()]
        return [replicas[at : at + _KEYS] for at in range(0, max(1, len(replicas)), _KEYS)]

    async def _sync(
        self,
        replicas: Sequence[str],
        asks: Sequence[bytes] = (),
        *,
        hurry: bool = False,
        leaving: bool = False,
    ) -> tuple[list[int], int]:
        """(places of the asks, gateways alive); the counts of others go to the fleet."""
        keys = [self._keys.gateways, *map(self._keys.counts, replicas)]
        own = pack_counts(map(self._own, replicas))
        ttl_ms = 0 if leaving else int(self._row_ttl_s * 1000)
        arguments = [self._gateway, ttl_ms, own, *asks]
        places, sums, living = await self._link.script(SYNC, keys, arguments, hurry=hurry)
        self._fleet.set_others(dict(zip(replicas, unpack_counts(sums), strict=True)))
        return places, living

    def _own(self, replica: str) -> Counts:
        """What is in flight here, and what is about to be."""
        counts = self._fleet.own(replica)
        for asked in self._promised:
            offer = asked.offers[asked.place or 0]
            if offer.replica == replica:
                counts = with_work(counts, offer.work)
        return counts

    # ---- placements --------------------------------------------------------------------------

    def placed(self, replica: str, blocks: Sequence[int]) -> None:
        for at in range(0, len(blocks), _ENTRY_BLOCKS):
            part = tuple(blocks[at : at + _ENTRY_BLOCKS])
            self._outgoing.append((replica, part))
            self._outgoing_blocks += len(part)
        while self._outgoing_blocks > _WAITING_BLOCKS:
            self._outgoing_blocks -= len(self._outgoing.popleft()[1])

    async def exchange(self) -> None:
        """Sends the placements of this gateway and takes in the others'. Raises CacheError."""
        key = self._keys.placed
        while self._outgoing:
            entry = pack_placements(self._next_entry())
            limits = (_ENTRIES, int(_STREAM_TTL_S * 1000))
            await self._link.script(PLACE, [key], [*limits, self._gateway, entry])
        full = True
        while full:
            page = await self._link.command("XRANGE", key, f"({self._last}", "+", "COUNT", _PAGE)
            full = len(page) == _PAGE
            for number, fields in page:
                self._last = number.decode()
                if fields.get(b"from") != self._gateway.encode():
                    self._take_in(fields.get(b"of", b""))
                await asyncio.sleep(0)  # requests come first

    def _next_entry(self) -> list[tuple[str, tuple[int, ...]]]:
        taken: list[tuple[str, tuple[int, ...]]] = []
        room = _ENTRY_BLOCKS
        while self._outgoing and len(self._outgoing[0][1]) <= room:
            taken.append(self._outgoing.popleft())
            room -= len(taken[-1][1]) + 1
        self._outgoing_blocks -= sum(len(blocks) for _, blocks in taken)
        return taken

    def _take_in(self, packed: bytes) -> None:
        if self._on_placed is None:
            return
        try:
            for replica, blocks in unpack_placements(packed):
                self._on_placed(replica, blocks)
        except (struct.error, ValueError) as error:
            logger.warning("shared state: a placement cannot be read: %s", error)

    # ---- behind the requests -----------------------------------------------------------------

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._clock() >= self._due_s:
                await self._try(self.refresh)
            if self._up:
                await self._try(self.exchange)
            elif self._clock() - self._heard_s > self._row_ttl_s:
                self._fleet.set_others({spec.id: Counts() for spec in self._fleet.specs()})

    async def _try(self, action: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Runs it, and keeps whether Redis is there."""
        try:
            await action(*arguments)
        except CacheError as error:
            self._lost(error.public)
        except Exception as error:  # border: what runs behind the requests outlives any fault
            logger.exception("the shared state failed")
            self._lost(str(error) or type(error).__name__)
        else:
            self._found()

    def _lost(self, reason: str) -> None:
        self._error = reason
        if self._up:
            self._up = False
            logger.warning("shared state: %s This gateway counts alone until it is back.", reason)

    def _found(self) -> None:
        if not self._up:
            logger.info("shared state: Redis is there; counts are those of all gateways")
        self._up, self._error = True, ""


def _release(waiting: Iterable[_Asked]) -> None:
    """Lets them go on, with a place or without."""
    for asked in waiting:
        if not asked.done.done():
            asked.done.set_result(None)
