"""The ledger of a cache in Redis: which entries live, in what order they changed, whose they are.

Each method is one command or one script on keys of one hash slot, so each happens whole or not
at all. Burying an entry makes its line a tombstone and puts it into the trash; whoever buries
then removes the texts and calls `forget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tierway.cache import redis_scripts as scripts
from tierway.cache.redis_codec import Gone, gone_of, row_of
from tierway.cache.redis_link import Part, RedisLink
from tierway.cache.store import LINES_PER_CUT
from tierway.policies.protocols import Entry, StoreSize

Line = tuple[str, int, bool]
"""Entry id, sequence number, whether it lives."""


class RedisLedger:
    def __init__(self, link: RedisLink, keys: scripts.Keys) -> None:
        self._link, self._keys = link, keys

    async def put(self, entry: Entry) -> tuple[int, list[Gone]]:
        """The number of the entry's line, and what it replaced."""
        arguments = (entry.id, row_of(entry), entry.expires_at, entry.created_at)
        sequence, gone = await self._run(scripts.PUT, *arguments)
        return int(sequence), _gone(gone)

    async def bury(self, entry_ids: Sequence[str]) -> list[Gone]:
        return _gone(await self._run(scripts.BURY, *entry_ids))

    async def bury_lost(self, lines: Sequence[tuple[str, int]]) -> list[Gone]:
        """Buries entries whose text was found missing, unless they were put again since."""
        if not lines:
            return []
        flat = [part for entry_id, sequence in lines for part in (entry_id, str(sequence))]
        return _gone(await self._run(scripts.BURY_LOST, *flat))

    async def bury_expired(self, now_at: float) -> list[Gone]:
        """Some of those that have expired; none when none is left."""
        return _gone(await self._run(scripts.BURY_EXPIRED, now_at, LINES_PER_CUT))

    async def shrink(self, max_bytes: int) -> list[Gone]:
        """Some of the least recently used; none when the rest is no larger."""
        return _gone(await self._run(scripts.SHRINK, max_bytes, LINES_PER_CUT))

    async def forget(self, gone: Sequence[Gone]) -> None:
        ids = (one.entry_id for one in gone)
        await self._link.command("HDEL", self._keys.part("trash"), *ids)

    async def cut(self, kept: int) -> bool:
        """Cuts some of the oldest lines when tombstones are too many; True if there were."""
        return bool(await self._run(scripts.CUT, kept, LINES_PER_CUT))

    async def lines(self, since: int, limit: int) -> tuple[int, int, list[Line]]:
        """The horizon, the newest number, and the lines after `since`."""
        horizon, newest, flat = await self._run(scripts.LINES, since, limit)
        lines = [
            (entry_id.decode(), int(sequence), bool(lives))
            for entry_id, sequence, lives in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]
        return int(horizon), int(newest), lines

    async def numbers(self, entry_ids: Sequence[str]) -> list[int | None]:
        """The numbers of the entries' lines."""
        log = self._keys.part("log")
        scores = await self._link.pipeline([("ZSCORE", log, one) for one in entry_ids])
        return [None if score is None else int(float(score)) for score in scores]

    async def by_exact(self, exact: bytes) -> str | None:
        found = await self._link.command("HGET", self._keys.part("exact"), exact, hurry=True)
        return None if found is None else str(found.decode())

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        if entry_ids:
            scores: list[Part] = [part for one in entry_ids for part in (now_at, one)]
            await self._link.command("ZADD", self._keys.part("used"), "XX", "GT", *scores)

    async def count(self) -> int:
        return int(await self._link.command("HLEN", self._keys.part("live")))

    async def size(self) -> StoreSize:
        entries, total = await self._link.pipeline(
            [("HLEN", self._keys.part("live")), ("HGET", self._keys.part("meta"), "bytes")]
        )
        return StoreSize(int(entries), int(total or 0))

    async def scan(
        self, part: str, cursor: int, count: int = LINES_PER_CUT
    ) -> tuple[int, list[tuple[str, bytes]]]:
        """Some (entry id, row) of `live` or `trash`, and where to go on: 0 at the end."""
        following, found = await self._link.command(
            "HSCAN", self._keys.part(part), cursor, "COUNT", count
        )
        return int(following), [(entry_id.decode(), row) for entry_id, row in found.items()]

    async def _run(self, script: str, *arguments: Part) -> Any:
        return await self._link.script(script, self._keys.ledger, arguments)


def _gone(flat: Sequence[bytes]) -> list[Gone]:
    return [
        gone_of(entry_id.decode(), row) for entry_id, row in zip(flat[::2], flat[1::2], strict=True)
    ]
