"""The balancer's engine: filters, then weighted scorers, then a picker.

    score(replica) = sum(weight * clamp(scorer(replica), 0, 1)) / sum(weight)

The engine sorts the replicas by id before anything looks at them, so permuting them never
changes a choice, and it clamps every score (NaN counts as 0), so one wild scorer cannot
outvote the rest. It holds no state: round robin's counter and the random draw come with the
question. What is returned is an order, not a choice: the next candidate is the failover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tierway.policies.filters import Available, Untried
from tierway.policies.protocols import Filter, Picker, Scorer
from tierway.policies.types import BalanceAsk, Candidate, Ranking, ReplicaView

FILTERS: tuple[Filter, ...] = (Available(), Untried())


@dataclass(slots=True)
class Policy:
    """A balancing policy as a value; `scorers` are (scorer, weight), weights >= 0.

    Without scorers (or with weights of 0 only) every replica scores 0 and the picker decides.
    """

    name: str
    picker: Picker
    scorers: tuple[tuple[Scorer, float], ...] = ()
    filters: tuple[Filter, ...] = FILTERS

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        """All replicas that may take the call, best first; none if none may. The only one
        left needs no score: it has 1 and no reasons."""
        kept, excluded = self._sift(ask, sorted(views, key=lambda view: view.id))
        if len(kept) < 2:
            return Ranking(tuple(Candidate(view.id, 1.0) for view in kept), excluded, self.name)
        parts = {scorer.name: _clamped(scorer.score(ask, kept)) for scorer, _ in self.scorers}
        scores = self._sums(parts, len(kept))
        order = self.picker.order(ask, list(zip(kept, scores, strict=True)))
        candidates = tuple(_candidate(kept[i], scores[i], parts, i) for i in order)
        return Ranking(candidates, excluded, self.name)

    def _sift(
        self, ask: BalanceAsk, views: Sequence[ReplicaView]
    ) -> tuple[list[ReplicaView], tuple[tuple[str, str], ...]]:
        kept: list[ReplicaView] = []
        excluded: list[tuple[str, str]] = []
        for view in views:
            reasons = (item.excludes(ask, view) for item in self.filters)
            reason = next((text for text in reasons if text is not None), None)
            if reason is None:
                kept.append(view)
            else:
                excluded.append((view.id, reason))
        return kept, tuple(excluded)

    def _sums(self, parts: Mapping[str, Sequence[float]], count: int) -> list[float]:
        total = sum(weight for _, weight in self.scorers)
        if total <= 0.0:
            return [0.0] * count
        return [
            sum(weight * parts[scorer.name][i] for scorer, weight in self.scorers) / total
            for i in range(count)
        ]


def _clamped(scores: Sequence[float]) -> list[float]:
    return [min(1.0, score) if score > 0.0 else 0.0 for score in scores]


def _candidate(
    view: ReplicaView, score: float, parts: Mapping[str, Sequence[float]], index: int
) -> Candidate:
    reasons = {name: values[index] for name, values in parts.items()}
    return Candidate(view.id, min(1.0, max(0.0, score)), reasons)
