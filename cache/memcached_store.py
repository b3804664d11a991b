"""Exact answers in memcached, shared by gateways: a PartialStore that is asked by digest.

Memcached keeps what it likes and lists nothing. So there is no semantic lookup, no listing and
no eviction of ours; entries end with their time or when room is needed. What it can do, with the
key prefix `tierway:cache:v1:NAME:`, is enough for answers to be withdrawn everywhere:

    x:DIGEST    one entry: its id, all but the answer as JSON, the answer, a line each
    i:ID        the digest, so that an entry can be deleted by its id
    gone        a counter; gone:NUMBER holds ids that were deleted, for an hour
    purges      selections whose entries are passed over, by delete_where
    note        a counter; note:NUMBER is a note of the journal

A follower that finds a number missing, or the counter set back, gets a reset and forgets all
it holds. Notes are kept as well as memcached keeps anything: a full server may lose them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from tierway.cache.memcached_link import LONGEST_S, MemcachedLink, Stored
from tierway.cache.redis_codec import packed, unpacked
from tierway.cache.store import Selection, reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Change, Clock, Entry, Note, StoreSize

PREFIX = "tierway:cache:v1"
IDS_PER_LINE = 50
PURGES_KEPT = 200
NOTES_READ = 2_000
"""The newest notes that a process reads when it starts."""

_GONE_LIVE_S = 3600.0
_TRIES = 10


class MemcachedStore:
    """`wall` is seconds since the epoch; entries stay `grace_s` past their expiry."""

    def __init__(
        self, link: MemcachedLink, *, wall: Clock, grace_s: float = 3600.0, name: str = "main"
    ) -> None:
        self._link, self._wall, self._grace_s = link, wall, grace_s
        self._prefix = f"{PREFIX}:{name}"
        self._state = "not started"
        self._purges: list[Selection] = []
        self._purges_raw: bytes | None = None
        self._notes_empty_to = self._notes_newest = 0

    async def start(self) -> None:
        if self._state == "closed":
            self._refuse()
        self._link.open()
        self._state = "open"

    async def aclose(self) -> None:
        self._state = "closed"
        await self._link.aclose()

    async def put(self, entry: Entry) -> int:
        """Puts have no line in the log: 0."""
        self._check()
        head, _, answer = packed(replace(entry, vector=None))
        value = b"\n".join((orjson.dumps(entry.id), head, answer))
        live_s = max(0.0, entry.expires_at - self._wall()) + self._grace_s
        await self._link.set(
            Stored(self._text(entry.exact), value, live_s),
            Stored(self._owner(entry.id), entry.exact, live_s),
        )
        return 0

    async def get(self, entry_id: str) -> Entry | None:
        return (await self.get_many([entry_id]))[0]

    async def get_many(self, entry_ids: Sequence[str]) -> list[Entry | None]:
        self._check()
        digests = await self._link.get([self._owner(one) for one in entry_ids], hurry=True)
        found = await self._by_exact([reply.value for reply in digests], hurry=True)
        return [
            entry if entry is not None and entry.id == entry_id else None
            for entry_id, entry in zip(entry_ids, found, strict=True)
        ]

    async def by_exact(self, exact: bytes) -> Entry | None:
        self._check()
        return (await self._by_exact([exact], hurry=True))[0]

    async def delete(self, entry_ids: Sequence[str]) -> int:
        """How many texts were there; the ids are told to all followers in any case."""
        self._check()
        ids = list(dict.fromkeys(entry_ids))
        there = [entry for entry in await self.get_many(ids) if entry is not None]
        await self._link.delete([self._text(entry.exact) for entry in there])
        await self._link.delete([self._owner(one) for one in ids])
        for start in range(0, len(ids), IDS_PER_LINE):
            number = await self._link.count(self._key("gone"), self._first_number())
            value = orjson.dumps(ids[start : start + IDS_PER_LINE])
            await self._link.set(Stored(self._key(f"gone:{number}"), value, _GONE_LIVE_S))
        return len(there)

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
        """From now on nothing that meets the conditions and is stored already is handed out.
        Memcached does not tell how many entries that are: 0."""
        self._check()
        bound_at = self._wall() if older_than_at is None else min(older_than_at, self._wall())
        chosen = Selection(tenant, user, namespace, model, context_id, bound_at)
        for _ in range(_TRIES):
            (found,) = await self._link.get([self._key("purges")])
            purges = _kept([*_purges(found.value), chosen], self._wall() - LONGEST_S)
            value = orjson.dumps([one.given() for one in purges])
            token = found.token if found.code == b"VA" else None
            (reply,) = await self._link.set(
                Stored(self._key("purges"), value, LONGEST_S, token=token)
            )
            if reply.code == b"HD":
                return 0
        raise CacheError(f"{self._link.name}: too many purges at the same time. Repeat it.")

    async def reap(self, now_at: float) -> int:
        """Memcached does it by itself."""
        self._check()
        return 0

    async def size(self) -> StoreSize:
        """Of the whole server: two items for each entry of ours."""
        self._check()
        told = await self._link.stats()
        return StoreSize(int(told.get("curr_items", 0)) // 2, int(told.get("bytes", 0)))

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        """Reading an entry was its touch."""
        self._check()

    async def shrink(self, max_bytes: int) -> int:
        """Memcached's own limit (`-m`) is the one that holds."""
        self._check()
        return 0

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        self._check()
        counter, purges = await self._link.get([self._key("gone"), self._key("purges")])
        newest = int(counter.value or 0)
        purged = self._take_purges(purges.value)
        if purged or newest < since or (since == 0 and newest):
            return [reset(newest)]
        count = min(newest - since, max(1, limit // IDS_PER_LINE))
        numbers = range(since + 1, since + 1 + count)
        lines = await self._link.get([self._key(f"gone:{number}") for number in numbers])
        if any(line.code != b"VA" for line in lines):
            return [reset(newest)]
        return [
            Change(number, entry_id, None)
            for number, line in zip(numbers, lines, strict=True)
            for entry_id in orjson.loads(line.value)
        ]

    async def note(self, note: Note) -> int:
        self._check()
        number = await self._link.count(self._key("note"), self._first_number())
        body = [note.kind, note.tenant, note.user, dict(note.body), note.at, note.expires_at]
        live_s = note.expires_at - self._wall()
        key = self._key(f"note:{number}")
        await self._link.set(Stored(key, orjson.dumps(body), live_s))
        return number

    async def notes(self, since: int, limit: int = 1000) -> list[Note]:
        self._check()
        (counter,) = await self._link.get([self._key("note")])
        newest, now_at = int(counter.value or 0), self._wall()
        start = since if since <= newest else 0
        start = max(start, newest - NOTES_READ, self._notes_empty_to)
        while start < newest:
            numbers = range(start + 1, min(newest, start + limit) + 1)
            found = await self._link.get([self._key(f"note:{number}") for number in numbers])
            fresh = [
                _note(number, reply.value)
                for number, reply in zip(numbers, found, strict=True)
                if reply.code == b"VA"
            ]
            if fresh := [note for note in fresh if note.expires_at > now_at]:
                return fresh
            start = numbers[-1]
        # What was counted a moment ago may still be on its way.
        if newest == self._notes_newest and since < newest:
            self._notes_empty_to = newest
        self._notes_newest = newest
        return []

    async def _by_exact(self, digests: Sequence[bytes], *, hurry: bool) -> list[Entry | None]:
        replies = await self._link.get([self._text(one) for one in digests], hurry=hurry)
        return [self._read(reply.value) if reply.code == b"VA" else None for reply in replies]

    def _read(self, value: bytes) -> Entry | None:
        try:
            entry_id, head, answer = value.split(b"\n", 2)
            entry = unpacked(orjson.loads(entry_id), head, None, answer)
        except (ValueError, TypeError):
            return None  # of another release
        return None if any(one.matcher()(entry) for one in self._purges) else entry

    def _take_purges(self, raw: bytes) -> bool:
        """Whether there are others than before."""
        before, self._purges_raw = self._purges_raw, raw
        if raw == before:
            return False
        self._purges = _purges(raw)
        return bool(raw) or before is not None

    def _first_number(self) -> int:
        """Above every number of a counter that was lost."""
        return int(self._wall() * 1e6)

    def _text(self, exact: bytes) -> str:
        return self._key(f"x:{exact.hex() or '-'}")

    def _owner(self, entry_id: str) -> str:
        return self._key("i:" + hashlib.sha256(entry_id.encode()).hexdigest()[:40])

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _check(self) -> None:
        if self._state != "open":
            self._refuse()

    def _refuse(self) -> None:
        raise CacheError(f"The cache in {self._link.name} is {self._state}.")


def _note(number: int, raw: bytes) -> Note:
    kind, tenant, user, body, at, expires_at = orjson.loads(raw)
    return Note(kind, tenant, user, body, at, expires_at, number)


def _purges(raw: bytes) -> list[Selection]:
    try:
        found: list[Any] = orjson.loads(raw) if raw else []
        return [Selection(**one) for one in found]
    except (ValueError, TypeError):
        # Of another release: nothing stored so far can be trusted to be allowed.
        return [Selection(older_than_at=float("inf"))]


def _kept(purges: Sequence[Selection], after_at: float) -> list[Selection]:
    """Those that may still meet something. Of too many the older half becomes one, which
    passes over everything of its time."""
    kept = [one for one in purges if (one.older_than_at or 0.0) > after_at]
    if len(kept) <= PURGES_KEPT:
        return kept
    half = len(kept) // 2
    bounds = [one.older_than_at or 0.0 for one in kept[:half]]
    return [Selection(older_than_at=max(bounds)), *kept[half:]]
