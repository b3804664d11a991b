"""One replica: how it was configured, what is known of it and in flight there, and the view of
it that policies get. Only the fleet and its leases change one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from tierway.policies.readings import faded
from tierway.policies.resilience import Breaker
from tierway.policies.types import Counts, Pace, ReplicaView, Work
from tierway.router.facts import Facts, GpuFacts
from tierway.router.gpus import GpuSource

NOTHING = Counts()

_SAME_START_S = 1.0  # some exporters round, and clocks are set
_STARTS = 16

Given = tuple[int, float]
"""Uncached prompt tokens, and their pairs (see Work)."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as configured. `id` is stable: `model@host:port`. `group` names the replicas whose
    GPUs share a fast `fabric` (nvlink, rdma, tcp). `url` is the root below which
    health and metrics lie, `api_url` the configured one; `api_key_env` names the variable that
    holds its key."""

    id: str
    model: str
    tier: str
    url: str
    api_url: str = ""
    api_key_env: str = ""
    engine: str = "generic"
    weight: float = 1.0
    gpu: str = ""
    gpus: int = 1
    preallocates: bool = True
    telemetry: GpuSource | None = None
    node: str = ""
    zone: str = ""
    group: str = ""
    fabric: str = ""
    tp: int = 1
    pp: int = 1

    @property
    def place(self) -> tuple[str, ...]:
        """What makes it another replica when it changes."""
        return self.url, self.api_url, self.model, self.engine


@dataclass(slots=True)
class Replica:
    """`view` is what policies see, None when something of it has changed since it was made.
    `barred` is why it is kept out (it serves another model). `given` counts all uncached prompt
    tokens ever sent there and their pairs; `unseen` are the last two readings of how many
    requests the engine had beside those of all gateways: the lesser counts, as a page and the
    counts are never of quite the same moment."""

    spec: ReplicaSpec
    breaker: Breaker
    pace: Pace
    facts: Facts = field(default_factory=Facts)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    inflight: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    output_tokens: int = 0
    given: Given = (0, 0.0)
    others: Counts = NOTHING
    unseen: tuple[float, float] = (0.0, 0.0)
    recent_s: float = 0.0
    recent_at_s: float = 0.0
    unread: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    starts: tuple[float, ...] = ()
    served: int = 0
    failed: int = 0
    draining: bool = False
    barred: str = ""
    draining_since_s: float = 0.0
    warm_at_s: float = 0.0
    warming_s: float = 0.0
    pressure: float | None = None
    alive: bool = True
    view: ReplicaView | None = None

    @property
    def withdrawn(self) -> str:
        """Why nothing may go there whatever its breaker says; empty where it may."""
        if self.draining:
            return "draining"
        return self.barred or ("asleep" if self.facts.asleep else "")

    def begins(self, start_s: float) -> bool:
        """Whether this start is that of a process after others. Those that were seen before are no
        news: several engines may stand behind one address, and answer in turn."""
        known = any(abs(start_s - one) <= _SAME_START_S for one in self.starts)
        if not known:
            self.starts = (*self.starts[1 - _STARTS :], start_s)
        return not known and len(self.starts) > 1

    def fade(self, now: float) -> None:
        """Lets the recent work fade to this moment."""
        self.recent_s *= faded(now - self.recent_at_s)
        self.recent_at_s = now

    def book(self, work: Work, sign: int) -> None:
        self.inflight += sign
        self.prompt_tokens += sign * work.prompt_tokens
        self.output_tokens += sign * work.output_tokens
        self.view = None

    def counts(self) -> Counts:
        """What this gateway has in flight there."""
        return Counts(
            self.inflight,
            self.prompt_tokens,
            self.prefill_tokens,
            self.output_tokens,
            self.prompt_tokens + self.output_tokens,
        )


def view_of(replica: Replica, now: float) -> ReplicaView:
    while replica.unread and replica.unread[0][0] <= now:
        heapq.heappop(replica.unread)[2]()
    view = replica.view
    if view is None or not replica.breaker.closed:
        view = replica.view = _made(replica, now)
    return view


def _made(replica: Replica, now: float) -> ReplicaView:
    spec, facts, gpu, others = replica.spec, replica.facts, replica.gpu, replica.others
    reason = replica.withdrawn
    if not reason and not replica.breaker.allows(now):
        reason = f"breaker {replica.breaker.state(now)}"
    prompt_tokens = replica.prompt_tokens + others.prompt_tokens
    return ReplicaView(
        id=spec.id,
        model=spec.model,
        tier=spec.tier,
        inflight=replica.inflight + others.requests,
        inflight_tokens=prompt_tokens,
        prefill_tokens=replica.prefill_tokens + others.prefill_tokens,
        prefill_pairs=replica.prefill_pairs,
        output_tokens=replica.output_tokens + others.output_tokens,
        context_tokens=replica.prompt_tokens + replica.output_tokens + others.context_tokens,
        weight=spec.weight,
        available=not reason,
        unavailable_reason=reason,
        waiting=facts.waiting,
        running=facts.running,
        kv_usage=facts.kv_usage,
        kv_capacity_tokens=facts.kv_capacity_tokens,
        facts_at_s=facts.read_s,
        gpu=spec.gpu or gpu.model,
        gpus=spec.gpus,
        gpu_utilisation=gpu.utilisation,
        gpu_memory_used_bytes=gpu.memory_used_bytes,
        gpu_memory_bytes=gpu.memory_bytes,
        gpu_temperature_celsius=gpu.temperature_celsius,
        gpu_throttled=gpu.throttled,
        gpu_facts_at_s=gpu.read_s,
        preallocates=spec.preallocates,
        pace=replica.pace,
        unseen=min(replica.unseen),
        recent_s=replica.recent_s,
        recent_at_s=replica.recent_at_s,
        node=spec.node,
        zone=spec.zone,
        group=spec.group,
        warm_at_s=replica.warm_at_s,
        warming_s=replica.warming_s,
        pressure=replica.pressure,
        fabric=spec.fabric,
    )
