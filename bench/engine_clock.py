"""Many engines in virtual time, driven by their events.

Advancing every engine at every arrival would end every leap there. The clock asks each engine
once for the next time at which it does something visible, keeps these times in a heap, and
advances the one whose time has come: what engines tell (`on_token`) comes in order of time over
all of them, and work submitted from there is taken up as it would be by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from tierway.bench.engine import Engine, Job, Work


class EngineClock:
    """`now_s` never goes back. Whatever changes an engine goes through here, so that its next
    event is known; `seen` brings one up to date that is only to be looked at."""

    def __init__(self, engines: Sequence[Engine], now_s: float = 0.0) -> None:
        self.engines = tuple(engines)
        self.now_s = now_s
        self._heap: list[tuple[float, int, int]] = []
        self._versions = [0] * len(self.engines)
        self._moving: int | None = None

    def next_s(self) -> float | None:
        """When something visible may happen next; None while all engines are idle."""
        while self._heap and self._versions[self._heap[0][1]] != self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self, until_s: float = float("inf")) -> None:
        """Runs all engines up to `until_s`, event by event; to their ends when it is infinite."""
        while (next_s := self.next_s()) is not None and next_s <= until_s:
            index = self._heap[0][1]
            self.now_s = max(self.now_s, next_s)
            self._moving = index
            self.engines[index].advance(self.now_s)
            self._moving = None
            self._note(index)
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)

    def seen(self, index: int) -> Engine:
        """The engine with all its counts as they are now."""
        self._advance(index)
        self._note(index)
        return self.engines[index]

    def submit(self, index: int, work: Work, on_token: Callable[[Job], None] | None = None) -> Job:
        """Gives a request to an engine now; only its first token and its end are told."""
        self._advance(index)
        job = self.engines[index].submit(work, at_s=self.now_s, on_token=on_token, milestones=True)
        self._note(index)
        return job

    def abort(self, index: int, job: Job) -> bool:
        aborted = self.seen(index).abort(job)
        self._note(index)
        return aborted

    def slow_down(self, index: int, factor: float) -> None:
        """From its next step on, the steps of an engine take `factor` times as long."""
        self.seen(index).slowdown = factor
        self._note(index)

    def _advance(self, index: int) -> None:
        """Brings an engine to now, so that what comes at one time is scheduled together."""
        engine = self.engines[index]
        telling = self._moving == index
        if not telling and (engine.due_s is not None or engine.now_s < self.now_s):
            engine.advance(self.now_s)

    def _note(self, index: int) -> None:
        self._versions[index] += 1
        next_s = self.engines[index].next_event_s()
        if next_s is not None:
            heapq.heappush(self._heap, (next_s, index, self._versions[index]))
