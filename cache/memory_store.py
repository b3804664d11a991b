"""A CacheStore in this process's memory: for tests, demos and single short-lived processes.

Same log, same rules and same errors as the file store (see store.py); nothing survives.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from tierway.cache.store import (
    LINES_PER_CUT,
    NOTES_KEPT,
    TOMBSTONES_KEPT,
    Selection,
    bytes_of,
    dead_limit,
    reset,
    start_of,
)
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Change, Clock, Entry, Note, StoreSize

_STEP = 1_000


class MemoryStore:
    """`tombstones_kept` and `notes_kept` as in store.py, `wall` is seconds since the epoch.
    Belongs to one event loop."""

    def __init__(
        self,
        *,
        tombstones_kept: int = TOMBSTONES_KEPT,
        notes_kept: int = NOTES_KEPT,
        wall: Clock = time.time,
    ) -> None:
        if tombstones_kept < 0:
            raise ValueError(f"tombstones_kept = {tombstones_kept}: must not be negative")
        self._kept, self._notes_kept, self._wall = tombstones_kept, notes_kept, wall
        self._state = "not started"
        self._entries: dict[str, Entry] = {}
        self._by_exact: dict[bytes, str] = {}
        self._bytes = 0
        self._used_at: dict[str, float] = {}
        self._newest = 0
        self._horizon = 0
        # Rising sequence numbers. A line is dead weight once its id has a newer one.
        self._log: list[Change] = []
        self._line_of: dict[str, int] = {}
        self._notes: list[Note] = []
        self._last_note = 0

    async def start(self) -> None:
        if self._state == "closed":
            raise CacheError("The cache store in memory is closed.")
        self._state = "open"

    async def put(self, entry: Entry) -> int:
        self._check()
        old = self._by_exact.get(entry.exact)
        if old is not None and old != entry.id:
            self._drop(old)
        same = self._entries.get(entry.id)
        if same is not None:
            self._by_exact.pop(same.exact, None)
            self._bytes -= bytes_of(same)
        self._bytes += bytes_of(entry)
        self._used_at[entry.id] = entry.created_at
        self._entries[entry.id] = entry
        self._by_exact[entry.exact] = entry.id
        self._write(entry.id, replace(entry, answer=b""))
        self._tidy()
        return self._newest

    async def get(self, entry_id: str) -> Entry | None:
        self._check()
        return self._entries.get(entry_id)

    async def delete(self, entry_ids: Sequence[str]) -> int:
        self._check()
        return self._drop_all(entry_ids)

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
        chosen = Selection(tenant, user, namespace, model, context_id, older_than_at)
        dropped = await self._drop_matching(chosen.matcher())
        self._notes = [note for note in self._notes if not chosen.matches_note(note)]
        return dropped

    async def reap(self, now_at: float) -> int:
        """Deletes what has expired at `now_at` and says how many entries that were."""
        self._reap_notes(now_at)
        return await self._drop_matching(lambda entry: entry.expires_at <= now_at)

    async def size(self) -> StoreSize:
        self._check()
        return StoreSize(len(self._entries), self._bytes)

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        self._check()
        for entry_id in entry_ids:
            used_at = self._used_at.get(entry_id)
            if used_at is not None:
                self._used_at[entry_id] = max(used_at, now_at)

    async def shrink(self, max_bytes: int) -> int:
        self._check()
        over, evicted = self._bytes - max_bytes, []
        if over > 0:
            for entry_id in sorted(self._used_at, key=self._used_at.__getitem__):
                if over <= 0:
                    break
                evicted.append(entry_id)
                over -= bytes_of(self._entries[entry_id])
        return self._drop_all(evicted)

    async def count(self) -> int:
        self._check()
        return len(self._entries)

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        self._check()
        start, lost = start_of(since, horizon=self._horizon, newest=self._newest)
        page = [reset(start)] if lost else []
        first = bisect_right(self._log, start, key=lambda line: line.sequence)
        valid = (line for line in islice(self._log, first, None) if self._is_newest(line))
        return [*page, *islice(valid, max(0, limit - len(page)))]

    async def note(self, note: Note) -> int:
        self._check()
        self._last_note += 1
        self._notes.append(replace(note, sequence=self._last_note))
        return self._last_note

    async def notes(self, since: int, limit: int = 1000) -> list[Note]:
        self._check()
        now_at, start = self._wall(), since if since <= self._last_note else 0
        first = bisect_right(self._notes, start, key=lambda note: note.sequence)
        fresh = (note for note in islice(self._notes, first, None) if note.expires_at > now_at)
        return list(islice(fresh, limit))

    async def aclose(self) -> None:
        self._state = "closed"
        self._entries.clear()
        self._by_exact.clear()
        self._used_at.clear()
        self._bytes = 0
        self._log.clear()
        self._line_of.clear()
        self._notes.clear()

    def _check(self) -> None:
        if self._state != "open":
            raise CacheError(f"The cache store in memory is {self._state}.")

    def _reap_notes(self, now_at: float) -> None:
        held: Counter[tuple[str, str]] = Counter()
        kept = []
        for note in reversed(self._notes):
            held[note.kind, note.tenant] += 1
            if note.expires_at > now_at and held[note.kind, note.tenant] <= self._notes_kept:
                kept.append(note)
        self._notes = kept[::-1]

    async def _drop_matching(self, matches: Callable[[Entry], bool]) -> int:
        """In steps of some milliseconds, requests going in between; what is put meanwhile
        stays."""
        self._check()
        entries, dropped = list(self._entries.values()), 0
        for start in range(0, len(entries), _STEP):
            if start:
                await asyncio.sleep(0)
            there = (one for one in entries[start : start + _STEP] if matches(one))
            dropped += self._drop_all([one.id for one in there if self._entries.get(one.id) is one])
        return dropped

    def _drop_all(self, entry_ids: Iterable[str]) -> int:
        dropped = sum(self._drop(entry_id) for entry_id in entry_ids)
        self._tidy()
        return dropped

    def _drop(self, entry_id: str) -> bool:
        entry = self._entries.pop(entry_id, None)
        if entry is None:
            return False
        del self._by_exact[entry.exact]
        del self._used_at[entry_id]
        self._bytes -= bytes_of(entry)
        self._write(entry_id, None)
        return True

    def _write(self, entry_id: str, entry: Entry | None) -> None:
        self._newest += 1
        self._log.append(Change(self._newest, entry_id, entry))
        self._line_of[entry_id] = self._newest

    def _is_newest(self, line: Change) -> bool:
        return self._line_of.get(line.entry_id) == line.sequence

    def _tidy(self) -> None:
        """Cuts the oldest lines while dead ones outnumber what may stay."""
        while len(self._log) - len(self._entries) > dead_limit(len(self._entries), self._kept):
            cut = self._log[:LINES_PER_CUT]
            del self._log[:LINES_PER_CUT]
            self._horizon = cut[-1].sequence
            for line in filter(self._is_newest, cut):
                if line.entry is None:
                    del self._line_of[line.entry_id]
                else:
                    self._write(line.entry_id, line.entry)
