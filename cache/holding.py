"""What one process holds of the cache: a fold of the store's log.

The entries (entry_table.py), the vectors by partition (index.py), and the answers used last.
Changes of others and of this process come in by the same two calls, `hold` and `drop`, in any
order; what was deleted here stays deleted though an older line of the log is read later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.answers import Answers
from tierway.cache.entry_table import EntryTable, Held
from tierway.policies.protocols import Block, Entry, VectorIndex
from tierway.policies.questions import features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierway.policies.protocols import Vectors

_DELETED_KEPT = 10_000
_FEATURES_KEPT = 8_192  # some 3 KB each


class Holding:
    """`entries` bounds how many are held (about the oldest goes), `answers_bytes` their
    answers."""

    def __init__(self, index: VectorIndex, *, entries: int, answers_bytes: int) -> None:
        self._index = index
        self._entries = entries
        self._read = lru_cache(_FEATURES_KEPT)(features)
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._table = EntryTable(expected=entries, read=self._read)
        self._hand = 0
        self.answers = Answers(answers_bytes)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, entry_id: str) -> bool:
        return self._table.row_of_id(entry_id) >= 0

    @property
    def nbytes(self) -> int:
        """Bytes of the entries, without their questions, vectors and answers."""
        return self._table.nbytes

    def exactly(self, exact: bytes) -> Held | None:
        return self._at(self._table.row_of_exact(exact))

    def by_key(self, key: int) -> Held | None:
        return self._at(self._table.row_of_key(key))

    def by_id(self, entry_id: str) -> Held | None:
        return self._at(self._table.row_of_id(entry_id))

    def hold(self, entry: Entry) -> Held | None:
        """Takes an entry in, in place of the one with its digest. None if it was deleted, or
        if that one is newer: the log tells of puts that were overtaken meanwhile. ValueError
        for one whose digests are none."""
        if entry.id in self._deleted:
            return None
        known = self._table.row_of_id(entry.id)
        if known >= 0:
            return self._table.at(known)
        old = self._table.row_of_exact(entry.exact)
        if old >= 0:
            if self._table.created_at(old) > entry.created_at:
                return None
            self._drop(old)
        elif len(self._table) >= self._entries:
            self._drop_oldest()
        return self._table.at(self._table.add(entry))

    def hold_block(self, block: Block) -> list[int]:
        """Takes the entries of a block in, all at once; their keys, 0 for those that this could
        not be done for: they are for `hold`."""
        keys: list[int] = self._table.add_block(block).tolist()
        return keys

    def attach_block(
        self, partitions: Sequence[bytes], keys: Sequence[int], rows: NDArray[np.int8]
    ) -> None:
        """`attach` for entries just taken in; int8 rows [n, dim]. ValueError, with nothing
        done, when one is no vector."""
        self._index.add_many(partitions, keys, rows)
        self._table.mark_all_indexed(np.array(keys, np.int64))

    def prepare(self) -> None:
        """Makes ready what the first searches would wait for; for a worker thread."""
        self._index.prepare()

    def was_deleted(self, entry_id: str) -> bool:
        """Whether it was deleted for good here."""
        return entry_id in self._deleted

    def questions(self, most: int) -> list[str]:
        """The questions of so many entries at most, whichever come first."""
        found: list[str] = []
        row = -1
        for _ in range(min(most, len(self))):
            row = self._table.next_in_use(row + 1)
            found.append(self._table.at(row).question)
        return found

    def attach(self, held: Held, vector: Vectors) -> None:
        """Makes an entry findable by meaning, once. ValueError for a vector that is none."""
        row = self._table.row_of_key(held.key)
        if row >= 0 and not self._table.indexed(row):
            self._index.add(held.partition, held.key, vector)
            self._table.mark_indexed(row)

    def drop(self, entry_id: str) -> bool:
        """Forgets an entry; False if it was not held."""
        row = self._table.row_of_id(entry_id)
        if row < 0:
            return False
        self._drop(row)
        return True

    def delete(self, entry_ids: Sequence[str]) -> int:
        """Drops entries for good; how many of them were held."""
        dropped = sum([self.drop(entry_id) for entry_id in entry_ids])
        self._deleted.update(dict.fromkeys(entry_ids))
        while len(self._deleted) > _DELETED_KEPT:
            self._deleted.popitem(last=False)
        return dropped

    def clear(self) -> None:
        self._table.clear()
        self._index.clear()
        self.answers.clear()

    def drop_expired(self, before_at: float, most: int | None = None) -> int:
        """Drops what expired before `before_at`, at most so many; how many it were."""
        rows = self._table.rows_expired(before_at)[:most]
        for row in rows:
            self._drop(row)
        return len(rows)

    def _at(self, row: int) -> Held | None:
        return self._table.at(row) if row >= 0 else None

    def _drop(self, row: int) -> None:
        self.answers.drop(self._table.id_at(row))
        if self._table.indexed(row):
            self._index.remove(self._table.key_at(row))
        self._table.remove(row)

    def _drop_oldest(self) -> None:
        """The hand goes around the rows, which were filled in the order of their numbers."""
        row = self._table.next_in_use(self._hand)
        self._hand = row + 1
        self._drop(row)
