from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies import errors
from tierway.policies.resilience import (
    Breaker,
    BreakerRules,
    RetryBudget,
    Verdict,
    Window,
    may_open,
    verdict,
)


def fail(breaker: Breaker, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        breaker.record_failure(now)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    fail(breaker, 5, now)
    return breaker


def test_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    fail(breaker, 4)
    breaker.record_success(0.0)
    fail(breaker, 4)
    assert breaker.state(0.0) == "closed"
    breaker.record_failure(0.0)
    assert breaker.state(0.0) == "open"
    assert not breaker.allows(9.9)


def test_half_of_ten_calls_failing_open_it_but_old_ones_are_forgotten() -> None:
    breaker, old = Breaker(), Breaker()
    for second in range(5):
        for target, now in ((breaker, second), (old, second * 20)):
            target.record_success(float(now))
            target.record_failure(float(now))
    assert breaker.state(5.0) == "open"
    assert old.state(81.0) == "closed"


def test_fewer_than_ten_calls_prove_nothing() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.record_failure(0.0)
        breaker.record_success(0.0)
    assert breaker.state(0.0) == "closed"


def test_hard_evidence_opens_at_once() -> None:
    breaker = Breaker()
    breaker.record_failure(3.0, True)
    assert breaker.state(3.0) == "open"
    assert breaker.state(13.0) == "half-open"


def test_half_open_lets_one_probe_through_and_its_success_closes() -> None:
    breaker = opened()
    assert breaker.state(10.0) == "half-open"
    assert breaker.allows(10.0)
    breaker.begin_probe(10.0)
    assert not breaker.allows(10.1)
    breaker.record_success(11.0)
    assert breaker.state(11.0) == "closed"
    breaker.record_failure(11.0)
    assert breaker.state(11.0) == "closed"


def test_openings_double_to_a_cap_and_a_good_spell_forgets_them() -> None:
    breaker, now = opened(), 0.0
    for seconds in (10, 20, 40, 80, 120, 120):
        assert breaker.state(now + seconds - 0.1) == "open"
        now += seconds
        assert breaker.state(now) == "half-open"
        breaker.begin_probe(now)
        breaker.record_failure(now)
    now += 120
    breaker.begin_probe(now)
    breaker.record_success(now)
    fail(breaker, 5, now + 59.0)
    assert breaker.state(now + 59.0 + 100.0) == "open"
    now += 59.0 + 120.0
    breaker.begin_probe(now)
    breaker.record_success(now)
    fail(breaker, 5, now + 60.0)
    assert breaker.state(now + 70.0) == "half-open"


def test_a_lost_probe_does_not_wedge_it() -> None:
    breaker = opened()
    breaker.begin_probe(10.0)
    assert not breaker.allows(69.9)
    assert breaker.allows(70.0)
    breaker.begin_probe(70.0)
    breaker.record_neutral(71.0)
    assert breaker.allows(71.0)


def test_late_reports_of_calls_sent_before_it_opened_change_nothing() -> None:
    breaker = opened()
    breaker.record_success(1.0)
    fail(breaker, 3, 1.0)
    assert breaker.state(1.0) == "open"
    breaker.record_success(11.0)
    breaker.record_failure(11.0)
    assert breaker.state(11.0) == "half-open"


def test_a_passing_health_check_takes_back_hard_evidence_only() -> None:
    hard, soft = Breaker(), opened()
    hard.record_health(0.0, False)
    assert hard.state(0.0) == "open"
    hard.record_health(1.0, True)
    soft.record_health(1.0, True)
    assert hard.state(1.0) == "closed"
    assert soft.state(1.0) == "open"


def test_statistics_are_held_back_but_not_forgotten() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.record_failure(0.0, may_open=False)
    assert breaker.allows(0.0)
    breaker.record_failure(0.0, may_open=True)
    assert not breaker.allows(0.0)
    last = Breaker()
    last.record_failure(0.0, True, may_open=False)
    assert not last.allows(0.0)


@pytest.mark.parametrize(
    ("open_count", "total", "allowed"),
    [(0, 1, False), (0, 2, True), (1, 2, False), (0, 3, True), (1, 3, False), (1, 4, True)],
)
def test_half_of_a_tier_at_most_and_never_the_last(
    open_count: int, total: int, allowed: bool
) -> None:
    assert may_open(open_count, total) is allowed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, "success"),
        (errors.Refused("no"), "hard"),
        (errors.BrokenStream("cut"), "failure"),
        (errors.UpstreamTimeout("first_token", 30), "failure"),
        (errors.UpstreamTimeout("total", 1), "neutral"),
        (errors.Rejected(500, (), b""), "failure"),
        (errors.Rejected(502, (), b""), "failure"),
        (errors.Rejected(400, (), b""), "neutral"),
        (errors.Rejected(429, (), b""), "neutral"),
        (errors.Rejected(503, (), b""), "neutral"),
        (errors.UpstreamError("other"), "failure"),
        (errors.BadCall("wrong"), "neutral"),
        (errors.Overloaded("full"), "neutral"),
        (asyncio.CancelledError(), "neutral"),
    ],
)
def test_verdicts(error: BaseException | None, expected: Verdict) -> None:
    assert verdict(error) == expected


def test_twenty_invalid_requests_leave_it_closed() -> None:
    breaker = Breaker()
    for _ in range(20):
        breaker.record(verdict(errors.Rejected(400, (), b"too long")), 0.0)
    assert breaker.state(0.0) == "closed"


events = st.tuples(
    st.sampled_from(["success", "failure", "hard", "neutral", "probe", "health"]),
    st.floats(0, 40),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=60))
def test_whatever_happens_it_heals_within_the_cap_and_the_probe_timeout(
    history: list[tuple[Verdict, float]],
) -> None:
    breaker, rules, now = Breaker(), BreakerRules(), 0.0
    for event, later in history:
        now += later
        assert breaker.allows(now) or breaker.state(now) != "closed"
        if event == "probe":
            breaker.begin_probe(now)
        elif event == "health":
            breaker.record_health(now, True)
        else:
            breaker.record(event, now)
    now += rules.max_open_s + rules.probe_timeout_s
    assert breaker.allows(now)
    breaker.begin_probe(now)
    breaker.record_success(now)
    assert breaker.state(now) == "closed"


def test_the_retry_budget_is_a_floor_and_a_share_of_the_last_ten_seconds() -> None:
    budget = RetryBudget(share=0.2, floor_per_s=1.0)
    assert [budget.take(100.0) for _ in range(11)] == [True] * 10 + [False]
    for _ in range(50):
        budget.record_request(101.0)
    assert [budget.take(102.0) for _ in range(11)] == [True] * 10 + [False]
    assert budget.take(120.0)


def test_a_budget_of_nothing_allows_no_retry() -> None:
    assert not RetryBudget(share=0.0, floor_per_s=0.0).take(1.0)


def test_a_window_that_nobody_reads_holds_no_more_than_its_seconds() -> None:
    """A replica that never fails, a fleet that never retries: nobody asks for the totals."""
    window = Window(30.0)
    for second in range(10_000):
        window.add(float(second))
        assert len(window) <= 32
    assert window.totals(9_999.0) == (31, 0)


def test_reliable_is_who_answers_nearly_always_of_late() -> None:
    breaker = Breaker()
    assert not breaker.reliable(0.0)  # nothing is known
    for _ in range(20):
        breaker.record_success(0.0)
    assert breaker.reliable(0.0)
    fail(breaker, 1)
    assert not breaker.reliable(0.0)  # the last one failed
    breaker.record_success(0.0)
    assert breaker.reliable(0.0)
    fail(breaker, 3)
    breaker.record_success(0.0)
    assert not breaker.reliable(0.0)  # more than a tenth
    assert not opened().reliable(0.0)
    assert not breaker.reliable(100.0)  # long ago
