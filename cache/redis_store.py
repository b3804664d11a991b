"""A CacheStore in Redis or Redis Cluster, shared by the gateways of many hosts.

The ledger (redis_ledger.py) is the truth: an entry lives while it has a row there. Its texts
are a key of their own, on any node of a cluster, so the two are not written in one step. The
order makes every crash heal:

- put: texts first, then the vector, where Redis searches them, then the row. In between there
  is a text that nobody knows of, which ends by its own time to live, and a vector whose entry is
  never found, which goes with its set.
- delete: the row becomes a tombstone and its id goes into the trash in one step, then the
  texts go, then the trash is emptied. What is left in the trash, `reap` deletes.
- A row whose text is gone (its time is over, Redis evicted it) becomes a tombstone when it is
  read, when a follower lists it, or when `reap` comes by; it looks through some rows each time.

Texts live `grace_s` past their expiry at most: an abandoned Redis forgets them. Where memory is
limited, maxmemory-policy should be one of `volatile-*`: the others may evict the ledger, which
costs the cache its content (followers get a reset), or refuse writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from tierway.cache.redis_codec import Gone, gone_of, packed, selects, unpacked
from tierway.cache.redis_ledger import Line, RedisLedger
from tierway.cache.redis_link import Command, RedisLink
from tierway.cache.redis_notes import RedisNotes
from tierway.cache.redis_scripts import Keys
from tierway.cache.store import (
    LINES_PER_CUT,
    NOTES_KEPT,
    TOMBSTONES_KEPT,
    Selection,
    reset,
    start_of,
)
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Change, Clock, Entry, Note, StoreSize

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

NOBODY = "-"
"""The id of no entry."""

_LONGEST_S = 10 * 365 * 86400.0
_LOOKED_AT = 1_000  # rows whose texts one `reap` looks for


class Vectors(Protocol):
    """Where the vectors of entries are searched (redis_index.py)."""

    async def check(self) -> None: ...
    async def add(self, entry: Entry, live_s: float) -> None: ...
    async def remove(self, gone: Sequence[Gone]) -> None: ...


class RedisStore:
    """A PartialStore. `wall` is seconds since the epoch. With `vectors` the store keeps them in
    step with the entries; unless it is `partial` its log tells of everything.

    A server that is not there does not fail `start`: it is tried again with each use. One that
    has no vector sets where they are wanted does.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        wall: Clock,
        grace_s: float = 3600.0,
        name: str = "main",
        tombstones_kept: int = TOMBSTONES_KEPT,
        notes_kept: int = NOTES_KEPT,
        vectors: Vectors | None = None,
        partial: bool = False,
    ) -> None:
        if tombstones_kept < 0:
            raise ValueError(f"tombstones_kept = {tombstones_kept}: must not be negative")
        self._link, self._wall, self._grace_s = link, wall, grace_s
        self._keys = Keys(name)
        self._ledger = RedisLedger(link, self._keys)
        self._journal = RedisNotes(link, self._keys)
        self._kept, self._notes_kept = tombstones_kept, notes_kept
        self._vectors, self._partial = vectors, partial
        self._state = "not started"
        self._looked_to = 0

    async def start(self) -> None:
        if self._state == "closed":
            self._refuse()
        self._link.open()
        self._state = "open"
        await self._greet()

    async def aclose(self) -> None:
        self._state = "closed"
        await self._link.aclose()

    async def put(self, entry: Entry) -> int:
        self._check()
        key, live_s = self._keys.entry(entry.id), self._live_s(entry)
        head, vector, answer = packed(entry)
        await self._link.pipeline(
            [
                ("HSET", key, "head", head, "vector", vector, "answer", answer),
                ("PEXPIRE", key, int(live_s * 1000)),
            ]
        )
        if self._vectors is not None and entry.vector and entry.encoder:
            await self._vectors.add(entry, live_s)
        sequence, gone = await self._ledger.put(entry)
        await self._clear(gone)
        return sequence

    async def get(self, entry_id: str) -> Entry | None:
        return (await self.get_many([entry_id]))[0]

    async def get_many(self, entry_ids: Sequence[str]) -> list[Entry | None]:
        """The entries with their answers, None for what is not there."""
        self._check()
        if not entry_ids:
            return []
        reads = [self._read(entry_id, "answer") for entry_id in entry_ids]
        rows, *texts = await self._link.pipeline(
            [("HMGET", self._keys.part("live"), *entry_ids), *reads], hurry=True
        )
        entries = [
            _entry(entry_id, *text) if row is not None else None
            for entry_id, row, text in zip(entry_ids, rows, texts, strict=True)
        ]
        lost = [
            entry_id
            for entry_id, row, entry in zip(entry_ids, rows, entries, strict=True)
            if row is not None and entry is None
        ]
        if lost:
            await self._clear(await self._ledger.bury(lost))
        return entries

    async def by_exact(self, exact: bytes) -> Entry | None:
        """The entry of a whole request's digest."""
        self._check()
        entry_id = await self._ledger.by_exact(exact)
        return None if entry_id is None else await self.get(entry_id)

    async def delete(self, entry_ids: Sequence[str]) -> int:
        self._check()
        deleted = 0
        for part in _parts(entry_ids):
            deleted += await self._clear(await self._ledger.bury(part))
        return deleted

    async def delete_where(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        namespace: str | None = None,
        model: str | None = None,
        context_id: str | None = None,
        older_than_at: float | None = None,
    ) -> int:
        """Deletes what meets all conditions given; without any, everything."""
        self._check()
        chosen = Selection(tenant, user, namespace, model, context_id, older_than_at)
        deleted = cursor = 0
        while True:
            cursor, rows = await self._ledger.scan("live", cursor)
            wanted = [entry_id for entry_id, row in rows if selects(chosen, row)]
            deleted += await self.delete(wanted)
            if not cursor:
                break
        if chosen.notes_too:
            await self._journal.drop_where(chosen.matches_note)
        await self._cut()
        if chosen.notes_too:
            await self._journal.drop_where(chosen.matches_note)
        return deleted

    async def reap(self, now_at: float) -> int:
        """Deletes what has expired at `now_at` and says how many entries that were.

        To be called every minute or so: it also keeps the log short, finishes what a process
        that died left undone, and finds entries whose texts Redis evicted.
        """
        self._check()
        deleted = 0
        while part := await self._ledger.bury_expired(now_at):
            deleted += await self._clear(part)
        await self._journal.reap(now_at, self._notes_kept)
        await self._empty_trash()
        await self._look_for_lost()
        await self._cut()
        return deleted

    async def size(self) -> StoreSize:
        self._check()
        return await self._ledger.size()

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        """Notes that the entries were used."""
        self._check()
        await self._ledger.touch(entry_ids, now_at)

    async def shrink(self, max_bytes: int) -> int:
        """Deletes the least recently used until the rest is no larger; how many that were."""
        self._check()
        deleted = 0
        while part := await self._ledger.shrink(max_bytes):
            deleted += await self._clear(part)
        await self._cut()
        return deleted

    async def count(self) -> int:
        self._check()
        return await self._ledger.count()

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        self._check()
        horizon, newest, lines = await self._ledger.lines(since, limit)
        if self._partial:
            return _deletions(since, horizon=horizon, newest=newest, lines=lines)
        start, lost = start_of(since, horizon=horizon, newest=newest)
        if not lost:
            return await self._listed(lines)
        _, _, lines = await self._ledger.lines(start, max(0, limit - 1))
        return [reset(start), *await self._listed(lines)]

    async def note(self, note: Note) -> int:
        self._check()
        return await self._journal.write(note)

    async def notes(self, since: int, limit: int = 1000) -> list[Note]:
        self._check()
        return await self._journal.read(since, limit, self._wall())

    async def _listed(self, lines: Sequence[Line]) -> list[Change]:
        """The changes that the lines stand for. A living line without its text is told as the
        deletion that it becomes."""
        reads = [self._read(entry_id) for entry_id, _, lives in lines if lives]
        texts = iter(await self._link.pipeline(reads))
        page = [
            Change(sequence, entry_id, _entry(entry_id, *next(texts)) if lives else None)
            for entry_id, sequence, lives in lines
        ]
        lost = [
            (change.entry_id, change.sequence)
            for change, (_, _, lives) in zip(page, lines, strict=True)
            if lives and change.entry is None
        ]
        await self._clear(await self._ledger.bury_lost(lost))
        return page

    def _read(self, entry_id: str, *more: str) -> Command:
        return ("HMGET", self._keys.entry(entry_id), "head", "vector", *more)

    async def _clear(self, gone: Sequence[Gone]) -> int:
        """Removes what buried entries leave; how many these were."""
        for part in _parts(gone):
            if self._vectors is not None:
                await self._vectors.remove(part)
            await self._link.pipeline([("UNLINK", self._keys.entry(one.entry_id)) for one in part])
            await self._ledger.forget(part)
        return len(gone)

    async def _empty_trash(self) -> None:
        cursor = 0
        while True:
            cursor, rows = await self._ledger.scan("trash", cursor)
            await self._clear([gone_of(entry_id, row) for entry_id, row in rows])
            if not cursor:
                return

    async def _look_for_lost(self) -> None:
        """Looks whether some of the rows still have their texts, others each time."""
        self._looked_to, rows = await self._ledger.scan("live", self._looked_to, _LOOKED_AT)
        ids = [entry_id for entry_id, _ in rows]
        numbers = await self._ledger.numbers(ids)
        found = await self._link.pipeline([("EXISTS", self._keys.entry(one)) for one in ids])
        lost = [
            (entry_id, number)
            for entry_id, number, there in zip(ids, numbers, found, strict=True)
            if number is not None and not there
        ]
        await self._clear(await self._ledger.bury_lost(lost))

    async def _cut(self) -> None:
        while await self._ledger.cut(self._kept):
            pass

    async def _greet(self) -> None:
        """Says in the log what an operator should know about the server. Raises CacheError
        where it cannot do what is wanted."""
        try:
            policy = await self._link.eviction_policy()
        except CacheError as error:
            logger.warning("cache store: %s The cache goes on without it.", error.public)
            return
        if self._vectors is not None:
            await self._vectors.check()
        if policy.startswith("allkeys"):
            logger.warning(
                "cache store: %s has maxmemory-policy %s, which may evict the ledger"
                " of the cache and with it everything; use volatile-lru.",
                self._link.name,
                policy,
            )

    def _live_s(self, entry: Entry) -> float:
        left_s = max(0.0, entry.expires_at - self._wall())
        return min(_LONGEST_S, left_s + self._grace_s)

    def _check(self) -> None:
        if self._state != "open":
            self._refuse()

    def _refuse(self) -> None:
        raise CacheError(f"The cache in {self._link.name} is {self._state}.")


def _entry(
    entry_id: str, head: bytes | None, vector: bytes | None, answer: bytes | None = b""
) -> Entry | None:
    """None where the text is gone, or is none that this release can read."""
    if head is None or answer is None:
        return None
    try:
        return unpacked(entry_id, head, vector, answer)
    except (ValueError, TypeError) as error:
        logger.warning("cache store: the entry %s cannot be read: %s", entry_id, error)
        return None


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), LINES_PER_CUT):
        yield items[start : start + LINES_PER_CUT]


def _deletions(since: int, *, horizon: int, newest: int, lines: Sequence[Line]) -> list[Change]:
    """What a follower gets who holds only some entries: the deletions after `since`; a reset
    to the end of the log where it may have missed some; and a line about nobody at the end of
    a page of puts, so that the next page begins behind it."""
    if since == 0 or not horizon <= since <= newest:
        return [reset(newest)] if since != newest else []
    page = [Change(sequence, entry_id, None) for entry_id, sequence, lives in lines if not lives]
    if lines and (not page or page[-1].sequence != lines[-1][1]):
        page.append(Change(lines[-1][1], NOBODY, None))
    return page
