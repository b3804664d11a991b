"""A policy of others, whatever it does, costs at most one exception that is expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.guard import Guarded, PolicyFault, guarded
from tierway.policies.registry import POLICIES, build_policy
from tierway.policies.types import BalanceAsk, Candidate, Cost, Ranking, ReplicaView

ASK = BalanceAsk(session="s", prompt_tokens=10, sequence=0, draw=0.5, tried=frozenset({"c"}))
VIEWS = (
    ReplicaView("a", "m", "small"),
    ReplicaView("b", "m", "small"),
    ReplicaView("c", "m", "small"),
    ReplicaView("d", "m", "small", available=False, unavailable_reason="breaker open"),
)


@dataclass(frozen=True)
class Says:
    found: Any
    name: str = "theirs"

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        if isinstance(self.found, Exception):
            raise self.found
        found: Ranking = self.found
        return found


def ranked(*names: str, **more: Any) -> Ranking:
    return Ranking(tuple(Candidate(name, 0.5, **more) for name in names))


def rank(found: Any) -> Ranking:
    return Guarded("mine", Says(found)).rank(ASK, VIEWS)


def test_a_sound_ranking_passes_under_the_registered_name() -> None:
    assert rank(ranked("b", "a")).policy == "mine"
    left_out = Ranking((Candidate("a", 1.0),), (("b", "too warm"),))
    assert [one.replica for one in rank(left_out).candidates] == ["a"]
    nobody = Ranking((), (("a", "too warm"), ("b", "too warm")))
    assert rank(nobody).candidates == ()
    assert rank(Ranking([Candidate("a", 1.0), Candidate("b", 1.0)])).excluded == ()  # type: ignore[arg-type]  # a list where a tuple belongs


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (ValueError("of mine"), "ValueError: of mine"),
        (RecursionError(), "RecursionError"),
        (None, "NoneType, not a Ranking"),
        (["a"], "list, not a Ranking"),
        (Ranking(None), "TypeError"),  # type: ignore[arg-type]
        (Ranking(("a", "b")), "AttributeError"),  # type: ignore[arg-type]
        (ranked("a", "b", "x"), "x is a candidate and unknown, tried or unavailable"),
        (ranked("a", "b", "c"), "c is a candidate and unknown, tried or unavailable"),
        (ranked("a", "b", "d"), "d is a candidate and unknown, tried or unavailable"),
        (ranked("a", "b", "a"), "twice"),
        (ranked("a"), "b is neither a candidate nor left out"),
        (ranked(), "a is neither a candidate nor left out"),
        (Ranking((Candidate("a", 1.0),), (("b", ""),)), "b is neither"),
        (ranked("a", "b", ttft_s=math.nan), "a number of a is not finite"),
        (ranked("a", "b", cost=Cost(1.0, math.inf)), "a number of a is not finite"),
        (ranked("a", "b", reasons={"heat": math.nan}), "a number of a is not finite"),
        (ranked("a", "b", reasons={"heat": "much"}), "TypeError"),
        (ranked("a", "b", reasons=dict.fromkeys(map(str, range(17)), 0.0)), "more than 16"),
        (ranked("a", "b", tpot_s=-1.0), "negative"),
        (Ranking((Candidate("a", "best"), Candidate("b", 1.0))), "TypeError"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_one_exception(found: Any, told: str) -> None:
    with pytest.raises(PolicyFault, match=told):
        rank(found)


def test_what_a_fault_says_is_short() -> None:
    with pytest.raises(PolicyFault) as caught:
        rank(ValueError("x" * 10_000))
    assert len(str(caught.value)) == 200


def test_an_end_of_the_process_is_not_a_fault_of_a_policy() -> None:
    class Ends:
        name = "ends"

        def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded("ends", Ends()).rank(ASK, VIEWS)


def test_nothing_is_guarded_twice() -> None:
    once = guarded("mine", build_policy("llm", {}))
    assert guarded("yours", once) is once


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(draw=st.floats(0, 1, exclude_max=True), busy=st.lists(st.integers(0, 99), max_size=5))
def test_the_built_in_ones_are_all_sound(name: str, draw: float, busy: list[int]) -> None:
    policy = build_policy(name, {})
    views = [ReplicaView(f"r{n}", "m", "small", inflight=count) for n, count in enumerate(busy)]
    ask = BalanceAsk("s", 10, 0, draw, tried=frozenset({"r1"}))
    ranking = Guarded(name, policy).rank(ask, views)
    assert ranking == policy.rank(ask, views)
