"""Replicas that come and go: counts end, late facts are dropped, followers hear of it."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock
from tierway.policies.errors import Refused
from tierway.policies.types import Counts, Work
from tierway.router.facts import Facts, GpuFacts, LoadReport
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec


def spec(name: str, url: str = "http://one", **more: float) -> ReplicaSpec:
    return ReplicaSpec(name, "m", "small", url, **more)  # type: ignore[arg-type]  # weight only


class Heard(Follower):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_join(self, spec: ReplicaSpec) -> None:
        self.told.append(f"+{spec.id} {spec.url}")

    def on_leave(self, spec: ReplicaSpec) -> None:
        self.told.append(f"-{spec.id} {spec.url}")

    def on_return(self, spec: ReplicaSpec) -> None:
        self.told.append(f"={spec.id} {spec.url}")

    def on_restart(self, spec: ReplicaSpec) -> None:
        self.told.append(f"!{spec.id} {spec.url}")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet([spec("a"), spec("b")], clock=FakeClock())


def test_a_follower_hears_of_all_that_are_here_and_of_every_change(fleet: Fleet) -> None:
    heard = Heard()
    fleet.follow(heard)
    fleet.add(spec("c"))
    fleet.remove("a")
    assert heard.told == ["+a http://one", "+b http://one", "+c http://one", "-a http://one"]
    assert [view.id for view in fleet.snapshot(["m"])] == ["b", "c"]


def test_the_same_place_is_amended_and_keeps_what_is_known(fleet: Fleet) -> None:
    fleet.lease("a", Work(10, 10, 5))
    heard = Heard()
    fleet.follow(heard)
    fleet.add(spec("a", weight=3.0))
    assert len(heard.told) == 2
    view = fleet.view("a")
    assert (view.weight, view.inflight) == (3.0, 1)


def test_another_place_under_the_same_id_is_another_replica(fleet: Fleet) -> None:
    lease = fleet.lease("a", Work(10, 10, 5))
    heard = Heard()
    fleet.follow(heard)
    fleet.add(spec("a", "http://two"))
    assert heard.told[-2:] == ["-a http://one", "+a http://two"]
    lease.finish(Refused("gone"))
    assert fleet.view("a").inflight == 0
    assert fleet.view("a").available


def test_what_is_in_flight_on_one_that_leaves_ends_without_a_trace(fleet: Fleet) -> None:
    lease = fleet.lease("a", Work(10, 10, 5))
    assert fleet.remove("a")
    assert not fleet.remove("a")
    lease.first_token()
    lease.finish()
    assert "a" not in fleet
    assert fleet.inflight() == {"b": 0}
    assert fleet.own("a") == Counts()


def test_late_facts_of_one_that_left_are_dropped(fleet: Fleet) -> None:
    fleet.remove("a")
    fleet.update_facts("a", Facts(waiting=1, running=1))
    fleet.update_gpu("a", GpuFacts())
    fleet.update_load("a", LoadReport(waiting=1))
    fleet.report_health("a", alive=False)
    fleet.set_others({"a": Counts(1)})
    assert [view.id for view in fleet.snapshot(["m"])] == ["b"]


def test_a_slot_on_one_that_left_is_refused(fleet: Fleet) -> None:
    fleet.remove("a")
    with pytest.raises(Refused):
        fleet.lease("a", Work(10, 10, 5))


def test_a_follower_hears_who_takes_calls_again(fleet: Fleet) -> None:
    heard = Heard()
    fleet.follow(heard)
    fleet.report_health("a", alive=False)
    fleet.set_draining("a", True)
    fleet.report_health("a", alive=True)  # still draining
    fleet.set_draining("a", False)
    fleet.report_health("b", alive=False)
    fleet.report_health("b", alive=True)
    assert heard.told[2:] == ["=a http://one", "=b http://one"]


def test_one_that_is_barred_takes_nothing_until_it_is_let_in(fleet: Fleet) -> None:
    heard = Heard()
    fleet.follow(heard)
    fleet.bar("a", "serves another model")
    assert fleet.view("a").unavailable_reason == "serves another model"
    fleet.report_health("a", alive=True)
    assert not fleet.view("a").available
    fleet.bar("a", "")
    assert fleet.view("a").available
    assert heard.told[2:] == ["=a http://one"]
