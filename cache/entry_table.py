"""The entries a process holds, without vector and answer, in some 150 bytes each and a text.

One row an entry: digests, times and probabilities stand in arrays, the question as UTF-8 in one
bytes object. Tiers, models and the names of probabilities repeat, so each combination is kept
once. `Held` is a row as an object, made when it is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.cache.columns import FreeRows, RowMap, grown, room_for
from tierway.policies.protocols import Entry
from tierway.policies.questions import Features
from tierway.policies.types import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGEST = struct.Struct("<QQ")
_ID = struct.Struct("<QH")
_ID_CHARS = 2 + 2 * _ID.size
_ROW_BITS = 32
_PROBABILITIES = 4
"""As many stand in the row; of entries with more, the rest."""

_COLUMNS: Mapping[str, tuple[Any, tuple[int, ...]]] = {
    "key": (np.int64, ()),
    "id_head": (np.uint64, ()),
    "id_tail": (np.uint16, ()),
    "exact_head": (np.uint64, ()),
    "exact_tail": (np.uint64, ()),
    "partition": (np.uint64, (2,)),
    "created_at": (np.float64, ()),
    "expires_at": (np.float64, ()),
    "shape": (np.int32, ()),
    "probabilities": (np.float64, (_PROBABILITIES,)),
    "indexed": (np.uint8, ()),
}


@dataclass(frozen=True, slots=True)
class Held:
    """An entry as it is held at this moment. `key` is its number in the index, where it is if
    `indexed`, and is never given to another one. Times are epoch seconds."""

    id: str
    exact: bytes
    partition: bytes
    key: int
    source: Source
    created_at: float
    expires_at: float
    question: str
    indexed: bool
    read: Callable[[str], Features] = field(compare=False, repr=False)

    @property
    def features(self) -> Features:
        return self.read(self.question)


@dataclass(frozen=True, slots=True)
class _Shape:
    tier: str
    model: str
    names: tuple[str, ...]


class EntryTable:
    """`expected` is how many entries there may be, more take more time to make room for;
    `read` takes a stored question apart (questions.features, with a memory of its own)."""

    def __init__(self, *, expected: int, read: Callable[[str], Features]) -> None:
        self._expected, self._read = expected, read
        self._serial = 0
        self._shapes: list[_Shape] = []
        self._shape_of: dict[_Shape, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forgets all; the numbers given out so far stay taken."""
        self._rows = FreeRows()
        self._questions: list[bytes | None] = []
        self._odd_ids: dict[int, str] = {}
        self._more: dict[int, tuple[float, ...]] = {}
        room = room_for(0, self._expected)
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros((room, *shape), kind) for name, (kind, shape) in _COLUMNS.items()
        }
        self._by_id = RowMap(self._columns["id_head"])
        self._by_exact = RowMap(self._columns["exact_head"])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of what is in use, questions apart."""
        row = sum(column.itemsize * (column.size // len(column)) for column in self._arrays())
        pointers = 8 * len(self._questions)
        return self._rows.top * row + self._by_id.nbytes + self._by_exact.nbytes + pointers

    def row_of_id(self, entry_id: str) -> int:
        """-1 for an entry that is not held; so the others."""
        head, _ = _id_numbers(entry_id)
        row = self._by_id.find(head)
        return row if row >= 0 and self.id_at(row) == entry_id else -1

    def row_of_exact(self, exact: bytes) -> int:
        if len(exact) != _DIGEST.size:
            return -1
        head, tail = _DIGEST.unpack(exact)
        row = self._by_exact.find(head)
        return row if row >= 0 and self._columns["exact_tail"][row] == tail else -1

    def row_of_key(self, key: int) -> int:
        row = key & ((1 << _ROW_BITS) - 1)
        return row if key > 0 and row < self._rows.top and self.key_at(row) == key else -1

    def id_at(self, row: int) -> str:
        odd = self._odd_ids.get(row)
        if odd is not None:
            return odd
        raw = _ID.pack(int(self._columns["id_head"][row]), int(self._columns["id_tail"][row]))
        return "e_" + raw.hex()

    def key_at(self, row: int) -> int:
        """0 for a row without an entry."""
        return int(self._columns["key"][row])

    def created_at(self, row: int) -> float:
        return float(self._columns["created_at"][row])

    def indexed(self, row: int) -> bool:
        return bool(self._columns["indexed"][row])

    def mark_indexed(self, row: int) -> None:
        self._columns["indexed"][row] = 1

    def at(self, row: int) -> Held:
        columns = self._columns
        head, tail = columns["exact_head"][row], columns["exact_tail"][row]
        question = self._questions[row]
        assert question is not None, "a row in use has a question"
        return Held(
            id=self.id_at(row),
            exact=_DIGEST.pack(head, tail),
            partition=columns["partition"][row].tobytes(),
            key=self.key_at(row),
            source=self._source(row),
            created_at=float(columns["created_at"][row]),
            expires_at=float(columns["expires_at"][row]),
            question=question.decode("utf-8", "surrogatepass"),
            indexed=bool(columns["indexed"][row]),
            read=self._read,
        )

    def add(self, entry: Entry) -> int:
        """The row of an entry whose id and digest are not held yet. ValueError for digests of
        a wrong length."""
        head, tail = _digest(entry.exact)
        partition = _digest(entry.partition)
        row = self._rows.take()
        self._make_room()
        columns = self._columns
        columns["id_head"][row], columns["id_tail"][row] = _id_numbers(entry.id)
        if not _is_plain(entry.id):
            self._odd_ids[row] = entry.id
        columns["exact_head"][row], columns["exact_tail"][row] = head, tail
        columns["partition"][row] = partition
        columns["created_at"][row], columns["expires_at"][row] = entry.created_at, entry.expires_at
        columns["indexed"][row] = 0
        self._set_source(row, entry)
        self._questions[row] = entry.question.encode("utf-8", "surrogatepass")
        self._serial += 1
        columns["key"][row] = self._serial << _ROW_BITS | row
        self._by_id.put(row)
        self._by_exact.put(row)
        return row

    def remove(self, row: int) -> None:
        self._by_id.remove(row)
        self._by_exact.remove(row)
        self._columns["key"][row] = 0
        self._questions[row] = None
        self._odd_ids.pop(row, None)
        self._more.pop(row, None)
        self._rows.give(row)

    def rows_expired(self, before_at: float) -> Sequence[int]:
        """The rows whose time was over before `before_at`."""
        top = self._rows.top
        over = self._columns["expires_at"][:top] < before_at
        over &= self._columns["key"][:top] != 0
        rows: Sequence[int] = np.flatnonzero(over).tolist()
        return rows

    def next_in_use(self, start: int) -> int:
        """The first row with an entry from `start` on, around the end; there must be one."""
        row = start
        while True:
            if row >= self._rows.top:
                row = 0
            if self.key_at(row):
                return row
            row += 1

    def _arrays(self) -> Sequence[NDArray[Any]]:
        return list(self._columns.values())

    def _make_room(self) -> None:
        needed = self._rows.top
        self._questions.extend([None] * (needed - len(self._questions)))
        if needed <= len(self._columns["key"]):
            return
        room = room_for(needed, self._expected)
        self._columns = {name: grown(column, room) for name, column in self._columns.items()}
        used = np.flatnonzero(self._columns["key"]).astype(np.int32)
        self._by_id.rebuild(self._columns["id_head"], used)
        self._by_exact.rebuild(self._columns["exact_head"], used)

    def _set_source(self, row: int, entry: Entry) -> None:
        shape = _Shape(entry.tier, entry.model, tuple(entry.probabilities))
        number = self._shape_of.get(shape)
        if number is None:
            number = self._shape_of[shape] = len(self._shapes)
            self._shapes.append(shape)
        self._columns["shape"][row] = number
        if shape.names:
            values = tuple(entry.probabilities.values())
            first = values[:_PROBABILITIES]
            self._columns["probabilities"][row, : len(first)] = first
            if len(values) > _PROBABILITIES:
                self._more[row] = values[_PROBABILITIES:]

    def _source(self, row: int) -> Source:
        shape = self._shapes[self._columns["shape"][row]]
        if not shape.names:
            return Source(shape.tier, shape.model, "cache")
        first = self._columns["probabilities"][row].tolist()
        values = [*islice(first, len(shape.names)), *self._more.get(row, ())]
        return Source(shape.tier, shape.model, "cache", dict(zip(shape.names, values, strict=True)))


def _digest(digest: bytes) -> tuple[int, int]:
    if len(digest) != _DIGEST.size:
        raise ValueError(f"a digest of {len(digest)} bytes: must be {_DIGEST.size}")
    head, tail = _DIGEST.unpack(digest)
    return head, tail


def _is_plain(entry_id: str) -> bool:
    """Whether the id has the form that the cache gives, and so is told by ten bytes."""
    return len(entry_id) == _ID_CHARS and entry_id.startswith("e_") and _is_hex(entry_id[2:])


def _is_hex(text: str) -> bool:
    return not text.strip("0123456789abcdef")


def _id_numbers(entry_id: str) -> tuple[int, int]:
    if _is_plain(entry_id):
        raw = bytes.fromhex(entry_id[2:])
    else:
        raw = blake2b(entry_id.encode("utf-8", "surrogatepass"), digest_size=_ID.size).digest()
    head, tail = _ID.unpack(raw)
    return head, tail
