"""Whoever follows the fleet."""

from __future__ import annotations

from tierway.router.facts import Facts
from tierway.router.replica import ReplicaSpec


class Follower:
    """Hears of replicas that come and go, before anything is asked of or about them. What a
    follower does not care for it leaves as it is here: nothing."""

    def on_join(self, spec: ReplicaSpec) -> None:
        """It is here from now on, or was when the follower began."""

    def on_leave(self, spec: ReplicaSpec) -> None:
        """It has left; what is in flight there goes on to its end."""

    def on_return(self, spec: ReplicaSpec) -> None:
        """It was out (breaker, drain, sleep) and takes calls again."""

    def on_facts(self, spec: ReplicaSpec, facts: Facts) -> None:
        """A page of the engine was read."""

    def on_restart(self, spec: ReplicaSpec) -> None:
        """Another process answers there: nothing that was learnt of the old one holds."""
