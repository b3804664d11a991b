"""A slot on a replica: taken before a request is sent, given back exactly once whatever happens,
so that counts cannot leak or turn negative.
"""

from __future__ import annotations

import math
from typing import Protocol

from tierway.policies.errors import SlowFirstToken
from tierway.policies.protocols import Clock
from tierway.policies.types import Usage, Work
from tierway.router.replica import Given, Replica

SLOW = SlowFirstToken("The first token came much later than was predicted.")


class Judge(Protocol):
    """The fleet, as a lease sees it."""

    clock: Clock

    def judge(self, replica: Replica, error: BaseException | None) -> None: ...


class Watch(Protocol):
    """Sees the course of a lease, each moment once."""

    def on_first_token(self, lease: Lease, now: float) -> None: ...
    def on_end(
        self, lease: Lease, now: float, error: BaseException | None, usage: Usage | None
    ) -> None: ...


class Lease:
    """One slot on one replica, taken for `work`. `first_token` and `finish` count once; later
    calls do nothing. A first token later than `slow_after_s` speaks against the replica even if the
    answer was good. `taken_s` is when it was taken, `first_s` when the first token came."""

    __slots__ = (
        "_ended",
        "_fleet",
        "_reading",
        "_replica",
        "_slow",
        "_slow_after_s",
        "_watch",
        "first_s",
        "given_at_first",
        "replica",
        "taken_s",
        "work",
    )

    def __init__(
        self,
        fleet: Judge,
        replica: Replica,
        work: Work,
        now: float,
        watch: Watch | None,
        slow_after_s: float = math.inf,
    ) -> None:
        self.replica = replica.spec.id
        self.work = work
        self.taken_s = now
        self.first_s: float | None = None
        self.given_at_first: Given = (0, 0.0)
        self._fleet, self._replica = fleet, replica
        self._watch = watch
        self._reading, self._ended = True, False
        self._slow_after_s, self._slow = slow_after_s, False

    def first_token(self) -> None:
        """The prompt is read: its tokens wait no longer."""
        if self.first_s is None and not self._ended:
            self.first_s = self._fleet.clock()
            self._slow = self.first_s - self.taken_s > self._slow_after_s
            self.given_at_first = self._replica.given
            self.prompt_read()
            if self._watch is not None:
                self._watch.on_first_token(self, self.first_s)

    def prompt_read(self) -> None:
        """Takes the prompt out of what waits to be read, without saying that a token came."""
        if self._reading:
            self._reading = False
            replica, work = self._replica, self.work
            replica.prefill_tokens -= work.prefill_tokens
            replica.prefill_pairs -= work.prefill_pairs
            self._replica.view = None

    def finish(self, error: BaseException | None = None, usage: Usage | None = None) -> None:
        """`error` is what ended the request, None for a good answer; `usage` what that
        reported. A request given up by its client ends with CancelledError, which says nothing
        about the replica."""
        if self._ended:
            return
        self.prompt_read()
        self._ended = True
        self._replica.book(self.work, -1)
        self._fleet.judge(self._replica, SLOW if error is None and self._slow else error)
        if self._watch is not None:
            self._watch.on_end(self, self._fleet.clock(), error, usage)
