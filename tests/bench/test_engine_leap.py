"""Leaps against single steps: the same tokens at the same times, the same blocks, the same sums."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_leap import Leap
from tierway.bench.profiles import Profile, profile


def small(blocks: int, **changes: int) -> Profile:
    return dataclasses.replace(profile("8b-a10"), blocks=blocks, **changes)


def step_by_step(engine: Engine, until_s: float) -> None:
    """What `advance` does, without leaps."""
    while engine.due_s is not None or engine.begin() is not None:
        assert engine.due_s is not None
        if engine.due_s > until_s:
            return
        engine.finish()
    if until_s != float("inf"):
        engine.catch_up(until_s)


def state(engine: Engine, jobs: list[Job]) -> list[Any]:
    told = [dataclasses.asdict(engine.totals), engine.kv_usage, engine.now_s, engine.due_s]
    for job in jobs:
        told += [job.generated, job.computed, job.preemptions, job.cached_tokens, job.reason]
        told += [job.admitted_s, job.first_token_s, job.previous_s, job.token_s, job.finished_s]
        told += [len(job.blocks), job.committed]
    return told


def same(leapt: list[Any], stepped: list[Any]) -> None:
    for one, other in zip(leapt, stepped, strict=True):
        if isinstance(one, dict):
            assert one.pop("busy_s") == pytest.approx(other.pop("busy_s"), abs=1e-9)
        exact = not isinstance(one, float)
        assert one == (other if exact else pytest.approx(other, abs=1e-9))


Asked = tuple[int, int, int, int | None, float, int]

_ASKED = st.tuples(
    st.integers(1, 300),  # prompt
    st.integers(0, 150),  # output
    st.integers(0, 2),  # whose prefix
    st.one_of(st.none(), st.none(), st.integers(0, 60)),  # stall after
    st.floats(0.0, 4.0),  # gap
    st.integers(0, 9),  # what else happens: 0 an abort, 1 a resume
)


# Admitted again with a block for its newest token, before that token is computed.
_AGAIN = [
    (40, 51, 0, None, 2.6422780014749243, 0),
    (201, 73, 1, None, 0.24116410931581314, 4),
    (119, 75, 1, None, 1.3778252876154808, 3),
    (259, 132, 1, None, 1.2812320587373018, 0),
    (199, 21, 1, None, 0.0, 6),
    (175, 143, 0, 56, 0.2791547731679155, 5),
]
# The same, and a waiting request that shares its blocks.
_SHARED = [
    (50, 0, 0, None, 0.0, 7),
    (114, 133, 2, None, 2.619479909222187, 1),
    (62, 46, 0, None, 0.0, 3),
    (252, 137, 1, None, 0.9033106431794149, 2),
    (185, 119, 2, None, 2.5978729203957585, 4),
    (277, 1, 1, 30, 0.0, 6),
]


@settings(max_examples=150, deadline=None)
@example(_AGAIN, 29, 4, 7)
@example(_SHARED, 29, 4, 2)
@given(
    st.lists(_ASKED, min_size=1, max_size=10),
    st.sampled_from([29, 40, 300]),
    st.sampled_from([1, 4, 16]),
    st.integers(2, 8),
)
def test_leaps_are_single_steps_taken_together(
    asked: list[Asked], blocks: int, sequences: int, budget: int
) -> None:
    made = small(blocks, sequences=sequences, batched_tokens=16 * budget)
    fast, slow = Engine(made), Engine(made)
    fasts, slows, now_s = list[Job](), list[Job](), 0.0
    for prompt, output, name, stall, gap_s, more in asked:
        now_s += gap_s
        fast.advance(now_s)
        step_by_step(slow, now_s)
        same(state(fast, fasts), state(slow, slows))
        work = Work(prompt, output, [(name, i) for i in range(20)], stall_after=stall)
        fasts.append(fast.submit(work, at_s=now_s))
        slows.append(slow.submit(work, at_s=now_s))
        if more == 0:
            assert fast.abort(fasts[len(fasts) // 2]) == slow.abort(slows[len(slows) // 2])
        elif more == 1:
            fast.resume(fasts[0])
            slow.resume(slows[0])
    fast.advance(now_s + 1000.0)
    step_by_step(slow, now_s + 1000.0)
    same(state(fast, fasts), state(slow, slows))


def test_preemption_and_eviction_come_out_the_same() -> None:
    rng = random.Random(3)
    fast, slow = Engine(small(60)), Engine(small(60))
    now_s, fasts, slows = 0.0, list[Job](), list[Job]()
    for number in range(80):
        now_s += rng.expovariate(2)
        fast.advance(now_s)
        step_by_step(slow, now_s)
        work = Work(
            rng.randrange(1, 500), rng.randrange(1, 200), [(number % 5, i) for i in range(40)]
        )
        fasts.append(fast.submit(work, at_s=now_s))
        slows.append(slow.submit(work, at_s=now_s))
    fast.advance()
    step_by_step(slow, float("inf"))
    same(state(fast, fasts), state(slow, slows))
    assert fast.totals.preemptions > 5
    assert fast.totals.prefix_hits > 0


def test_milestones_are_the_first_token_and_the_end() -> None:
    engine = Engine(profile("8b-a100"))
    heard: list[tuple[int, str | None]] = []
    work = Work(2000, 300)
    engine.submit(work, on_token=lambda j: heard.append((j.generated, j.reason)), milestones=True)
    engine.submit(Work(16, 0), on_token=lambda j: heard.append((j.generated, j.reason)))
    engine.advance()
    assert sorted(heard) == [(0, "stop"), (1, None), (300, "stop")]


def test_whoever_wants_each_token_gets_it_from_advance_too() -> None:
    engine = Engine(profile("8b-a100"))
    heard: list[float | None] = []
    engine.submit(Work(100, 50), on_token=lambda job: heard.append(job.token_s))
    engine.submit(Work(100, 50), on_token=lambda job: None, milestones=True)
    engine.advance()
    assert len(set(heard)) == 50


def test_a_leap_knows_how_many_of_its_steps_fit() -> None:
    leap = Leap((), 40, 0.01, 0.0005)
    for count in range(41):
        assert leap.fitting(leap.seconds(count)) == count
        if count:
            assert leap.fitting(leap.seconds(count) - 1e-9) == count - 1
    assert leap.fitting(1e9) == 40
    assert leap.fitting(-1.0) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 150)), min_size=1, max_size=8))
def test_nothing_is_heard_of_before_the_next_event(asked: list[tuple[int, int]]) -> None:
    engine = Engine(small(40, sequences=4))
    heard: list[float] = []
    for prompt, output in asked:
        engine.submit(
            Work(prompt, output), on_token=lambda job: heard.append(engine.now_s), milestones=True
        )
    while (next_s := engine.next_event_s()) is not None:
        before = len(heard)
        engine.advance(next_s - 1e-9)
        assert len(heard) == before
        engine.advance(engine.next_event_s() or next_s)
    assert len(heard) == sum(1 if output == 1 else 2 for _, output in asked)
    assert engine.totals.finished["stop"] == len(asked)


def test_an_engine_whose_requests_all_stall_has_no_next_event() -> None:
    engine = Engine(profile("8b-a100"))
    assert engine.next_event_s() is None
    job = engine.submit(Work(32, 40, stall_after=10))
    assert engine.next_event_s() == 0.0
    engine.advance(100.0)
    assert (job.generated, engine.next_event_s()) == (10, None)
    engine.resume(job)
    assert engine.next_event_s() == 100.0
    engine.advance(200.0)
    assert (job.generated, engine.next_event_s()) == (40, None)


def test_a_slowdown_acts_from_the_next_step_on() -> None:
    plain, slowed = Engine(profile("8b-a100")), Engine(profile("8b-a100"))
    jobs = [engine.submit(Work(200, 1001)) for engine in (plain, slowed)]
    for engine in (plain, slowed):
        engine.advance(2.0)
    half = jobs[0].generated
    assert half == jobs[1].generated
    slowed.slowdown = 3.0
    for engine in (plain, slowed):
        engine.advance()
    quick_s, slow_s = (job.finished_s or 0.0 for job in jobs)
    assert (slow_s - 2.0) / (quick_s - 2.0) == pytest.approx(3.0, rel=0.01)
