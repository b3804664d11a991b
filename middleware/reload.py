"""Reads the configuration file again and takes what can change while traffic flows.

The file is read, validated whole and compared with what it said before; what differs is then
taken in one step, or nothing is. Only what the *file* changed is taken: a policy that an admin
call has set stays through a reload whose file says the same of it as before, so the newest change
wins. Keys that need a restart are named, as they differ from what runs.

Reads may overlap (a call, a signal, a watched file): one that began before a read that was taken
already is made again, so an older file never takes the place of a newer one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tierway.middleware import config as configuration
from tierway.middleware.build_members import Members
from tierway.middleware.config import Settings
from tierway.middleware.config_diff import differing, is_live
from tierway.middleware.config_text import dotted
from tierway.middleware.overlay_policies import PolicyOverlay, said
from tierway.middleware.settings_fleet import ReplicaSettings
from tierway.policies.errors import ConfigError
from tierway.policies.policyset import Change
from tierway.router.balancer import PolicyHolder
from tierway.router.route import TierRouter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Dotted keys that were taken, those that wait for a restart, and the version of the policy
    set."""

    changed: list[str]
    needs_restart: list[str]
    version: int


class Reloader:
    """`running` is what the gateway was started with."""

    def __init__(
        self,
        running: Settings,
        environ: Mapping[str, str],
        holder: PolicyHolder,
        policies: PolicyOverlay,
        members: Members,
        router: TierRouter,
    ) -> None:
        self._running, self._quality = running, running.router.quality
        self._environ, self._holder, self._router = environ, holder, router
        self._policies, self._members = policies, members
        self._fleet_said = running
        self._begun = self._taken = 0

    @property
    def path(self) -> Path | None:
        """The file; None where the configuration came from elsewhere."""
        return self._running.source

    async def __call__(self, *, quiet: bool = False) -> Reloaded:
        """Raises ConfigError with every fault, and then nothing has changed. What happened is
        logged; with `quiet` only where there is something to tell."""
        try:
            found, changes = self._take(await self._read())
        except ConfigError as error:
            faults = "; ".join(error.faults)
            logger.warning("configuration not reloaded, nothing changed: %s", faults)
            raise
        if found.changed or found.needs_restart or not quiet:
            logger.warning(
                "configuration reloaded: changed %s; needs a restart: %s; policy set version %d",
                ", ".join(found.changed) or "nothing",
                ", ".join(found.needs_restart) or "nothing",
                found.version,
            )
        await self._policies.forget(changes)
        return found

    async def attempt(self, *, quiet: bool = False) -> None:
        """The same for callers that nobody waits for: the log tells what is wrong."""
        try:
            await self(quiet=quiet)
        except ConfigError:
            return

    async def _read(self) -> Settings:
        path = self.path
        if path is None:
            raise ConfigError(["there is no file to read again: this gateway was given none"])
        while True:
            self._begun += 1
            mine = self._begun
            found = await asyncio.to_thread(configuration.load, path, self._environ)
            if mine > self._taken:
                self._taken = mine
                return found

    def _take(self, new: Settings) -> tuple[Reloaded, list[Change]]:
        before = dict(self._policies.configured)
        changes = self._policies.reload(said(new, self._running.tiers))
        changed = [key for one in changes for key in _keys(before[one.tier, one.key], one)]
        if new.router.quality != self._quality:
            self._router.set_quality(new.router.quality)
            changed.append("router.quality")
        self._quality = new.router.quality
        changed += self._take_replicas(new)
        differ = differing(self._running, new)
        waiting = [dotted(path) for path in differ if not is_live(path, self._running)]
        return Reloaded(changed, waiting, self._holder.current.version), changes

    def _take_replicas(self, new: Settings) -> list[str]:
        """Replicas of the models that run come and go."""
        before, self._fleet_said = self._fleet_said, new
        changed = [
            f"models.{name}.replicas"
            for name, model in self._running.models.items()
            if not model.cloud and _replicas(before, name) != _replicas(new, name)
        ]
        if changed:
            self._members.configured(new)
        return changed


def _replicas(settings: Settings, name: str) -> tuple[ReplicaSettings, ...]:
    return settings.models[name].replicas if name in settings.models else ()


def _keys(old: Change, new: Change) -> Iterator[str]:
    """The keys of the file that make the difference."""
    if old.name != new.name:
        yield f"tiers.{new.tier}.{new.key}"
    if old.options != new.options:
        yield f"tiers.{new.tier}.{new.key.replace('policy', 'options')}"
