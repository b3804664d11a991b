"""Telemetry: asks for the GPUs behind the replicas, once a period for all of a node.

A source, a page of an exporter or this host's driver, is read once whatever number of replicas it
tells of. What cannot be read leaves the last facts to age; a GPU that is gone, or a page that does
not say which GPUs are a replica's, leaves them unknown, and is told once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import urlsplit

from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Clock
from tierway.router.facts import GpuFacts
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.gpu_pages import GpuReading, read_gpus
from tierway.router.gpus import Throttling, choose, together
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin, Transport

logger = logging.getLogger(__name__)

PERIOD_S = 5.0  # exporters look every 30 s by default, and GPUs warm up slowly
_PAGE_BYTES = 4 << 20


class GpuReader(Protocol):
    """One source of readings."""

    async def read(self) -> Sequence[GpuReading] | None:
        """None where nothing can be had now; raises nothing but cancellation."""
        ...

    async def aclose(self) -> None: ...


class PageReader:
    """GPUs by an exporter's page; `/metrics` where the URL has no path."""

    def __init__(self, transport: Transport, url: str, *, timeout_s: float = 2.0) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        self._origin = Origin.parse(url)
        self._path = b"" if urlsplit(url).path.strip("/") else b"/metrics"

    async def read(self) -> Sequence[GpuReading] | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                page = await self._page()
        except (GatewayError, TimeoutError):
            return None
        return read_gpus(page.decode(errors="replace")) if page.endswith(b"\n") else None

    async def aclose(self) -> None:
        """The transport is shared and closed by its owner."""

    async def _page(self) -> bytes:
        response = await self._transport.request(self._origin, b"GET", self._path, (), b"")
        try:
            page = await response.read_all(_PAGE_BYTES)
            return page if response.status == 200 else b""
        finally:
            await response.aclose()


@dataclass(slots=True)
class _Source:
    reader: GpuReader
    throttling: Throttling = field(default_factory=Throttling)
    readable: bool = True


class Telemetry(Follower):
    """`reader` makes the reader of a source, by its URL or the word `nvml`. `on_gpu` hears of
    replicas whose kind of GPU was left open, once it is known: as if it had been configured."""

    def __init__(
        self,
        fleet: Fleet,
        reader: Callable[[str], GpuReader],
        *,
        clock: Clock,
        period_s: float = PERIOD_S,
        on_gpu: Callable[[ReplicaSpec], None] | None = None,
    ) -> None:
        self._fleet, self._reader, self._clock = fleet, reader, clock
        self._on_gpu = on_gpu
        self._period_s = period_s
        self._sources: dict[str, _Source] = {}
        self._problems: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._fleet.follow(self)

    def on_join(self, spec: ReplicaSpec) -> None:
        """Begins with the first replica that has a source."""
        if spec.telemetry is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(source.reader.aclose() for source in self._sources.values()))

    async def poll(self) -> None:
        """One round over all sources, at once; a fault with one of them is logged."""
        by_source = self._by_source()
        await self._let_go(by_source)
        rounds = (self._one(url, specs) for url, specs in by_source.items())
        for error in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(error, Exception):  # border: the loop outlives any fault
                logger.error("reading the telemetry failed", exc_info=error)

    def _by_source(self) -> Mapping[str, list[ReplicaSpec]]:
        """Sources with their replicas."""
        found: dict[str, list[ReplicaSpec]] = {}
        for spec in self._fleet.specs():
            if spec.telemetry is not None:
                found.setdefault(spec.telemetry.url, []).append(spec)
        return found

    async def _let_go(self, wanted: Mapping[str, Sequence[ReplicaSpec]]) -> None:
        """Closes the sources that tell of nobody any more."""
        for url in self._sources.keys() - wanted.keys():
            await self._sources.pop(url).reader.aclose()
        here = {spec.id for specs in wanted.values() for spec in specs}
        self._problems = {name: why for name, why in self._problems.items() if name in here}

    async def _one(self, url: str, specs: Sequence[ReplicaSpec]) -> None:
        source = self._sources.get(url)
        if source is None:
            source = self._sources[url] = _Source(self._reader(url))
        asked_s = self._clock()
        readings = await source.reader.read()
        if source.readable != (readings is not None):
            source.readable = readings is not None
            logger.warning("telemetry: %s %s be read", url, "can" if source.readable else "cannot")
        if readings is None:
            return
        source.throttling.note(readings, asked_s)
        for spec in specs:
            self._tell(spec, source.throttling, readings, asked_s)

    def _tell(
        self,
        spec: ReplicaSpec,
        throttling: Throttling,
        readings: Sequence[GpuReading],
        asked_s: float,
    ) -> None:
        assert spec.telemetry is not None
        found, problem = choose(spec.telemetry, spec.gpus, spec.node, readings)
        if spec.id not in self._fleet:
            return  # it left while its GPUs were read
        _, known = self._fleet.facts(spec.id)
        facts = GpuFacts(model=known.model)
        if found:
            slowed = any(throttling.slows(one) for one in found)
            facts = together(found, slowed, asked_s)
        self._fleet.update_gpu(spec.id, facts)
        if self._on_gpu is not None and not spec.gpu and facts.model != known.model:
            self._on_gpu(replace(spec, gpu=facts.model))
        if problem != self._problems.get(spec.id, ""):
            self._problems[spec.id] = problem
            told = problem or "its GPUs are shown again"
            logger.warning("telemetry of %s at %s: %s", spec.id, spec.telemetry.url, told)

    async def _forever(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(self._period_s)
