"""Follows the configuration file: when it has changed and stands still, it is read again.

The file's bytes are compared about once a second, through whatever links its path has (a
ConfigMap changes by swapping one). What changed must be seen twice before it is read: a file that
is being written is left alone. A file that is invalid is told once, when it stands still.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_UNKNOWN = b"unknown"
_ABSENT = b"absent"


class Watch:
    """Calls `reload` for every new content of the file, the first included, as the file may have
    changed while the gateway started. `reload` logs what is wrong itself."""

    def __init__(
        self, path: Path, reload: Callable[[], Awaitable[None]], *, every_s: float = EVERY_S
    ) -> None:
        self._path, self._reload, self._every_s = path, reload, every_s
        self._known = self._seen = _UNKNOWN
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def look(self) -> None:
        """One look at the file."""
        found = await asyncio.to_thread(_digest, self._path)
        before, self._seen = self._seen, found
        if found == before and found != self._known:
            self._known = found
            await self._reload()

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the border of a background loop
                logger.exception("the configuration file could not be looked at")
            await asyncio.sleep(self._every_s)


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return _ABSENT
