from __future__ import annotations

import asyncio

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.errors import BrokenStream, Refused, Rejected, UpstreamTimeout
from tierway.policies.types import Work
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec


def make(count: int = 3, clock: FakeClock | None = None) -> Fleet:
    specs = [ReplicaSpec(f"m@h:{n}", "m", "small", f"http://h:{n}") for n in range(count)]
    return Fleet(specs, clock=clock or FakeClock())


def available(fleet: Fleet) -> list[str]:
    return [view.id for view in fleet.snapshot(["m"]) if view.available]


def fail(fleet: Fleet, replica: str, error: BaseException, times: int = 1) -> None:
    for _ in range(times):
        fleet.lease(replica, Work(1, 1)).finish(error)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 500)), max_size=60))
def test_counts_are_what_is_in_flight_and_never_negative(
    steps: list[tuple[int, bool, int]],
) -> None:
    fleet, open_leases = make(), []
    for replica, take, tokens in steps:
        if take or not open_leases:
            open_leases.append((fleet.lease(f"m@h:{replica}", Work(tokens, tokens)), tokens))
        else:
            lease, _ = open_leases.pop(0)
            lease.finish(None)
            lease.finish(None)  # a second time changes nothing
    views = fleet.snapshot(["m"])
    assert sum(view.inflight for view in views) == len(open_leases)
    assert sum(view.inflight_tokens for view in views) == sum(t for _, t in open_leases)
    for lease, _ in open_leases:
        lease.finish(asyncio.CancelledError())
    assert all(view.inflight == view.inflight_tokens == 0 for view in fleet.snapshot(["m"]))


def test_a_refused_connection_takes_the_replica_out_at_once() -> None:
    clock = FakeClock()
    fleet = make(clock=clock)
    fail(fleet, "m@h:0", Refused("no"))
    assert available(fleet) == ["m@h:1", "m@h:2"]
    assert fleet.snapshot(["m"])[0].unavailable_reason == "breaker open"
    clock.advance(11)
    assert "m@h:0" in available(fleet)  # half-open: one probe may go
    probe = fleet.lease("m@h:0", Work(1, 1))
    assert "m@h:0" not in available(fleet)
    probe.finish(None)
    assert "m@h:0" in available(fleet)


def test_faults_take_out_half_of_a_tier_and_never_the_last() -> None:
    fleet = make(4)
    for n in range(4):
        fail(fleet, f"m@h:{n}", Rejected(500, (), b""), times=20)
    assert len(available(fleet)) == 2
    lone = make(1)
    fail(lone, "m@h:0", Rejected(500, (), b""), times=50)
    assert available(lone) == ["m@h:0"]


def succeed(fleet: Fleet, replica: str, times: int = 1) -> None:
    for _ in range(times):
        fleet.lease(replica, Work(1, 1)).finish(None)


def test_where_another_answers_all_that_fail_are_taken_out() -> None:
    """Half at most would leave replicas that fail at once, and so always look idle."""
    fleet = make(4)
    succeed(fleet, "m@h:3", times=5)
    for n in range(3):
        fail(fleet, f"m@h:{n}", BrokenStream("cut"), times=5)
    assert available(fleet) == ["m@h:3"]


def test_more_than_half_are_not_taken_out_for_slowness() -> None:
    """Timeouts are load as a rule: the next replica would only get what these had."""
    fleet = make(4)
    succeed(fleet, "m@h:3", times=5)
    for n in range(3):
        fail(fleet, f"m@h:{n}", UpstreamTimeout("first_token", 30.0), times=20)
    assert len(available(fleet)) == 2


def test_what_fails_everywhere_now_and_then_is_no_replicas_fault() -> None:
    fleet = make(4)
    for _ in range(10):
        for n in range(4):
            succeed(fleet, f"m@h:{n}")
            fail(fleet, f"m@h:{n}", Rejected(500, (), b""))
    assert len(available(fleet)) == 2


@pytest.mark.parametrize(
    "error",
    [
        Rejected(400, (), b""),
        Rejected(429, (), b""),
        Rejected(503, (), b""),
        asyncio.CancelledError(),
    ],
)
def test_bad_requests_load_and_leaving_clients_are_no_faults(error: BaseException) -> None:
    fleet = make()
    fail(fleet, "m@h:0", error, times=50)
    assert len(available(fleet)) == 3
    assert fleet.totals("m@h:0")[1] == 0


def test_a_good_health_check_ends_what_a_refusal_began() -> None:
    fleet = make()
    fail(fleet, "m@h:0", Refused("no"))
    fleet.report_health("m@h:0", alive=True)
    assert len(available(fleet)) == 3
    fleet.report_health("m@h:1", alive=False)
    assert "m@h:1" not in available(fleet)


def test_draining_takes_no_new_calls_and_keeps_the_old() -> None:
    fleet = make()
    lease = fleet.lease("m@h:0", Work(5, 5))
    fleet.set_draining("m@h:0", True)
    view = fleet.snapshot(["m"])[0]
    assert (view.available, view.unavailable_reason, view.inflight) == (False, "draining", 1)
    lease.finish(None)
    fleet.set_draining("m@h:0", False)
    assert len(available(fleet)) == 3


def test_facts_carry_their_age() -> None:
    clock = FakeClock()
    fleet = make(clock=clock)
    assert fleet.snapshot(["m"])[0].facts_at_s is None
    fleet.update_facts("m@h:0", Facts(waiting=3, kv_usage=0.5, read_s=clock.now))
    clock.advance(2)
    view = fleet.snapshot(["m"])[0]
    assert (view.waiting, view.kv_usage, view.facts_at_s) == (3, 0.5, clock.now - 2)


def test_totals_tell_good_from_bad() -> None:
    fleet = make()
    fleet.lease("m@h:0", Work(1, 1)).finish(None)
    fail(fleet, "m@h:0", BrokenStream("cut"))
    assert fleet.totals("m@h:0") == (1, 1)


def test_when_every_breaker_is_open_those_that_live_are_asked_all_the_same() -> None:
    fleet = make(2)
    fail(fleet, "m@h:0", Rejected(500, (), b""), times=20)
    fail(fleet, "m@h:1", Refused("gone"))
    assert available(fleet) == ["m@h:0"]
    assert fleet.has_available(["m"])
    fleet.report_health("m@h:0", alive=False)
    assert available(fleet) == []
    assert not fleet.has_available(["m"])
    fleet.report_health("m@h:0", alive=True)
    assert available(fleet) == ["m@h:0"]


def test_statistics_never_open_the_last_replica_of_a_model() -> None:
    specs = [ReplicaSpec(f"{m}@h:{n}", m, "small", f"http://h:{n}") for m in "abc" for n in "12"]
    fleet = Fleet(specs, clock=FakeClock())
    for replica in ("a@h:1", "a@h:2"):
        fail(fleet, replica, Rejected(500, (), b""), times=20)
    assert [view.id for view in fleet.snapshot(["a"]) if view.available] == ["a@h:2"]


@pytest.mark.parametrize("way", ["drained", "broken", "sick"])
def test_a_replica_that_comes_back_was_given_no_less_than_others(way: str) -> None:
    clock = FakeClock()
    fleet = make(clock=clock)
    if way == "drained":
        fleet.set_draining("m@h:0", True)
    elif way == "broken":
        fail(fleet, "m@h:0", Refused("no"))
    else:
        fail(fleet, "m@h:0", Refused("no"))
        fleet.report_health("m@h:0", alive=False)
    clock.advance(20)
    for replica, seconds in (("m@h:1", 4.0), ("m@h:2", 2.0)):
        fleet.lease(replica, Work(1, 1), cost_s=seconds).finish(None)
    if way == "drained":
        fleet.set_draining("m@h:0", False)
    else:
        for _ in range(3):
            fleet.report_health("m@h:0", alive=True)
            fleet.lease("m@h:0", Work(1, 1)).finish(None)
    assert fleet.view("m@h:0").available
    assert fleet.view("m@h:0").recent_s == pytest.approx(3.0)


def test_an_engine_that_sleeps_takes_no_calls_until_it_wakes() -> None:
    fleet = Fleet([ReplicaSpec("a", "m", "small", "http://a")], clock=FakeClock())
    fleet.update_facts("a", Facts(running=0, waiting=0, asleep=True))
    view = fleet.view("a")
    assert (view.available, view.unavailable_reason) == (False, "asleep")
    assert not fleet.has_available(["m"])
    fleet.update_facts("a", Facts(running=0, waiting=0))
    assert fleet.view("a").available
    assert fleet.has_available(["m"])
