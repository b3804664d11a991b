"""Where the replicas of the fleet come from: configuration, admin calls, a file, DNS."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tierway.middleware import catalog
from tierway.middleware.config import Settings
from tierway.middleware.overlay import Overlay, Section
from tierway.middleware.replica_source import FleetFile, ReplicaSource
from tierway.middleware.settings_fleet import ReplicaSettings
from tierway.middleware.watch import Watch
from tierway.policies.errors import ConfigError
from tierway.policies.types import Model
from tierway.router.dns import DnsSource, Named
from tierway.router.engines import Engine
from tierway.router.fleet import Fleet
from tierway.router.membership import Membership
from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin
from tierway.router.upstreams import root_url

logger = logging.getLogger(__name__)

SOURCES = ("configuration", "admin", "file", "dns")
ADDED, EXCLUDED = "replicas", "excluded"


class Members:
    """The sources as they act on one fleet. What admin calls added or took out lies in the
    overlay."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        models: Mapping[str, Model],
        fleet: Fleet,
        overlay: Overlay,
    ) -> None:
        self._models, self.fleet, self.overlay = models, fleet, overlay
        self.networks = settings.fleet.allowed_networks
        self.membership = Membership(fleet, SOURCES)
        self.source = ReplicaSource(settings, models, environ)
        self.configured(settings)
        overlay.on(EXCLUDED, self.membership.exclude)
        overlay.on(ADDED, self._added)

    def configured(self, settings: Settings) -> None:
        """What a configuration says, of the models that run."""
        self.membership.want("configuration", _fixed(settings, self._models))

    async def start(self, settings: Settings, stack: AsyncExitStack) -> None:
        """Reads the file and the names, and follows both."""
        if named := list(_named(settings, self._models)):
            dns = DnsSource(named, lambda specs: self.membership.want("dns", specs))
            await dns.start()
            stack.push_async_callback(dns.aclose)
        if settings.fleet.file is not None:
            file = FleetFile(Path(settings.fleet.file), self.source, self.membership)
            await file.read()
            watch = Watch(Path(settings.fleet.file), file.read)
            watch.start()
            stack.push_async_callback(watch.aclose)

    def _added(self, section: Section) -> None:
        specs: list[ReplicaSpec] = []
        for name, held in section.items():
            try:
                specs += self.source.specs({held["model"]: [held["settings"]]})
            except ConfigError as error:
                logger.warning("%s, added by an admin call: %s", name, "; ".join(error.faults))
        self.membership.want("admin", specs)


def _fixed(settings: Settings, models: Mapping[str, Model]) -> Iterator[ReplicaSpec]:
    engines = catalog.engines(settings)
    for name, model in models.items():
        if name in settings.models:
            for given in settings.models[name].replicas:
                if given.dns == "off":
                    yield catalog.replica_spec(model, given, engines)


def _named(settings: Settings, models: Mapping[str, Model]) -> Iterator[Named]:
    for name, model in models.items():
        for given in settings.models[name].replicas:
            if given.dns == "on":
                yield _at_addresses(model, given, catalog.engines(settings))


def _at_addresses(model: Model, given: ReplicaSettings, engines: Mapping[str, Engine]) -> Named:
    def make(address: str) -> ReplicaSpec:
        moved = given.model_copy(update={"url": _at(given.url, address)})
        return catalog.replica_spec(model, moved, engines)

    return Named(Origin.parse(root_url(given.url)), make)


def _at(url: str, address: str) -> str:
    parts: Any = urlsplit(url)
    host = f"[{address}]" if ":" in address else address
    port = "" if parts.port is None else f":{parts.port}"
    changed: str = parts._replace(netloc=host + port).geturl()
    return changed
