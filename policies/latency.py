"""The `llm` policy: one score in seconds for each replica, and the prediction it rests on.

What a replica's `Pace` predicts for a call with `own` uncached prompt tokens, behind `pending`
others, beside n requests in flight:

    step   pace.step_s + n * pace.request_s + pace.context_s * (KV tokens of all)
    ttft   pace.first_s + (pending + own) * pace.prefill_s + wait for KV memory
    tpot   step

The cost that orders the replicas is

    cost = ttft / speed
         + surcharge' * own private tokens * reference prefill_s
         + output_weight * expected output * tpot / speed * (n + 1 + spread) / (mean n + 1 + spread)
         + kv_full_s * max(0, KV use with this call - 0.9) + recent_weight * recent work

    surcharge' = surcharge + crowding * (mean seconds of prompts waiting per replica)

Charging a call's own uncached tokens several times keeps sessions with their KV cache: computed
anew they cost this call, everybody behind it, and the memory of what they displace. The longer
the queues, the more calls stand behind; where greedy prediction spreads long sessions over all
caches in overload, the crowding term keeps them. The surcharge is in seconds of the reference
(the fleet's mean) and not of the replica, or slow replicas would bind their sessions most. What
everybody shares is charged once: a second copy of a system prompt is soon paid back.

`(n + 1 + spread) / (mean n + 1 + spread)` makes decoding dearer where more is in flight, so that
slower replicas get their part and the fleet is used evenly; a small `spread` evens more.
`recent_weight` breaks ties: calls that come one by one find nothing in flight, and would all
meet on one replica.

`speed` is the operator's weight, halved towards a GPU's limit of temperature or while it says
that it throttles; lasting slowness shows in the pace. Facts older than `fresh_s` are unknown:
KV use is then taken from the gateways' own counts, requests of others as none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tierway.policies.balance import FILTERS
from tierway.policies.types import BalanceAsk, Candidate, Cost, Pace, Ranking, ReplicaView

_HOT_CELSIUS = 85.0
_HALF_SPEED_CELSIUS = 95.0
_LEAST_SPEED = 1e-3
_KV_FULL = 0.9
_EXPLAINED = 4
RECENT_HALF_LIFE_S = 10.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds: `queue_s` for the prompts before it, `own_s` for its own uncached one, `kv_s`
    for KV memory, `step_s` of a step with it in the batch."""

    first_s: float
    queue_s: float
    own_s: float
    kv_s: float
    step_s: float

    @property
    def ttft_s(self) -> float:
        return self.first_s + self.queue_s + self.own_s + self.kv_s


def step_s(pace: Pace, others: float, context_tokens: float) -> float:
    """One step of a batch of `others` + 1 requests."""
    return pace.step_s + others * pace.request_s + context_tokens * pace.context_s


def forecast(ask: BalanceAsk, view: ReplicaView, unseen: float | None = None) -> Forecast:
    """What the pace of a replica predicts for a call there, as things are. `unseen` takes the
    place of the view's own."""
    pace = view.pace
    cached = min(ask.cached.get(view.id, 0), ask.prompt_tokens - 1)
    own = max(1, ask.prompt_tokens - max(0, cached))
    others = max(0, view.inflight) + (view.unseen if unseen is None else unseen)
    context = max(0, view.context_tokens) + ask.prompt_tokens + ask.output_tokens / 2
    step = step_s(pace, others, context)
    return Forecast(
        first_s=pace.first_s,
        queue_s=max(0, view.prefill_tokens) * pace.prefill_s,
        own_s=own * pace.prefill_s,
        kv_s=_kv_wait_s(ask, view, step),
        step_s=step,
    )


def _kv_wait_s(ask: BalanceAsk, view: ReplicaView, step: float) -> float:
    """Until enough of the others have ended to make room, each of them halfway on average."""
    capacity = view.kv_capacity_tokens
    if not capacity or view.inflight <= 0:
        return 0.0
    needed = view.context_tokens + ask.prompt_tokens - capacity
    if needed <= 0:
        return 0.0
    mean_output = view.output_tokens / view.inflight
    return min(1.0, needed / max(1, view.context_tokens)) * mean_output / 2 * step


@dataclass(frozen=True, slots=True)
class LlmPolicy:
    """The policy of that name; the fields are its options, all >= 0. See the module."""

    surcharge: float = 3.0
    crowding: float = 1.0
    output_weight: float = 0.05
    spread: float = 4.0
    kv_full_s: float = 20.0
    recent_weight: float = 0.02
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    name = "llm"

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        """All replicas that may take the call, the cheapest first."""
        kept, excluded = _sift(ask, views)
        if not kept:
            return Ranking((), excluded, self.name)
        unseen = self._unseen(ask, kept)
        shared = _Shared.of(kept, unseen, self)
        prices = [
            self._price(ask, view, more, shared) for view, more in zip(kept, unseen, strict=True)
        ]
        candidates = tuple(
            prices[index].candidate(kept[index], explained=place < _EXPLAINED)
            for place, index in enumerate(_order(prices, ask.draw))
        )
        return Ranking(candidates, excluded, self.name)

    def _price(self, ask: BalanceAsk, view: ReplicaView, unseen: float, shared: _Shared) -> _Price:
        found = forecast(ask, view, unseen)
        speed = 1.0 / _slowness(view)
        cached = max(0, min(ask.cached.get(view.id, 0), ask.prompt_tokens - 1))
        private = ask.prompt_tokens - max(cached, min(ask.common_tokens, ask.prompt_tokens))
        others = max(0, view.inflight) + unseen
        even = (others + 1.0 + self.spread) / (shared.inflight + 1.0 + self.spread)
        decode = self.output_weight * ask.output_tokens * even / speed
        return _Price(
            forecast=found,
            wait_s=(found.ttft_s - found.own_s) / speed,
            own_s=found.own_s / speed + shared.surcharge * private * shared.prefill_s,
            decode_s=decode * found.step_s,
            kv_s=self.kv_full_s * self._kv_over(ask, view),
            recent_s=self.recent_weight * _recent_s(ask, view),
            request_s=decode * (view.pace.request_s + found.step_s / (others + 1.0 + self.spread)),
            prefill_token_s=view.pace.prefill_s / speed,
        )

    def _unseen(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> list[float]:
        """Requests from elsewhere; where facts are too old, what the others have on average, so
        that silence never looks like idleness."""
        known = [view.unseen for view in views if self._fresh(ask, view)]
        if len(known) == len(views):
            return known
        mean = sum(known) / len(known) if known else 0.0
        return [view.unseen if self._fresh(ask, view) else mean for view in views]

    def _fresh(self, ask: BalanceAsk, view: ReplicaView) -> bool:
        return view.facts_at_s is not None and ask.now_s - view.facts_at_s <= self.fresh_s

    def _kv_over(self, ask: BalanceAsk, view: ReplicaView) -> float:
        """How far the share of KV memory in use, this call's included, is above the limit."""
        capacity = view.kv_capacity_tokens
        if view.kv_usage is not None and self._fresh(ask, view):
            own = max(0, ask.prompt_tokens - ask.cached.get(view.id, 0))
            more = own + max(0, view.prefill_tokens)
            use = view.kv_usage + (more / capacity if capacity else 0.0)
        elif capacity:
            use = (view.context_tokens + ask.prompt_tokens) / capacity
        else:
            return 0.0
        return max(0.0, min(use, 2.0) - _KV_FULL)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What is the same for all replicas of one ranking."""

    inflight: float
    prefill_s: float
    surcharge: float

    @classmethod
    def of(cls, views: Sequence[ReplicaView], unseen: Sequence[float], rules: LlmPolicy) -> _Shared:
        count = len(views)
        prefill_s = sum(view.pace.prefill_s for view in views) / count
        waiting_s = sum(max(0, v.prefill_tokens) * v.pace.prefill_s for v in views) / count
        return cls(
            inflight=(sum(max(0, view.inflight) for view in views) + sum(unseen)) / count,
            prefill_s=prefill_s,
            surcharge=rules.surcharge + rules.crowding * waiting_s,
        )


@dataclass(frozen=True, slots=True)
class _Price:
    forecast: Forecast
    wait_s: float
    own_s: float
    decode_s: float
    kv_s: float
    recent_s: float
    request_s: float
    prefill_token_s: float

    @property
    def cost_s(self) -> float:
        return self.wait_s + self.own_s + self.decode_s + self.kv_s + self.recent_s

    def candidate(self, view: ReplicaView, *, explained: bool) -> Candidate:
        cost_s = self.cost_s
        if not explained:
            return Candidate(view.id, 1.0 / (1.0 + cost_s))
        return Candidate(
            view.id,
            1.0 / (1.0 + cost_s),
            {
                "wait": 1.0 / (1.0 + self.wait_s),
                "prompt": 1.0 / (1.0 + self.own_s),
                "decode": 1.0 / (1.0 + self.decode_s),
                "kv": 1.0 / (1.0 + self.kv_s),
                "recent": 1.0 / (1.0 + self.recent_s),
            },
            ttft_s=self.forecast.ttft_s,
            tpot_s=self.forecast.step_s,
            cost=Cost(cost_s, self.request_s, self.prefill_token_s),
        )


def _sift(
    ask: BalanceAsk, views: Sequence[ReplicaView]
) -> tuple[list[ReplicaView], tuple[tuple[str, str], ...]]:
    kept: list[ReplicaView] = []
    excluded: list[tuple[str, str]] = []
    for view in views:
        if view.available and view.id not in ask.tried:
            kept.append(view)
        else:
            reasons = (item.excludes(ask, view) for item in FILTERS)
            excluded.append((view.id, next(text for text in reasons if text is not None)))
    return sorted(kept, key=lambda view: view.id), tuple(sorted(excluded))


def _order(prices: Sequence[_Price], draw: float) -> list[int]:
    """The cheapest first; equal costs (to a nanosecond) begin where the draw falls."""
    count = len(prices)
    first = int(draw * count)
    keys = [round(price.cost_s, 9) for price in prices]
    return sorted(range(count), key=lambda index: (keys[index], (index - first) % count))


def _recent_s(ask: BalanceAsk, view: ReplicaView) -> float:
    if view.recent_s <= 0.0:
        return 0.0
    age_s = max(0.0, ask.now_s - view.recent_at_s)
    return float(view.recent_s * 0.5 ** (age_s / RECENT_HALF_LIFE_S))


def _slowness(view: ReplicaView) -> float:
    """How many times slower than its pace a replica is taken to be, at least 1 for weight 1."""
    celsius = view.gpu_temperature_celsius
    heat = 0.0 if celsius is None else max(0.0, celsius - _HOT_CELSIUS)
    derating = max(0.5, 1.0 - 0.5 * heat / (_HALF_SPEED_CELSIUS - _HOT_CELSIUS))
    if view.gpu_throttled:
        derating = 0.5
    weight = view.weight if math.isfinite(view.weight) else 1.0
    return 1.0 / max(_LEAST_SPEED, weight * derating)
