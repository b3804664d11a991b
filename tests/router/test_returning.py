"""Slow start, restarts, drains with a bound, and answers that come late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.errors import BrokenStream, Refused
from tierway.policies.filters import LEAST_WARMTH, sift
from tierway.policies.registry import build_policy
from tierway.policies.types import BalanceAsk, Pace, ReplicaView, Work
from tierway.router.drains import DrainBound
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.pace import PaceLearner
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

WORK = Work(10, 10, 5)


def spec(name: str) -> ReplicaSpec:
    return ReplicaSpec(name, "m", "small", f"http://{name}")


def fleet_of(names: str = "abc", *, slow_start_s: float = 0.0) -> tuple[Fleet, FakeClock]:
    clock = FakeClock()
    return Fleet(map(spec, names), clock=clock, slow_start_s=slow_start_s), clock


def ask(draw: float, now_s: float = 0.0) -> BalanceAsk:
    return BalanceAsk("s", 100, 0, draw, now_s=now_s)


def view(name: str, **more: float) -> ReplicaView:
    return ReplicaView(name, "m", "small", **more)  # type: ignore[arg-type]  # times only


def part_of(warm: ReplicaView, others: Sequence[ReplicaView], now_s: float) -> float:
    """The share of choices that a replica takes part in."""
    kept = [sift(ask(n / 5000, now_s), [warm, *others])[0] for n in range(5000)]
    return sum(warm in views for views in kept) / len(kept)


def test_a_warming_replica_takes_part_in_a_growing_share_of_choices() -> None:
    new = view("new", warm_at_s=110.0, warming_s=10.0)
    shares = [part_of(new, [view("a"), view("b")], now_s) for now_s in (100.0, 105.0, 109.0, 110.0)]
    assert shares == pytest.approx([LEAST_WARMTH, 0.5, 0.9, 1.0], abs=0.02)


def test_slow_start_leaves_nobody_without_a_replica() -> None:
    alone = view("new", warm_at_s=110.0, warming_s=10.0)
    for n in range(50):
        kept, excluded = sift(ask(n / 50, 100.0), [alone, view("out", available=False)])
        assert kept == [alone]
        assert excluded == (("out", "unavailable"),)


@given(
    st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans(), st.booleans()), max_size=6),
    st.floats(0.0, 0.999),
)
def test_every_replica_is_kept_or_has_a_reason(
    replicas: list[tuple[float, bool, bool]], draw: float
) -> None:
    views = [
        view(str(n), warm_at_s=100.0 + left, warming_s=20.0, available=available)
        for n, (left, available, _) in enumerate(replicas)
    ]
    tried = frozenset(str(n) for n, (_, _, was) in enumerate(replicas) if was)
    question = BalanceAsk("s", 100, 0, draw, tried=tried, now_s=100.0)
    kept, excluded = sift(question, views)
    assert sorted([*(one.id for one in kept), *(name for name, _ in excluded)]) == sorted(
        one.id for one in views
    )
    assert bool(kept) == any(one.available and one.id not in tried for one in views)


@pytest.mark.parametrize("name", ["llm", "round_robin", "least_request", "prefix", "random"])
def test_slow_start_holds_for_every_policy(name: str) -> None:
    policy, views = build_policy(name, {}), [view("a", inflight=3), view("b", inflight=3)]
    new = view("new", warm_at_s=110.0, warming_s=10.0)
    first = Counter(
        policy.rank(ask(n / 1000, 100.0), [*views, new]).candidates[0].replica for n in range(1000)
    )
    assert first["new"] <= 1000 * (LEAST_WARMTH + 0.03)


def test_who_is_there_at_the_start_needs_no_slow_start() -> None:
    fleet, clock = fleet_of(slow_start_s=5.0)
    assert fleet.view("a").warm_at_s == 0.0
    clock.advance(6.0)
    fleet.add(spec("d"))
    fleet.report_health("b", alive=False)
    fleet.report_health("b", alive=True)
    assert fleet.view("d").warm_at_s == fleet.view("b").warm_at_s == clock() + 5.0
    assert fleet.view("a").warm_at_s == 0.0


def test_another_process_at_the_same_address_is_known_for_nothing() -> None:
    fleet, _ = fleet_of()
    prefixes, prior = PrefixIndex(), Pace(step_s=0.5)
    for follower in (prefixes, PaceLearner(fleet, {"a": prior})):
        fleet.follow(follower)
    prefixes.insert("a", (1, 2, 3))
    fleet.set_pace("a", Pace(step_s=9.0))
    fleet.update_facts("a", Facts(waiting=0, running=7, process_start_s=1000.0))
    fleet.update_facts("a", Facts(waiting=0, running=7, process_start_s=1000.4))
    assert fleet.view("a").unseen == 7.0
    assert prefixes.match((1, 2, 3)).held == {"a": 3}
    lease = fleet.lease("a", WORK)
    fleet.update_facts("a", Facts(waiting=0, running=1, process_start_s=2000.0))
    now = fleet.view("a")
    assert (now.unseen, now.pace, now.inflight) == (0.0, prior, 1)
    assert prefixes.match((1, 2, 3)).held == {}
    lease.finish()
    assert fleet.view("a").inflight == 0


def test_engines_that_answer_in_turn_behind_one_address_are_no_restarts() -> None:
    fleet, _ = fleet_of()
    heard: list[float] = []

    class Heard(Follower):
        def on_restart(self, spec: ReplicaSpec) -> None:
            heard.append(1.0)

    fleet.follow(Heard())
    for _ in range(10):
        for start_s in (1000.0, 2000.0, 3000.0):
            fleet.update_facts("a", Facts(running=0, process_start_s=start_s))
    assert len(heard) == 2  # until all three were seen
    fleet.update_facts("a", Facts(running=0, process_start_s=9000.0))
    assert len(heard) == 3


def test_many_restarts_are_each_noticed() -> None:
    fleet, _ = fleet_of()
    heard: list[str] = []

    class Heard(Follower):
        def on_restart(self, spec: ReplicaSpec) -> None:
            heard.append(spec.id)

    fleet.follow(Heard())
    for number in range(40):
        fleet.update_facts("a", Facts(running=0, process_start_s=1000.0 + 60.0 * number))
    assert len(heard) == 39


def test_a_restart_forgets_failures_and_keeps_what_is_open() -> None:
    fleet, _ = fleet_of()
    fleet.update_facts("a", Facts(running=0, process_start_s=1.0))
    for _ in range(4):
        fleet.lease("a", WORK).finish(BrokenStream("cut"))
    fleet.update_facts("a", Facts(running=0, process_start_s=9.0))
    fleet.lease("a", WORK).finish(BrokenStream("cut"))
    assert fleet.breaker_state("a") == "closed"  # five in a row would have opened it
    fleet.lease("a", WORK).finish(Refused("down"))
    fleet.update_facts("a", Facts(running=0, process_start_s=20.0))
    assert fleet.breaker_state("a") == "open"


class Cut:
    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, one: ReplicaSpec) -> None:
        self.ids.append(one.id)


def test_what_drains_too_long_is_cut() -> None:
    fleet, clock = fleet_of()
    cut = Cut()
    bound = DrainBound(fleet, cut, drain_timeout_s=30.0)
    leases = {name: fleet.lease(name, WORK) for name in "abc"}
    fleet.set_draining("a", True)
    fleet.remove("b")
    clock.advance(29.0)
    fleet.set_draining("a", True)  # asked for again: the bound is that of the first time
    bound.look()
    assert cut.ids == []
    clock.advance(1.0)
    bound.look()
    assert cut.ids == ["a", "b"]
    for lease in leases.values():
        lease.finish(BrokenStream("cut"))
    bound.look()
    assert cut.ids == ["a", "b"]


def test_a_drain_that_was_ended_is_not_cut() -> None:
    fleet, clock = fleet_of()
    cut = Cut()
    fleet.lease("a", WORK)
    fleet.set_draining("a", True)
    fleet.set_draining("a", False)
    clock.advance(100.0)
    DrainBound(fleet, cut, drain_timeout_s=30.0).look()
    assert cut.ids == []


def test_the_bound_is_looked_at_until_it_is_closed() -> None:
    async def main() -> None:
        fleet, _ = fleet_of()
        fleet.lease("a", WORK)
        fleet.set_draining("a", True)
        done = asyncio.Event()
        bound = DrainBound(fleet, lambda _: done.set(), drain_timeout_s=0.0, every_s=0.0)
        bound.start()
        await asyncio.wait_for(done.wait(), 5)
        await bound.aclose()

    asyncio.run(main())


def answer(fleet: Fleet, clock: FakeClock, name: str, took_s: float, ttft_s: float = 0.1) -> None:
    lease = fleet.lease(name, WORK, ttft_s=ttft_s)
    clock.advance(took_s)
    lease.first_token()
    lease.finish()


def test_first_tokens_far_behind_their_prediction_take_a_replica_out() -> None:
    fleet, clock = fleet_of()
    for _ in range(6):
        answer(fleet, clock, "b", 0.1)
        answer(fleet, clock, "c", 0.1)
        answer(fleet, clock, "a", 6.0)
    assert fleet.breaker_state("a") != "closed"
    assert fleet.totals("a")[1] == 0  # each of its answers was good


@pytest.mark.parametrize(("took_s", "ttft_s"), [(4.9, 0.1), (40.0, 10.0), (1e9, 0.0)])
def test_what_is_late_by_little_or_was_not_predicted_is_no_failure(
    took_s: float, ttft_s: float
) -> None:
    fleet, clock = fleet_of()
    for _ in range(20):
        answer(fleet, clock, "b", 0.1)
        answer(fleet, clock, "a", took_s, ttft_s)
    assert fleet.breaker_state("a") == "closed"


def test_where_most_are_late_it_is_load_and_nobody_goes() -> None:
    fleet, clock = fleet_of("abcd")
    for _ in range(30):
        for name in "abc":
            answer(fleet, clock, name, 6.0)
        answer(fleet, clock, "d", 0.1)
    states = [fleet.breaker_state(name) for name in "abcd"]
    assert states.count("closed") >= 2
    fleet, clock = fleet_of("abcd")
    for _ in range(30):
        for name in "abcd":
            answer(fleet, clock, name, 6.0)
    assert [fleet.breaker_state(name) for name in "abcd"] == ["closed"] * 4
