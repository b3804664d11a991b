"""Pollers: asks every replica how it is, once a period, and tells the fleet.

A replica that answers its health path is alive; one that refuses twice in a row is dead (one
lost answer is no evidence). Metrics are read from engines that have them; what cannot be read
leaves the last facts to age.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Clock
from tierway.router.engines import ENGINES, Engine, read_facts
from tierway.router.fleet import Fleet, ReplicaSpec
from tierway.router.transport import Origin, Transport

logger = logging.getLogger(__name__)

_PAGE_BYTES = 4 << 20
_DEAD_AFTER = 2


class HttpProbe:
    """Reads one replica over HTTP: its health, and its metrics page where it has one."""

    def __init__(self, transport: Transport, *, timeout_s: float = 2.0) -> None:
        self._transport, self._timeout_s = transport, timeout_s

    async def healthy(self, origin: Origin, engine: Engine) -> bool:
        """True for any answer that is not a 5xx. Raises nothing but cancellation."""
        try:
            status, _ = await self._get(origin, engine.health)
        except (GatewayError, TimeoutError):
            return False
        return status < 500

    async def metrics(self, origin: Origin, engine: Engine) -> str | None:
        """The metrics page, None when it cannot be had."""
        if engine.metrics is None:
            return None
        try:
            status, page = await self._get(origin, engine.metrics)
        except (GatewayError, TimeoutError):
            return None
        return page.decode(errors="replace") if status == 200 else None

    async def _get(self, origin: Origin, path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(self._timeout_s):
            response = await self._transport.request(origin, b"GET", path.encode(), (), b"")
            try:
                return response.status, await response.read_all(_PAGE_BYTES)
            finally:
                await response.aclose()


class Poller:
    """Polls all replicas of a fleet every `period_s` until closed."""

    def __init__(
        self, fleet: Fleet, probe: HttpProbe, *, clock: Clock, period_s: float = 1.0
    ) -> None:
        self._fleet, self._probe, self._clock, self._period_s = fleet, probe, clock, period_s
        self._misses: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def poll(self) -> None:
        """One round over all replicas, at once."""
        await asyncio.gather(*(self._one(spec) for spec in self._fleet.specs() if spec.url))

    async def _one(self, spec: ReplicaSpec) -> None:
        engine = ENGINES.get(spec.engine, ENGINES["generic"])
        origin = Origin.parse(spec.url)
        if await self._probe.healthy(origin, engine):
            self._misses[spec.id] = 0
            self._fleet.report_health(spec.id, alive=True)
        else:
            self._misses[spec.id] += 1
            if self._misses[spec.id] >= _DEAD_AFTER:
                self._fleet.report_health(spec.id, alive=False)
            return
        page = await self._probe.metrics(origin, engine)
        if page is not None:
            self._fleet.update_facts(spec.id, read_facts(engine, page, self._clock()))

    async def _forever(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:  # border: the background loop outlives any fault
                logger.exception("a round of probes failed")
            await asyncio.sleep(self._period_s)
