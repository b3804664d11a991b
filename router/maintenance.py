"""Mends replicas: drains one, has something restart it, waits until it is well, and returns it.

Whoever mends holds a claim that all gateways see: while it lasts they all drain the replica, and
nobody mends another. The holder renews it; where the holder dies it expires, and the replica is
given back. A replica is mended when its memory has been under pressure for long enough, when a
restart is due, or when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tierway.policies.errors import GatewayError
from tierway.policies.maintenance import MaintenanceRules, refusal
from tierway.policies.pressure import Detector
from tierway.policies.protocols import Clock
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)

CLAIM_S = 20.0
_LOOK_S = 1.0
_HEALTHY_FOR_S = 3.0
_KEPT = 20
_NUMBERS = re.compile(r"\d+")

Sleep = Callable[[float], Awaitable[None]]


class MendError(Exception):
    """An action that did not do what it should; the text says why."""


class Action(Protocol):
    """Has a replica restarted by somebody; returns once that is under way. Raises MendError."""

    async def __call__(self, spec: ReplicaSpec, reason: str) -> None: ...


class Claims(Protocol):
    """Who mends what, over all gateways. What cannot be done is a GatewayError."""

    async def claim(self, replica: str, reason: str, ttl_s: float) -> bool:
        """Takes or renews the one claim there is, for so long; False where another holds it. From
        then on every gateway drains the replica."""
        ...

    async def release(self, replica: str) -> None:
        """Gives it back, and every gateway ends the drain."""
        ...


@dataclass(frozen=True, slots=True)
class Mending:
    """`outcome` is empty while it is under way; else mended, failed, or ill (not well in time)."""

    replica: str
    reason: str
    began_s: float
    outcome: str = ""
    detail: str = ""


class Maintainer(Follower):
    """`wall` is seconds since the epoch, for restarts at a time of the day. With `dry_run` it only
    tells what it would do."""

    def __init__(
        self,
        fleet: Fleet,
        claims: Claims,
        action: Action,
        rules: MaintenanceRules,
        *,
        wall: Clock,
        sleep: Sleep = asyncio.sleep,
        dry_run: bool = False,
    ) -> None:
        self._fleet, self._claims, self._action, self.rules = fleet, claims, action, rules
        self._wall, self._sleep, self._dry_run = wall, sleep, dry_run
        self._alarms: dict[str, Detector] = {}
        self._mended_s: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._asked: ReplicaSpec | None = None
        self.current: Mending | None = None
        self.history: deque[Mending] = deque(maxlen=_KEPT)
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        self._fleet.follow(self)
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        """Gives back what it was mending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_join(self, spec: ReplicaSpec) -> None:
        self._alarms[spec.id] = Detector(self.rules.threshold, self.rules.for_s)

    def on_leave(self, spec: ReplicaSpec) -> None:
        for known in (self._alarms, self._mended_s, self._told):
            known.pop(spec.id, None)
        for key in [key for key in self.outcomes if key[0] == spec.id]:
            del self.outcomes[key]

    def on_restart(self, spec: ReplicaSpec) -> None:
        self.on_join(spec)

    async def ask(self, spec: ReplicaSpec) -> str:
        """Somebody wants it mended, whatever its state: why not, or empty, and then it is the next
        that is mended."""
        if self._dry_run:
            return "dry_run is on"
        if self.current is not None:
            return f"{self.current.replica} is being mended"
        views = self._fleet.snapshot((spec.model,))
        others = sum(view.available for view in views if view.id != spec.id)
        if others < self.rules.min_available:
            return f"only {others} others are available"
        self._asked = spec
        return ""

    async def look(self) -> None:
        """Mends the first that is to be mended and may be, to its end."""
        asked, self._asked = self._asked, None
        if asked is not None:
            await self.mend(asked, "asked for")
            return
        now_s = self._fleet.clock()
        for spec, reason in list(self._ill(now_s)):
            views = self._fleet.snapshot((spec.model,))
            why_not = refusal(spec.id, views, self.rules, mended_s=self._mended_s, now_s=now_s)
            if not why_not:
                why_not = await self.mend(spec, reason)
            self._tell(spec, reason, why_not)
            if not why_not:
                return

    async def mend(self, spec: ReplicaSpec, reason: str) -> str:
        """Mends a replica whatever its state, unless somebody mends another; why not, or empty."""
        if self._dry_run:
            return "dry_run is on"
        if self.current is not None:
            return f"{self.current.replica} is being mended"
        if not await self._claims.claim(spec.id, reason, CLAIM_S):
            return "another gateway is mending"
        began_s = self._fleet.clock()
        self.current = Mending(spec.id, reason, began_s)
        logger.warning("%s: mending begins (%s)", spec.id, reason)
        outcome, detail = "failed", "the gateway was stopped"
        try:
            outcome, detail = await self._course(spec, reason)
        finally:
            self._mended_s[spec.id] = self._fleet.clock()
            self.history.append(Mending(spec.id, reason, began_s, outcome, detail))
            self.outcomes[spec.id, outcome] += 1
            self.current = None
            logger.warning("%s: %s%s", spec.id, outcome, f" ({detail})" if detail else "")
            await self._claims.release(spec.id)
        return ""

    async def _course(self, spec: ReplicaSpec, reason: str) -> tuple[str, str]:
        """(outcome, detail)"""
        await self._until(spec, lambda: self._empty(spec), reason, self.rules.drain_timeout_s)
        before = self._fleet.facts(spec.id)[0].process_start_s if spec.id in self._fleet else None
        try:
            await self._action(spec, reason)
        except MendError as error:
            return "failed", str(error)
        well = _Well(self._fleet, spec, before)
        if await self._until(spec, well, reason, self.rules.health_timeout_s):
            return "mended", ""
        return "ill", f"not well within {self.rules.health_timeout_s:g} s"

    async def _until(
        self, spec: ReplicaSpec, holds: Callable[[], bool], reason: str, timeout_s: float
    ) -> bool:
        """Whether it held in time; keeps the claim meanwhile."""
        end_s = self._fleet.clock() + timeout_s
        renew_s = 0.0
        while not holds():
            now_s = self._fleet.clock()
            if now_s >= end_s:
                return False
            if now_s >= renew_s:
                renew_s = now_s + CLAIM_S / 4
                await self._claims.claim(spec.id, reason, CLAIM_S)
            await self._sleep(_LOOK_S)
        return True

    def _empty(self, spec: ReplicaSpec) -> bool:
        return spec.id not in self._fleet or self._fleet.view(spec.id).inflight == 0

    def _ill(self, now_s: float) -> Iterator[tuple[ReplicaSpec, str]]:
        restarts = self.rules.restarts
        for spec in self._fleet.specs():
            alarm = self._alarms.get(spec.id)
            pressure = self._fleet.view(spec.id).pressure
            if alarm is not None and alarm.note(now_s, pressure):
                yield spec, "memory pressure"
            elif restarts is not None and restarts.due(
                self._wall(), self._fleet.facts(spec.id)[0].process_start_s
            ):
                yield spec, "restart is due"

    def _tell(self, spec: ReplicaSpec, reason: str, why_not: str) -> None:
        """Each reason not to mend once."""
        kind = _NUMBERS.sub("", why_not)
        if why_not and self._told.get(spec.id) != kind:
            logger.warning("%s is to be mended (%s) and is not: %s", spec.id, reason, why_not)
        self._told[spec.id] = kind

    async def _forever(self) -> None:
        while True:
            try:
                await self.look()
            except GatewayError as error:
                logger.warning("maintenance: %s", error.public)
            except Exception:  # border: the loop outlives any fault
                logger.exception("maintenance failed")
            await self._sleep(_LOOK_S)


class _Well:
    """True once another process answers; or, of an engine that does not tell its start, once it
    has been away and is there again."""

    def __init__(self, fleet: Fleet, spec: ReplicaSpec, started_s: float | None) -> None:
        self._fleet, self._spec, self._started_s = fleet, spec, started_s
        self._away = False
        self._since_s: float | None = None

    def __call__(self) -> bool:
        if self._spec.id not in self._fleet:
            return True  # it left, and is somebody else's concern
        now_s, alive = self._fleet.clock(), self._fleet.alive(self._spec.id)
        self._away = self._away or not alive
        told_s = self._fleet.facts(self._spec.id)[0].process_start_s
        new = self._away if self._started_s is None else told_s not in (None, self._started_s)
        if not (alive and new):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= _HEALTHY_FOR_S
