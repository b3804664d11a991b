"""Answers used last, bounded by their bytes, each with the usage that it reports."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tierway.policies.types import Usage
from tierway.policies.usage import usage_of


@dataclass(slots=True)
class _Kept:
    answer: bytes
    usage: Usage | None = None


class Answers:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._held: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, entry_id: str) -> bytes | None:
        kept = self._held.get(entry_id)
        if kept is None:
            return None
        self._held.move_to_end(entry_id)
        return kept.answer

    def usage(self, entry_id: str, answer: bytes) -> Usage:
        """What the entry's answer reports, read once while the answer is kept."""
        kept = self._held.get(entry_id)
        if kept is None:
            return usage_of(answer) or Usage()
        if kept.usage is None:
            kept.usage = usage_of(kept.answer) or Usage()
        return kept.usage

    def put(self, entry_id: str, answer: bytes) -> None:
        self.drop(entry_id)
        self._held[entry_id] = _Kept(answer)
        self._size += len(answer)
        while self._size > self._limit:
            _, oldest = self._held.popitem(last=False)
            self._size -= len(oldest.answer)

    def drop(self, entry_id: str) -> None:
        kept = self._held.pop(entry_id, None)
        if kept is not None:
            self._size -= len(kept.answer)

    def clear(self) -> None:
        self._held.clear()
        self._size = 0
