"""Asking elsewhere: for a process that holds only a part of the cache.

Such a process keeps what it stored or served itself, follows the deletions of the log, and asks
the store by digest, and a remote index by meaning, for the rest. What comes back is held like
any other entry. Trouble is a miss, counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierway.cache.entry_table import Held
from tierway.cache.holding import Holding
from tierway.cache.upkeep import Faults
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry, PartialStore, RemoteIndex

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

ENTRIES_HELD = 100_000
"""Entries such a process holds at most: those in use, some 50 MB."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where to ask. Without an index nothing is matched by meaning."""

    store: PartialStore
    index: RemoteIndex | None = None


class Remote:
    def __init__(self, elsewhere: Elsewhere, holding: Holding, faults: Faults) -> None:
        self._store, self._index = elsewhere.store, elsewhere.index
        self._holding, self._faults = holding, faults

    async def exactly(self, exact: bytes) -> Held | None:
        try:
            entry = await self._store.by_exact(exact)
        except CacheError as error:
            self._faults.add("store", error)
            return None
        return None if entry is None or entry.exact != exact else self._hold(entry)

    async def any_in(self, partition: bytes) -> bool:
        """Whether the partition has vectors."""
        if self._index is None:
            return False
        try:
            return await self._index.count(partition) > 0
        except CacheError as error:
            self._faults.add("index", error)
            return False

    async def near(
        self, partition: bytes, vector: Vectors, k: int, floor: float
    ) -> list[tuple[Held | None, float]]:
        """The k nearest with their cosines, best first, as far as these reach the floor; None
        for one that is gone."""
        assert self._index is not None
        try:
            found = await self._index.search(partition, vector, k)
        except CacheError as error:
            self._faults.add("index", error)
            return []
        near = [pair for pair in found if pair[1] >= floor]
        held = await self._held([entry_id for entry_id, _ in near], partition)
        return [(one, cosine) for one, (_, cosine) in zip(held, near, strict=True)]

    async def _held(self, entry_ids: Sequence[str], partition: bytes) -> list[Held | None]:
        known = {one: self._holding.by_id(one) for one in entry_ids}
        wanted = [one for one, held in known.items() if held is None]
        try:
            entries = await self._store.get_many(wanted)
        except CacheError as error:
            self._faults.add("store", error)
            entries = []
        known.update((one.id, self._hold(one)) for one in entries if one is not None)
        found = [known[one] for one in entry_ids]
        return [one if one is not None and one.partition == partition else None for one in found]

    def _hold(self, entry: Entry) -> Held | None:
        """Holds an entry, unless its deletion came meanwhile."""
        try:
            held = self._holding.hold(entry)
        except ValueError as error:
            self._faults.add("entry", error)
            return None
        if held is not None and held.id == entry.id:
            self._holding.answers.put(entry.id, entry.answer)
        return held


class NoIndex:
    """A VectorIndex of a process that holds no vectors, whatever their dimension."""

    def __init__(self, dim: int) -> None:
        pass

    def add(self, partition: bytes, key: int, vector: Vectors) -> None:
        pass

    def remove(self, key: int) -> None:
        pass

    def clear(self) -> None:
        pass

    def search(self, partition: bytes, vector: Vectors, k: int) -> list[tuple[int, float]]:
        return []

    def size(self, partition: bytes) -> int:
        return 0
