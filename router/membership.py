"""Who belongs to the fleet, as several sources have it: configuration, admin calls, a file, DNS.

Each source says the whole of what it wants, as often as it likes; one that cannot say anything at
the moment says nothing, and what it wanted last stands. A replica that several want is taken from
the first of them, in the order the sources were given in. Those that were excluded are out whoever
wants them. The fleet gets the differences only, so that what is known of a replica stays as long
as anybody wants it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)


class Membership:
    """`sources` by precedence. Whoever is in the fleet by other means stays there."""

    def __init__(self, fleet: Fleet, sources: Sequence[str]) -> None:
        self._fleet = fleet
        self._wanted: dict[str, Mapping[str, ReplicaSpec]] = {name: {} for name in sources}
        self._excluded: frozenset[str] = frozenset()
        self._by: dict[str, str] = {}
        self._twice: frozenset[tuple[str, str]] = frozenset()

    def want(self, source: str, specs: Iterable[ReplicaSpec]) -> None:
        """The whole set of a source. KeyError for a source that was not announced."""
        if source not in self._wanted:
            raise KeyError(source)
        self._wanted[source] = {spec.id: spec for spec in specs}
        self._settle()

    def exclude(self, ids: Iterable[str]) -> None:
        """The whole set of those that are to stay out."""
        self._excluded = frozenset(ids)
        self._settle()

    def source(self, replica_id: str) -> str:
        """By whose wish a replica is here, empty for none of the sources."""
        return self._by.get(replica_id, "")

    def _settle(self) -> None:
        wanted = self._merged()
        for name in [name for name in self._by if name not in wanted]:
            logger.info("%s leaves the fleet (%s)", name, self._by.pop(name))
            self._fleet.remove(name)
        for name, (source, spec) in wanted.items():
            if name not in self._by:
                logger.info("%s joins the fleet (%s)", name, source)
            self._by[name] = source
            if self._fleet.spec(name) != spec:
                self._fleet.add(spec)

    def _merged(self) -> dict[str, tuple[str, ReplicaSpec]]:
        merged: dict[str, tuple[str, ReplicaSpec]] = {}
        twice = set()
        for source, specs in self._wanted.items():
            for name, spec in specs.items():
                if name in self._excluded:
                    continue
                first, _ = merged.setdefault(name, (source, spec))
                if first != source:
                    twice.add((name, source))
        for name, source in sorted(twice - self._twice):
            logger.warning(
                "%s is wanted by %s too: what %s says counts", name, source, merged[name][0]
            )
        self._twice = frozenset(twice)
        return merged
