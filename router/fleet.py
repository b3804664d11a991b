"""The replicas of all models: what is known of each, what is in flight, who is out.

Policies see frozen `ReplicaView`s; only the fleet and the leases it gives change a replica.
Breakers are fed by what became of each lease.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tierway.policies.errors import Refused, SlowFirstToken, UpstreamTimeout
from tierway.policies.protocols import Clock
from tierway.policies.resilience import Breaker, BreakerRules, may_open, verdict
from tierway.policies.types import Counts, Pace, ReplicaView, Work
from tierway.router.facts import Facts, GpuFacts, LoadReport
from tierway.router.follower import Follower
from tierway.router.lease import Lease, Watch
from tierway.router.replica import NOTHING, Given, Replica, ReplicaSpec, view_of

logger = logging.getLogger(__name__)


class Fleet:
    """What is told of a replica that has left is dropped: late facts of it harm nobody. One that
    joins, returns or restarts later than at the start is given to slowly, for `slow_start_s`."""

    def __init__(
        self,
        specs: Iterable[ReplicaSpec] = (),
        *,
        clock: Clock,
        rules: BreakerRules | None = None,
        slow_start_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self._rules = rules or BreakerRules()
        self._slow_start_s, self._began_s = slow_start_s, clock()
        self._leaving: list[Replica] = []
        self._leases = 0
        self._replicas: dict[str, Replica] = {}
        self._by_model: dict[str, list[Replica]] = {}
        self._followers: list[Follower] = []
        for spec in specs:
            self.add(spec)

    def follow(self, follower: Follower) -> None:
        """`follower` hears of all that are here, and from now on of every change."""
        self._followers.append(follower)
        for spec in self.specs():
            follower.on_join(spec)

    def add(self, spec: ReplicaSpec) -> None:
        """A replica joins. One of the same id and place is amended and keeps all that is known of
        it; at another place it is a new one, and the old one leaves."""
        known = self._replicas.get(spec.id)
        if known is not None and known.spec.place == spec.place:
            known.spec, known.view = spec, None
            return
        if known is not None:
            self.remove(spec.id)
        replica = self._replicas[spec.id] = Replica(spec, Breaker(self._rules), Pace())
        self._by_model.setdefault(spec.model, []).append(replica)
        self._even_out(replica)
        self._warm_up(replica)
        for follower in self._followers:
            follower.on_join(spec)

    def remove(self, replica_id: str) -> bool:
        """A replica leaves; what it has in flight goes on to its end. False where it is not
        here."""
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return False
        self._by_model[replica.spec.model].remove(replica)
        if not replica.draining:
            replica.draining_since_s = self.clock()
        self._leaving = [one for one in (*self._leaving, replica) if one.inflight]
        for follower in self._followers:
            follower.on_leave(replica.spec)
        return True

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._replicas

    def specs(self) -> list[ReplicaSpec]:
        return [replica.spec for replica in self._replicas.values()]

    def spec(self, replica_id: str) -> ReplicaSpec | None:
        replica = self._replicas.get(replica_id)
        return None if replica is None else replica.spec

    def snapshot(self, models: Sequence[str]) -> tuple[ReplicaView, ...]:
        """The replicas of `models`, available or not, as they are now.

        Where every breaker of a model is open, those that answer their health checks count as
        available all the same: a bad answer is better than none, and a good one tells.
        """
        now = self.clock()
        return tuple(
            view for model in models for view in self._views(self._by_model.get(model, ()), now)
        )

    def has_available(self, models: Sequence[str]) -> bool:
        now = self.clock()
        replicas = [r for model in models for r in self._by_model.get(model, ())]
        usable = [replica for replica in replicas if not replica.withdrawn]
        return any(one.breaker.allows(now) or one.alive for one in usable)

    def _views(self, replicas: Sequence[Replica], now: float) -> list[ReplicaView]:
        views = [view_of(replica, now) for replica in replicas]
        if any(view.available for view in views):
            return views
        return [
            replace(view, available=True, unavailable_reason="")
            if replica.alive and not replica.withdrawn
            else view
            for replica, view in zip(replicas, views, strict=True)
        ]

    def lease(
        self,
        replica_id: str,
        work: Work,
        *,
        cost_s: float = 0.0,
        ttft_s: float = 0.0,
        read_by_s: float | None = None,
        watch: Watch | None = None,
    ) -> Lease:
        """Takes a slot. A replica whose breaker is half-open uses its one probe for it.

        `cost_s` is the predicted work, for the record of what was given lately, `ttft_s` the
        predicted first token, 0 for none. `read_by_s` is when the prompt may count as read where
        no first token tells (a call that does not stream). Raises Refused where the replica has
        left."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            raise Refused("The replica has left the fleet.", replica=replica_id)
        now = self.clock()
        replica.book(work, 1)
        replica.prefill_tokens += work.prefill_tokens
        replica.prefill_pairs += work.prefill_pairs
        tokens, pairs = replica.given
        replica.given = tokens + work.prefill_tokens, pairs + work.prefill_pairs
        replica.fade(now)
        replica.recent_s += cost_s
        replica.breaker.begin_probe(now)
        told = ttft_s > 0.0 and read_by_s is None and replica.spec.url
        slow_after_s = self._rules.slow_after_s(ttft_s) if told else math.inf
        lease = Lease(self, replica, work, now, watch, slow_after_s)
        if read_by_s is not None:
            self._leases += 1
            heapq.heappush(replica.unread, (read_by_s, self._leases, lease.prompt_read))
        return lease

    def own(self, replica_id: str) -> Counts:
        """What this gateway has in flight on a replica; nothing on one that is not here."""
        replica = self._replicas.get(replica_id)
        return NOTHING if replica is None else replica.counts()

    def others(self, replica_id: str) -> Counts:
        """What all other gateways have in flight there, as was last heard."""
        replica = self._replicas.get(replica_id)
        return NOTHING if replica is None else replica.others

    def set_others(self, others: Mapping[str, Counts]) -> None:
        """What all other gateways have in flight, for the replicas that are named."""
        for name, found in others.items():
            replica = self._replicas.get(name)
            if replica is not None and found != replica.others:
                replica.others, replica.view = found, None

    def view(self, replica_id: str) -> ReplicaView:
        return view_of(self._replicas[replica_id], self.clock())

    def given(self, replica_id: str) -> Given:
        """What was sent to a replica since the start."""
        return self._replicas[replica_id].given

    def set_pace(self, replica_id: str, pace: Pace) -> None:
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.pace, replica.view = pace, None

    def report_health(self, replica_id: str, *, alive: bool) -> None:
        """What an active check found: hard evidence both ways."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        was_out = not replica.breaker.closed
        replica.alive, replica.view = alive, None
        replica.breaker.record_health(self.clock(), alive)
        if was_out and replica.breaker.closed:
            self._returned(replica)

    def update_facts(self, replica_id: str, facts: Facts) -> None:
        """What a page of the engine told."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        if facts.process_start_s is not None and replica.begins(facts.process_start_s):
            self._restarted(replica)
        was_asleep = replica.facts.asleep
        replica.facts, replica.view = facts.after(replica.facts), None
        if was_asleep and not replica.withdrawn:
            self._returned(replica)
        if facts.waiting is not None and facts.running is not None:
            inside = facts.waiting + facts.running
            unseen = max(0, inside - replica.inflight - replica.others.requests)
            replica.unseen = (replica.unseen[1], float(unseen))
        for follower in self._followers:
            follower.on_facts(replica.spec, facts)

    def set_pressure(self, replica_id: str, index: float | None) -> None:
        """Of its memory; see policies/pressure.py."""
        replica = self._replicas.get(replica_id)
        if replica is not None and replica.pressure != index:
            replica.pressure, replica.view = index, None

    def update_load(self, replica_id: str, report: LoadReport) -> None:
        """What the engine told in the head of an answer, which may outlive its replica."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.facts, replica.view = replica.facts.reported(report, self.clock()), None

    def update_gpu(self, replica_id: str, facts: GpuFacts) -> None:
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        replica.gpu, replica.view = facts, None

    def facts(self, replica_id: str) -> tuple[Facts, GpuFacts]:
        """What engine and GPUs last said, however old."""
        replica = self._replicas[replica_id]
        return replica.facts, replica.gpu

    def alive(self, replica_id: str) -> bool:
        """Whether its breaker is closed and it answers its health checks."""
        replica = self._replicas[replica_id]
        return replica.alive and replica.breaker.closed

    def set_draining(self, replica_id: str, draining: bool) -> None:
        replica = self._replicas[replica_id]
        was = replica.withdrawn
        if draining and not replica.draining:
            replica.draining_since_s = self.clock()
        replica.draining, replica.view = draining, None
        if was and not replica.withdrawn:
            self._returned(replica)

    def bar(self, replica_id: str, reason: str) -> None:
        """Keeps a replica out for a reason, or with an empty one lets it in again."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.barred == reason:
            return
        was = replica.withdrawn
        replica.barred, replica.view = reason, None
        if was and not replica.withdrawn:
            self._returned(replica)

    def _returned(self, replica: Replica) -> None:
        self._even_out(replica)
        self._warm_up(replica)
        if replica.breaker.closed and not replica.withdrawn:
            for follower in self._followers:
                follower.on_return(replica.spec)

    def _warm_up(self, replica: Replica) -> None:
        now = self.clock()
        if now - self._began_s > self._slow_start_s > 0.0:
            replica.warming_s, replica.view = self._slow_start_s, None
            replica.warm_at_s = now + self._slow_start_s

    def _restarted(self, replica: Replica) -> None:
        """Counts stay: what is in flight was sent there and ends by itself."""
        logger.warning("%s was restarted: what was known of it is forgotten", replica.spec.id)
        replica.breaker.forget()
        replica.unseen, replica.facts = (0.0, 0.0), Facts()
        self._even_out(replica)
        self._warm_up(replica)
        for follower in self._followers:
            follower.on_restart(replica.spec)

    def overdue(self, drain_timeout_s: float) -> list[ReplicaSpec]:
        """Those that drain, or have left, and still have calls in flight after so long."""
        self._leaving = [one for one in self._leaving if one.inflight]
        draining = [one for one in self._replicas.values() if one.draining and one.inflight]
        latest_s = self.clock() - drain_timeout_s
        return [one.spec for one in (*draining, *self._leaving) if one.draining_since_s <= latest_s]

    def _even_out(self, replica: Replica) -> None:
        """Nothing was given to it while it was out. It starts with what the others of its model
        were given lately, or it would be given everything until it has as much."""
        now = self.clock()
        peers = [
            peer
            for peer in self._by_model[replica.spec.model]
            if peer is not replica and not peer.withdrawn and peer.breaker.allows(now)
        ]
        for one in (replica, *peers):
            one.fade(now)
        if peers:
            mean_s = sum(peer.recent_s for peer in peers) / len(peers)
            replica.recent_s = max(replica.recent_s, mean_s)

    def inflight(self) -> Mapping[str, int]:
        return {name: replica.inflight for name, replica in self._replicas.items()}

    def breaker_state(self, replica_id: str) -> str:
        return self._replicas[replica_id].breaker.state(self.clock())

    def totals(self, replica_id: str) -> tuple[int, int]:
        """(requests served, requests failed) since start."""
        replica = self._replicas[replica_id]
        return replica.served, replica.failed

    def judge(self, replica: Replica, error: BaseException | None) -> None:
        now, found = self.clock(), verdict(error)
        late = isinstance(error, SlowFirstToken)
        replica.view = None
        replica.served += late or found == "success"
        replica.failed += not late and found in ("failure", "hard")
        if found in ("success", "hard"):
            replica.alive = found == "success"
        may_open = found != "failure" or self._may_open(replica, now, error)
        was_out = not replica.breaker.closed
        replica.breaker.record(found, now, may_open=may_open)
        if was_out and replica.breaker.closed:
            self._returned(replica)

    def _may_open(self, replica: Replica, now: float, error: BaseException | None) -> bool:
        """Statistics never take out the last of a model, and at most half of a tier: what fails
        everywhere is no replica's fault. More only where another of the model answers nearly
        always, so that the fault must be the replica's, and not for slowness: that is load, and
        would go on to the next. Answers that come late speak against a replica only while most
        others are well."""
        peers = [r for r in self._replicas.values() if r.spec.tier == replica.spec.tier]
        others = [r for r in peers if r is not replica]
        same = [r for r in others if r.spec.model == replica.spec.model]
        if not any(r.breaker.allows(now) for r in same):
            return False
        reliable = sum(r.breaker.reliable(now) for r in same)
        if isinstance(error, SlowFirstToken) and 2 * reliable < len(same):
            return False
        out = sum(1 for r in others if not r.breaker.allows(now))
        proven = reliable > 0 and not isinstance(error, UpstreamTimeout | SlowFirstToken)
        return proven or may_open(out, len(peers))
