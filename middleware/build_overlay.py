"""From settings to what admin calls have changed, and who acts on it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from tierway.middleware.build_fleet import state_link
from tierway.middleware.config import Settings
from tierway.middleware.overlay import MemoryOverlay, Overlay, OverlayStore, Section
from tierway.middleware.overlay_stores import FileOverlay, RedisOverlay
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec


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
    """Replicas that an admin call has drained stay so, also where they join later."""

    def __init__(self, fleet: Fleet, overlay: Overlay) -> None:
        self._fleet, self._drained = fleet, frozenset[str]()
        overlay.on("draining", self._apply)

    def _apply(self, section: Section) -> None:
        before, self._drained = self._drained, frozenset(section)
        for replica in before ^ self._drained:
            if replica in self._fleet:
                self._fleet.set_draining(replica, replica in self._drained)

    def on_join(self, spec: ReplicaSpec) -> None:
        if spec.id in self._drained:
            self._fleet.set_draining(spec.id, True)
