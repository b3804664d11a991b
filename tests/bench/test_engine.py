"""The step model in virtual time: scheduling, prefix reuse, memory, aborts, determinism."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_kv import BlockPool
from tierway.bench.profiles import Profile, profile


def small(blocks: int, **changes: int) -> Profile:
    return dataclasses.replace(profile("8b-a10"), blocks=blocks, **changes)


def keys(name: str, blocks: int) -> list[tuple[str, int]]:
    return [(name, index) for index in range(blocks)]


def test_a_request_runs_to_its_end_and_leaves_nothing_behind() -> None:
    engine = Engine(profile("8b-a100"))
    job = engine.submit(Work(100, 10))
    assert (engine.waiting, engine.running) == (1, 0)
    engine.advance()
    assert (job.reason, job.generated) == ("stop", 10)
    assert job.first_token_s is not None
    assert job.finished_s is not None
    assert 0 < job.first_token_s < job.finished_s == engine.now_s
    assert (engine.waiting, engine.running, engine.kv_usage) == (0, 0, 0.0)
    assert engine.totals.finished["stop"] == 1
    assert (engine.totals.prompt_tokens, engine.totals.generation_tokens) == (100, 10)


def test_one_token_comes_per_step_and_the_callback_sees_each() -> None:
    engine = Engine(profile("8b-a100"))
    seen: list[tuple[int, str | None]] = []
    engine.submit(
        Work(20, 3, finish="length"), on_token=lambda j: seen.append((j.generated, j.reason))
    )
    while engine.begin() is not None:
        assert engine.due_s is not None
        engine.finish()
    assert seen == [(1, None), (2, None), (3, "length")]


def test_begin_and_finish_take_turns() -> None:
    engine = Engine(profile("8b-a100"))
    with pytest.raises(RuntimeError, match=r"call begin\(\)"):
        engine.finish()
    engine.submit(Work(10, 1))
    engine.begin()
    with pytest.raises(RuntimeError, match=r"call finish\(\)"):
        engine.begin()


def test_advance_stops_within_a_step_and_goes_on_from_there() -> None:
    engine = Engine(profile("8b-a10"))
    job = engine.submit(Work(512, 5))
    engine.advance(0.001)
    assert job.generated == 0
    assert engine.due_s is not None
    assert engine.due_s > 0.001
    engine.advance(60.0)
    assert job.reason == "stop"
    assert engine.now_s == 60.0


def test_a_request_that_arrives_during_a_step_joins_the_next() -> None:
    engine = Engine(profile("8b-a10"))
    engine.submit(Work(512, 5))
    engine.begin()
    late = engine.submit(Work(16, 1), at_s=0.002)
    assert engine.waiting == 1
    engine.finish()
    engine.begin()
    assert (engine.waiting, engine.running) == (0, 2)
    engine.finish()
    assert late.admitted_s is not None
    assert late.arrived_s == 0.002 < late.admitted_s


def test_speed_divides_time_and_changes_nothing_else() -> None:
    ends = []
    for speed in (1.0, 10.0):
        engine = Engine(profile("8b-a10"), speed=speed)
        engine.submit(Work(300, 20))
        engine.advance()
        ends.append(engine.now_s)
    assert ends[0] == pytest.approx(ends[1] * 10)
    with pytest.raises(ValueError, match="speed = 0"):
        Engine(profile("8b-a10"), speed=0)


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = Engine(small(8))
    with pytest.raises(ValueError, match="1 to 128"):
        engine.submit(Work(120, 9))
    with pytest.raises(ValueError, match="1 to 128"):
        engine.submit(Work(0, 1))


def test_long_prompts_are_read_in_chunks_of_the_budget() -> None:
    engine = Engine(profile("8b-a100"))
    job = engine.submit(Work(5000, 1))
    engine.advance()
    assert job.reason == "stop"
    assert engine.totals.steps == 3  # 2048 + 2048 + 904
    assert engine.totals.computed_prompt_tokens == 5000


def test_running_requests_keep_generating_while_a_long_prompt_is_read() -> None:
    engine = Engine(profile("8b-a100"))
    talker = engine.submit(Work(16, 100))
    engine.begin()
    engine.finish()
    reader = engine.submit(Work(6000, 1))
    for expected in (2, 3, 4):
        assert reader.first_token_s is None
        engine.begin()
        engine.finish()
        assert talker.generated == expected
    assert reader.first_token_s is not None


def test_no_more_than_the_profiles_sequences_run_at_once() -> None:
    engine = Engine(small(500, sequences=3))
    for _ in range(5):
        engine.submit(Work(16, 4))
    engine.begin()
    assert (engine.running, engine.waiting) == (3, 2)
    engine.finish()
    engine.advance()
    assert engine.totals.finished["stop"] == 5


def test_a_batch_costs_less_than_its_requests_one_by_one() -> None:
    def seconds(jobs: int, together: bool) -> float:
        engine = Engine(profile("8b-a100"))
        for _ in range(jobs):
            engine.submit(Work(64, 50))
            if not together:
                engine.advance()
        engine.advance()
        return engine.now_s

    assert seconds(16, together=True) < seconds(16, together=False) / 5


def test_a_shared_prefix_is_not_computed_again() -> None:
    engine = Engine(profile("8b-a10"))
    first = engine.submit(Work(160, 4, keys("a", 10)))
    engine.advance()
    again = engine.submit(Work(160, 4, keys("a", 10)))
    other = engine.submit(Work(160, 4, keys("b", 10)))
    engine.advance()
    # The last prompt token is always computed: its block is not taken from the cache.
    assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 144, 0)
    assert engine.totals.prefix_queries == 480
    assert engine.totals.prefix_hits == 144
    assert engine.totals.computed_prompt_tokens == 480 - 144


def test_a_prefix_hit_shortens_the_time_to_the_first_token() -> None:
    def first_token_s(warm: bool) -> float:
        engine = Engine(profile("8b-a10"))
        if warm:
            engine.submit(Work(2000, 1, keys("a", 125)))
            engine.advance()
        job = engine.submit(Work(2000, 1, keys("a", 125)))
        engine.advance()
        assert job.first_token_s is not None
        return job.first_token_s - job.arrived_s

    assert first_token_s(warm=True) < first_token_s(warm=False) / 3


def test_generated_blocks_serve_the_next_turn() -> None:
    engine = Engine(profile("8b-a10"))
    engine.submit(Work(32, 64, keys("chat", 6)))
    engine.advance()
    turn = engine.submit(Work(128, 1, keys("chat", 8)))
    engine.advance()
    # The last generated token was never fed back, so its block is not full of computed KV.
    assert turn.cached_tokens == 80


def test_requests_running_together_share_blocks_and_free_them_once() -> None:
    engine = Engine(small(40))
    engine.submit(Work(160, 1, keys("a", 10)))
    engine.advance()
    for _ in range(3):
        engine.submit(Work(160, 100, keys("a", 10)))
    engine.begin()
    # Nine shared blocks, and one of its own for each request's last prompt block.
    assert engine.kv_usage == pytest.approx((9 + 3) / 40)
    engine.finish()
    engine.advance()
    assert engine.kv_usage == 0.0


def test_the_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    engine = Engine(small(20))
    for name in ("old", "new"):
        engine.submit(Work(160, 1, keys(name, 10)))
        engine.advance()
    engine.submit(Work(80, 1))  # takes five blocks: the tail of "old"
    engine.advance()
    old = engine.submit(Work(160, 1, keys("old", 10)))
    engine.advance()
    assert old.cached_tokens == 80


def test_when_blocks_run_out_the_newest_is_preempted_and_still_finishes() -> None:
    engine = Engine(small(20))
    oldest = engine.submit(Work(128, 150))
    newest = engine.submit(Work(128, 150))
    engine.advance()
    assert (oldest.preemptions, newest.preemptions > 0) == (0, True)
    assert oldest.generated == newest.generated == 150
    assert oldest.finished_s is not None
    assert newest.finished_s is not None
    assert oldest.finished_s < newest.finished_s
    assert engine.totals.preemptions == newest.preemptions
    assert engine.kv_usage == 0.0


def test_admission_is_in_order_of_arrival() -> None:
    engine = Engine(small(20))
    engine.submit(Work(256, 3))
    big = engine.submit(Work(256, 3))
    little = engine.submit(Work(16, 1))
    engine.advance()
    assert big.admitted_s is not None
    assert little.admitted_s is not None
    assert big.admitted_s <= little.admitted_s


@pytest.mark.parametrize("where", ["waiting", "running", "in a step"])
def test_an_abort_frees_everything_at_once(where: str) -> None:
    engine = Engine(small(40))
    calls: list[Job] = []
    job = engine.submit(Work(320, 50), on_token=calls.append)
    if where == "running":
        engine.begin()
        engine.finish()
        calls.clear()
    elif where == "in a step":
        engine.begin()
    assert engine.abort(job)
    assert (engine.waiting, engine.running, engine.kv_usage) == (0, 0, 0.0)
    engine.advance()
    assert (job.reason, calls) == ("abort", [])
    assert engine.totals.finished["abort"] == 1
    assert not engine.abort(job)


def test_a_callback_may_abort_another_job_of_the_same_step() -> None:
    engine = Engine(profile("8b-a100"))
    seen: list[str] = []
    victims: list[Job] = []

    def first(job: Job) -> None:
        seen.append("first")
        engine.abort(victims[0])

    engine.submit(Work(16, 2), on_token=first)
    victims.append(engine.submit(Work(16, 2), on_token=lambda job: seen.append("second")))
    engine.advance()
    assert seen == ["first", "first"]
    assert engine.totals.finished["abort"] == 1


def test_a_stalled_job_holds_its_slot_until_resumed_or_aborted() -> None:
    engine = Engine(profile("8b-a100"))
    job = engine.submit(Work(32, 10, stall_after=3))
    hung = engine.submit(Work(32, 10, stall_after=0))
    other = engine.submit(Work(32, 10))
    engine.advance(100.0)
    assert (job.generated, hung.generated, other.reason) == (3, 0, "stop")
    assert engine.running == 2
    assert engine.kv_usage > 0
    engine.resume(job)
    engine.abort(hung)
    engine.advance()
    assert (job.generated, job.reason, engine.running) == (10, "stop", 0)


def test_an_embedding_ends_with_its_prefill() -> None:
    engine = Engine(profile("8b-a100"))
    calls: list[int] = []
    job = engine.submit(Work(64, 0), on_token=lambda job: calls.append(job.generated))
    engine.advance()
    assert (job.reason, job.first_token_s, calls) == ("stop", None, [0])
    assert (engine.totals.prompt_tokens, engine.totals.generation_tokens) == (64, 0)


def test_the_clock_catches_up_between_steps_only() -> None:
    engine = Engine(profile("8b-a100"))
    engine.catch_up(5.0)
    assert engine.now_s == 5.0
    engine.submit(Work(16, 1))
    engine.begin()
    engine.catch_up(50.0)
    assert engine.now_s == 5.0


def _busy_day(seed: int) -> list[float | None]:
    rng = random.Random(seed)
    engine = Engine(small(80))
    jobs, now_s = [], 0.0
    for number in range(60):
        now_s += rng.expovariate(8)
        engine.advance(now_s)
        work = Work(rng.randrange(1, 800), rng.randrange(1, 80), keys(f"s{number % 7}", 40))
        jobs.append(engine.submit(work, at_s=now_s))
    engine.advance()
    assert engine.totals.finished["stop"] == 60
    assert engine.kv_usage == 0.0
    assert engine.totals.preemptions > 0
    return [job.finished_s for job in jobs]


def test_the_same_arrivals_give_the_same_times() -> None:
    assert _busy_day(1) == _busy_day(1)
    assert _busy_day(1) != _busy_day(2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.integers(0, 40), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_every_job_ends_and_every_block_comes_back(
    asked: list[tuple[int, int, int, bool]],
) -> None:
    engine = Engine(small(16, sequences=4))
    jobs = []
    for prompt, output, name, abort in asked:
        work = Work(prompt, output, keys(str(name), (prompt + output) // 16))
        jobs.append((engine.submit(work), abort))
        engine.advance(engine.now_s + 0.05)
        assert 0.0 <= engine.kv_usage <= 1.0
        if abort:
            engine.abort(jobs[-1][0])
    engine.advance()
    for (job, abort), (_, output, _, _) in zip(jobs, asked, strict=True):
        assert job.reason == "stop" or (abort and job.reason == "abort")
        assert abort or job.generated == output
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)


def test_the_pool_evicts_only_what_nobody_holds() -> None:
    pool = BlockPool(4)
    held, loose = pool.take(2), pool.take(2)
    for index, block in enumerate(held + loose):
        pool.commit(block, index)
    pool.release(loose)
    assert (pool.free, pool.usage) == (2, 0.5)
    assert pool.match([0, 1, 2, 3, 4], 9) == held + loose
    pool.take(1)
    assert pool.match([2], 1) == loose[:1]
    assert pool.match([3], 1) == []
    pool.hold(loose[:1])
    assert pool.free == 0
    assert pool.idle(held) == 0
