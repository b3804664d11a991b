"""The cache's work behind the requests: write what was kept, follow the store, reap, evict.

Entries to store wait in a queue; what came together is encoded in one call. Any fault of the
store or of the encoder is counted and said once in a while, and the entry stays in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.eviction import LOOK_EVERY_S, Eviction
from tierway.cache.follower import FOLLOW_EVERY_S, STALE_GRACE_S, Follower
from tierway.cache.holding import Holding
from tierway.cache.int8_rows import pack
from tierway.cache.journal import Journal
from tierway.cache.purge import Purge
from tierway.cache.unsaved import Unsaved
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Clock, Embedder, Entry

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

logger = logging.getLogger(__name__)

REAP_EVERY_S = 30.0
START_WITHIN_S = 5.0
CLOSE_WITHIN_S = 5.0
QUEUED_AT_MOST = 10_000
_BATCH = 32
_REAP_STEP = 250


class Faults:
    """Counts the cache's faults by part and logs the first of every hundred."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, part: str, error: Exception | None = None) -> None:
        if self.counts[part] % 100 == 0:
            logger.warning("cache %s: %s", part, error or "trouble")
        self.counts[part] += 1


@dataclass(frozen=True, slots=True)
class Job:
    """An entry to store, whether its question should get a vector, and the vector if there
    is one already."""

    entry: Entry
    wants_vector: bool
    vector: Vectors | None = None


class Upkeep:
    def __init__(
        self,
        store: CacheStore,
        holding: Holding,
        embedder: Embedder | None,
        faults: Faults,
        wall: Clock,
        *,
        encode_deadline_s: float = 10.0,
        start_within_s: float = START_WITHIN_S,
        store_bytes: int = 4 << 30,
        partial: bool = False,
    ) -> None:
        self._store, self._holding, self._embedder = store, holding, embedder
        self._faults, self._wall = faults, wall
        self._encode_deadline_s, self._start_within_s = encode_deadline_s, start_within_s
        self.journal = Journal(store, wall, faults.add)
        self.eviction = Eviction(store, wall, max_bytes=store_bytes)
        self.unsaved = Unsaved(holding)
        self.purge = Purge(store, self.unsaved, self.journal, self.follow, faults.add, wall)
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._follower = Follower(store, holding, embedder, wall, faults.add, partial=partial)
        self._tasks: list[asyncio.Task[None]] = []
        self._taken_in = asyncio.Event()

    async def start(self) -> None:
        """Begins to read what the store holds and to keep up with it, in the background.

        Returns once all is read, and at the latest after `start_within_s`: what is not in yet
        is missed for that long, which is better than not to answer at all.
        """
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._write_forever()),
            loop.create_task(self._follow_forever()),
            loop.create_task(self._every(REAP_EVERY_S, self.reap)),
            loop.create_task(self._every(LOOK_EVERY_S, self.eviction.run)),
        ]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._taken_in.wait(), self._start_within_s)
        await self._guarded(self.eviction.measure)

    async def aclose(self) -> None:
        """Writes what is queued, for a bounded time, then ends."""
        if self._tasks:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), CLOSE_WITHIN_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.purge.aclose()
        self._tasks = []

    async def taken_in(self) -> None:
        """Returns when all that the store held at the start is here, or could not be read."""
        await self._taken_in.wait()

    def submit(self, job: Job) -> None:
        """Queues a job. With too many waiting it is dropped, counted: the entry stays in
        memory, and a store or encoder that hangs does not fill it."""
        self.unsaved.add(job.entry)
        if self._queue.qsize() >= QUEUED_AT_MOST:
            self._faults.add("queue-full")
        else:
            self._queue.put_nowait(job)

    async def settled(self) -> None:
        """Returns when everything submitted so far was dealt with."""
        await self._queue.join()

    async def follow(self) -> None:
        """Applies what was written to the store since the last time."""
        await self.journal.follow()
        await self._follower.follow()

    async def reap(self) -> None:
        horizon_at = self._wall() - STALE_GRACE_S
        dropped = _REAP_STEP
        while dropped == _REAP_STEP:
            dropped = self._holding.drop_expired(horizon_at, most=_REAP_STEP)
            await asyncio.sleep(0)  # requests go in between
        await self._store.reap(horizon_at)

    async def _write_forever(self) -> None:
        while True:
            jobs = [await self._queue.get()]
            while not self._queue.empty() and len(jobs) < _BATCH:
                jobs.append(self._queue.get_nowait())
            try:
                await self._write(jobs)
            except Exception:  # border: the background loop outlives any fault
                logger.exception("writing to the cache failed")
            finally:
                for _ in jobs:
                    self._queue.task_done()

    async def _write(self, jobs: list[Job]) -> None:
        vectors, puts = await self._vectors(jobs), []
        for job, vector in zip(jobs, vectors, strict=True):
            entry, held = job.entry, self._holding.by_id(job.entry.id)
            if held is None:
                self.unsaved.remove(entry.id)
                continue  # deleted or replaced meanwhile
            if vector is not None and self._embedder is not None:
                self._follower.attach(held, vector)
                entry = replace(entry, encoder=self._embedder.id, vector=pack(vector))
            puts.append(self._put(entry))
        await asyncio.gather(*puts)  # what is put together is committed together

    async def _put(self, entry: Entry) -> None:
        try:
            await self._store.put(entry)
            self.unsaved.remove(entry.id)
        except CacheError as error:
            self._faults.add("store", error)

    async def _vectors(self, jobs: list[Job]) -> list[Vectors | None]:
        """The vectors of the jobs: those that came along, and the rest in one call."""
        found = [job.vector for job in jobs]
        wanted = [at for at, job in enumerate(jobs) if job.wants_vector and job.vector is None]
        if not wanted or self._embedder is None:
            return found
        try:
            async with asyncio.timeout(self._encode_deadline_s):
                rows = await self._embedder.encode([jobs[at].entry.question for at in wanted])
        except TimeoutError:
            self._faults.add("encoder-slow")
            return found
        except Exception as error:  # border: an embedder may be anybody's code
            self._faults.add("encoder", error)
            return found
        for at, row in zip(wanted, rows, strict=True):
            if np.isfinite(row).all():
                found[at] = row
            else:
                self._faults.add("encoder-not-finite")
        return found

    async def _follow_forever(self) -> None:
        while True:
            await self._guarded(self.follow)
            self._taken_in.set()
            await asyncio.sleep(FOLLOW_EVERY_S)

    async def _every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._guarded(action)

    async def _guarded(self, action: Callable[[], Awaitable[None]]) -> None:
        try:
            await action()
        except CacheError as error:
            self._faults.add("store", error)
        except Exception:  # border: the background loop outlives any fault
            logger.exception("a cache task failed")
