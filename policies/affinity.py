"""Affinity to KV caches, bounded by load: what the `prefix` policy scores.

A replica that holds leading tokens of the prompt scores the share that it holds,

    (cached - common) / (prompt - common)

and 0 when that is less than `min_match_tokens`, or when the work in flight there (in seconds, see
work.py) is more than

    bound * mean work in flight + what this call would add

Affinity starts after the `common` tokens, those that everybody shares: one system prompt must not
send all to one replica. A minimum only keeps a match from counting; what is dispatched is always
entered into the index. The bound measures replicas against the mean, so when load is skewed those
near the least loaded keep their affinity, and only the crowded ones lose it. Where no replica
scores, the call goes to the one with the least work, whatever its cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierway.policies.types import BalanceAsk, Cost, ReplicaView
from tierway.policies.work import PredictedWork, expected


@dataclass(frozen=True, slots=True)
class PrefixOptions:
    """The options of `prefix`; those of its load are as in `global_least_request`."""

    min_match_tokens: float = 64.0
    bound: float = field(default=2.0, metadata={"least": 1.0})
    batch: float = field(default=16.0, metadata={"least": 1.0})
    kv_s: float = 0.15
    recent_weight: float = 0.02
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})

    def work(self) -> PredictedWork:
        return PredictedWork(self.batch, self.kv_s, self.recent_weight, self.fresh_s)


@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """The share of the prompt, in [0, 1], that a replica holds and is not too busy to use."""

    name = "prefix"

    min_match_tokens: float
    bound: float
    work: PredictedWork

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        shares = [self._share(ask, view) for view in views]
        if not any(shares):
            return shares
        ahead = self.work.ahead_s(ask, views)
        most_s = self.bound * sum(ahead) / len(ahead)
        return [
            share if share and load_s <= most_s + self.work.alike_s(ask, view) else 0.0
            for share, load_s, view in zip(shares, ahead, views, strict=True)
        ]

    def _share(self, ask: BalanceAsk, view: ReplicaView) -> float:
        common = max(0, ask.common_tokens)
        match = min(ask.cached.get(view.id, 0), ask.prompt_tokens) - common
        if match < max(1.0, self.min_match_tokens):
            return 0.0
        return min(1.0, match / max(1, ask.prompt_tokens - common))


@dataclass(frozen=True, slots=True)
class LeastWork:
    """1 / (1 + predicted seconds of work, the call's included), without regard to caches."""

    name = "load"

    work: PredictedWork

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 / (1.0 + seconds) for seconds in self.work.work_s(ask, views, reuse=False)]

    def predict(
        self, ask: BalanceAsk, view: ReplicaView, score: float
    ) -> tuple[float, float, Cost | None]:
        """Without a cost: other gateways' counts must not undo an affinity."""
        return *expected(ask, view), None
