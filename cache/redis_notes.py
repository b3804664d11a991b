"""The journal of notes in Redis: a stream, numbered by us, beside the ledger and in its slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import orjson

from tierway.cache import redis_scripts as scripts
from tierway.cache.redis_link import RedisLink
from tierway.cache.store import LINES_PER_CUT
from tierway.policies.protocols import Note


class RedisNotes:
    def __init__(self, link: RedisLink, keys: scripts.Keys) -> None:
        self._link, self._keys = link, keys

    async def write(self, note: Note) -> int:
        group = orjson.dumps([note.kind, note.tenant])
        body = orjson.dumps(dict(note.body))
        arguments = (note.kind, note.tenant, note.user, body, note.at, note.expires_at, group)
        return int(await self._link.script(scripts.NOTE, self._keys.journal, arguments))

    async def read(self, since: int, limit: int, now_at: float) -> list[Note]:
        """The notes after `since` that have not expired; a `since` of another store begins
        anew."""
        newest = await self._link.command("HGET", self._keys.part("meta"), "note_sequence")
        start = since if since <= int(newest or 0) else 0
        fresh: list[Note] = []
        async for page in self._pages(start, limit):
            fresh += [note for note in page if note.expires_at > now_at]
            if len(fresh) >= limit:
                break
        return fresh[:limit]

    async def reap(self, now_at: float, kept: int) -> None:
        """Deletes what has expired, and the oldest of each kind and tenant beyond `kept`."""
        by_expiry = self._keys.part("note_expiry")
        while expired := await self._link.command(
            "ZRANGEBYSCORE", by_expiry, "-inf", now_at, "LIMIT", 0, LINES_PER_CUT
        ):
            await self._drop([int(number) for number in expired])
        counts = await self._link.command("HGETALL", self._keys.part("note_count"))
        excess = Counter({group: int(count) - kept for group, count in counts.items()})
        excess = +excess
        if not excess:
            return

        def beyond(note: Note) -> bool:
            group = orjson.dumps([note.kind, note.tenant])
            excess[group] -= 1
            return excess[group] >= 0

        await self.drop_where(beyond)

    async def drop_where(self, matches: Callable[[Note], bool]) -> int:
        """Deletes notes, the oldest looked at first; how many."""
        dropped = 0
        async for page in self._pages(0, LINES_PER_CUT):
            dropped += await self._drop([note.sequence for note in page if matches(note)])
        return dropped

    async def _drop(self, numbers: Sequence[int]) -> int:
        if not numbers:
            return 0
        return int(await self._link.script(scripts.DROP_NOTES, self._keys.journal, numbers))

    async def _pages(self, since: int, size: int) -> AsyncIterator[list[Note]]:
        while True:
            found = await self._link.command(
                "XRANGE", self._keys.part("notes"), f"{since + 1}-0", "+", "COUNT", size
            )
            if not found:
                return
            page = [_note(number, fields) for number, fields in found]
            yield page
            since = page[-1].sequence


def _note(number: bytes, fields: Mapping[bytes, bytes]) -> Note:
    return Note(
        kind=fields[b"kind"].decode(),
        tenant=fields[b"tenant"].decode(),
        user=fields[b"user"].decode(),
        body=orjson.loads(fields[b"body"]),
        at=float(fields[b"at"]),
        expires_at=float(fields[b"expires_at"]),
        sequence=int(number.partition(b"-")[0]),
    )
