"""Keeps a store below its cap: what was used longest ago goes first.

A hit is noted in memory; every few seconds the notes go to the store in one call, the store is
measured, and when it is over the cap it is shrunk with some room to spare, so that the next
entries do not bring the next eviction. Evictions come back as deletions in the store's log, by
which every process drops the entry from its maps and its index. Between two looks a store may
outgrow its cap by what was stored meanwhile.
"""

from __future__ import annotations

from tierway.policies.protocols import CacheStore, Clock, StoreSize

LOOK_EVERY_S = 10.0
ROOM = 0.1  # of the cap: one eviction makes place for a tenth of the cache


class Eviction:
    """`wall` is seconds since the epoch."""

    def __init__(self, store: CacheStore, wall: Clock, *, max_bytes: int) -> None:
        self._store, self._wall, self._max_bytes = store, wall, max_bytes
        self._used: dict[str, None] = {}
        self.size: StoreSize | None = None
        """What was measured last."""

    def used(self, entry_id: str) -> None:
        """Notes a hit."""
        self._used[entry_id] = None

    async def run(self) -> None:
        """Tells the store what was used and shrinks it if need be. Raises CacheError."""
        used, self._used = self._used, {}
        if used:
            await self._store.touch(list(used), self._wall())
        await self.measure()
        if self.size is not None and self.size.bytes > self._max_bytes:
            await self._store.shrink(int(self._max_bytes * (1 - ROOM)))
            await self.measure()

    async def measure(self) -> None:
        self.size = await self._store.size()
