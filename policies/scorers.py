"""Scorers of the balancer: one number in [0, 1] per replica, higher is better.

`LeastRequest` and `Rendezvous` are the plain ones. `ExpectedWait` is the LLM-aware default:
it predicts, in seconds, how long a call waits for its first token,

    wait = ((pending + own) / prefill_tokens_per_s + requests * request_s) / speed
           + surcharge * own / prefill_tokens_per_s
           + kv_full_s * max(0, kv_usage - 0.9)

    pending   prompt tokens in flight, plus `unseen_tokens` for every request the engine
              reports and no gateway has in flight
    own       the prompt's tokens, times 1 - reuse where the session lives
    requests  this one, those in flight and the unseen ones
    speed     weight * derating; a GPU hotter than 85 C counts as slower, half at 95 C

and scores 1 / (1 + wait). Charging a call's own uncached tokens several times keeps sessions
with their KV cache without following it into a queue: in simulation a surcharge of 3 was
best or near it on chat, shared-document and agent traces, when time is divided by the speed
of the replica and the surcharge is not. A session lives where
rendezvous hashing puts it, among the replicas with at most `bound` times the mean number of
requests (plus one), so load breaks the tie and the same second place is found every time.

Engine facts lag behind, and replicas chosen by lagging facts herd: they only add what the
gateways' own counts cannot know, fading out over `fresh_s`. A replica without fresh facts is
taken to have what the others have on average, so silence never looks like idleness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from tierway.policies.types import BalanceAsk, ReplicaView

_HOT_CELSIUS = 85.0
_HALF_SPEED_CELSIUS = 95.0
_LEAST_SPEED = 1e-3


@dataclass(frozen=True, slots=True)
class LeastRequest:
    """1 / (1 + requests in flight), counted over all gateways."""

    name = "least_request"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 / (1.0 + max(0, view.inflight)) for view in views]


@dataclass(frozen=True, slots=True)
class WeightedLeastRequest:
    """weight / (weight + requests in flight, this one included): the least load per weight."""

    name = "weighted_least_request"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [
            view.weight / (view.weight + 1.0 + max(0, view.inflight)) if view.weight > 0.0 else 0.0
            for view in views
        ]


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Highest random weight (Thaler and Ravishankar 1998) on the session.

    A hash u of (session, replica), uniform in (0, 1), scores u ** (1 / weight), which wins
    with a share in proportion to the weight. A replica that leaves moves only its own
    sessions. A call without a session has no home and is spread by the draw.
    """

    name = "rendezvous"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        key = (ask.session or repr(ask.draw)).encode("utf-8", "surrogatepass")
        return [_hash_share(key, view) for view in views]


@dataclass(frozen=True, slots=True)
class ExpectedWait:
    """1 / (1 + predicted seconds to the first token); the formula heads this module.

    The fields are the `options` of the `llm` policy, all >= 0. `prefill_tokens_per_s` 7,000
    is about a 70B class on four large GPUs, `request_s` what one more running request adds.
    """

    name = "expected_wait"

    prefill_tokens_per_s: float = field(default=7000.0, metadata={"above": 0.0})
    request_s: float = 0.02
    unseen_tokens: float = 500.0
    surcharge: float = 3.0
    reuse: float = field(default=0.8, metadata={"most": 1.0})
    bound: float = field(default=2.0, metadata={"least": 1.0})
    kv_full_s: float = 20.0
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 / (1.0 + wait_s) for wait_s in self.waits_s(ask, views)]

    def waits_s(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> list[float]:
        """The predicted wait per view, in seconds."""
        if not views:
            return []
        unseen = self._from_engine(ask, views, _unseen)
        kv_over = self._from_engine(ask, views, _kv_over)
        home = self._home(ask, views, unseen)
        return [
            self._wait_s(ask, view, unseen[index], kv_over[index], index == home)
            for index, view in enumerate(views)
        ]

    def _wait_s(
        self, ask: BalanceAsk, view: ReplicaView, unseen: float, kv_over: float, home: bool
    ) -> float:
        pending = max(0, view.inflight_tokens) + unseen * self.unseen_tokens
        own = max(0, ask.prompt_tokens) * (1.0 - self.reuse if home else 1.0)
        requests = 1.0 + max(0, view.inflight) + unseen
        work_s = (pending + own) / self.prefill_tokens_per_s + requests * self.request_s
        surcharge_s = self.surcharge * own / self.prefill_tokens_per_s
        return work_s / _speed(view) + surcharge_s + self.kv_full_s * kv_over

    def _home(
        self, ask: BalanceAsk, views: Sequence[ReplicaView], unseen: Sequence[float]
    ) -> int | None:
        if not ask.session:
            return None
        load = [max(0, view.inflight) + more for view, more in zip(views, unseen, strict=True)]
        most = self.bound * sum(load) / len(load) + 1.0
        shares = Rendezvous().score(ask, views)
        return max((i for i in range(len(views)) if load[i] <= most), key=lambda i: shares[i])

    def _from_engine(
        self,
        ask: BalanceAsk,
        views: Sequence[ReplicaView],
        read: Callable[[ReplicaView], float | None],
    ) -> list[float]:
        """What `read` finds in the facts, faded by age towards the average of the others."""
        trust = [self._trust(view, ask.now_s) for view in views]
        found = [
            read(view) if share > 0.0 else None for view, share in zip(views, trust, strict=True)
        ]
        known = [value for value in found if value is not None]
        mean = sum(known) / len(known) if known else 0.0
        return [
            mean if value is None else share * value + (1.0 - share) * mean
            for value, share in zip(found, trust, strict=True)
        ]

    def _trust(self, view: ReplicaView, now_s: float) -> float:
        age_s = math.inf if view.facts_at_s is None else now_s - view.facts_at_s
        if not age_s <= self.fresh_s:
            return 0.0
        return 1.0 - 0.5 * max(0.0, age_s) / self.fresh_s


def _hash_share(key: bytes, view: ReplicaView) -> float:
    if view.weight <= 0.0:
        return 0.0
    digest = blake2b(key + b"\0" + view.id.encode("utf-8", "surrogatepass"), digest_size=8)
    uniform = (int.from_bytes(digest.digest(), "big") + 0.5) / 2.0**64
    return float(uniform ** (1.0 / view.weight))


def _unseen(view: ReplicaView) -> float | None:
    """Requests inside the engine that no gateway counts: traffic from elsewhere."""
    if view.waiting is None and view.running is None:
        return None
    inside = max(0, view.waiting or 0) + max(0, view.running or 0)
    return float(max(0, inside - max(0, view.inflight)))


def _kv_over(view: ReplicaView) -> float | None:
    return None if view.kv_usage is None else max(0.0, min(view.kv_usage, 1.0) - 0.9)


def _speed(view: ReplicaView) -> float:
    celsius = view.gpu_temperature_celsius
    heat = 0.0 if celsius is None else max(0.0, celsius - _HOT_CELSIUS)
    derating = max(0.5, 1.0 - 0.5 * heat / (_HALF_SPEED_CELSIUS - _HOT_CELSIUS))
    weight = view.weight if math.isfinite(view.weight) else 1.0
    return max(_LEAST_SPEED, weight * derating)
