"""Replicas that stand elsewhere than in the configuration: checked as those in it are.

A file says which replicas each model has, as `models.NAME.replicas` does:

    {qwen-7b: [{url: http://10.0.0.7:8000, gpu: a10}, ...], ...}

Its models are those of the configuration. A file that is wrong, or half-written, changes nothing
and is told; one that is gone leaves the fleet as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tierway.middleware import catalog
from tierway.middleware import config as configuration
from tierway.middleware.config import Settings
from tierway.middleware.config_source import read_file
from tierway.policies.errors import ConfigError
from tierway.policies.types import Model
from tierway.router.membership import Membership
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)


class ReplicaSource:
    """Makes replicas of plain data, for the `models` of the running configuration."""

    def __init__(
        self, settings: Settings, models: Mapping[str, Model], environ: Mapping[str, str]
    ) -> None:
        self._settings, self._models, self._environ = settings, models, environ
        self._engines = catalog.engines(settings)

    def specs(self, given: Mapping[str, Any]) -> list[ReplicaSpec]:
        """Of replicas by model; raises ConfigError with every fault."""
        if wrong := list(self._wrong(given)):
            raise ConfigError(wrong)
        checked = configuration.with_replicas(self._settings, given, self._environ)
        return [
            catalog.replica_spec(self._models[name], replica, self._engines)
            for name in given
            for replica in checked.models[name].replicas
        ]

    def _wrong(self, given: Mapping[str, Any]) -> list[str]:
        known = [name for name, model in self._models.items() if not model.cloud]
        allowed = f"must be one of the models with replicas: {', '.join(known) or 'there is none'}"
        found = [f"{name!r}: {allowed}" for name in given if name not in known]
        found += [
            f"{name}: must be a list of replicas"
            for name, replicas in given.items()
            if not isinstance(replicas, Sequence) or isinstance(replicas, str)
        ]
        return found


class FleetFile:
    """The file at `path`, for a Watch."""

    def __init__(self, path: Path, source: ReplicaSource, membership: Membership) -> None:
        self._path, self._source, self._membership = path, source, membership

    async def read(self) -> None:
        """Takes what it says; what is wrong is logged and changes nothing."""
        try:
            given = await asyncio.to_thread(read_file, self._path)
            if not given:  # as while it is being written
                raise ConfigError(["it names no model; `MODEL: []` takes all replicas of one away"])
            specs = self._source.specs(given)
        except ConfigError as error:
            faults = "; ".join(error.faults)
            logger.warning("fleet.file %s: not taken, nothing changed: %s", self._path, faults)
        else:
            self._membership.want("file", specs)
