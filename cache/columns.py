"""Rows in columns: the room they take, the rows that are free, and a map from number to row.

A million small Python objects are dear (56 bytes for a pair, 100 for an entry of a dict, and a
collector that walks them all). Arrays by column cost what is in them. Memory is taken from the
system when a row is first written, so room for many rows is no memory yet: past `STEADY` rows an
array is made for all it is ever expected to hold, and never copied again.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]
    Rows = NDArray[np.int32]

Kind = TypeVar("Kind", bound=np.generic)

FIRST = 256
STEADY = 65_536
"""Rows that are copied in a few milliseconds when there must be room for more."""

MASK = (1 << 64) - 1
SPREAD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: its multiples fall evenly (Knuth, TAOCP 3, 6.4)."""


def room_for(rows: int, expected: int) -> int:
    """How many rows to make room for, once there must be `rows`."""
    if rows > expected:
        return rows * 3 // 2
    return expected if rows > STEADY else min(expected, max(FIRST, rows * 2))


def grown(held: NDArray[Kind], rows: int) -> NDArray[Kind]:
    made = np.zeros((rows, *held.shape[1:]), held.dtype)
    made[: len(held)] = held
    return made


class FreeRows:
    """Hands out row numbers, those given back first."""

    def __init__(self) -> None:
        self.top = 0
        self._free = array("i")

    def __len__(self) -> int:
        """How many are in use."""
        return self.top - len(self._free)

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self.top += 1
        return self.top - 1

    def take_new(self, count: int) -> int:
        """So many rows in a row, none used before; the first of them."""
        self.top += count
        return self.top - count

    def give(self, row: int) -> None:
        self._free.append(row)

    @property
    def nbytes(self) -> int:
        return self._free.buffer_info()[1] * self._free.itemsize


class RowMap:
    """Row by number, 8 to 16 bytes a row: open addressing, the numbers stay in their column.

    `numbers` is that column, uint64; `put` is called once a row's number stands in it,
    `remove` before it changes. Rows of equal number may be there together; `find` returns one.
    Fewer numbers than rows make it slow.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.rebuild(numbers, np.zeros(0, np.int32))

    def rebuild(self, numbers: Numbers, rows: Rows) -> None:
        """For a column that was grown; `rows` are those that are in use."""
        bits = max(1, len(numbers) - 1).bit_length() + 1
        self._numbers, self._number = numbers, numbers.data
        self._slots = np.zeros(1 << bits, np.int32)  # row + 1, 0 where nothing is
        self._slot = self._slots.data
        self._shift, self._last = 64 - bits, (1 << bits) - 1
        self.put_many(rows)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes

    def find(self, number: int) -> int:
        """A row of this number, -1 if there is none."""
        return next(self.all(number), -1)

    def all(self, number: int) -> Iterator[int]:
        """Every row of this number."""
        slot, stored, last = self._slot, self._number, self._last
        at = self._home(number)
        while row := slot[at]:
            if stored[row - 1] == number:
                yield row - 1
            at = (at + 1) & last

    def put(self, row: int) -> None:
        at = self._home(self._number[row])
        while self._slot[at]:
            at = (at + 1) & self._last
        self._slot[at] = row + 1

    def remove(self, row: int) -> None:
        """Closes the gap: whoever stood behind for want of its own place moves up."""
        slot, last = self._slot, self._last
        gap = self._home(self._number[row])
        while slot[gap] != row + 1:
            gap = (gap + 1) & last
        at = gap
        while other := slot[at := (at + 1) & last]:
            if (at - self._home(self._number[other - 1])) & last >= (at - gap) & last:
                slot[gap], gap = other, at
        slot[gap] = 0

    def find_many(self, numbers: Numbers) -> Rows:
        """Their rows, -1 for those that are not there."""
        found = np.full(len(numbers), -1, np.int32)
        asked, at = np.arange(len(numbers)), self._homes(numbers)
        while len(asked):
            rows = self._slots[at] - 1
            there = self._numbers[rows] == numbers[asked]  # row -1 is the last: not looked at
            found[asked[there & (rows >= 0)]] = rows[there & (rows >= 0)]
            on = (rows >= 0) & ~there
            asked, at = asked[on], (at[on] + 1) & self._last
        return found

    def put_many(self, rows: Rows) -> None:
        at = self._homes(self._numbers[rows])
        while len(rows):
            free = self._slots[at] == 0
            self._slots[at[free]] = rows[free] + 1  # of several in one place the last one stays
            left = self._slots[at] != rows + 1
            rows, at = rows[left], (at[left] + 1) & self._last

    def _home(self, number: int) -> int:
        return (number * SPREAD & MASK) >> self._shift

    def _homes(self, numbers: Numbers) -> NDArray[np.int64]:
        return ((numbers * np.uint64(SPREAD)) >> np.uint64(self._shift)).astype(np.int64)
