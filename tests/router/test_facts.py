"""Facts of a replica: how news in answers and whole pages go together, and what is not known."""

from __future__ import annotations

from dataclasses import replace

from fakes import FakeClock

from tierway.policies.types import FRESH_S, Work
from tierway.router.facts import Facts, GpuFacts, LoadReport
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec

PAGE = Facts(
    waiting=3, running=8, kv_usage=0.5, kv_capacity_tokens=64_000, read_s=10.0, page_s=10.0
)


def test_a_report_brings_only_what_it_carries_with_its_time() -> None:
    found = PAGE.reported(LoadReport(waiting=0), 11.0)
    assert found == replace(PAGE, waiting=0, read_s=11.0)
    found = PAGE.reported(LoadReport(kv_usage=0.9), 11.0)
    assert found == replace(PAGE, kv_usage=0.9, read_s=11.0)
    assert PAGE.reported(LoadReport(), 11.0) is PAGE


def test_what_reports_do_not_carry_goes_when_the_page_is_too_old() -> None:
    found = PAGE.reported(LoadReport(waiting=1), 10.0 + FRESH_S + 0.1)
    assert (found.waiting, found.running, found.kv_usage) == (1, None, None)
    assert found.kv_capacity_tokens == 64_000


def test_a_report_before_any_page_is_all_there_is() -> None:
    found = Facts().reported(LoadReport(waiting=2, kv_usage=0.1), 5.0)
    assert found == Facts(waiting=2, kv_usage=0.1, read_s=5.0)


def test_one_of_several_ranks_does_not_speak_for_all() -> None:
    ranks = replace(PAGE, ranks=2)
    assert ranks.reported(LoadReport(waiting=0, kv_usage=0.0), 11.0) is ranks


def test_a_page_does_not_undo_what_was_told_while_it_was_on_its_way() -> None:
    known = PAGE.reported(LoadReport(waiting=7), 12.0)
    page = replace(PAGE, waiting=1, running=2, kv_usage=0.6, read_s=11.0, page_s=11.0)
    found = page.after(known)
    assert (found.waiting, found.running, found.read_s, found.page_s) == (7, 2, 12.0, 11.0)
    newer = replace(page, read_s=13.0, page_s=13.0)
    assert newer.after(known) is newer


def made() -> tuple[Fleet, FakeClock]:
    clock = FakeClock()
    return Fleet([ReplicaSpec("m@h:1", "m", "small", "http://h:1")], clock=clock), clock


def test_a_view_shows_what_engine_and_gpus_told_each_with_its_time() -> None:
    fleet, clock = made()
    fleet.update_facts("m@h:1", replace(PAGE, read_s=clock.now, page_s=clock.now))
    clock.advance(1)
    gpu = GpuFacts("NVIDIA L40S", 0.9, 40 << 30, 45 << 30, 71.0, throttled=True, read_s=clock.now)
    fleet.update_gpu("m@h:1", gpu)
    clock.advance(1)
    fleet.update_load("m@h:1", LoadReport(waiting=1))
    view = fleet.view("m@h:1")
    assert (view.waiting, view.running, view.kv_capacity_tokens) == (1, 8, 64_000)
    assert (view.facts_at_s, view.gpu_facts_at_s) == (clock.now, clock.now - 1)
    assert (view.gpu, view.gpu_utilisation, view.gpu_throttled) == ("NVIDIA L40S", 0.9, True)
    assert (view.gpu_memory_used_bytes, view.gpu_memory_bytes) == (40 << 30, 45 << 30)
    assert view.gpu_temperature_celsius == 71.0


def test_an_answer_may_come_from_a_replica_that_is_gone() -> None:
    fleet, _ = made()
    fleet.update_load("m@gone:1", LoadReport(waiting=1))
    assert fleet.view("m@h:1").waiting is None


def test_the_configured_name_of_a_gpu_goes_before_the_one_it_tells() -> None:
    clock = FakeClock()
    fleet = Fleet([ReplicaSpec("m@h:1", "m", "small", "http://h:1", gpu="l40s")], clock=clock)
    fleet.update_gpu("m@h:1", GpuFacts("NVIDIA L40S", read_s=clock.now))
    assert fleet.view("m@h:1").gpu == "l40s"


def test_news_are_seen_in_the_next_view_and_nothing_else_of_it_changes() -> None:
    fleet, clock = made()
    lease = fleet.lease("m@h:1", Work(10, 10, 5))
    before = fleet.view("m@h:1")
    assert fleet.view("m@h:1") is before
    fleet.update_load("m@h:1", LoadReport(kv_usage=0.3))
    assert fleet.view("m@h:1") == replace(before, kv_usage=0.3, facts_at_s=clock.now)
    lease.finish()


def test_requests_from_elsewhere_are_counted_only_where_both_gauges_are_known() -> None:
    fleet, clock = made()
    page = replace(PAGE, read_s=clock.now, page_s=clock.now)
    for _ in range(2):
        fleet.update_facts("m@h:1", page)
    assert fleet.view("m@h:1").unseen == 11
    for _ in range(2):
        fleet.update_facts("m@h:1", replace(page, running=None))
    assert fleet.view("m@h:1").unseen == 11
