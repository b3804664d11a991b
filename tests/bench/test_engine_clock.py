"""Many engines by their events: the same as each by itself, and in order of time."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_clock import EngineClock
from tierway.bench.profiles import profile


def engines(count: int) -> list[Engine]:
    made = dataclasses.replace(profile("8b-a10"), blocks=120)
    return [Engine(made) for _ in range(count)]


def work(rng: random.Random) -> Work:
    name = rng.randrange(6)
    return Work(rng.randrange(1, 600), rng.randrange(1, 120), [(name, i) for i in range(45)])


def test_the_clock_changes_nothing_that_an_engine_does() -> None:
    clock, alone = EngineClock(engines(3)), engines(3)
    rng, now_s = random.Random(5), 0.0
    jobs: list[tuple[Job, Job]] = []
    for _ in range(120):
        now_s += rng.expovariate(6)
        clock.run(now_s)
        index, asked = rng.randrange(3), work(rng)
        for engine in alone:
            engine.advance(now_s)
        other = alone[index].submit(asked, at_s=now_s, milestones=True)
        jobs.append((clock.submit(index, asked), other))
    clock.run()
    for engine in alone:
        engine.advance()
    for one, other in jobs:
        assert one.reason == other.reason == "stop"
        assert one.first_token_s == pytest.approx(other.first_token_s, abs=1e-9)
        assert one.finished_s == pytest.approx(other.finished_s, abs=1e-9)
        assert one.cached_tokens == other.cached_tokens
    assert clock.next_s() is None


def test_what_engines_tell_comes_in_order_of_time() -> None:
    clock = EngineClock(engines(4))
    rng, heard = random.Random(7), list[float]()

    def hear(job: Job) -> None:
        heard.append(clock.now_s)
        assert job.token_s == pytest.approx(clock.now_s, abs=1e-9)

    for number in range(40):
        clock.submit(number % 4, work(rng), hear)
    clock.run()
    assert heard == sorted(heard)
    assert len(heard) > 40


def test_a_closed_loop_submits_from_the_callback() -> None:
    clock = EngineClock(engines(2))
    done: list[Job] = []

    def again(job: Job) -> None:
        if job.reason is not None:
            done.append(job)
            if len(done) < 20:
                clock.submit(len(done) % 2, Work(64, 30), again)

    clock.submit(0, Work(64, 30), again)
    clock.run()
    assert len(done) == 20
    for before, after in itertools.pairwise(done):
        assert after.arrived_s == pytest.approx(before.finished_s or 0.0, abs=1e-9)


def test_what_is_submitted_at_the_end_of_one_step_joins_the_next_together() -> None:
    clock = EngineClock(engines(1))
    followers: list[Job] = []

    def follow(job: Job) -> None:
        if job.reason is not None:
            followers.append(clock.submit(0, Work(16, 2)))

    for _ in range(3):
        clock.submit(0, Work(16, 1), follow)
    clock.run()
    assert len({job.first_token_s for job in followers}) == 1


def test_time_passes_while_all_are_idle() -> None:
    clock = EngineClock(engines(1), now_s=3.0)
    clock.run(7.0)
    assert (clock.now_s, clock.next_s()) == (7.0, None)
    job = clock.submit(0, Work(16, 2))
    assert (job.arrived_s, clock.next_s()) == (7.0, 7.0)


def test_an_abort_a_slowdown_and_a_look_keep_the_next_event_right() -> None:
    clock = EngineClock(engines(1))
    heard: list[Job] = []
    slow, gone = clock.submit(0, Work(32, 200), heard.append), clock.submit(0, Work(32, 400))
    clock.run(1.0)
    assert clock.abort(0, gone)
    assert not clock.abort(0, gone)
    clock.slow_down(0, 4.0)
    clock.run(2.0)
    assert 0 < clock.seen(0).kv_usage < 1
    assert slow.generated > 1
    assert len(heard) == 1
    clock.slow_down(0, 1.0)
    clock.run()
    assert heard == [slow, slow]
    assert slow.finished_s == pytest.approx(clock.now_s, abs=1e-9)
