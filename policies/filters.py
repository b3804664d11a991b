"""Filters of the balancer: which replicas may take a call at all, and slow start.

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


LEAST_WARMTH = 0.1
_SPREAD = 61.0  # the draw breaks ties too: its later digits decide here

FILTERS: tuple[Filter, ...] = (Available(), Untried())

_by_id = attrgetter("id")


def sift(
    ask: BalanceAsk, views: Sequence[ReplicaView], filters: Sequence[Filter] = FILTERS
) -> tuple[list[ReplicaView], tuple[tuple[str, str], ...]]:
    """(those that all filters leave in, id and first reason of the others), each by id.

    A replica that is warming takes part in a growing share of the choices only, unless there is no
    other: an engine that has just come is slow at first and has nothing in its KV cache.
    """
    if filters is FILTERS and all(
        view.available and view.id not in ask.tried and view.warm_at_s <= ask.now_s
        for view in views
    ):
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
    warm = [view for view in kept if takes_part(ask, view)]
    if warm and len(warm) < len(kept):
        excluded += [(view.id, "warming") for view in kept if view not in warm]
        kept = warm
    return kept, tuple(sorted(excluded))


def takes_part(ask: BalanceAsk, view: ReplicaView) -> bool:
    """Whether slow start lets a replica into this choice: with the share of `warming_s` that has
    passed as its probability, and never less than LEAST_WARMTH."""
    left_s = view.warm_at_s - ask.now_s
    if left_s <= 0.0:
        return True
    warmth = max(LEAST_WARMTH, 1.0 - left_s / view.warming_s) if view.warming_s > 0.0 else 1.0
    return (ask.draw * _SPREAD) % 1.0 < warmth
