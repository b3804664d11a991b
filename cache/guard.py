"""Using a server that may hang or be away: a deadline, a bound, and a pause after each fault.

What the server does not answer in time is a CacheError. After a fault of the connection the
guard answers at once, without asking the server, until a pause is over (backoff.py): a server
that hangs costs each pause one deadline, not each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tierway.cache.backoff import Backoff
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock

Result = TypeVar("Result")

AT_ONCE = 32
"""Uses under way at the same time, each on a connection of its own."""


class Away(Exception):
    """Raised by an action: the server cannot be reached; the text says why."""


class Guard:
    """`name` is the server's, for people. `timeout_s` is the deadline of what a request waits
    for, `patience_s` that of work behind the requests. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        draw: Callable[[], float],
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self.name = name
        self.timeout_s, self.patience_s = timeout_s, max(timeout_s, patience_s)
        self._gate = Backoff(clock=clock, draw=draw, probe_s=self.patience_s)
        self._reason = ""
        self._slots: asyncio.Semaphore | None = None

    def open(self) -> None:
        self._slots = self._slots or asyncio.Semaphore(AT_ONCE)

    def close(self) -> None:
        self._slots = None

    async def run(self, action: Callable[[], Awaitable[Result]], *, hurry: bool = False) -> Result:
        """Runs `action` within `patience_s` from when its turn comes, or in a `hurry` within
        `timeout_s` from now. Waiting for one's turn is no fault of the server."""
        slots = self._slots
        if slots is None:
            raise CacheError(f"The connection to {self.name} is not open.")
        if self._gate.wait_s > 0.0:
            raise self._away()
        limit_s = self.timeout_s if hurry else self.patience_s
        began = False
        try:
            async with asyncio.timeout(limit_s if hurry else None), slots:
                if not self._gate.admits():
                    raise self._away()
                began = True
                async with asyncio.timeout(limit_s):
                    result = await action()
        except TimeoutError as error:
            if not began:
                raise CacheError(f"Too much waits for {self.name}.") from error
            raise self._failed(f"no answer within {limit_s:g} s") from error
        except Away as error:
            raise self._failed(str(error)) from error.__cause__
        self._gate.succeeded()
        return result

    def answered(self) -> None:
        """To be called before an action raises because the server refused: it is there."""
        self._gate.succeeded()

    def _failed(self, reason: str) -> CacheError:
        self._gate.failed()
        self._reason = reason.rstrip(".")
        return CacheError(f"{self.name} is away: {self._reason}.")

    def _away(self) -> CacheError:
        again = f"it is tried again in {self._gate.wait_s:.1f} s"
        return CacheError(f"{self.name} is away ({self._reason}); {again}.")
