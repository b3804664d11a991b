"""Resilience rules as small state machines; the clock is always passed in.

`Breaker` watches one replica. Closed, it opens

- at once on hard evidence: connection refused, a dead health check;
- on statistics (a first token later than `slow_factor` times its prediction is a failure too):
  `consecutive` failures in a row, or a share of failures of at least `share`
  in the last `window_s` seconds with at least `min_calls` calls, if `may_open` allows it.

Open, it takes nothing for `open_s`, doubling with each opening up to `max_open_s`; a good
spell of `good_spell_s` closed forgets the doubling. Then it is half-open and lets one call
through at a time: a success closes it, a failure opens it again, and a probe that never
reports is given up after `probe_timeout_s`. Reports that arrive while it is open belong to
calls sent before and change nothing. Defaults follow Envoy's outlier detection (5 in a row)
and resilience4j (share 0.5), with windows for the lower rates of language models.

`RetryBudget` is Finagle's: retries may be a share of recent requests plus a floor.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from tierway.policies.errors import Dropped, Refused, Rejected, UpstreamError, UpstreamTimeout

Verdict = Literal["success", "failure", "hard", "neutral"]
BreakerState = Literal["closed", "open", "half-open"]


def verdict(error: BaseException | None) -> Verdict:
    """What the outcome of a call says about the replica that had it.

    Neutral: the client's own mistakes (4xx), load (429, 503, 529), a client that left, and a
    call whose whole time ran out, which may have been short by the client's wish.
    """
    if error is None:
        return "success"
    if isinstance(error, Refused):
        return "failure" if isinstance(error, Dropped) else "hard"
    if isinstance(error, Rejected):
        return "failure" if error.status >= 500 and not error.overload else "neutral"
    if isinstance(error, UpstreamTimeout):
        return "neutral" if error.which == "total" else "failure"
    return "failure" if isinstance(error, UpstreamError) else "neutral"


def may_open(open_count: int, total: int) -> bool:
    """Whether statistics may open one more of `total` breakers: half at most, never the last.
    What fails everywhere is then no replica's fault."""
    return open_count + 1 <= total // 2


@dataclass(frozen=True, slots=True)
class BreakerRules:
    consecutive: int = 5
    share: float = 0.5
    reliable_share: float = 0.1
    window_s: float = 30.0
    min_calls: int = 10
    open_s: float = 10.0
    max_open_s: float = 120.0
    good_spell_s: float = 60.0
    probe_timeout_s: float = 60.0
    slow_factor: float = 5.0
    slow_margin_s: float = 5.0

    def slow_after_s(self, ttft_s: float) -> float:
        """From when on a first token counts as a failure, for one that was predicted."""
        return max(self.slow_factor * ttft_s, ttft_s + self.slow_margin_s)


class Window:
    """Counts of calls and failures over the last `window_s` seconds, by the second. Its length
    is the number of seconds that it holds."""

    __slots__ = ("_buckets", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._buckets: deque[tuple[int, list[int]]] = deque()

    def add(self, now: float, failures: int = 0) -> None:
        """Counts one call."""
        second = int(now)
        if not self._buckets or self._buckets[-1][0] < second:
            self._forget(now)  # nobody may ever ask for the totals
            self._buckets.append((second, [0, 0]))
        counts = self._buckets[-1][1]
        counts[0] += 1
        counts[1] += failures

    def totals(self, now: float) -> tuple[int, int]:
        """(calls, failures) that are not too old."""
        self._forget(now)
        calls = sum(counts[0] for _, counts in self._buckets)
        return calls, sum(counts[1] for _, counts in self._buckets)

    def clear(self) -> None:
        self._buckets.clear()

    def __len__(self) -> int:
        return len(self._buckets)

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= now - self._window_s - 1.0:
            self._buckets.popleft()


class Breaker:
    """The circuit breaker of one replica. `now` is monotonic seconds and never goes back."""

    __slots__ = (
        "_closed_at",
        "_hard",
        "_openings",
        "_probe_at",
        "_rules",
        "_run",
        "_until",
        "_window",
    )

    def __init__(self, rules: BreakerRules | None = None) -> None:
        self._rules = rules or BreakerRules()
        self._window = Window(self._rules.window_s)
        self._run = 0
        self._until: float | None = None
        self._hard = False
        self._openings = 0
        self._closed_at: float | None = None
        self._probe_at: float | None = None

    @property
    def closed(self) -> bool:
        return self._until is None

    def reliable(self, now: float) -> bool:
        """Closed, and of late it has answered nearly always."""
        if self._until is not None or self._run:
            return False
        calls, failures = self._window.totals(now)
        return calls > 0 and failures <= self._rules.reliable_share * calls

    def state(self, now: float) -> BreakerState:
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half-open"

    def allows(self, now: float) -> bool:
        """Whether a call may go to the replica; half-open, only while no probe is out."""
        state = self.state(now)
        if state == "half-open":
            return not self._probing(now)
        return state == "closed"

    def begin_probe(self, now: float) -> None:
        """Marks the call about to be sent as the probe; only half-open does it count."""
        if self.state(now) == "half-open":
            self._probe_at = now

    def record(self, outcome: Verdict, now: float, *, may_open: bool = True) -> None:
        """Reports a finished call by its verdict."""
        if outcome == "success":
            self.record_success(now)
        elif outcome == "neutral":
            self.record_neutral(now)
        else:
            self.record_failure(now, outcome == "hard", may_open=may_open)

    def record_success(self, now: float) -> None:
        if self._until is None:
            self._run = 0
            self._window.add(now)
        elif self._probing(now):
            self._close(now)

    def record_neutral(self, now: float) -> None:
        """A call that says nothing about the replica; a probe that was one frees its place."""
        self._probe_at = None

    def record_failure(self, now: float, hard: bool = False, *, may_open: bool = True) -> None:
        """`may_open` False keeps statistics from opening it; the evidence is kept."""
        state = self.state(now)
        if state == "open" or (state == "half-open" and not hard and not self._probing(now)):
            return
        self._run += 1
        self._window.add(now, failures=1)
        if hard or state == "half-open" or (may_open and self._statistics(now)):
            self._open(now, hard)

    def forget(self) -> None:
        """Forgets the calls so far, as of another process; what is open stays so."""
        self._run = 0
        self._window.clear()

    def record_health(self, now: float, healthy: bool) -> None:
        """Reports an active check: failing is hard evidence, passing takes such back."""
        if not healthy:
            self.record_failure(now, hard=True)
        elif self._until is not None and self._hard:
            self._close(now)

    def _statistics(self, now: float) -> bool:
        calls, failures = self._window.totals(now)
        rules = self._rules
        return self._run >= rules.consecutive or (
            calls >= rules.min_calls and failures >= rules.share * calls
        )

    def _open(self, now: float, hard: bool) -> None:
        rules = self._rules
        if self._closed_at is not None and now - self._closed_at >= rules.good_spell_s:
            self._openings = 0
        self._until = now + min(rules.open_s * 2.0 ** min(self._openings, 32), rules.max_open_s)
        self._openings += 1
        self._hard, self._closed_at, self._probe_at = hard, None, None

    def _close(self, now: float) -> None:
        self._until, self._probe_at, self._closed_at = None, None, now
        self._run, self._hard = 0, False
        self._window.clear()

    def _probing(self, now: float) -> bool:
        return self._probe_at is not None and now - self._probe_at < self._rules.probe_timeout_s


class RetryBudget:
    """Retries of the last `window_s` may be `share` of its requests plus `floor_per_s` a second."""

    __slots__ = ("_floor", "_requests", "_retries", "_share")

    def __init__(
        self, share: float = 0.2, floor_per_s: float = 10.0, window_s: float = 10.0
    ) -> None:
        self._share = share
        self._floor = floor_per_s * window_s
        self._requests = Window(window_s)
        self._retries = Window(window_s)

    def record_request(self, now: float) -> None:
        """Counts a client's request (not its attempts)."""
        self._requests.add(now)

    def take(self, now: float) -> bool:
        """Takes one retry from the budget; False, and nothing taken, when it is spent."""
        requests, _ = self._requests.totals(now)
        retries, _ = self._retries.totals(now)
        if retries + 1 > self._share * requests + self._floor:
            return False
        self._retries.add(now)
        return True
