"""Filters of the balancer: which replicas may take a call at all.

A filter answers with the reason it excludes a replica, in words an operator can read in
`x-tierway-reason`, or None. Filters look at one replica at a time, so their order only
decides which reason is told.
"""

from __future__ import annotations

from dataclasses import dataclass

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
