from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.sharing import Offer, cheapest, plus, price_s, with_work
from tierway.policies.types import Cost, Counts, Work

WORK = Work(100, 60, 20)


def offers(*bases: float, known: Counts = Counts()) -> list[Offer]:  # noqa: B008 - frozen
    return [
        Offer(f"m@{at}:1", WORK, Cost(base, 0.5, 0.01, 0.001), known)
        for at, base in enumerate(bases)
    ]


def test_a_price_rises_only_by_what_the_policy_did_not_know() -> None:
    known = Counts(3, 900, 500, 100, 1000)
    (offer,) = offers(2.0, known=known)
    assert price_s(offer, known) == 2.0
    more = plus(known, Counts(1, 100, 60, 20, 120))
    assert price_s(offer, more) == pytest.approx(2.0 + 0.5 + 0.6 + 0.02)
    assert price_s(offer, Counts()) == pytest.approx(2.0 - 1.5 - 5.0 - 0.1)


def test_the_least_price_is_taken_and_equal_ones_begin_at_the_draw() -> None:
    idle = [Counts()] * 4
    assert cheapest(offers(3.0, 1.0, 2.0, 1.5), idle, 0.9) == 1
    assert [cheapest(offers(1.0, 1.0, 1.0, 1.0), idle, draw / 4) for draw in range(4)] == [
        *range(4)
    ]
    assert cheapest(offers(2.0, 1.0, 1.0 + 1e-12, 2.0), idle, 0.5) == 2
    assert cheapest([], [], 0.7) == 0


@given(st.integers(1, 4), st.integers(1, 60), st.floats(0, 0.999))
def test_calls_placed_one_by_one_are_spread_evenly(count: int, calls: int, draw: float) -> None:
    found = offers(*[1.0] * count)
    now = [Counts()] * count
    for _ in range(calls):
        place = cheapest(found, now, draw)
        now[place] = with_work(now[place], WORK)
    requests = [one.requests for one in now]
    assert sum(requests) == calls
    assert max(requests) - min(requests) <= 1
    assert sum(one.context_tokens for one in now) == calls * 120
