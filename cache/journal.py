"""Notes that all gateways of a store share: written to it, handed to listeners as they come.

A note written here reaches the listeners of this process at once and is not handed to them
again when it comes back with the store's journal. While the store is down notes act here only,
counted, as answers do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Clock, Note

logger = logging.getLogger(__name__)

Listener = Callable[[Note], None]

_PAGE = 200


class Journal:
    """`wall` is seconds since the epoch; `fault` counts a fault of the store."""

    def __init__(
        self, store: CacheStore, wall: Clock, fault: Callable[[str, Exception], None]
    ) -> None:
        self._store, self._wall, self._fault = store, wall, fault
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._since = 0
        self._own: set[int] = set()

    def listen(self, kind: str, listener: Listener) -> None:
        """Calls the listener, which must be quick, with every note of this kind. To be called
        before the cache starts, which reads what is there."""
        self._listeners[kind].append(listener)

    async def write(
        self, kind: str, body: Mapping[str, Any], *, ttl_s: float, tenant: str = "", user: str = ""
    ) -> Note:
        """Raises CacheError when the store could not be told; the note acts here all the same."""
        now_at = self._wall()
        note = Note(kind, tenant, user, body, now_at, now_at + ttl_s)
        try:
            note = replace(note, sequence=await self._store.note(note))
            self._own.add(note.sequence)
        except CacheError as error:
            self._fault("store", error)
            raise
        finally:
            self._hand(note)
        return note

    async def follow(self) -> None:
        """Hands on what was written to the store since the last time."""
        while notes := await self._store.notes(self._since, _PAGE):
            for note in notes:
                self._since = note.sequence
                if note.sequence in self._own:
                    self._own.remove(note.sequence)
                else:
                    self._hand(note)
            await asyncio.sleep(0)  # requests go in between

    def _hand(self, note: Note) -> None:
        for listener in self._listeners.get(note.kind, ()):
            try:
                listener(note)
            except Exception:  # border: a note may come from another release
                logger.exception("a note of kind %s was not understood", note.kind)
