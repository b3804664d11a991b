"""When to try a server again that failed: a gate, closed for longer after each failure in a row.

The pause doubles from `first_s` to `most_s` and is drawn between half of it and all of it, so
that many gateways do not come back in one moment. After a pause one attempt goes through and
the gate stays closed behind it for `probe_s`, so that callers do not queue up behind a server
that hangs. Pure: the clock (monotonic seconds) and the draw (uniform in [0, 1)) are passed in.
"""

from __future__ import annotations

from collections.abc import Callable

from tierway.policies.protocols import Clock

FIRST_S = 0.25
MOST_S = 5.0


class Backoff:
    def __init__(
        self,
        *,
        clock: Clock,
        draw: Callable[[], float],
        probe_s: float,
        first_s: float = FIRST_S,
        most_s: float = MOST_S,
    ) -> None:
        self._clock, self._draw = clock, draw
        self._probe_s, self._first_s, self._most_s = probe_s, first_s, most_s
        self._failures = 0
        self._open_at = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt may be made; 0 while the gate is open."""
        return max(0.0, self._open_at - self._clock()) if self._failures else 0.0

    def admits(self) -> bool:
        """Whether to try now. Where it says yes after a failure, it says no to the others
        until that attempt is reported or `probe_s` have passed."""
        if not self._failures:
            return True
        if self.wait_s > 0.0:
            return False
        self._open_at = self._clock() + self._probe_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Of attempts that were under way together, each counts: the pause grows faster
        under load, up to its limit."""
        pause_s = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._open_at = self._clock() + pause_s * (0.5 + 0.5 * self._draw())
