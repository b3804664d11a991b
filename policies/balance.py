"""The balancer's engine: filters, then weighted scorers, then deratings, then a picker.

    score(replica) = sum(weight * clamp(scorer(replica), 0, 1)) / sum(weight)
                     * product(clamp(derating(replica), 0, 1))

The engine sorts the replicas by id before anything looks at them, so permuting them never
changes a choice, and it clamps every score (NaN counts as 0), so one wild scorer cannot
outvote the rest. It holds no state: round robin's counter and the random draw come with the
question. What is returned is an order, not a choice: the next candidate is the failover.

A derating is a scorer that multiplies instead of adding: where scores are 1 / (1 + seconds), a
derating of 0.5 makes a loaded replica count as half as fast, and an idle one as one second away.
Reasons, predictions and costs are given with the first `EXPLAINED` candidates only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tierway.policies.filters import FILTERS, sift
from tierway.policies.protocols import Filter, Picker, Scorer
from tierway.policies.types import BalanceAsk, Candidate, Cost, Ranking, ReplicaView

EXPLAINED = 4

Predict = Callable[[BalanceAsk, ReplicaView, float], tuple[float, float, Cost | None]]
"""(ttft_s, tpot_s, cost) of a call on a replica which has this score; see Candidate."""


@dataclass(slots=True)
class Policy:
    """A balancing policy as a value; `scorers` are (scorer, weight), weights >= 0.

    Without scorers (or with weights of 0 only) every replica scores 0 and the picker decides.
    """

    name: str
    picker: Picker
    scorers: tuple[tuple[Scorer, float], ...] = ()
    filters: tuple[Filter, ...] = FILTERS
    deratings: tuple[Scorer, ...] = ()
    predict: Predict | None = None

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        """All replicas that may take the call, best first; none if none may. The only one
        left needs no score: it has 1 and no reasons."""
        kept, excluded = sift(ask, views, self.filters)
        if len(kept) < 2:
            alone = tuple(self._candidate(ask, view, 1.0, {}) for view in kept)
            return Ranking(alone, excluded, self.name)
        parts = {scorer.name: _clamped(scorer.score(ask, kept)) for scorer, _ in self.scorers}
        deratings = {scorer.name: _clamped(scorer.score(ask, kept)) for scorer in self.deratings}
        scores = self._scores(parts, deratings, len(kept))
        order = self.picker.order(ask, list(zip(kept, scores, strict=True)))
        reasons = parts | deratings
        told = [
            self._candidate(ask, kept[i], scores[i], {name: s[i] for name, s in reasons.items()})
            for i in order[:EXPLAINED]
        ]
        told += [Candidate(kept[i].id, scores[i]) for i in order[EXPLAINED:]]
        return Ranking(tuple(told), excluded, self.name)

    def _scores(
        self,
        parts: Mapping[str, Sequence[float]],
        deratings: Mapping[str, Sequence[float]],
        count: int,
    ) -> list[float]:
        total = sum(weight for _, weight in self.scorers)
        if total <= 0.0:
            return [0.0] * count
        weighed = [(weight / total, parts[scorer.name]) for scorer, weight in self.scorers]
        if len(weighed) == 1:
            scores = list(weighed[0][1])
        else:
            scores = [min(1.0, sum(w * s[i] for w, s in weighed)) for i in range(count)]
        if not deratings:
            return scores
        factors = map(prod, zip(*deratings.values(), strict=True))
        return [score * factor for score, factor in zip(scores, factors, strict=True)]

    def _candidate(
        self, ask: BalanceAsk, view: ReplicaView, score: float, reasons: Mapping[str, float]
    ) -> Candidate:
        if self.predict is None:
            return Candidate(view.id, score, reasons)
        return Candidate(view.id, score, reasons, *self.predict(ask, view, score))


def _clamped(scores: Sequence[float]) -> list[float]:
    return [min(1.0, score) if score > 0.0 else 0.0 for score in scores]
