"""The replicas of all models: what is known of each, what is in flight, who is out.

Policies see frozen `ReplicaView`s; only this module changes a replica. A slot is a `Lease`: taken
before a request is sent, given back exactly once whatever happens, so counts cannot leak or turn
negative. Breakers are fed by what became of each lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tierway.policies.protocols import Clock
from tierway.policies.resilience import Breaker, BreakerRules, may_open, verdict
from tierway.policies.types import ReplicaView


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as configured. `id` is stable: `model@host:port`."""

    id: str
    model: str
    tier: str
    url: str
    engine: str = "generic"
    weight: float = 1.0
    gpu: str = ""
    node: str = ""
    zone: str = ""


@dataclass(slots=True)
class Facts:
    """What an engine last said of itself; `read_s` is when, None for never."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    gpu_utilisation: float | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_temperature_celsius: float | None = None
    read_s: float | None = None


@dataclass(slots=True)
class _Replica:
    spec: ReplicaSpec
    breaker: Breaker
    facts: Facts = field(default_factory=Facts)
    inflight: int = 0
    inflight_tokens: int = 0
    served: int = 0
    failed: int = 0
    draining: bool = False
    alive: bool = True


class Lease:
    """One slot on one replica. `finish` gives it back once; later calls do nothing."""

    __slots__ = ("_finish", "replica")

    def __init__(self, replica: str, finish: Callable[[BaseException | None], None]) -> None:
        self.replica = replica
        self._finish: Callable[[BaseException | None], None] | None = finish

    def finish(self, error: BaseException | None = None) -> None:
        """`error` is what ended the request, None for a good answer. A request given up by
        its client ends with CancelledError, which says nothing about the replica."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(error)


class Fleet:
    def __init__(
        self, specs: Iterable[ReplicaSpec], *, clock: Clock, rules: BreakerRules | None = None
    ) -> None:
        self._clock = clock
        self._rules = rules or BreakerRules()
        self._replicas = {spec.id: _Replica(spec, Breaker(self._rules)) for spec in specs}
        self._by_model: dict[str, list[_Replica]] = {}
        for replica in self._replicas.values():
            self._by_model.setdefault(replica.spec.model, []).append(replica)

    def specs(self) -> list[ReplicaSpec]:
        return [replica.spec for replica in self._replicas.values()]

    def snapshot(self, models: Sequence[str]) -> tuple[ReplicaView, ...]:
        """The replicas of `models`, available or not, as they are now.

        Where every breaker of a model is open, those that answer their health checks count as
        available all the same: a bad answer is better than none, and a good one tells.
        """
        now = self._clock()
        return tuple(
            view for model in models for view in self._views(self._by_model.get(model, ()), now)
        )

    def has_available(self, models: Sequence[str]) -> bool:
        now = self._clock()
        replicas = [r for model in models for r in self._by_model.get(model, ())]
        return any(not r.draining and r.breaker.allows(now) for r in replicas) or any(
            not r.draining and r.alive for r in replicas
        )

    def _views(self, replicas: Sequence[_Replica], now: float) -> list[ReplicaView]:
        views = [_view(replica, now) for replica in replicas]
        if any(view.available for view in views):
            return views
        return [
            replace(view, available=True, unavailable_reason="")
            if replica.alive and not replica.draining
            else view
            for replica, view in zip(replicas, views, strict=True)
        ]

    def lease(self, replica_id: str, tokens: int) -> Lease:
        """Takes a slot. A replica whose breaker is half-open uses its one probe for it."""
        replica = self._replicas[replica_id]
        replica.inflight += 1
        replica.inflight_tokens += tokens
        replica.breaker.begin_probe(self._clock())

        def finish(error: BaseException | None) -> None:
            replica.inflight -= 1
            replica.inflight_tokens -= tokens
            self._judge(replica, error)

        return Lease(replica_id, finish)

    def report_health(self, replica_id: str, *, alive: bool) -> None:
        """What an active check found: hard evidence both ways."""
        self._replicas[replica_id].alive = alive
        self._replicas[replica_id].breaker.record_health(self._clock(), alive)

    def update_facts(self, replica_id: str, facts: Facts) -> None:
        self._replicas[replica_id].facts = facts

    def set_draining(self, replica_id: str, draining: bool) -> None:
        self._replicas[replica_id].draining = draining

    def inflight(self) -> Mapping[str, int]:
        return {name: replica.inflight for name, replica in self._replicas.items()}

    def breaker_state(self, replica_id: str) -> str:
        return self._replicas[replica_id].breaker.state(self._clock())

    def totals(self, replica_id: str) -> tuple[int, int]:
        """(requests served, requests failed) since start."""
        replica = self._replicas[replica_id]
        return replica.served, replica.failed

    def _judge(self, replica: _Replica, error: BaseException | None) -> None:
        now = self._clock()
        found = verdict(error)
        replica.served += found == "success"
        replica.failed += found in ("failure", "hard")
        if found in ("success", "hard"):
            replica.alive = found == "success"
        may_open = found != "failure" or self._may_open(replica, now)
        replica.breaker.record(found, now, may_open=may_open)

    def _may_open(self, replica: _Replica, now: float) -> bool:
        """Statistics may take out at most half of a tier, never the last of a model."""
        peers = [r for r in self._replicas.values() if r.spec.tier == replica.spec.tier]
        others = [r for r in peers if r is not replica]
        left = any(r.breaker.allows(now) for r in others if r.spec.model == replica.spec.model)
        out = sum(1 for r in others if not r.breaker.allows(now))
        return left and may_open(out, len(peers))


def _view(replica: _Replica, now: float) -> ReplicaView:
    spec, facts = replica.spec, replica.facts
    reason = ""
    if replica.draining:
        reason = "draining"
    elif not replica.breaker.allows(now):
        reason = f"breaker {replica.breaker.state(now)}"
    return ReplicaView(
        id=spec.id,
        model=spec.model,
        tier=spec.tier,
        inflight=replica.inflight,
        inflight_tokens=replica.inflight_tokens,
        weight=spec.weight,
        available=not reason,
        unavailable_reason=reason,
        waiting=facts.waiting,
        running=facts.running,
        kv_usage=facts.kv_usage,
        facts_age_s=None if facts.read_s is None else now - facts.read_s,
        gpu=spec.gpu,
        gpu_utilisation=facts.gpu_utilisation,
        gpu_memory_used_bytes=facts.gpu_memory_used_bytes,
        gpu_temperature_celsius=facts.gpu_temperature_celsius,
        node=spec.node,
        zone=spec.zone,
    )
