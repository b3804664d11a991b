"""Whoever learns from what became of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierway.policies.types import Usage
from tierway.router.lease import Lease

if TYPE_CHECKING:
    from tierway.router.balancer import Placed


class Learner:
    """Hears of the course of each lease; what a learner does not care for it leaves as it is
    here: nothing. What it raises is logged, and fails no call."""

    def on_first_token(self, placed: Placed, lease: Lease, now: float) -> None:
        """The first token came, or the whole of an answer that does not stream."""

    def on_end(
        self,
        placed: Placed,
        lease: Lease,
        now: float,
        error: BaseException | None,
        usage: Usage | None,
    ) -> None:
        """It is over; `error` and `usage` as in Lease.finish."""
