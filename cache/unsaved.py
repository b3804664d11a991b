"""Entries that are kept here and that the store does not have: waiting, or refused by it.

A purge selects by what only the whole entry tells, so what the store cannot be asked about is
remembered here. What is too much to be remembered is no longer held either: an erasure must be
able to find everything.
"""

from __future__ import annotations

from collections.abc import Callable

from tierway.cache.holding import Holding
from tierway.policies.protocols import Entry

AT_MOST = 20_000


class Unsaved:
    def __init__(self, holding: Holding, *, at_most: int = AT_MOST) -> None:
        self._holding, self._at_most = holding, at_most
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        while len(self._entries) > self._at_most:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._holding.drop(oldest)

    def remove(self, entry_id: str) -> None:
        """The store has it, or nobody does any more."""
        self._entries.pop(entry_id, None)

    def forget(self, matches: Callable[[Entry], bool]) -> int:
        """Drops the matching entries for good; the jobs that would store them find nothing."""
        gone = [entry.id for entry in self._entries.values() if matches(entry)]
        for entry_id in gone:
            del self._entries[entry_id]
        return self._holding.delete(gone)
