"""When a server is asked again, and that one which hangs holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from tierway.cache.backoff import Backoff
from tierway.cache.guard import AT_ONCE, Away, Guard
from tierway.policies.errors import CacheError


def gate(clock: FakeClock, draw: float = 1.0) -> Backoff:
    return Backoff(clock=clock, draw=lambda: draw, probe_s=2.0, first_s=1.0, most_s=8.0)


def test_the_pause_doubles_up_to_its_limit_and_ends_with_a_success() -> None:
    clock = FakeClock()
    made = gate(clock)
    assert made.admits()
    pauses = []
    for _ in range(6):
        made.failed()
        pauses.append(made.wait_s)
        assert not made.admits()
        clock.advance(made.wait_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    made.succeeded()
    assert made.wait_s == 0.0
    assert made.admits()
    assert made.admits()


def test_after_a_pause_one_attempt_goes_first() -> None:
    clock = FakeClock()
    made = gate(clock)
    made.failed()
    clock.advance(1.0)
    assert [made.admits() for _ in range(3)] == [True, False, False]
    clock.advance(2.0)  # the attempt was never heard of again
    assert [made.admits() for _ in range(2)] == [True, False]


@given(st.integers(1, 40), st.floats(0.0, 1.0, exclude_max=True))
def test_a_pause_is_at_least_half_and_at_most_whole(failures: int, draw: float) -> None:
    made = gate(FakeClock(), draw)
    for _ in range(failures):
        made.failed()
    whole = min(8.0, 2.0 ** (failures - 1))
    assert whole / 2 <= made.wait_s + 1e-9
    assert made.wait_s <= whole + 1e-9


def run(body: Callable[[Guard, FakeClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = FakeClock()
        guard = Guard("it", clock=clock, draw=lambda: 1.0, timeout_s=0.02, patience_s=0.05)
        guard.open()
        await asyncio.wait_for(body(guard, clock), 10)

    asyncio.run(main())


async def fine() -> int:
    return 7


async def hang() -> None:
    await asyncio.Event().wait()


async def away() -> None:
    raise Away("nobody listens.")


def test_a_deadline_is_a_named_fault_and_closes_the_gate() -> None:
    async def body(guard: Guard, clock: FakeClock) -> None:
        with pytest.raises(CacheError, match=r"it is away: no answer within 0\.02 s\."):
            await guard.run(hang, hurry=True)
        with pytest.raises(CacheError, match=r"it is away \(no answer .*tried again in 0\.2 s"):
            await guard.run(fine)
        clock.advance(0.3)
        with pytest.raises(CacheError, match=r"within 0\.05 s"):
            await guard.run(hang)
        clock.advance(1.0)
        assert await guard.run(fine) == 7
        assert await guard.run(fine, hurry=True) == 7

    run(body)


def test_a_server_that_is_away_is_named_and_a_refusal_closes_nothing() -> None:
    async def refuse() -> None:
        guard_of[0].answered()
        raise CacheError("it refuses")

    guard_of: list[Guard] = []

    async def body(guard: Guard, clock: FakeClock) -> None:
        guard_of.append(guard)
        with pytest.raises(CacheError, match="refuses"):
            await guard.run(refuse)
        assert await guard.run(fine) == 7
        with pytest.raises(CacheError, match=r"it is away: nobody listens\."):
            await guard.run(away)
        with pytest.raises(CacheError, match="nobody listens"):
            await guard.run(fine)

    run(body)


def test_waiting_for_a_turn_is_no_fault_of_the_server() -> None:
    async def body(guard: Guard, clock: FakeClock) -> None:
        release = asyncio.Event()
        guard.patience_s = 5.0
        slow = [asyncio.ensure_future(guard.run(release.wait)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(CacheError, match="Too much waits for it"):
            await guard.run(fine, hurry=True)
        release.set()
        assert await asyncio.gather(*slow) == [True] * AT_ONCE
        assert await guard.run(fine) == 7

    run(body)


def test_those_who_waited_find_the_gate_closed() -> None:
    async def body(guard: Guard, clock: FakeClock) -> None:
        uses = [guard.run(hang) for _ in range(AT_ONCE * 5)]
        results = await asyncio.gather(*uses, return_exceptions=True)
        told = [str(result) for result in results]
        assert sum("it is away: no answer" in text for text in told) == AT_ONCE
        assert sum("it is away (no answer" in text for text in told) == AT_ONCE * 4

    run(body)


def test_a_guard_that_is_not_open_says_so() -> None:
    async def body(guard: Guard, clock: FakeClock) -> None:
        guard.close()
        with pytest.raises(CacheError, match="not open"):
            await guard.run(fine)

    run(body)
