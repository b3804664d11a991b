"""What one process holds of the cache: a fold of the store's log.

A map from exact digest to entry, the vectors by partition, and the answers used last. Changes
of others and of this process come in by the same two calls, `hold` and `drop`, in any order;
what was deleted here stays deleted though an older line of the log is read later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierway.policies.protocols import Entry, VectorIndex
from tierway.policies.questions import Features, features
from tierway.policies.types import Source, Usage

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

_DELETED_KEPT = 10_000


@dataclass(slots=True)
class Held:
    """An entry without its answer. `key` is its number in the index, where it is once it is
    `indexed`; the question's features and the answer's usage are made when they are first
    needed, as most entries are never compared with anything. Times are epoch seconds."""

    id: str
    exact: bytes
    partition: bytes
    key: int
    source: Source
    created_at: float
    expires_at: float
    question: str
    indexed: bool = False
    usage: Usage | None = None
    _features: Features | None = None

    @property
    def features(self) -> Features:
        if self._features is None:
            self._features = features(self.question)
        return self._features


class Holding:
    """`entries` bounds how many are held (the oldest goes), `answers_bytes` their answers."""

    def __init__(self, index: VectorIndex, *, entries: int, answers_bytes: int) -> None:
        self._index = index
        self._entries = entries
        self._by_exact: dict[bytes, Held] = {}
        self._by_id: dict[str, Held] = {}
        self._by_key: dict[int, Held] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._next_key = 0
        self.answers = Answers(answers_bytes)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._by_id

    def exactly(self, exact: bytes) -> Held | None:
        return self._by_exact.get(exact)

    def by_key(self, key: int) -> Held | None:
        return self._by_key.get(key)

    def by_id(self, entry_id: str) -> Held | None:
        return self._by_id.get(entry_id)

    def hold(self, entry: Entry) -> Held | None:
        """Takes an entry in, in place of the one with its digest. None if it was deleted, or
        if that one is newer: the log tells of puts that were overtaken meanwhile."""
        if entry.id in self._deleted:
            return None
        known = self._by_id.get(entry.id)
        if known is not None:
            return known
        old = self._by_exact.get(entry.exact)
        if old is not None:
            if old.created_at > entry.created_at:
                return None
            self.drop(old.id)
        self._next_key += 1
        source = Source(entry.tier, entry.model, "cache", entry.probabilities)
        held = Held(
            entry.id,
            entry.exact,
            entry.partition,
            self._next_key,
            source,
            entry.created_at,
            entry.expires_at,
            entry.question,
        )
        self._by_exact[held.exact] = self._by_id[held.id] = self._by_key[held.key] = held
        if len(self._by_id) > self._entries:
            self.drop(next(iter(self._by_id)))
        return held

    def attach(self, held: Held, vector: Vectors) -> None:
        """Makes an entry findable by meaning, once. ValueError for a vector that is none."""
        if not held.indexed and self._by_key.get(held.key) is held:
            self._index.add(held.partition, held.key, vector)
            held.indexed = True

    def drop(self, entry_id: str) -> bool:
        """Forgets an entry; False if it was not held."""
        held = self._by_id.pop(entry_id, None)
        if held is None:
            return False
        if self._by_exact.get(held.exact) is held:
            del self._by_exact[held.exact]
        del self._by_key[held.key]
        self._index.remove(held.key)
        self.answers.drop(entry_id)
        return True

    def delete(self, entry_ids: Sequence[str]) -> int:
        """Drops entries for good; how many of them were held."""
        dropped = sum([self.drop(entry_id) for entry_id in entry_ids])
        self._deleted.update(dict.fromkeys(entry_ids))
        while len(self._deleted) > _DELETED_KEPT:
            self._deleted.popitem(last=False)
        return dropped

    def clear(self) -> None:
        for entry_id in list(self._by_id):
            self.drop(entry_id)

    def drop_expired(self, before_at: float) -> None:
        for held in [held for held in self._by_id.values() if held.expires_at < before_at]:
            self.drop(held.id)


class Answers:
    """Answers used last, bounded by their bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._held: OrderedDict[str, bytes] = OrderedDict()

    def get(self, entry_id: str) -> bytes | None:
        answer = self._held.get(entry_id)
        if answer is not None:
            self._held.move_to_end(entry_id)
        return answer

    def put(self, entry_id: str, answer: bytes) -> None:
        self.drop(entry_id)
        self._held[entry_id] = answer
        self._size += len(answer)
        while self._size > self._limit:
            _, oldest = self._held.popitem(last=False)
            self._size -= len(oldest)

    def drop(self, entry_id: str) -> None:
        answer = self._held.pop(entry_id, None)
        if answer is not None:
            self._size -= len(answer)
