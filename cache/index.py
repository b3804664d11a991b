"""The arena: all vectors of a process, as int8 rows grouped by partition.

A row holds a vector scaled to [-127, 127]; with the row's own length kept beside it the
cosine is off by at most .002 for encoders of 384 dimensions or more (.003 at 128). A search
looks only at the rows of its partition: one product with all of them while they are few, and
from `large` rows on the nearest sign codes (sign_codes.py), of which the best are ranked
again by their rows.

A removed vector is gone: its row is zeroed and used again, its place in the partition is
taken by the last one, and a partition without rows is forgotten. No graph, so nothing has to
be rebuilt for a deletion.

Threads: searches may run in worker threads while the loop's thread adds and removes. One
plain lock guards all state. It is held for the copying of rows or the ranking of a few, never
for a scan; codes of a partition that became large are built by the search that finds them
missing, in small steps.
"""

from __future__ import annotations

import sys
import threading
from array import array
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierway.cache.sign_codes import SignCodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

Kind = TypeVar("Kind", bound=np.generic)

LARGE = 256
"""Rows up to which one product (0.05 ms here) is no dearer than codes and a second look."""

RERANK = 64
"""Codes kept for the second look: they hold the true neighbour in 99.7 of 100 searches."""

_BLOCK_ROWS = 256
_FIRST_ROWS = 256
_STEP = 1024
_MEAN_SAMPLE = 8192


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
    at again then. Vectors need not have unit length; those with NaN or infinity, without
    length or of another dimension raise ValueError.
    """

    def __init__(self, dim: int, *, large: int = LARGE, rerank: int = RERANK) -> None:
        if min(dim, large, rerank) < 1:
            raise ValueError(f"dim = {dim}, large = {large}, rerank = {rerank}: all must be > 0")
        self._dim, self._large, self._rerank = dim, large, rerank
        self._lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._partitions: dict[bytes, _Partition] = {}
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._owners: list[_Partition | None] = []
        self._rows = np.zeros((0, dim), np.int8)
        self._inverse_lengths = np.zeros(0, np.float32)
        self._keys = np.zeros(0, np.int64)
        self._positions = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self._row_of)

    def size(self, partition: bytes) -> int:
        """How many vectors the partition has."""
        with self._lock:
            found = self._partitions.get(partition)
            return 0 if found is None else len(found.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays and the map from key to row."""
        with self._lock:
            arrays = (self._rows, self._inverse_lengths, self._keys, self._positions)
            parts = self._partitions.values()
            return (
                sum(held.nbytes for held in arrays)
                + sum(sys.getsizeof(part.rows) for part in parts)
                + sum(codes.nbytes for part in parts for codes in part.coded())
                + sys.getsizeof(self._row_of)
            )

    def add(self, partition: bytes, key: int, vector: Floats) -> None:
        """A key that is already there is moved here and gets the new vector."""
        unit = self._unit(vector)
        row, inverse_length = _quantise(unit)
        with self._lock:
            self._drop(key)
            part = self._partitions.get(partition)
            if part is None:
                part = self._partitions[partition] = _Partition(partition)
            number = self._free_row()
            self._rows[number] = row
            self._inverse_lengths[number] = inverse_length
            self._keys[number] = key
            self._positions[number] = len(part.rows)
            self._owners[number] = part
            self._row_of[key] = number
            for codes in part.coded():
                codes.put(len(part.rows), unit[None])
            part.rows.append(number)

    def remove(self, key: int) -> None:
        """Does nothing for a key that is not there."""
        with self._lock:
            self._drop(key)

    def search(self, partition: bytes, vector: Floats, k: int) -> list[tuple[int, float]]:
        unit = self._unit(vector)
        with self._lock:
            part = self._partitions.get(partition)
        if part is None or k < 1:
            return []
        codes = self._codes_of(part)
        if codes is None:
            return self._search_rows(part, unit, k)
        return self._search_codes(part, codes, unit, k)

    def _search_rows(self, part: _Partition, unit: Floats, k: int) -> list[tuple[int, float]]:
        with self._lock:
            rows = np.array(part.rows, np.int32)
            taken, inverse, keys = self._take(rows)
        return _best(keys, _products(taken, unit) * inverse, k)

    def _search_codes(
        self, part: _Partition, codes: SignCodes, unit: Floats, k: int
    ) -> list[tuple[int, float]]:
        """The scan sees the codes while others change; what it finds is looked up again, so
        that a vector just removed, or moved elsewhere, is not returned."""
        with self._lock:
            view = codes.codes[: len(part.rows)]
        if not len(view):
            return []
        positions = codes.nearest(view, unit, max(k, self._rerank))
        with self._lock:
            size = len(part.rows)
            rows = np.array([part.rows[p] for p in positions.tolist() if p < size], np.int32)
            taken, inverse, keys = self._take(rows)
        return _best(keys, _products(taken, unit) * inverse, k)

    def _take(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int8], Floats, NDArray[np.int64]]:
        return self._rows.take(rows, axis=0), self._inverse_lengths[rows], self._keys[rows]

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
            rows = np.array(part.rows[::step], np.int32)
        total = np.zeros(self._dim, np.float64)
        for start in range(0, len(rows), _STEP):
            with self._lock:
                total += self._vectors(rows[start : start + _STEP]).sum(axis=0)
        return (total / max(1, len(rows))).astype(np.float32)

    def _vectors(self, rows: NDArray[np.int32]) -> Floats:
        floats: Floats = self._rows[rows] * self._inverse_lengths[rows, None]
        return floats

    def _drop(self, key: int) -> None:
        number = self._row_of.pop(key, None)
        if number is None:
            return
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
        self._free.append(number)

    def _free_row(self) -> int:
        if self._free:
            return self._free.pop()
        number = len(self._owners)
        if number == len(self._rows):
            self._grow(max(_FIRST_ROWS, number * 3 // 2))
        self._owners.append(None)
        return number

    def _grow(self, rows: int) -> None:
        self._rows = _grown(self._rows, rows)
        self._inverse_lengths = _grown(self._inverse_lengths, rows)
        self._keys = _grown(self._keys, rows)
        self._positions = _grown(self._positions, rows)

    def _unit(self, vector: Floats) -> Floats:
        floats = np.asarray(vector, np.float32)
        if floats.shape != (self._dim,):
            raise ValueError(f"a vector of shape {floats.shape}: must be ({self._dim},)")
        length = float(np.linalg.norm(floats))
        if not (0.0 < length < np.inf):  # NaN too
            raise ValueError(f"a vector of length {length}: must be finite and not zero")
        return floats / np.float32(length)


def _quantise(unit: Floats) -> tuple[NDArray[np.int8], float]:
    """The int8 row and one over its length."""
    scaled = np.rint(unit * (127.0 / np.abs(unit).max()))
    return scaled.astype(np.int8), 1.0 / float(np.linalg.norm(scaled))


def _products(rows: NDArray[np.int8], unit: Floats) -> Floats:
    """`rows @ unit` in float32, some rows at a time: a larger product would wake the threads
    of the BLAS library, which then spin for milliseconds waiting for another one."""
    parts = [
        rows[at : at + _BLOCK_ROWS].astype(np.float32) @ unit
        for at in range(0, len(rows), _BLOCK_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _best(keys: NDArray[np.int64], cosines: Floats, k: int) -> list[tuple[int, float]]:
    """Best first; among equals the smaller key."""
    if len(keys) > k:
        some = np.argpartition(cosines, -k)[-k:]
        keys, cosines = keys[some], cosines[some]
    order = np.lexsort((keys, -cosines))
    found = np.clip(cosines[order], -1.0, 1.0).tolist()
    return list(zip(keys[order].tolist(), found, strict=True))


def _grown(held: NDArray[Kind], rows: int) -> NDArray[Kind]:
    grown = np.zeros((rows, *held.shape[1:]), held.dtype)
    grown[: len(held)] = held
    return grown
