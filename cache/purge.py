"""Purge and erasure: everything of a tenant, a user, a model ..., here at once, elsewhere by the
store within a second.

What is stored goes through the log, as every deletion does. What another gateway has kept and not
stored yet would come afterwards; so a note tells every gateway to forget it, and to repeat the
deletion for what it stored in between. A note binds only what is older than itself: an answer
given after the purge stays.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tierway.cache.journal import Journal
from tierway.cache.store import Selection
from tierway.cache.unsaved import Unsaved
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Clock, Note

KIND = "purge"
TOLD_FOR_S = 86_400.0  # a gateway that was cut off for a day holds nothing that is older


async def purge_from_outside(store: CacheStore, chosen: Selection, now_at: float) -> int:
    """As `Purge.run`, for a program that holds no entries. Raises CacheError."""
    count = await store.delete_where(**chosen.given())
    await store.note(Note(KIND, "", "", chosen.given(), now_at, now_at + TOLD_FOR_S))
    return count


class Purge:
    """`follow` reads the store's log, `fault` counts what failed behind the requests."""

    def __init__(
        self,
        store: CacheStore,
        unsaved: Unsaved,
        journal: Journal,
        follow: Callable[[], Awaitable[None]],
        fault: Callable[[str, Exception], None],
        wall: Clock,
    ) -> None:
        self._store, self._unsaved, self._journal = store, unsaved, journal
        self._follow, self._fault = follow, fault
        self._born_at = wall()
        self._me = os.urandom(8).hex()
        self._repeats: set[asyncio.Task[None]] = set()
        journal.listen(KIND, self._told)

    async def run(self, chosen: Selection) -> int:
        """Deletes what was chosen, everything by an empty selection; how many entries went.

        Raises CacheError when the store could not do it or could not tell the others: repeat.
        """
        count = self._unsaved.forget(chosen.matcher())
        try:
            count += await self._store.delete_where(**chosen.given())
            await self._follow()
            body = {**chosen.given(), "by": self._me}
            await self._journal.write(KIND, body, ttl_s=TOLD_FOR_S)
        except CacheError as error:
            self._fault("store", error)
            raise
        return count

    async def aclose(self) -> None:
        for task in self._repeats:
            task.cancel()
        await asyncio.gather(*self._repeats, return_exceptions=True)

    def _told(self, note: Note) -> None:
        # Who came later held nothing then, and what was imported since is there on purpose.
        if note.body.get("by") == self._me or note.at < self._born_at:
            return
        chosen = selection_of(note)
        self._unsaved.forget(chosen.matcher())
        task = asyncio.get_running_loop().create_task(self._repeat(chosen))
        self._repeats.add(task)
        task.add_done_callback(self._repeats.discard)

    async def _repeat(self, chosen: Selection) -> None:
        try:
            await self._store.delete_where(**chosen.given())
        except CacheError as error:
            self._fault("store", error)


def selection_of(note: Note) -> Selection:
    """What a note chose, older than the note itself. Raises TypeError for one of another
    release."""
    conditions: dict[str, Any] = {**note.body}
    conditions.pop("by", None)
    chosen = Selection(**conditions)
    bound_at = chosen.older_than_at
    return replace(chosen, older_than_at=note.at if bound_at is None else min(bound_at, note.at))
