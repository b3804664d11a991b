"""Work in flight, in seconds of each replica's own pace: what `global_least_request` counts.

Requests are a poor measure of load: one may have 50 tokens and another 20,000. The work that a
replica has, this call included, is

    ahead = read(prefill_tokens) + output_tokens * token_s
            + inflight * request_s * expected output
            + unseen * (read(prompt) + expected output * token_s)
    own   = read(uncached prompt) + expected output * token_s
    work  = (ahead + own) / weight + kv_s * pressure(KV use) + recent_weight * recent work

    read    = Pace.read_s of so many prompt tokens
    token_s = step_s / batch + request_s           GPU time of one output token
    pressure(k) = k / (1 - k), beyond k = 0.95 its tangent

with all counts over all gateways. Decoding shares its steps: `batch` is how many requests share
one, a constant, or each further request would seem to make the others cheaper. Requests that the
engine tells of and no gateway sent (`unseen`) are taken to be like this call. `recent_weight`
breaks ties: calls that come one by one find nothing in flight, and would all meet on one replica.
The score is 1 / (1 + work).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierway.policies.latency import PAID_BACK, forecast_parts
from tierway.policies.readings import filled, kv_use, recent_s, unseen, weight
from tierway.policies.types import BalanceAsk, Cost, Pace, ReplicaView

_KV_BEND = 0.95
_KV_SLOPE = 1.0 / (1.0 - _KV_BEND) ** 2


@dataclass(frozen=True, slots=True)
class PredictedWork:
    """1 / (1 + predicted seconds of work, this call included); the formula heads the module.

    The fields are the options of `global_least_request`.
    """

    name = "work"

    batch: float = field(default=16.0, metadata={"least": 1.0})
    kv_s: float = 0.15
    recent_weight: float = 0.02
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 / (1.0 + seconds) for seconds in self.work_s(ask, views)]

    def work_s(
        self, ask: BalanceAsk, views: Sequence[ReplicaView], *, reuse: bool = True
    ) -> list[float]:
        """Seconds by replica; without `reuse` as if nobody held anything of the prompt."""
        cached, tokens = ask.cached if reuse else {}, max(1, ask.prompt_tokens)
        output, batch = max(0, ask.output_tokens), self.batch
        found = []
        for view, ahead_s in zip(views, self.ahead_s(ask, views), strict=True):
            pace = view.pace
            own = max(1, tokens - max(0, cached.get(view.id, 0)))
            own_s = pace.read_s(own, own * (tokens - own / 2))
            own_s += output * (pace.step_s / batch + pace.request_s)
            seconds = ahead_s + own_s / weight(view)
            if view.recent_s > 0.0:
                seconds += self.recent_weight * recent_s(ask, view)
            found.append(seconds)
        if self.kv_s > 0.0:
            use = filled([kv_use(ask, view, self.fresh_s) for view in views])
            found = [s + self.kv_s * pressure(k) for s, k in zip(found, use, strict=True)]
        return found

    def ahead_s(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> list[float]:
        """Seconds of work in flight by replica, without this call."""
        output, batch = max(0, ask.output_tokens), self.batch
        found = []
        for view, more in zip(views, unseen(ask, views, self.fresh_s), strict=True):
            pace = view.pace
            token_s = pace.step_s / batch + pace.request_s
            seconds = (
                pace.read_s(view.prefill_tokens, view.prefill_pairs)
                + view.output_tokens * token_s
                + view.inflight * pace.request_s * output
            )
            if more > 0.0:
                seconds += more * self.alike_s(ask, view)
            found.append(seconds / weight(view) if seconds > 0.0 else 0.0)
        return found

    def alike_s(self, ask: BalanceAsk, view: ReplicaView) -> float:
        """The work of a call like this one there, nothing of it being cached."""
        tokens = max(1, ask.prompt_tokens)
        own_s = view.pace.read_s(tokens, tokens * tokens / 2)
        return own_s + max(0, ask.output_tokens) * self._token_s(view.pace)

    def predict(
        self, ask: BalanceAsk, view: ReplicaView, score: float
    ) -> tuple[float, float, Cost | None]:
        pace, speed = view.pace, weight(view)
        cost = Cost(
            base_s=1.0 / max(score, 1e-9) - 1.0,
            request_s=pace.request_s * max(0, ask.output_tokens) / speed,
            prefill_token_s=pace.prefill_s / speed,
            output_token_s=self._token_s(pace) / speed,
        )
        return *expected(ask, view), cost

    def _token_s(self, pace: Pace) -> float:
        return pace.step_s / self.batch + pace.request_s


@dataclass(frozen=True, slots=True)
class Completion:
    """1 / (1 + predicted seconds until the answer is complete), by the learnt pace:

        (ttft + expected output * seconds per token) / weight + recent_weight * recent work

    with the forecast of latency.py, where reading what everybody shares counts a tenth: others
    follow who need not. Greedy: it looks at this call only, not at what the choice
    costs others, so `llm` is better under load. The fields are the options of
    `predicted_latency`.
    """

    name = "completion"

    recent_weight: float = 0.02
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        more, output = unseen(ask, views, self.fresh_s), max(0, ask.output_tokens)
        common = min(ask.common_tokens, ask.prompt_tokens)
        scores = []
        for view, count in zip(views, more, strict=True):
            first_s, queue_s, own_s, kv_s, step_s = forecast_parts(ask, view, count)
            if ask.cached.get(view.id, 0) < common:
                own_s -= PAID_BACK * _common_s(ask, view, own_s)
            seconds = (first_s + queue_s + own_s + kv_s + output * step_s) / weight(view)
            if view.recent_s > 0.0:
                seconds += self.recent_weight * recent_s(ask, view)
            scores.append(1.0 / (1.0 + max(0.0, seconds)))
        return scores

    def predict(
        self, ask: BalanceAsk, view: ReplicaView, score: float
    ) -> tuple[float, float, Cost | None]:
        speed = weight(view)
        cost = Cost(
            base_s=1.0 / max(score, 1e-9) - 1.0,
            request_s=view.pace.request_s * max(0, ask.output_tokens) / speed,
            prefill_token_s=view.pace.prefill_s / speed,
        )
        return *expected(ask, view), cost


def _common_s(ask: BalanceAsk, view: ReplicaView, own_s: float) -> float:
    """How much of the time to read its own prompt goes to what everybody shares, where the
    replica does not hold all of that."""
    tokens = ask.prompt_tokens
    private = max(0, tokens - ask.common_tokens)
    return max(0.0, own_s - view.pace.read_s(private, private * (tokens - private / 2)))


def expected(ask: BalanceAsk, view: ReplicaView) -> tuple[float, float]:
    """The predicted seconds to the first token, and from each to the next."""
    first_s, queue_s, own_s, kv_s, step_s = forecast_parts(ask, view, view.unseen)
    return first_s + queue_s + own_s + kv_s, step_s


def pressure(use: float) -> float:
    """What a share of KV memory in use weighs: nothing at 0, 1 at a half, 19 at 0.95."""
    if use <= _KV_BEND:
        return use / (1.0 - use)
    return _KV_BEND / (1.0 - _KV_BEND) + _KV_SLOPE * (use - _KV_BEND)
