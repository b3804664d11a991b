"""Which GPUs are a replica's, what they come to, and when they count as slowed down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import UUIDS, gpu_page

from tierway.router.gpu_pages import GpuReading, read_gpus
from tierway.router.gpus import GpuSource, Throttling, choose, together

FOUR = read_gpus(gpu_page(4))
PAGE = "http://n1:9400/metrics"


def chosen(
    source: GpuSource, gpus: int = 2, node: str = "", readings: Sequence[GpuReading] = FOUR
) -> tuple[list[str], str]:
    found, why = choose(source, gpus, node, readings)
    return [one.index for one in found], why


def test_by_uuid_by_index_by_pod_or_all() -> None:
    assert chosen(GpuSource(PAGE, uuids=UUIDS[1:3])) == (["1", "2"], "")
    assert chosen(GpuSource(PAGE, indices=(0, 3))) == (["0", "3"], "")
    assert chosen(GpuSource(PAGE), gpus=4) == (["0", "1", "2", "3"], "")
    pods = [*read_gpus(gpu_page(2, pod="vllm-0")), *FOUR[2:]]
    assert chosen(GpuSource(PAGE, pod="vllm-0"), readings=pods) == (["0", "1"], "")


def test_gpus_that_are_not_there_are_named() -> None:
    gone = FOUR[:3]
    by_uuid = GpuSource(PAGE, uuids=UUIDS[2:4])
    assert chosen(by_uuid, readings=gone) == ([], f"no GPU {UUIDS[3]} is shown")
    by_index = GpuSource(PAGE, indices=(2, 3))
    assert chosen(by_index, readings=gone) == ([], "no GPU 3 is shown")
    by_pod = GpuSource(PAGE, pod="p")
    assert chosen(by_pod, readings=gone) == ([], "0 GPUs of pod p are shown, not 2")


def test_without_a_sign_the_page_must_show_just_as_many() -> None:
    found, why = chosen(GpuSource(PAGE), gpus=2)
    assert found == []
    assert why.startswith("4 GPUs are shown, not 2: tell by gpu_uuids, gpu_indices or pod")
    assert chosen(GpuSource(PAGE), gpus=1, readings=[])[0] == []


def test_a_page_of_several_nodes_is_cut_down_by_the_node() -> None:
    both = [*FOUR[:2], *read_gpus(gpu_page(2, host="n2.cluster"))]
    assert chosen(GpuSource(PAGE), node="n1", readings=both) == (["0", "1"], "")
    assert choose(GpuSource(PAGE, indices=(1,)), 1, "n2", both)[0][0].host == "n2.cluster"
    found, why = chosen(GpuSource(PAGE), readings=both)
    assert (found, why) == ([], "the GPUs of several nodes are shown (n1, n2.cluster): set node")


def test_a_replica_is_its_worst_gpu() -> None:
    page = gpu_page(3, temp=[60, 84, 70], util=[10, 50, 90], used=[1000, 2000, 60_000])
    facts = together(read_gpus(page), False, 7.0)
    assert (facts.temperature_celsius, facts.utilisation) == (84.0, pytest.approx(0.5))
    assert facts.memory_used_bytes == 60_000 << 20
    assert facts.memory_bytes == 81_559 << 20
    assert (facts.power_watts, facts.clock_mhz) == (3 * 612.5, 1980.0)
    assert (facts.model, facts.throttled, facts.read_s) == ("NVIDIA H100 80GB HBM3", False, 7.0)


def test_the_fullest_gpu_is_the_one_with_the_largest_share() -> None:
    large = replace(FOUR[0], memory_used_bytes=50, memory_bytes=100)
    small = replace(FOUR[1], memory_used_bytes=20, memory_bytes=24)
    facts = together([large, small], False, 0.0)
    assert (facts.memory_used_bytes, facts.memory_bytes) == (20, 24)


def test_what_one_of_them_does_not_tell_is_not_known() -> None:
    silent = replace(FOUR[1], temperature_celsius=None, memory_bytes=None, utilisation=None)
    facts = together([FOUR[0], silent], False, 0.0)
    assert (facts.temperature_celsius, facts.utilisation) == (None, None)
    assert (facts.memory_used_bytes, facts.memory_bytes) == (None, None)
    assert facts.clock_mhz == 1980.0


@given(st.permutations(range(4)))
def test_the_order_of_the_gpus_does_not_matter(order: list[int]) -> None:
    assert together([FOUR[at] for at in order], False, 0.0) == together(FOUR, False, 0.0)


class Watch:
    """One GPU over a while, at steps of 5 seconds."""

    def __init__(self) -> None:
        self.throttling, self.now = Throttling(), 0.0

    def sees(self, **fields: object) -> bool:
        self.now += 5.0
        one = replace(FOUR[0], **fields)
        self.throttling.note([one], self.now)
        return self.throttling.slows(one)


def test_its_own_word_counts_at_once() -> None:
    watch = Watch()
    assert [watch.sees(slowed=slowed) for slowed in (False, True, False)] == [False, True, False]


def test_slowed_time_counts_by_its_share_of_the_last_minute() -> None:
    watch, second = Watch(), 1e9
    assert not watch.sees(slow_ns=100 * second)
    assert not any(watch.sees(slow_ns=100 * second) for _ in range(20))
    assert not watch.sees(slow_ns=100.4 * second)
    assert watch.sees(slow_ns=110 * second)
    assert all(watch.sees(slow_ns=110 * second) for _ in range(10))
    assert not [watch.sees(slow_ns=110 * second) for _ in range(3)][-1]


def test_events_count_while_they_grow() -> None:
    watch = Watch()
    assert not watch.sees(slow_events=4)
    assert watch.sees(slow_events=6)
    assert not [watch.sees(slow_events=6) for _ in range(14)][-1]
    assert not watch.sees(slow_events=2)


def test_a_counter_that_begins_anew_or_stops_is_no_slowness() -> None:
    watch = Watch()
    assert not watch.sees(slow_ns=5e12)
    assert not watch.sees(slow_ns=3.0)
    assert not watch.sees()
    assert not watch.sees(slow_ns=9e12)


def test_gpus_that_are_gone_are_forgotten() -> None:
    throttling = Throttling()
    first = replace(FOUR[0], slow_events=1)
    throttling.note([first, FOUR[1]], 0.0)
    throttling.note([FOUR[1]], 5.0)
    again = replace(FOUR[0], slow_events=9)
    throttling.note([again], 10.0)
    assert not throttling.slows(again)
