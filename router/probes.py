"""Pollers: asks every replica how it is, once a period, and tells the fleet.

A replica that answers its health path is alive; one that refuses the connection twice in a row
is dead. A slow answer, a 5xx and a connection that breaks are no evidence: a busy engine gives
them too, and what it makes of requests says more. Metrics are read from engines that have them;
what cannot be read, was cut, or tells nothing leaves the last facts to age. The pollers of a fleet
keep out of step, so that their pages do not come all at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from tierway.policies.errors import Dropped, GatewayError, Refused
from tierway.policies.protocols import Clock
from tierway.router.engines import ENGINES, Engine, read_facts
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin, Transport

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4 << 20
_DEAD_AFTER = 2
_SILENT_AFTER = 3


class HttpProbe:
    """Reads one replica over HTTP: its health, and its metrics page where it has one."""

    def __init__(self, transport: Transport, *, timeout_s: float = 2.0) -> None:
        self._transport, self._timeout_s = transport, timeout_s

    async def healthy(self, origin: Origin, engine: Engine) -> bool | None:
        """True for any answer that is not a 5xx, False where nobody could be reached, None for
        what says neither. Raises nothing but cancellation."""
        try:
            status, _ = await self._get(origin, engine.health)
        except Refused as error:
            return None if isinstance(error, Dropped) else False
        except (GatewayError, TimeoutError):
            return None
        return True if status < 500 else None

    async def metrics(self, origin: Origin, engine: Engine) -> str | None:
        """The metrics page, None when it cannot be had whole: the format ends with a line's end."""
        if engine.metrics is None:
            return None
        try:
            status, page = await self._get(origin, engine.metrics)
        except (GatewayError, TimeoutError):
            return None
        return page.decode(errors="replace") if status == 200 and page.endswith(b"\n") else None

    async def _get(self, origin: Origin, path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(self._timeout_s):
            response = await self._transport.request(origin, b"GET", path.encode(), (), b"")
            try:
                return response.status, await response.read_all(_PAGE_BYTES)
            finally:
                await response.aclose()


class Poller(Follower):
    """Polls each replica of a fleet every `period_s` until closed, each at its own pace: one
    that is slow to answer does not hold up what is known of the others."""

    def __init__(
        self,
        fleet: Fleet,
        probe: HttpProbe,
        *,
        clock: Clock,
        period_s: float = 1.0,
        engines: Mapping[str, Engine] = ENGINES,
    ) -> None:
        self._engines = engines
        self._fleet, self._probe, self._clock, self._period_s = fleet, probe, clock, period_s
        self._refusals: Counter[str] = Counter()
        self._silences: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        specs = self._polled()
        for index, spec in enumerate(specs):
            self._begin(spec, self._period_s * index / len(specs))
        self._fleet.follow(self)

    def on_join(self, spec: ReplicaSpec) -> None:
        """Polls it at once: who is here from the start is polled already."""
        if spec.url and spec.id not in self._tasks:
            self._begin(spec, 0.0)

    def on_leave(self, spec: ReplicaSpec) -> None:
        task = self._tasks.pop(spec.id, None)
        if task is not None:
            task.cancel()
        del self._refusals[spec.id], self._silences[spec.id]

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self) -> None:
        """One round over all replicas, at once."""
        await asyncio.gather(*(self._one(spec) for spec in self._polled()))

    def _begin(self, spec: ReplicaSpec, phase_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._tasks[spec.id] = loop.create_task(self._forever(spec, phase_s))

    def _polled(self) -> list[ReplicaSpec]:
        return [spec for spec in self._fleet.specs() if spec.url]

    async def _one(self, spec: ReplicaSpec) -> None:
        engine = self._engines.get(spec.engine, ENGINES["generic"])
        origin = Origin.parse(spec.url)
        healthy = await self._probe.healthy(origin, engine)
        self._refusals[spec.id] = self._refusals[spec.id] + 1 if healthy is False else 0
        if self._refusals[spec.id] >= _DEAD_AFTER:
            self._fleet.report_health(spec.id, alive=False)
        if not healthy:
            return
        self._fleet.report_health(spec.id, alive=True)
        if engine.metrics is not None:
            await self._read(spec, origin, engine)

    async def _read(self, spec: ReplicaSpec, origin: Origin, engine: Engine) -> None:
        asked_s = self._clock()
        page = await self._probe.metrics(origin, engine)
        facts = read_facts(engine, page or "", asked_s)
        if not facts.empty:
            self._fleet.update_facts(spec.id, facts)
        self._tell(spec, silent=facts.empty)

    def _tell(self, spec: ReplicaSpec, *, silent: bool) -> None:
        """Logs that an engine does not tell its facts, once, and when it does again."""
        before = self._silences[spec.id]
        self._silences[spec.id] = before + 1 if silent else 0
        if self._silences[spec.id] == _SILENT_AFTER:
            text = "%s: its metrics page does not tell what engine %s should: its queue is unknown"
            logger.warning(text, spec.id, spec.engine)
        elif not silent and before >= _SILENT_AFTER:
            logger.warning("%s: its metrics page can be read again", spec.id)

    async def _forever(self, spec: ReplicaSpec, phase_s: float) -> None:
        while True:
            try:
                await self._one(spec)
            except Exception:  # border: the background loop outlives any fault
                logger.exception("the probe of %s failed", spec.id)
            await asyncio.sleep(self._period_s + phase_s)
            phase_s = 0.0
