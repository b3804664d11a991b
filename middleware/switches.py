"""What operators switch while traffic flows: the cache's mode.

A switch acts here at once and is a note in the store's journal: every gateway of the store takes
it within a second, and so does the next start. The version counts the switches that were taken,
so gateways of one store show the same one.
"""

from __future__ import annotations

from dataclasses import replace

from tierway.cache.journal import Journal
from tierway.middleware.pipeline import CacheStage
from tierway.policies.cacheability import Mode
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Note

KIND = "switch"
MODES: tuple[Mode, ...] = ("serve", "observe", "off")
KEPT_FOR_S = 10 * 365 * 86_400.0


class CacheSwitch:
    """To be made before the cache starts, which reads the switches there are."""

    def __init__(self, stage: CacheStage, journal: Journal) -> None:
        self._stage, self._journal = stage, journal
        self.version = 1
        journal.listen(KIND, self._told)

    async def to(self, mode: Mode) -> bool:
        """Switches; False when the store could not be told, so that it acts here only."""
        try:
            await self._journal.write(KIND, {"cache": mode}, ttl_s=KEPT_FOR_S)
        except CacheError:  # counted by the journal
            return False
        return True

    def _told(self, note: Note) -> None:
        mode = note.body.get("cache")
        if mode in MODES:
            self._stage.rules = replace(self._stage.rules, mode=mode)
            self.version += 1
