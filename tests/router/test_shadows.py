"""A shadow policy sees what the policy in force sees, and changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import FakeClock

from tierway.policies.guard import guarded
from tierway.policies.policyset import PolicySet
from tierway.policies.protocols import BalancePolicy
from tierway.policies.registry import POLICIES
from tierway.policies.types import BalanceAsk, Candidate, Ranking, ReplicaView, Tier
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec

LOOK = Look("s", 100)


@dataclass
class Prefers:
    """Puts one replica first; keeps what it was asked."""

    first: str
    name: str = "prefers"
    seen: list[tuple[BalanceAsk, tuple[ReplicaView, ...]]] = field(default_factory=list)

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        self.seen.append((ask, tuple(views)))
        if self.first == "raise":
            raise RuntimeError("of mine")
        names = sorted((view.id for view in views), key=lambda name: name != self.first)
        return Ranking(tuple(Candidate(name, 0.5) for name in names), policy=self.name)


class Rig:
    """Two replicas of one tier; `policies` come by the names that their replica has."""

    def __init__(self, policy: str, shadow: str | None = None) -> None:
        self.made: dict[str, Prefers] = {}
        clock = FakeClock()
        specs = [ReplicaSpec(name, "m", "small", url="") for name in ("a", "b")]
        registry = {**POLICIES, **{name: self._factory(name) for name in ("a", "b", "raise")}}
        tier = Tier("small", 0, "7b", (), policy=policy, shadow_policy=shadow)
        self.holder = PolicyHolder(PolicySet.build([tier], registry=registry))
        fleet = Fleet(specs, clock=clock)
        self.balancer = Balancer(fleet, self.holder, clock=clock, draw=lambda: 0.5)
        self.shadows = self.balancer.shadows

    def _factory(self, name: str) -> Any:
        def factory(options: Any) -> BalancePolicy:
            self.made[name] = Prefers(name)
            return guarded(name, self.made[name])

        return factory

    def dispatch(self) -> str:
        choice = self.balancer.rank("small", ["m"], LOOK)
        lease = asyncio.run(self.balancer.take(choice))
        lease.finish()
        return lease.replica

    def state(self) -> Any:
        return self.shadows.state("small", self.holder.current.tiers["small"])


def test_without_a_shadow_nothing_is_kept() -> None:
    rig = Rig("a")
    assert rig.dispatch() == "a"
    assert rig.balancer.rank("small", ["m"], LOOK).shadowed is None
    assert (rig.shadows.counts, rig.state()) == ({}, None)


def test_a_shadow_is_asked_the_same_and_changes_nothing() -> None:
    rig = Rig("a", "b")
    assert [rig.dispatch() for _ in range(3)] == ["a", "a", "a"]
    assert rig.made["a"].seen == rig.made["b"].seen
    assert rig.shadows.counts == {("small", "b", "no"): 3}
    assert rig.state() == {
        "policy": "b",
        "options": {},
        "dispatches": 3,
        "errors": 0,
        "agreement": 0.0,
    }


def test_what_is_not_dispatched_is_not_counted() -> None:
    rig = Rig("a", "b")
    choice = rig.balancer.rank("small", ["m"], LOOK)
    assert choice.shadowed is not None
    assert (choice.shadowed.policy, choice.shadowed.replica) == ("b", "b")
    assert rig.state()["agreement"] is None


def test_where_nobody_may_take_the_call_no_shadow_is_asked() -> None:
    rig = Rig("a", "b")
    choice = rig.balancer.rank("small", ["nothing"], LOOK)
    assert (bool(choice), choice.shadowed) == (False, None)


def test_a_shadow_that_raises_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig("a", "raise")
    with caplog.at_level(logging.WARNING):
        assert [rig.dispatch() for _ in range(5)] == ["a"] * 5
    assert rig.shadows.counts == {("small", "raise", "error"): 5}
    assert rig.shadows.faults == {}
    assert [record.getMessage() for record in caplog.records] == [
        "tiers.small: shadow raise failed: RuntimeError: of mine"
    ]
    assert (rig.state()["errors"], rig.state()["agreement"]) == (5, None)


def test_a_policy_in_force_that_raises_leaves_the_choice_to_the_plain_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig("raise")
    with caplog.at_level(logging.WARNING):
        assert {rig.dispatch() for _ in range(5)} <= {"a", "b"}
    assert rig.balancer.rank("small", ["m"], LOOK).ranking.policy == "least_request"
    assert rig.shadows.faults == {("small", "raise"): 6}
    assert len(caplog.records) == 1
    rig.holder.current = rig.holder.current.with_policy("small", "raise")
    with caplog.at_level(logging.WARNING):
        rig.dispatch()
    assert len(caplog.records) == 2


def test_agreement_starts_anew_with_every_change_and_counters_do_not() -> None:
    rig = Rig("a", "a")
    rig.dispatch()
    assert rig.state()["agreement"] == 1.0
    rig.holder.current = rig.holder.current.with_shadow("small", "b")
    assert rig.state()["agreement"] is None
    rig.dispatch()
    rig.holder.current = rig.holder.current.with_policy("small", "b")
    rig.dispatch()
    assert (rig.state()["agreement"], rig.state()["dispatches"]) == (1.0, 1)
    assert rig.shadows.counts == {
        ("small", "a", "yes"): 1,
        ("small", "b", "no"): 1,
        ("small", "b", "yes"): 1,
    }


def test_the_switch_to_plain_policies_compares_the_shadow_with_those() -> None:
    rig = Rig("a", "a")
    rig.dispatch()
    rig.holder.current = rig.holder.current.with_llm_aware(False)
    rig.dispatch()
    assert rig.state()["dispatches"] == 1
    rig.holder.current = rig.holder.current.with_shadow("small", None)
    rig.dispatch()
    assert rig.state() is None
