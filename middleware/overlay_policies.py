"""Policies as configured and as admin calls have changed them, over all gateways and restarts.

The newest change wins. A change remembers what the file said when it was made; where the file says
something else by now, on a reload or at the next start, the file is the newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tierway.middleware.config import Settings
from tierway.middleware.overlay import Overlay, Section
from tierway.policies.errors import ConfigError
from tierway.policies.policyset import Change, PolicyKey
from tierway.router.balancer import PolicyHolder

logger = logging.getLogger(__name__)

SECTION = "policies"
_LLM_AWARE = "llm_aware"

Place = tuple[str, PolicyKey]
Said = Mapping[Place, Change]


def said(settings: Settings, tiers: Iterable[str]) -> Said:
    """What a file says of the policies of `tiers`."""
    running = set(tiers)
    changes = [
        change
        for name, tier in settings.tiers.items()
        if name in running
        for change in (
            Change(name, "policy", tier.policy, tier.options),
            Change(name, "plain_policy", tier.plain_policy),
            Change(name, "shadow_policy", tier.shadow_policy, tier.shadow_options),
        )
    ]
    return {(change.tier, change.key): change for change in changes}


class PolicyOverlay:
    def __init__(self, holder: PolicyHolder, overlay: Overlay, configured: Said) -> None:
        self._holder, self._overlay = holder, overlay
        self._configured = dict(configured)
        self._acting = dict(configured)
        overlay.on(SECTION, self._apply)

    @property
    def configured(self) -> Said:
        return self._configured

    async def set(self, change: Change) -> int:
        """Raises ConfigError, and then nothing has changed; else the version of the set."""
        self._holder.current = self._holder.current.with_changes([change])
        version = self._holder.current.version
        place = change.tier, change.key
        self._acting[place] = change
        over = _plain(self._configured[place])
        await self._overlay.put(SECTION, _key(place), {**_plain(change), "over": over})
        return version

    async def set_llm_aware(self, enabled: bool) -> int:
        self._holder.current = self._holder.current.with_llm_aware(enabled)
        version = self._holder.current.version
        await self._overlay.put(SECTION, _LLM_AWARE, enabled)
        return version

    def reload(self, now: Said) -> list[Change]:
        """Takes what a file says now, of the policies of which it said something else before."""
        changes = [change for place, change in now.items() if change != self._configured[place]]
        if changes:
            self._holder.current = self._holder.current.with_changes(changes)
        for change in changes:
            place = change.tier, change.key
            self._configured[place] = self._acting[place] = change
        return changes

    async def forget(self, changes: Iterable[Change]) -> None:
        """What admin calls had set there is of no more account."""
        for change in changes:
            key = _key((change.tier, change.key))
            if key in self._overlay.section(SECTION):
                await self._overlay.put(SECTION, key, None)

    def _apply(self, section: Section) -> None:
        wanted = {place: self._wanted(place, section) for place in self._acting}
        for place, change in wanted.items():
            if change != self._acting[place]:
                self._take(place, change)
        aware = section.get(_LLM_AWARE, True)
        if isinstance(aware, bool) and aware != self._holder.current.llm_aware:
            self._holder.current = self._holder.current.with_llm_aware(aware)

    def _wanted(self, place: Place, section: Section) -> Change:
        configured, entry = self._configured[place], section.get(_key(place))
        if entry is None or entry["over"] != _plain(configured):
            return configured
        return Change(*place, entry["name"], entry["options"])

    def _take(self, place: Place, change: Change) -> None:
        try:
            self._holder.current = self._holder.current.with_changes([change])
        except ConfigError as error:
            faults = "; ".join(error.faults)
            logger.warning("an admin change was not taken, nothing changed: %s", faults)
        else:
            self._acting[place] = change


def _key(place: Place) -> str:
    return ".".join(place)


def _plain(change: Change) -> dict[str, Any]:
    return {"name": change.name, "options": dict(change.options)}
