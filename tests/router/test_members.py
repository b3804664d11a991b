"""Several sources say who belongs to the fleet; the fleet gets the differences."""

from __future__ import annotations

import logging

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.types import Work
from tierway.router.fleet import Fleet
from tierway.router.membership import Membership
from tierway.router.replica import ReplicaSpec

SOURCES = ("configuration", "admin", "file")


def spec(name: str, weight: float = 1.0) -> ReplicaSpec:
    return ReplicaSpec(name, "m", "small", f"http://{name}", weight=weight)


def made() -> tuple[Fleet, Membership]:
    fleet = Fleet(clock=FakeClock())
    return fleet, Membership(fleet, SOURCES)


def ids(fleet: Fleet) -> set[str]:
    return {spec.id for spec in fleet.specs()}


def test_a_source_says_the_whole_of_what_it_wants() -> None:
    fleet, members = made()
    members.want("file", [spec("a"), spec("b")])
    members.want("admin", [spec("c")])
    members.want("file", [spec("b")])
    assert ids(fleet) == {"b", "c"}
    assert (members.source("b"), members.source("c"), members.source("a")) == ("file", "admin", "")


def test_what_several_want_is_as_the_first_has_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    fleet, members = made()
    members.want("file", [spec("a", weight=2.0)])
    lease = fleet.lease("a", Work(1, 1, 1))
    members.want("configuration", [spec("a", weight=3.0)])
    members.want("admin", [])
    assert fleet.view("a").weight == 3.0
    assert fleet.view("a").inflight == 1  # it never left
    assert members.source("a") == "configuration"
    assert caplog.text.count("is wanted by file too") == 1
    members.want("configuration", [])
    assert fleet.view("a").weight == 2.0
    lease.finish()


def test_the_excluded_are_out_whoever_wants_them() -> None:
    fleet, members = made()
    members.exclude(["a"])
    members.want("configuration", [spec("a"), spec("b")])
    assert ids(fleet) == {"b"}
    members.exclude([])
    assert ids(fleet) == {"a", "b"}


def test_who_is_here_by_other_means_stays() -> None:
    fleet, members = made()
    fleet.add(ReplicaSpec("cloud", "cloud", "cloud", ""))
    members.want("file", [])
    assert ids(fleet) == {"cloud"}


def test_a_source_that_was_not_announced_is_a_mistake() -> None:
    _, members = made()
    with pytest.raises(KeyError):
        members.want("rumour", [])


sets = st.sets(st.sampled_from("abcde"))


@given(st.lists(st.tuples(st.sampled_from((*SOURCES, "exclude")), sets), max_size=12))
def test_whatever_the_order_the_fleet_is_what_the_last_words_say(
    said: list[tuple[str, set[str]]],
) -> None:
    fleet, members = made()
    last: dict[str, set[str]] = {}
    for source, names in said:
        last[source] = names
        if source == "exclude":
            members.exclude(names)
        else:
            members.want(source, [spec(name, SOURCES.index(source) + 1.0) for name in names])
    wanted = set().union(*(last.get(source, set()) for source in SOURCES))
    assert ids(fleet) == wanted - last.get("exclude", set())
    for name in ids(fleet):
        first = next(at for at, source in enumerate(SOURCES) if name in last.get(source, set()))
        assert fleet.view(name).weight == first + 1.0
