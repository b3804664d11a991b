"""The bound of a drain: what a replica that drains, or has left, still has in flight after so long
is cut. Before its first byte a call then goes to another replica; a stream that has begun ends with
an error event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)

EVERY_S = 1.0


class DrainBound:
    """`cut` ends all that is in flight on a replica."""

    def __init__(
        self,
        fleet: Fleet,
        cut: Callable[[ReplicaSpec], None],
        *,
        drain_timeout_s: float,
        every_s: float = EVERY_S,
    ) -> None:
        self._fleet, self._cut = fleet, cut
        self._drain_timeout_s, self._every_s = drain_timeout_s, every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Cuts what is overdue."""
        for spec in self._fleet.overdue(self._drain_timeout_s):
            text = "%s has drained for %g s: what is in flight there is cut"
            logger.warning(text, spec.id, self._drain_timeout_s)
            self._cut(spec)

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                self.look()
            except Exception:  # border: the loop outlives any fault
                logger.exception("the drains could not be looked at")
