"""Filters of the balancer: which replicas may take a call at all.

A filter answers with the reason it excludes a replica, in words an operator can read in
`x-tierway-reason`, or None. Filters look at one replica at a time, so their order only
decides which reason is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from tierway.policies.protocols import Filter
from tierway.policies.types import BalanceAsk, ReplicaView


@dataclass(frozen=True, slots=True)
class Available:
    """Leaves out what the fleet has marked: open breaker, draining, failed health check."""

    name = "available"

    def excludes(self, ask: BalanceAsk, view: ReplicaView) -> str | None:
        if view.available:
            return None
        return view.unavailable_reason or "unavailable"


@dataclass(frozen=True, slots=True)
class Untried:
    """Leaves out what this call has tried before: a retry goes elsewhere."""

    name = "untried"

    def excludes(self, ask: BalanceAsk, view: ReplicaView) -> str | None:
        return "tried" if view.id in ask.tried else None


FILTERS: tuple[Filter, ...] = (Available(), Untried())

_by_id = attrgetter("id")


def sift(
    ask: BalanceAsk, views: Sequence[ReplicaView], filters: Sequence[Filter] = FILTERS
) -> tuple[list[ReplicaView], tuple[tuple[str, str], ...]]:
    """(those that all filters leave in, id and first reason of the others), each by id."""
    if filters is FILTERS and all(view.available and view.id not in ask.tried for view in views):
        return sorted(views, key=_by_id), ()
    kept: list[ReplicaView] = []
    excluded: list[tuple[str, str]] = []
    for view in sorted(views, key=_by_id):
        reasons = (item.excludes(ask, view) for item in filters)
        reason = next((found for found in reasons if found is not None), None)
        if reason is None:
            kept.append(view)
        else:
            excluded.append((view.id, reason))
    return kept, tuple(excluded)
