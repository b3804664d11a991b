"""The `llm` policy: one score in seconds for each replica, and the prediction it rests on.

What a replica's `Pace` predicts for a call with `own` uncached prompt tokens, behind `pending`
others, beside n requests in flight:

    step   pace.step_s + n * pace.request_s + pace.context_s * (KV tokens of all)
    ttft   pace.first_s + time to read pending + own + wait for KV memory
    tpot   step

The cost that orders the replicas is

    cost = ttft / speed
         + surcharge * time to read own private tokens at the reference pace
         + output_weight * expected output * tpot / speed * (n + 1 + spread) / (mean n + 1 + spread)
         + kv_full_s * max(0, KV use with this call - 0.9) + recent_weight * recent work
         + seconds for another zone or group (topology.py)
         + pressure_s * memory pressure * (1 + tenths of the KV memory that this call will hold)

Charging a call's own uncached tokens several times keeps sessions with their KV cache: computed
anew they cost this call, everybody behind it, and the memory of what they displace. The surcharge
is in seconds of the reference (the fleet's mean) and not of the replica, or slow replicas would
bind their sessions most. What everybody shares is charged once and at a tenth: a second copy of a
system prompt is soon paid back.

`(n + 1 + spread) / (mean n + 1 + spread)` makes decoding dearer where more is in flight, so that
slower replicas get their part and the fleet is used evenly; a small `spread` evens more.
`recent_weight` breaks ties: calls that come one by one find nothing in flight, and would all
meet on one replica. Recent work is told per request in flight on the fleet's mean replica, so it is
at most about the time that has passed, and no more noise in overload than in a trickle.

A replica whose memory is under pressure (pressure.py) gets fewer calls, and the long ones leave
first. `speed` is the operator's weight, halved towards a GPU's limit of temperature or while it
says that it throttles; lasting slowness shows in the pace. Facts older than `fresh_s` are unknown:
KV use is then taken from the gateways' own counts where the room is known, and else, like requests
of others, as with the other replicas on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierway.policies.filters import sift
from tierway.policies.readings import filled, kv_use, recent_s, unseen
from tierway.policies.topology import distance_s
from tierway.policies.types import (
    GPU_FRESH_S,
    BalanceAsk,
    Candidate,
    Cost,
    Pace,
    Ranking,
    ReplicaView,
)

_HOT_CELSIUS = 85.0
_HALF_SPEED_CELSIUS = 95.0
_LEAST_SPEED = 1e-3
_MOST_WEIGHT = 1e9
_KV_FULL = 0.9
_USUAL_KV_TOKENS = 100_000
_EXPLAINED = 4
PAID_BACK = 0.9  # of computing anew what everybody shares, by those who come later


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


def forecast(ask: BalanceAsk, view: ReplicaView) -> Forecast:
    """What the pace of a replica predicts for a call there, as things are."""
    return Forecast(*forecast_parts(ask, view, view.unseen))


def forecast_parts(
    ask: BalanceAsk, view: ReplicaView, unseen: float
) -> tuple[float, float, float, float, float]:
    """The fields of a Forecast; making one for each replica would cost more than all the rest."""
    pace = view.pace
    cached = ask.cached.get(view.id, 0)
    own = ask.prompt_tokens - cached if cached > 0 else ask.prompt_tokens
    context = view.context_tokens + ask.prompt_tokens
    step = step_s(pace, view.inflight + unseen, context + ask.output_tokens / 2)
    kv_s = 0.0
    if view.kv_capacity_tokens and context > view.kv_capacity_tokens and view.inflight > 0:
        kv_s = _kv_wait_s(view, context - view.kv_capacity_tokens, step)
    own = max(1, own)
    own_s = own * (pace.prefill_s + pace.pair_s * (ask.prompt_tokens - own / 2))
    queue_s = view.prefill_tokens * pace.prefill_s + view.prefill_pairs * pace.pair_s
    return pace.first_s, queue_s, own_s, kv_s, step


def _kv_wait_s(view: ReplicaView, needed: int, step: float) -> float:
    """Until enough of the others have ended to free `needed` tokens, each halfway on average."""
    mean_output = view.output_tokens / view.inflight
    return min(1.0, needed / max(1, view.context_tokens)) * mean_output / 2 * step


@dataclass(frozen=True, slots=True)
class LlmPolicy:
    """The policy of that name; the fields are its options, all >= 0. See the module."""

    surcharge: float = 12.0
    output_weight: float = 0.3
    spread: float = 16.0
    kv_full_s: float = 20.0
    pressure_s: float = 2.0
    zone_s: float = 2.0
    group_s: float = 0.5
    recent_weight: float = 0.1
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    name = "llm"

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        """All replicas that may take the call, the cheapest first."""
        kept, excluded = sift(ask, views)
        if not kept:
            return Ranking((), excluded, self.name)
        prices = self._prices(ask, kept, unseen(ask, kept, self.fresh_s))
        order = _order(prices, ask.draw)
        best = [_candidate(kept[index], prices[index]) for index in order[:_EXPLAINED]]
        rest = [Candidate(kept[at].id, 1.0 / (1.0 + prices[at][0])) for at in order[_EXPLAINED:]]
        return Ranking((*best, *rest), excluded, self.name)

    def _prices(
        self, ask: BalanceAsk, views: Sequence[ReplicaView], others: Sequence[float]
    ) -> list[_Price]:
        count = len(views)
        token_s = self.surcharge * sum([view.pace.prefill_s for view in views]) / count
        pair_s = self.surcharge * sum([view.pace.pair_s for view in views]) / count
        crowd = sum([view.inflight for view in views]) + sum(others)
        even = self.output_weight * ask.output_tokens / (crowd / count + 1.0 + self.spread)
        tokens, shared = ask.prompt_tokens, min(ask.common_tokens, ask.prompt_tokens)
        cached_by, spread = ask.cached, 1.0 + self.spread
        overs = filled([self._kv_over(ask, view) for view in views])
        placed = bool(ask.zone or ask.groups)
        prices = []
        for view, more, over in zip(views, others, overs, strict=True):
            first_s, queue_s, own_s, kv_s, step = forecast_parts(ask, view, more)
            slow = 1.0 if _as_paced(view) else _slowness(ask, view)
            even_step = even * step * slow
            load = view.inflight + more + spread
            cached = cached_by.get(view.id, 0)
            private = max(0, tokens - (cached if cached > shared else shared))
            paid_s = own_s
            if cached < shared:
                pairs = private * (tokens - private / 2)
                paid_s -= PAID_BACK * (own_s - view.pace.read_s(private, pairs))
            wait_s = (first_s + queue_s + kv_s) * slow
            prompt_s = paid_s * slow
            if private > 0:
                prompt_s += private * (token_s + pair_s * (tokens - private / 2))
            decode_s = even_step * load
            full_s = self.kv_full_s * over
            if view.pressure:
                full_s += self.pressure_s * view.pressure * (1.0 + self._share(ask, view))
            if placed:
                wait_s += distance_s(ask, view, zone_s=self.zone_s, group_s=self.group_s)
            tie_s = self.recent_weight * recent_s(ask, view)
            cost_s = wait_s + prompt_s + decode_s + full_s + tie_s
            parts = (wait_s, prompt_s, decode_s, full_s, tie_s)
            more_s = even * load * view.pace.request_s * slow + even_step
            prices.append((cost_s, parts, first_s + queue_s + own_s + kv_s, step, more_s, slow))
        return prices

    def _share(self, ask: BalanceAsk, view: ReplicaView) -> float:
        """Of its KV memory that the call will hold, in tenths of it."""
        tokens = ask.prompt_tokens + ask.output_tokens
        return 10.0 * tokens / (view.kv_capacity_tokens or _USUAL_KV_TOKENS)

    def _kv_over(self, ask: BalanceAsk, view: ReplicaView) -> float | None:
        """How far the share of KV memory in use is above the limit; None where nothing tells it."""
        use = kv_use(ask, view, self.fresh_s)
        return None if use is None else max(0.0, use - _KV_FULL)


_Parts = tuple[float, float, float, float, float]
_Price = tuple[float, _Parts, float, float, float, float]
"""Seconds: the cost and its parts (wait, prompt, decode, kv, recent), the predicted first token
and step, what one more request there would add; and how many times slower than its pace the
replica is taken to be. Plain tuples: one choice makes many of them."""


def _candidate(view: ReplicaView, price: _Price) -> Candidate:
    cost_s, (wait_s, prompt_s, decode_s, kv_s, recent_s), ttft_s, step, request_s, slow = price
    reasons = {
        "wait": 1.0 / (1.0 + wait_s),
        "prompt": 1.0 / (1.0 + prompt_s),
        "decode": 1.0 / (1.0 + decode_s),
        "kv": 1.0 / (1.0 + kv_s),
        "recent": 1.0 / (1.0 + recent_s),
    }
    cost = Cost(cost_s, request_s, view.pace.prefill_s * slow)
    return Candidate(view.id, 1.0 / (1.0 + cost_s), reasons, ttft_s, step, cost)


def _order(prices: Sequence[_Price], draw: float) -> list[int]:
    """The cheapest first; equal costs (to a nanosecond) begin where the draw falls."""
    count = len(prices)
    first = int(draw * count)
    keys = [(round(price[0], 9), (at - first) % count, at) for at, price in enumerate(prices)]
    keys.sort()
    return [at for _, _, at in keys]


def _as_paced(view: ReplicaView) -> bool:
    """Nothing but its pace tells of the speed of a replica; so it is of nearly all."""
    celsius = view.gpu_temperature_celsius
    cool = celsius is None or celsius <= _HOT_CELSIUS
    return cool and view.weight == 1.0 and not view.gpu_throttled


def _slowness(ask: BalanceAsk, view: ReplicaView) -> float:
    """How many times slower than its pace a replica is taken to be."""
    celsius, weight = view.gpu_temperature_celsius, view.weight
    derating = 1.0
    if view.gpu_facts_at_s is None or ask.now_s - view.gpu_facts_at_s > GPU_FRESH_S:
        pass  # whether it is still hot is not known
    elif view.gpu_throttled:
        derating = 0.5
    elif celsius is not None and celsius > _HOT_CELSIUS:
        heat = celsius - _HOT_CELSIUS
        derating = max(0.5, 1.0 - 0.5 * heat / (_HALF_SPEED_CELSIUS - _HOT_CELSIUS))
    if not weight < _MOST_WEIGHT:
        weight = 1.0
    return 1.0 / max(_LEAST_SPEED, weight * derating)
