"""Probes: what counts as alive, what as evidence, and how old facts may become."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes import FakeClock, until
from pages import DROPPED, engine, run

from tierway.router.engines import ENGINES, Engine
from tierway.router.fleet import Fleet
from tierway.router.probes import HttpProbe, Poller
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin, Transport

PAGE = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 1\n'


@pytest.mark.parametrize(
    ("status", "alive"), [(200, True), (204, True), (404, True), (500, None), (503, None)]
)
def test_any_answer_but_a_5xx_is_a_sign_of_life(status: int, alive: bool | None) -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/health": (status, b"")}) as (url, asked):
            probe = HttpProbe(transport)
            assert await probe.healthy(Origin.parse(url), ENGINES["vllm"]) is alive
            assert asked == [b"/health"]

    run(main)


def test_who_refuses_is_dead_who_is_silent_may_live_and_neither_raises() -> None:
    async def main(transport: Transport) -> None:
        async with engine({}, silent=True) as (url, _):
            probe = HttpProbe(transport, timeout_s=0.05)
            assert await probe.healthy(Origin.parse(url), ENGINES["vllm"]) is None
            assert await probe.metrics(Origin.parse(url), ENGINES["vllm"]) is None
        assert await probe.healthy(Origin.parse(url), ENGINES["vllm"]) is False

    run(main)


def test_a_connection_dropped_without_an_answer_is_no_evidence() -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/health": DROPPED}) as (url, asked):
            assert await HttpProbe(transport).healthy(Origin.parse(url), ENGINES["vllm"]) is None
            assert asked == [b"/health"]

    run(main)


def test_metrics_are_the_page_or_nothing() -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/metrics": (200, b"a 1\xff\n")}) as (url, asked):
            probe, origin = HttpProbe(transport), Origin.parse(url)
            assert await probe.metrics(origin, ENGINES["vllm"]) == "a 1\ufffd\n"
            assert await probe.metrics(origin, Engine("/health", "/elsewhere")) is None
            asked.clear()
            assert await probe.metrics(origin, ENGINES["ollama"]) is None
            assert asked == []

    run(main)


@pytest.mark.parametrize("body", [b"", b"vllm:num_requests_running 12"])
def test_a_page_without_its_last_line_end_was_cut(body: bytes) -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/metrics": (200, body)}) as (url, _):
            probe = HttpProbe(transport)
            assert await probe.metrics(Origin.parse(url), ENGINES["vllm"]) is None

    run(main)


def test_a_page_that_goes_on_for_ever_is_given_up() -> None:
    async def main(transport: Transport) -> None:
        pages = {b"/metrics": (200, b"a 1\n" * (2 << 20)), b"/health": (200, b"")}
        async with engine(pages) as (url, _):
            probe, origin = HttpProbe(transport), Origin.parse(url)
            assert await probe.metrics(origin, ENGINES["vllm"]) is None
            assert await probe.healthy(origin, ENGINES["vllm"]) is True

    run(main)


def test_the_paths_lie_below_the_replicas_own_prefix() -> None:
    async def main(transport: Transport) -> None:
        async with engine({b"/pool/health": (200, b"")}) as (url, asked):
            await HttpProbe(transport).healthy(Origin.parse(url + "/pool"), ENGINES["vllm"])
            assert asked == [b"/pool/health"]

    run(main)


class ScriptedProbe(HttpProbe):
    """Says what it is told of every replica; `fault` is raised once."""

    def __init__(self) -> None:
        self.alive: bool | None = True
        self.page = PAGE
        self.fault: Exception | None = None
        self.asked: list[str] = []
        self.gate: Callable[[str], Awaitable[None]] | None = None
        self.clock: FakeClock | None = None
        self.takes_s = 0.0

    async def healthy(self, origin: Origin, engine: Engine) -> bool | None:
        self.asked.append(origin.host)
        if self.gate is not None:
            await self.gate(origin.host)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return self.alive

    async def metrics(self, origin: Origin, engine: Engine) -> str | None:
        if self.clock is not None:
            self.clock.advance(self.takes_s)
        return self.page or None


class Rig:
    """Two replicas and a cloud model, polled by a scripted probe."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        specs = [
            ReplicaSpec("m@a", "m", "small", "http://a:1", engine="vllm"),
            ReplicaSpec("m@b", "m", "small", "http://b:1", engine="no-such-engine"),
            ReplicaSpec("cloud", "cloud", "cloud", "", engine="cloud"),
        ]
        self.fleet = Fleet(specs, clock=self.clock)
        self.probe = ScriptedProbe()
        self.probe.clock = self.clock
        self.poller = Poller(self.fleet, self.probe, clock=self.clock, period_s=0.0)

    def views(self) -> list[Any]:
        return list(self.fleet.snapshot(["m"]))


def test_a_round_brings_facts_with_their_age_and_leaves_the_cloud_alone() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.poller.poll()
        assert sorted(rig.probe.asked) == ["a", "b"]
        rig.clock.advance(4)
        first, unknown = rig.views()
        assert (first.running, first.waiting, first.facts_at_s) == (3, 1, rig.clock() - 4)
        assert (unknown.running, unknown.waiting) == (None, None)

    asyncio.run(main())


def test_a_page_that_cannot_be_had_leaves_the_last_facts_to_age() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.poller.poll()
        rig.clock.advance(2)
        rig.probe.page = ""
        await rig.poller.poll()
        assert (rig.views()[0].running, rig.views()[0].facts_at_s) == (3, rig.clock() - 2)

    asyncio.run(main())


@pytest.mark.parametrize("page", ["<html>503</html>\n", PAGE.replace("num_", "n_"), "\n"])
def test_a_page_that_tells_nothing_leaves_the_last_facts_to_age_too(page: str) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.poller.poll()
        rig.clock.advance(2)
        rig.probe.page = page
        await rig.poller.poll()
        assert (rig.views()[0].running, rig.views()[0].facts_at_s) == (3, rig.clock() - 2)

    asyncio.run(main())


def test_an_engine_whose_page_tells_nothing_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig = Rig()
        for page in ("", "odd 1\n", PAGE, "", "", "", "", PAGE, PAGE):
            rig.probe.page = page
            await rig.poller.poll()

    asyncio.run(main())
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("m@a: its metrics page does not tell what engine vllm should")
    assert second == "m@a: its metrics page can be read again"


def test_facts_are_as_old_as_the_question() -> None:
    async def main() -> None:
        rig = Rig()
        rig.probe.takes_s = 1.5
        asked_s = rig.clock()
        await rig.poller.poll()
        assert asked_s <= rig.views()[0].facts_at_s <= rig.clock() - 1.5

    asyncio.run(main())


def test_one_refusal_is_no_evidence_two_in_a_row_are() -> None:
    async def main() -> None:
        rig = Rig()
        for alive in (False, True, False):
            rig.probe.alive = alive
            await rig.poller.poll()
            assert all(view.available for view in rig.views())
        await rig.poller.poll()
        assert [view.unavailable_reason for view in rig.views()] == ["breaker open"] * 2
        rig.probe.alive = True
        await rig.poller.poll()
        assert all(view.available for view in rig.views())

    asyncio.run(main())


def test_answers_that_are_slow_or_faulty_take_nobody_out_and_bring_nobody_back() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.poller.poll()
        rig.clock.advance(2)
        for alive in (None, None, None, False, None, False):
            rig.probe.alive = alive
            await rig.poller.poll()
        assert all(view.available for view in rig.views())
        assert (rig.views()[0].running, rig.views()[0].facts_at_s) == (3, rig.clock() - 2)
        await rig.poller.poll()
        rig.probe.alive = None
        await rig.poller.poll()
        assert not any(view.available for view in rig.views())

    asyncio.run(main())


def test_a_slow_replica_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        rig, never = Rig(), asyncio.Event()

        async def gate(host: str) -> None:
            if host == "b":
                await never.wait()

        rig.probe.gate = gate
        rig.poller.start()
        await until(lambda: rig.probe.asked.count("a") >= 3)
        assert rig.probe.asked.count("b") == 1
        assert rig.views()[0].running == 3
        await asyncio.wait_for(rig.poller.aclose(), 5)

    asyncio.run(main())


def test_the_background_loop_outlives_a_fault_and_ends_when_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig = Rig()
        rig.probe.fault = RuntimeError("a fault of the test")
        rig.poller.start()
        await until(lambda: rig.views()[0].running == 3 and len(rig.probe.asked) > 3)
        await rig.poller.aclose()
        rounds = len(rig.probe.asked)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(rig.probe.asked) == rounds

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.message for record in caplog.records] == ["the probe of m@a failed"]


def test_a_poller_is_closed_in_the_middle_of_a_round_and_before_its_first() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.poller.aclose()
        never = asyncio.Event()
        rig.probe.gate = lambda _: _waits(never)
        rig.poller.start()
        await until(lambda: len(rig.probe.asked) == 2)
        await asyncio.wait_for(rig.poller.aclose(), 5)

    asyncio.run(main())


async def _waits(event: asyncio.Event) -> None:
    await event.wait()


def test_an_engine_that_is_not_built_in_is_read_by_its_own_table() -> None:
    page = b"acme:running 3\nacme:queued 2\nacme:share 0.5\n"
    own = Engine(
        health="/alive",
        metrics="/gauges",
        running=("acme:running",),
        waiting=("acme:queued",),
        kv_usage=("acme:share",),
    )

    async def main(transport: Transport) -> None:
        async with engine({b"/alive": (200, b""), b"/gauges": (200, page)}) as (url, _):
            fleet = Fleet([ReplicaSpec("a", "m", "small", url, engine="acme")], clock=FakeClock())
            probe = HttpProbe(transport)
            poller = Poller(fleet, probe, clock=fleet.clock, engines={"acme": own})
            await poller.poll()
            view = fleet.view("a")
            assert (view.running, view.waiting, view.kv_usage) == (3, 2, 0.5)

    run(main)
