"""The entries a process holds, without vector and answer, in some 150 bytes each and a text.

One row an entry: digests, times and probabilities stand in arrays, the question as UTF-8 in one
bytes object. Tiers, models and the names of probabilities repeat, so each combination is kept
once. `Held` is a row as an object, made when it is asked for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.cache.columns import MASK, SPREAD, FreeRows, RowMap, grown, room_for
from tierway.policies.protocols import Block, Entry
from tierway.policies.questions import Features
from tierway.policies.types import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]

_DIGEST = struct.Struct("<QQ")
_ID = struct.Struct("<QH")
_ID_PAIR = np.dtype([("head", "<u8"), ("tail", "<u2")])
_PLAIN_ID = re.compile(r"e_[0-9a-f]{20}")
_PLAIN_IDS = re.compile(r"(?:e_[0-9a-f]{20})*")
"""The form of the ids that the cache gives: ten bytes tell all of it."""
_ID_CHARS = 2 + 2 * _ID.size

_ROW_BITS = 32
_ROW = (1 << _ROW_BITS) - 1
_PROBABILITIES = 4
"""As many stand in the row; of entries with more, the rest."""

_NONE = [0.0] * _PROBABILITIES

_Shape = tuple[str, str, tuple[str, ...]]
"""Tier, model, and the names of the probabilities."""

_COLUMNS: Mapping[str, tuple[Any, tuple[int, ...]]] = {
    "key": (np.int64, ()),
    # Identity and digest as (number, tail): the number is head XOR tail * SPREAD, so that all
    # of both counts in the map though they be counted up, and tells the head again.
    "id": (np.uint64, ()),
    "id_tail": (np.uint16, ()),
    "exact": (np.uint64, ()),
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
        self._by_id = RowMap(self._columns["id"])
        self._by_exact = RowMap(self._columns["exact"])

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
        number, _ = _id_numbers(entry_id)
        return next((row for row in self._by_id.all(number) if self.id_at(row) == entry_id), -1)

    def row_of_exact(self, exact: bytes) -> int:
        if len(exact) != _DIGEST.size:
            return -1
        number, tail = _digest(exact)
        tails = self._columns["exact_tail"]
        return next((row for row in self._by_exact.all(number) if tails[row] == tail), -1)

    def row_of_key(self, key: int) -> int:
        row = key & _ROW
        return row if key > 0 and row < self._rows.top and self.key_at(row) == key else -1

    def id_at(self, row: int) -> str:
        odd = self._odd_ids.get(row)
        if odd is not None:
            return odd
        number, tail = int(self._columns["id"][row]), int(self._columns["id_tail"][row])
        return "e_" + _ID.pack(_mixed(number, tail), tail).hex()

    def key_at(self, row: int) -> int:
        """0 for a row without an entry."""
        return int(self._columns["key"][row])

    def created_at(self, row: int) -> float:
        return float(self._columns["created_at"][row])

    def indexed(self, row: int) -> bool:
        return bool(self._columns["indexed"][row])

    def mark_indexed(self, row: int) -> None:
        self._columns["indexed"][row] = 1

    def mark_all_indexed(self, keys: NDArray[np.int64]) -> None:
        """For keys of entries that are held."""
        self._columns["indexed"][keys & _ROW] = 1

    def at(self, row: int) -> Held:
        columns = self._columns
        number, tail = int(columns["exact"][row]), int(columns["exact_tail"][row])
        question = self._questions[row]
        assert question is not None, "a row in use has a question"
        return Held(
            id=self.id_at(row),
            exact=_DIGEST.pack(_mixed(number, tail), tail),
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
        exact, partition = _digest(entry.exact), _pair(entry.partition)
        row = self._rows.take()
        self._make_room()
        columns = self._columns
        columns["id"][row], columns["id_tail"][row] = _id_numbers(entry.id)
        if not _PLAIN_ID.fullmatch(entry.id):
            self._odd_ids[row] = entry.id
        columns["exact"][row], columns["exact_tail"][row] = exact
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

    def add_block(self, block: Block) -> NDArray[np.int64]:
        """Adds entries of a block and gives their keys, 0 for those that `add` must look at:
        held already, or of an odd form. All of them while there is no room without growing."""
        keys = np.zeros(len(block), np.int64)
        if not len(block) or self._rows.top + len(block) > self._expected:
            return keys
        plain = _plain(block)
        if len(plain) < len(block):
            keys[plain] = self.add_block(block.pick(plain))
            return keys
        ids, exact = _ids_of(block.id), _mixed_all(*_pairs(block.exact))
        known = self._by_id.find_many(ids[0]) >= 0
        known |= self._by_exact.find_many(exact[0]) >= 0
        if known.any():
            new = np.flatnonzero(~known).tolist()
            keys[new] = self.add_block(block.pick(new))
            return keys
        return self._fill(block, ids, exact)

    def _fill(self, block: Block, ids: Numbers, exact: Numbers) -> NDArray[np.int64]:
        count = len(block)
        start = self._rows.take_new(count)
        self._make_room()
        columns, new = self._columns, slice(start, start + count)
        rows = np.arange(start, start + count, dtype=np.int64)
        columns["id"][new], columns["id_tail"][new] = ids
        columns["exact"][new], columns["exact_tail"][new] = exact
        columns["partition"][new] = _pairs(block.partition).T
        columns["created_at"][new], columns["expires_at"][new] = block.created_at, block.expires_at
        columns["indexed"][new] = 0
        columns["shape"][new] = list(map(self._shape, block.tier, block.model, block.probabilities))
        if any(block.probabilities):
            columns["probabilities"][new] = self._all_values(start, block.probabilities)
        self._questions[new] = [text.encode("utf-8", "surrogatepass") for text in block.question]
        keys = (np.arange(1, count + 1, dtype=np.int64) + self._serial) << _ROW_BITS | rows
        columns["key"][new] = keys
        self._serial += count
        for numbers in (self._by_id, self._by_exact):
            numbers.put_many(rows.astype(np.int32))
        return keys

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
        self._by_id.rebuild(self._columns["id"], used)
        self._by_exact.rebuild(self._columns["exact"], used)

    def _set_source(self, row: int, entry: Entry) -> None:
        self._columns["shape"][row] = self._shape(entry.tier, entry.model, entry.probabilities)
        if entry.probabilities:
            self._columns["probabilities"][row] = self._values(row, entry.probabilities)

    def _shape(self, tier: str, model: str, probabilities: Mapping[str, float]) -> int:
        shape = (tier, model, tuple(probabilities))
        number = self._shape_of.get(shape)
        if number is None:
            number = self._shape_of[shape] = len(self._shapes)
            self._shapes.append(shape)
        return number

    def _values(self, row: int, probabilities: Mapping[str, float]) -> list[float]:
        """What stands in the row of them; the rest is kept apart."""
        values = [*probabilities.values()]
        if len(values) > _PROBABILITIES:
            self._more[row] = tuple(values[_PROBABILITIES:])
        return (values + _NONE)[:_PROBABILITIES]

    def _all_values(
        self, start: int, probabilities: Sequence[Mapping[str, float]]
    ) -> NDArray[np.float64] | list[list[float]]:
        """`_values` for the rows from `start` on; where all are alike, as they mostly are, in
        one go."""
        sizes = set(map(len, probabilities))
        size = max(sizes)
        if len(sizes) > 1 or size > _PROBABILITIES:
            return [self._values(row, given) for row, given in enumerate(probabilities, start)]
        values = np.zeros((len(probabilities), _PROBABILITIES))
        values[:, :size] = [[*given.values()] for given in probabilities]
        return values

    def _source(self, row: int) -> Source:
        tier, model, names = self._shapes[self._columns["shape"][row]]
        if not names:
            return Source(tier, model, "cache")
        first = self._columns["probabilities"][row].tolist()
        values = [*islice(first, len(names)), *self._more.get(row, ())]
        return Source(tier, model, "cache", dict(zip(names, values, strict=True)))


def _mixed(head: int, tail: int) -> int:
    """The number of a head and its tail, and the head of a number and its tail."""
    return head ^ (tail * SPREAD & MASK)


def _pair(digest: bytes) -> tuple[int, int]:
    if len(digest) != _DIGEST.size:
        raise ValueError(f"a digest of {len(digest)} bytes: must be {_DIGEST.size}")
    head, tail = _DIGEST.unpack(digest)
    return head, tail


def _digest(exact: bytes) -> tuple[int, int]:
    head, tail = _pair(exact)
    return _mixed(head, tail), tail


def _id_numbers(entry_id: str) -> tuple[int, int]:
    if _PLAIN_ID.fullmatch(entry_id):
        raw = bytes.fromhex(entry_id[2:])
    else:
        raw = blake2b(entry_id.encode("utf-8", "surrogatepass"), digest_size=_ID.size).digest()
    head, tail = _ID.unpack(raw)
    return _mixed(head, tail), tail


def _plain(block: Block) -> list[int]:
    """Which places of the block hold an entry of the usual form."""
    sizes = {*map(len, block.exact), *map(len, block.partition)}
    all_ids = set(map(len, block.id)) == {_ID_CHARS} and _PLAIN_IDS.fullmatch("".join(block.id))
    if all_ids and sizes == {_DIGEST.size}:
        return list(range(len(block)))
    return [
        at
        for at, entry_id in enumerate(block.id)
        if len(block.exact[at]) == len(block.partition[at]) == _DIGEST.size
        and _PLAIN_ID.fullmatch(entry_id)
    ]


def _ids_of(entry_ids: Sequence[str]) -> Numbers:
    """uint64 [2, n]: numbers and tails."""
    raw = bytes.fromhex("".join([entry_id[2:] for entry_id in entry_ids]))
    pairs = np.frombuffer(raw, _ID_PAIR)
    return _mixed_all(pairs["head"].astype(np.uint64), pairs["tail"].astype(np.uint64))


def _pairs(digests: Sequence[bytes]) -> Numbers:
    """uint64 [2, n]: heads and tails."""
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2).T


def _mixed_all(heads: Numbers, tails: Numbers) -> Numbers:
    return np.stack([heads ^ (tails * np.uint64(SPREAD)), tails])
