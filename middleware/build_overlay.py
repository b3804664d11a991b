"""From settings to what admin calls have changed, and who acts on it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tierway.middleware.build_fleet import state_link
from tierway.middleware.config import Settings
from tierway.middleware.overlay import Document, MemoryOverlay, Overlay, OverlayStore, Section
from tierway.middleware.overlay_stores import FileOverlay, RedisOverlay
from tierway.policies.protocols import Clock
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)

DRAINING, MENDING = "draining", "mending"


async def started_overlay(
    settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack, *, live: bool
) -> Overlay:
    """What is kept is there when this returns. With `live` False nothing follows it."""
    overlay = Overlay(await _store(settings, environ, stack, live=live))
    await overlay.start(follow=live)
    stack.push_async_callback(overlay.aclose)
    return overlay


async def _store(
    settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack, *, live: bool
) -> OverlayStore:
    cache, state = settings.cache, settings.state
    if state.backend == "redis" and live:
        link = state_link(state, environ)
        link.open()
        stack.push_async_callback(link.aclose)
        return RedisOverlay(link, state.name)
    if state.backend == "memory" and cache.store.kind == "sqlite" and cache.mode != "off":
        return FileOverlay(Path(cache.store.path).with_suffix(".admin.json"))
    return MemoryOverlay()


class Drains(Follower):
    """Replicas that an admin call has drained, or that somebody mends, stay so, also where they
    join later."""

    def __init__(self, fleet: Fleet, overlay: Overlay) -> None:
        self._fleet, self._overlay, self._drained = fleet, overlay, frozenset[str]()
        for section in (DRAINING, MENDING):
            overlay.on(section, self._apply)

    def on_join(self, spec: ReplicaSpec) -> None:
        if spec.id in self._drained:
            self._fleet.set_draining(spec.id, True)

    def _apply(self, _: Section) -> None:
        before = self._drained
        self._drained = frozenset(
            (*self._overlay.section(DRAINING), *self._overlay.section(MENDING))
        )
        for replica in before ^ self._drained:
            if replica in self._fleet:
                self._fleet.set_draining(replica, replica in self._drained)


class OverlayClaims:
    """The one claim to mend, in the overlay: `{replica: {by, reason, until}}`, `until` in seconds
    since the epoch."""

    def __init__(self, overlay: Overlay, *, gateway: str, wall: Clock) -> None:
        self._overlay, self._gateway, self._wall = overlay, gateway, wall

    async def claim(self, replica: str, reason: str, ttl_s: float) -> bool:
        return await self._overlay.edit(lambda found: self._claimed(found, replica, reason, ttl_s))

    async def release(self, replica: str) -> None:
        await self._overlay.edit(lambda found: self._released(found, replica))

    async def expire(self) -> None:
        """Ends the claims of gateways that have died."""
        now_at = self._wall()
        dead = [name for name, held in self._held().items() if held["until"] < now_at]
        for replica in dead:
            logger.warning("%s: whoever mended it is gone; it is given back", replica)
            await self._overlay.edit(partial(self._expired, replica))

    def _held(self) -> Section:
        return self._overlay.section(MENDING)

    def _claimed(self, found: Document, replica: str, reason: str, ttl_s: float) -> Document | None:
        now_at = self._wall()
        for name, held in found.section(MENDING).items():
            if (name, held["by"]) != (replica, self._gateway) and held["until"] >= now_at:
                return None
        entry = {"by": self._gateway, "reason": reason, "until": now_at + ttl_s}
        return found.put(MENDING, replica, entry)

    def _released(self, found: Document, replica: str) -> Document | None:
        held = found.section(MENDING).get(replica)
        if held is None or held["by"] != self._gateway:
            return None
        return found.put(MENDING, replica, None)

    def _expired(self, replica: str, found: Document) -> Document | None:
        held = found.section(MENDING).get(replica)
        if held is None or held["until"] >= self._wall():
            return None
        return found.put(MENDING, replica, None)
