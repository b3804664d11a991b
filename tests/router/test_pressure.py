"""The watch of memory pressure: from pages and ends of calls into the views."""

from __future__ import annotations

import logging

import pytest
from fakes import FakeClock

from tierway.policies.types import Work
from tierway.router.facts import Facts, GpuFacts
from tierway.router.fleet import Fleet
from tierway.router.pressure import PressureWatch
from tierway.router.replica import ReplicaSpec


class Stand:
    def __init__(self, *, preallocates: bool = True) -> None:
        self.clock = FakeClock()
        spec = ReplicaSpec("a", "m", "small", "http://a", preallocates=preallocates)
        self.fleet = Fleet([spec], clock=self.clock)
        self.watch = PressureWatch(self.fleet, alert=0.5, for_s=5.0)
        self.fleet.follow(self.watch)

    def page(self, times: int = 10, **facts: object) -> float | None:
        """The index after so many pages, a second apart."""
        for _ in range(times):
            self.clock.advance(1.0)
            told = Facts(kv_capacity_tokens=10_000, **facts)  # type: ignore[arg-type]
            self.fleet.update_facts("a", told)
        return self.fleet.view("a").pressure


def test_memory_in_use_by_nobody_is_pressure() -> None:
    stand = Stand()
    assert stand.page(kv_usage=0.0, running=0, waiting=0) == 0.0
    assert stand.page(30, kv_usage=0.17, running=0, waiting=0) == pytest.approx(0.17 / 0.3)


def test_what_the_gateways_sent_explains_it() -> None:
    stand = Stand()
    leases = [stand.fleet.lease("a", Work(1000, 1000, 500)) for _ in range(4)]
    assert stand.page(kv_usage=0.6, running=4, waiting=0) == 0.0
    for lease in leases:
        lease.finish()
    assert stand.page(30, kv_usage=0.6, running=0, waiting=0) == 1.0


def test_those_that_wait_hold_no_memory() -> None:
    stand = Stand()
    for _ in range(8):
        stand.fleet.lease("a", Work(1000, 1000, 500))
    assert stand.page(kv_usage=1.0, running=6, waiting=2) == 0.0
    index = stand.page(30, kv_usage=1.0, running=2, waiting=6)
    assert index is not None
    assert index > 0.9


def test_requests_of_others_are_as_large_as_ours_or_unknown() -> None:
    stand = Stand()
    assert stand.page(kv_usage=0.9, running=5, waiting=0) is None
    stand.fleet.lease("a", Work(1000, 1000, 500))
    assert stand.page(30, kv_usage=0.9, running=6, waiting=0) == 0.0


def test_a_restart_begins_anew() -> None:
    stand = Stand()
    assert stand.page(kv_usage=0.9, running=0, waiting=0, process_start_s=1.0) == 1.0
    assert stand.page(1, kv_usage=0.0, running=0, waiting=0, process_start_s=9.0) is None
    assert stand.page(9, kv_usage=0.0, running=0, waiting=0, process_start_s=9.0) == 0.0


def test_one_that_left_and_came_back_is_watched_anew() -> None:
    stand = Stand()
    stand.page(kv_usage=0.9, running=0, waiting=0)
    spec = stand.fleet.specs()[0]
    stand.fleet.remove("a")
    stand.fleet.add(spec)
    assert stand.page(1, kv_usage=0.0, running=0, waiting=0) is None


def test_a_framebuffer_that_leaks() -> None:
    stand = Stand(preallocates=False)
    for used in (40, 40, 70, 70):
        stand.fleet.update_gpu("a", GpuFacts(memory_used_bytes=used, memory_bytes=100))
        found = stand.page(25)
    assert found == pytest.approx(1.0)


def test_the_alarm_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stand = Stand()
    stand.page(40, kv_usage=0.9, running=0, waiting=0)
    assert caplog.text.count("is under pressure (index 1.00)") == 1
    stand.page(40, kv_usage=0.0, running=0, waiting=0)
    assert caplog.text.count("recovered") == 1
