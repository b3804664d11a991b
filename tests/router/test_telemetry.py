"""Telemetry: one page for all replicas of a node, and what is known when it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import FakeClock, until
from pages import UUIDS, engine, gpu_page, run

from tierway.router.fleet import Fleet
from tierway.router.gpu_pages import GpuReading, read_gpus
from tierway.router.gpus import GpuSource
from tierway.router.replica import ReplicaSpec
from tierway.router.telemetry import PageReader, Telemetry
from tierway.router.transport import Transport

NODE = "http://n1:9400/metrics"


class Pages:
    """A reader of every source, which counts who asks."""

    def __init__(self) -> None:
        self.pages: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.closed = 0
        self.fault: Exception | None = None

    def __call__(self, url: str) -> Any:
        pages = self

        class Reader:
            async def read(self) -> Sequence[GpuReading] | None:
                pages.asked.append(url)
                if pages.fault is not None:
                    fault, pages.fault = pages.fault, None
                    raise fault
                page = pages.pages.get(url)
                return None if page is None else read_gpus(page)

            async def aclose(self) -> None:
                pages.closed += 1

        return Reader()


class Rig:
    def __init__(self, *sources: GpuSource | None, gpus: int = 1) -> None:
        self.clock, self.pages = FakeClock(), Pages()
        specs = [
            ReplicaSpec(f"m@{at}", "m", "small", f"http://{at}", gpus=gpus, telemetry=source)
            for at, source in enumerate(sources)
        ]
        self.fleet = Fleet(specs, clock=self.clock)
        self.heard: list[tuple[str, str]] = []
        self.telemetry = Telemetry(
            self.fleet,
            self.pages,
            clock=self.clock,
            period_s=0.0,
            on_gpu=lambda spec: self.heard.append((spec.id, spec.gpu)),
        )

    def poll(self, page: str | None = None) -> list[Any]:
        self.pages.pages[NODE] = page
        asyncio.run(self.telemetry.poll())
        return list(self.fleet.snapshot(["m"]))


def test_one_page_serves_all_replicas_of_a_node() -> None:
    rig = Rig(GpuSource(NODE, uuids=(UUIDS[0],)), GpuSource(NODE, indices=(1,)), None)
    first, second, third = rig.poll(gpu_page(2))
    assert rig.pages.asked == [NODE]
    assert (first.gpu_temperature_celsius, second.gpu_temperature_celsius) == (60.0, 61.0)
    assert (first.gpu_facts_at_s, first.gpu) == (rig.clock(), "NVIDIA H100 80GB HBM3")
    assert (third.gpu_facts_at_s, third.gpu_temperature_celsius) == (None, None)


def test_a_kind_of_gpu_that_was_left_open_is_told_once() -> None:
    rig = Rig(GpuSource(NODE))
    for _ in range(3):
        rig.poll(gpu_page())
    assert rig.heard == [("m@0", "NVIDIA H100 80GB HBM3")]


def test_what_cannot_be_read_leaves_the_last_facts_to_age(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(GpuSource(NODE))
    (before,) = rig.poll(gpu_page())
    for _ in range(3):
        rig.clock.advance(5)
        assert rig.poll(None) == [before]
    assert [record.message for record in caplog.records] == [f"telemetry: {NODE} cannot be read"]
    (after,) = rig.poll(gpu_page())
    assert after.gpu_facts_at_s == rig.clock()
    assert caplog.records[-1].message == f"telemetry: {NODE} can be read"


def test_a_gpu_that_fell_off_the_bus_leaves_its_replica_unknown_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(GpuSource(NODE, uuids=UUIDS[:2]), GpuSource(NODE, indices=(0, 2)), gpus=2)
    rig.poll(gpu_page(3))
    gone = gpu_page(3, temp=[60, None, 62], util=[90, None, 90])
    gone = "".join(line for line in gone.splitlines(keepends=True) if UUIDS[1] not in line)
    for _ in range(3):
        first, second = rig.poll(gone)
    assert (first.gpu_temperature_celsius, first.gpu_facts_at_s) == (None, None)
    assert first.gpu == "NVIDIA H100 80GB HBM3"
    assert second.gpu_temperature_celsius == 62.0
    (told,) = [record.message for record in caplog.records]
    assert told == f"telemetry of m@0 at {NODE}: no GPU {UUIDS[1]} is shown"
    assert rig.poll(gpu_page(3))[0].gpu_temperature_celsius == 61.0
    assert caplog.records[-1].message.endswith("its GPUs are shown again")


def test_a_page_that_does_not_say_whose_gpus_it_shows_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (view,) = Rig(GpuSource(NODE)).poll(gpu_page(8))
    assert view.gpu_facts_at_s is None
    assert "8 GPUs are shown, not 1: tell by gpu_uuids" in caplog.text


def test_throttling_is_seen_from_page_to_page() -> None:
    rig = Rig(GpuSource(NODE))
    (view,) = rig.poll(gpu_page(DCGM_FI_DEV_THERMAL_VIOLATION=[7e9]))
    assert not view.gpu_throttled
    rig.clock.advance(30)
    (view,) = rig.poll(gpu_page(DCGM_FI_DEV_THERMAL_VIOLATION=[22e9]))
    assert view.gpu_throttled


def test_the_loop_outlives_a_fault_and_ends_with_its_readers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig = Rig(GpuSource(NODE))
        rig.pages.pages[NODE] = gpu_page()
        rig.pages.fault = RuntimeError("odd")
        rig.telemetry.start()
        await until(lambda: len(rig.pages.asked) > 2)
        await rig.telemetry.aclose()
        asked = len(rig.pages.asked)
        await asyncio.sleep(0)
        assert (len(rig.pages.asked), rig.pages.closed) == (asked, 1)
        assert rig.fleet.view("m@0").gpu_temperature_celsius == 60.0

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "reading the telemetry failed" in caplog.text


def test_without_sources_nothing_runs() -> None:
    async def main() -> None:
        rig = Rig(None)
        rig.telemetry.start()
        assert len(asyncio.all_tasks()) == 1
        await rig.telemetry.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/gpu/metrics"])
def test_a_page_is_fetched_where_it_is(path: str) -> None:
    async def main(transport: Transport) -> None:
        wanted = path if path.strip("/") else "/metrics"
        async with engine({wanted.encode(): (200, gpu_page(2).encode())}) as (url, asked):
            found = await PageReader(transport, url + path).read()
            assert found is not None
            assert [one.index for one in found] == ["0", "1"]
            assert asked == [wanted.encode()]

    run(main)


@pytest.mark.parametrize(
    ("status", "body"), [(500, b""), (404, b"no\n"), (200, b""), (200, gpu_page().encode()[:-1])]
)
def test_a_page_that_is_none_or_was_cut_is_not_read(status: int, body: bytes) -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/metrics": (status, body)}) as (url, _):
            assert await PageReader(transport, url).read() is None
        assert await PageReader(transport, url).read() is None

    run(main)


def test_an_exporter_that_does_not_answer_is_given_up() -> None:
    async def main(transport: Transport) -> None:
        async with engine({}, silent=True) as (url, _):
            assert await PageReader(transport, url, timeout_s=0.05).read() is None

    run(main)
