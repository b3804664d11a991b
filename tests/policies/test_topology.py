"""Zones and groups in the score: kept while it pays, spilled at once when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.registry import build_policy
from tierway.policies.topology import crosses, distance_s, kinds
from tierway.policies.types import BalanceAsk, ReplicaView

LLM = build_policy("llm", {})


def view(name: str, **more: Any) -> ReplicaView:
    return ReplicaView(name, "m", "small", **more)


def ask(**more: Any) -> BalanceAsk:
    return BalanceAsk("s", 500, 0, 0.5, **more)


def first(question: BalanceAsk, *views: ReplicaView) -> str:
    return LLM.rank(question, views).candidates[0].replica


NEAR, FAR = view("near", zone="a", inflight=3), view("far", zone="b")


def test_the_own_zone_is_preferred_while_it_is_not_much_busier() -> None:
    assert first(ask(), NEAR, FAR) == "far"
    assert first(ask(zone="a"), NEAR, FAR) == "near"
    assert first(ask(zone="b"), NEAR, FAR) == "far"


def test_it_spills_once_the_own_zone_is_busier_than_the_crossing_costs() -> None:
    queue = replace(NEAR, prefill_tokens=40_000)
    assert first(ask(zone="a"), queue, FAR) == "far"


def test_it_spills_at_once_where_nobody_is_near() -> None:
    out = replace(NEAR, available=False)
    assert first(ask(zone="a"), out, FAR) == "far"


def test_what_belongs_together_goes_to_the_group_that_holds_a_part() -> None:
    mate = view("mate", group="g1", fabric="nvlink", inflight=2)
    other = view("other", group="g2", fabric="nvlink")
    assert first(ask(), mate, other) == "other"
    assert first(ask(groups=frozenset(["g1"])), mate, other) == "mate"


@pytest.mark.parametrize(("fabric", "seconds"), [("nvlink", 1.0), ("rdma", 0.6), ("tcp", 0.2)])
def test_a_group_holds_as_far_as_its_fabric_reaches(fabric: str, seconds: float) -> None:
    away = view("x", group="g2", fabric=fabric)
    question = ask(groups=frozenset(["g1"]))
    assert distance_s(question, away, zone_s=9.0, group_s=1.0) == seconds


def test_who_tells_no_place_is_near() -> None:
    assert distance_s(ask(zone="a", groups=frozenset("g")), view("x"), zone_s=1, group_s=1) == 0.0
    assert not crosses(ask(), FAR)


def test_what_a_choice_was() -> None:
    question = ask(zone="a", groups=frozenset(["g1"]))
    assert kinds(question, view("x", zone="a", group="g1")) == ["zone_kept", "group_kept"]
    assert kinds(question, view("x", zone="b", group="g2")) == ["zone_crossed", "group_left"]
    assert kinds(question, view("x")) == []
    assert kinds(ask(), view("x", zone="a", group="g1")) == []


places = st.sampled_from(["", "a", "b"])


@given(st.lists(st.tuples(places, places, st.integers(0, 9)), min_size=1, max_size=6), st.randoms())
def test_a_gateway_that_knows_no_zone_ranks_as_if_there_were_none(
    made: list[tuple[str, str, int]], draw: Any
) -> None:
    views = [
        view(str(n), zone=zone, group=group, inflight=count)
        for n, (zone, group, count) in enumerate(made)
    ]
    bare = [replace(one, zone="", group="") for one in views]
    assert LLM.rank(ask(), views) == LLM.rank(ask(), bare)
    shuffled = list(views)
    draw.shuffle(shuffled)
    question = ask(zone="a", groups=frozenset(["b"]))
    assert LLM.rank(question, views) == LLM.rank(question, shuffled)
