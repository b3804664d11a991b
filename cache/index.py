"""The arena: all vectors of a process, as int8 rows grouped by partition.

A search looks only at the rows of its partition: one product with all of them while they are
few, and from `large` rows on the nearest sign codes (sign_codes.py), of which the best are
ranked again by their rows (int8_rows.py).

A removed vector is gone: its row is zeroed and used again, its place in the partition is
taken by the last one, and a partition without rows is forgotten. No graph, so nothing has to
be rebuilt for a deletion.

Threads: searches may run in worker threads while the loop's thread adds and removes. One
plain lock guards all state. It is held for the copying of rows or the ranking of a few, never
for a scan; codes of a partition that became large are built by the search that finds them
missing, or by `prepare`, in small steps.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.cache.columns import FreeRows, RowMap, grown, room_for
from tierway.cache.int8_rows import inverse_lengths, products, quantise, unit
from tierway.cache.sign_codes import SignCodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

LARGE = 256
"""Rows up to which one product (0.05 ms here) is no dearer than codes and a second look."""

RERANK = 64
"""Codes kept for the second look: they hold the true neighbour in 99.7 of 100 searches."""

EXPECTED = 1_000_000
"""Vectors a process is expected to hold at most; room for them is no memory yet."""

_STEP = 1024
_MEAN_SAMPLE = 8192
_NUMBER = (1 << 64) - 1


class _Partition:
    """Row numbers by position, and the codes by position once there are many."""

    __slots__ = ("building", "codes", "name", "rows")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.rows = array("i")
        self.codes: SignCodes | None = None
        self.building: SignCodes | None = None

    def coded(self) -> Iterator[SignCodes]:
        if self.codes is not None:
            yield self.codes
        if self.building is not None:
            yield self.building


class Arena:
    """A VectorIndex in this process's memory, for vectors of `dim` components.

    `large`: rows from which on a partition is searched by codes; `rerank`: candidates looked
    at again then. Keys are 64-bit numbers. Vectors need not have unit length; those with NaN or
    infinity, without length or of another dimension raise ValueError.
    """

    def __init__(
        self, dim: int, *, large: int = LARGE, rerank: int = RERANK, expected: int = EXPECTED
    ) -> None:
        if min(dim, large, rerank) < 1:
            raise ValueError(f"dim = {dim}, large = {large}, rerank = {rerank}: all must be > 0")
        self._dim, self._large, self._rerank = dim, large, rerank
        self._expected = expected
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._partitions: dict[bytes, _Partition] = {}
        self._empty()

    def _empty(self) -> None:
        for part in self._partitions.values():
            part.rows = array("i")  # a search that is under way finds nothing more
        self._partitions = {}
        self._used = FreeRows()
        self._owners: list[_Partition | None] = []
        room = room_for(0, self._expected)
        self._rows = np.zeros((room, self._dim), np.int8)
        self._inverse_lengths = np.zeros(room, np.float32)
        self._keys = np.zeros(room, np.uint64)
        self._positions = np.zeros(room, np.int32)
        self._row_of = RowMap(self._keys)

    def __len__(self) -> int:
        return len(self._used)

    def size(self, partition: bytes) -> int:
        """How many vectors the partition has."""
        with self._lock:
            found = self._partitions.get(partition)
            return 0 if found is None else len(found.rows)

    @property
    def nbytes(self) -> int:
        """Bytes in use: of the rows, the map from key to row, and the partitions."""
        with self._lock:
            parts = self._partitions.values()
            return (
                self._used.top * (self._dim + 4 + 8 + 4)
                + sys.getsizeof(self._owners)
                + self._used.nbytes
                + self._row_of.nbytes
                + sys.getsizeof(self._partitions)
                + sum(sys.getsizeof(part) + sys.getsizeof(part.rows) for part in parts)
                + sum(codes.nbytes(len(part.rows)) for part in parts for codes in part.coded())
            )

    def add(self, partition: bytes, key: int, vector: Floats) -> None:
        """A key that is already there is moved here and gets the new vector."""
        direction = unit(vector, self._dim)
        row = quantise(direction)
        inverse = inverse_lengths(row[None])[0]
        with self._lock:
            self._drop(key)
            part = self._partition(partition)
            number = self._used.take()
            self._make_room()
            self._rows[number] = row
            self._inverse_lengths[number] = inverse
            self._keys[number] = key & _NUMBER
            self._row_of.put(number)
            self._positions[number] = len(part.rows)
            self._owners[number] = part
            for codes in part.coded():
                codes.put(len(part.rows), direction[None])
            part.rows.append(number)

    def add_many(
        self, partitions: Sequence[bytes], keys: Sequence[int], rows: NDArray[np.int8]
    ) -> None:
        """Adds int8 rows [n, dim] (int8_rows.py) under keys that are not there yet, each in
        its partition. Raises ValueError, with nothing added, when one is no vector."""
        if rows.shape != (len(keys), self._dim):
            raise ValueError(f"vectors of shape {rows.shape}: must be {(len(keys), self._dim)}")
        inverse = inverse_lengths(rows)
        with self._lock:
            start = self._used.take_new(len(keys))
            self._make_room()
            new = slice(start, start + len(keys))
            self._rows[new], self._inverse_lengths[new] = rows, inverse
            self._keys[new] = np.array(keys, np.int64).view(np.uint64)
            self._row_of.put_many(np.arange(new.start, new.stop, dtype=np.int32))
            self._join(partitions, start)

    def remove(self, key: int) -> None:
        """Does nothing for a key that is not there."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Removes all, at once."""
        with self._lock:
            self._empty()

    def prepare(self) -> None:
        """Makes the codes that searches would find missing or out of date; takes about two
        seconds for a million vectors, so it is for a worker thread."""
        with self._lock:
            parts = list(self._partitions.values())
        for part in parts:
            self._codes_of(part)

    def search(self, partition: bytes, vector: Floats, k: int) -> list[tuple[int, float]]:
        direction = unit(vector, self._dim)
        with self._lock:
            part = self._partitions.get(partition)
        if part is None or k < 1:
            return []
        codes = self._codes_of(part)
        if codes is None:
            return self._search_rows(part, direction, k)
        return self._search_codes(part, codes, direction, k)

    def _search_rows(self, part: _Partition, direction: Floats, k: int) -> list[tuple[int, float]]:
        with self._lock:
            rows = np.array(part.rows, np.int32)
            taken, inverse, keys = self._take(rows)
        return _best(keys, products(taken, direction) * inverse, k)

    def _search_codes(
        self, part: _Partition, codes: SignCodes, direction: Floats, k: int
    ) -> list[tuple[int, float]]:
        """The scan sees the codes while others change; what it finds is looked up again, so
        that a vector just removed, or moved elsewhere, is not returned."""
        with self._lock:
            view = codes.codes[: len(part.rows)]
        if not len(view):
            return []
        positions = codes.nearest(view, direction, max(k, self._rerank))
        with self._lock:
            size = len(part.rows)
            rows = np.array([part.rows[p] for p in positions.tolist() if p < size], np.int32)
            taken, inverse, keys = self._take(rows)
        return _best(keys, products(taken, direction) * inverse, k)

    def _take(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int8], Floats, NDArray[np.int64]]:
        keys = self._keys[rows].view(np.int64)
        return self._rows.take(rows, axis=0), self._inverse_lengths[rows], keys

    def _codes_of(self, part: _Partition) -> SignCodes | None:
        """The codes to search by, built first where they are missing or out of date; None
        for a small partition. Of several searches at once, one renews and the others go on
        with what there is."""
        codes = part.codes
        if not self._wants_codes(part):
            return codes
        if not self._build_lock.acquire(blocking=codes is None):
            return codes
        try:
            if self._wants_codes(part):
                self._build(part)
        finally:
            self._build_lock.release()
        return part.codes

    def _wants_codes(self, part: _Partition) -> bool:
        if part.codes is None:
            return len(part.rows) > self._large
        return len(part.rows) > 2 * part.codes.built_for

    def _build(self, part: _Partition) -> None:
        """From here on `add` and `_drop` keep the new codes up to date too, so the steps may
        be interrupted by either."""
        mean = self._mean(part)
        with self._lock:
            fresh = part.building = SignCodes(mean, built_for=len(part.rows))
        start = 0
        while True:
            with self._lock:
                rows = np.array(part.rows[start : start + _STEP], np.int32)
                if len(rows):
                    fresh.put(start, self._vectors(rows))
                start += len(rows)
                if start >= len(part.rows):
                    part.codes, part.building = fresh, None
                    return

    def _mean(self, part: _Partition) -> Floats:
        with self._lock:
            step = max(1, len(part.rows) // _MEAN_SAMPLE)
            rows = part.rows[::step]
        total = np.zeros(self._dim, np.float64)
        for start in range(0, len(rows), _STEP):
            with self._lock:
                if not part.rows:
                    break  # cleared meanwhile
                total += self._vectors(np.array(rows[start : start + _STEP])).sum(axis=0)
        return (total / max(1, len(rows))).astype(np.float32)

    def _vectors(self, rows: NDArray[Any]) -> Floats:
        floats: Floats = self._rows[rows] * self._inverse_lengths[rows, None]
        return floats

    def _partition(self, name: bytes) -> _Partition:
        part = self._partitions.get(name)
        if part is None:
            part = self._partitions[name] = _Partition(name)
        return part

    def _join(self, names: Sequence[bytes], start: int) -> None:
        """Puts rows that are filled, from `start` on, at the ends of their partitions."""
        positions, coded = [], dict[_Partition, int]()
        for number, name in enumerate(names, start):
            part = self._partition(name)
            if part.codes is not None or part.building is not None:
                coded.setdefault(part, len(part.rows))
            positions.append(len(part.rows))
            part.rows.append(number)
            self._owners[number] = part
        self._positions[start : start + len(names)] = positions
        for part, first in coded.items():
            for codes in part.coded():
                codes.put(first, self._vectors(np.array(part.rows[first:])))

    def _drop(self, key: int) -> None:
        number = self._row_of.find(key & _NUMBER)
        if number < 0:
            return
        self._row_of.remove(number)
        part = self._owners[number]
        assert part is not None, "a row with a key has an owner"
        position, last = int(self._positions[number]), len(part.rows) - 1
        moved = part.rows.pop()
        if position != last:
            part.rows[position] = moved
            self._positions[moved] = position
        for codes in part.coded():
            if position != last:  # coded anew: codes being built may not have it yet
                codes.put(position, self._vectors(np.array([moved])))
            codes.clear(last)
        if not part.rows:
            del self._partitions[part.name]
        elif last < self._large // 2:
            part.codes = None
        self._rows[number] = 0
        self._inverse_lengths[number] = 0
        self._owners[number] = None
        self._used.give(number)

    def _make_room(self) -> None:
        needed = self._used.top
        self._owners.extend([None] * (needed - len(self._owners)))
        if needed <= len(self._rows):
            return
        room = room_for(needed, self._expected)
        self._rows = grown(self._rows, room)
        self._inverse_lengths = grown(self._inverse_lengths, room)
        self._keys = grown(self._keys, room)
        self._positions = grown(self._positions, room)
        self._row_of.rebuild(self._keys, self._rows_in_use())

    def _rows_in_use(self) -> NDArray[np.int32]:
        owned: Iterable[int] = (row for row, part in enumerate(self._owners) if part is not None)
        return np.fromiter(owned, np.int32)


def _best(keys: NDArray[np.int64], cosines: Floats, k: int) -> list[tuple[int, float]]:
    """Best first; among equals the smaller key."""
    if len(keys) > k:
        some = np.argpartition(cosines, -k)[-k:]
        keys, cosines = keys[some], cosines[some]
    order = np.lexsort((keys, -cosines))
    found = np.clip(cosines[order], -1.0, 1.0).tolist()
    return list(zip(keys[order].tolist(), found, strict=True))
