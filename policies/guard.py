"""A policy of others, held to the contract of a ranking.

Foreign code may raise anything and return anything. `Guarded` lets through what a dispatcher can
work with, and turns the rest into one exception; whoever ranks then takes the tier's plain policy.
A ranking is sound when every replica that may take the call is either a candidate, once, or left
out with a reason, when nobody else is a candidate, and when its numbers are finite. What a policy
costs in time is not bounded: it runs in the gateway's one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tierway.policies.protocols import BalancePolicy
from tierway.policies.types import BalanceAsk, Candidate, Ranking, ReplicaView

_LONGEST_TEXT = 200
_MOST_REASONS = 16


class PolicyFault(Exception):
    """A policy raised, or returned a ranking that cannot be used."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """`inner` under the name it was registered with; `rank` raises PolicyFault and nothing else."""

    name: str
    inner: BalancePolicy

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        try:
            ranking = self.inner.rank(ask, views)
            fault = ranking_fault(ranking, ask, views)
        except Exception as error:  # whatever the code of others does wrong is its own fault
            text = f"{type(error).__name__}: {error}"
            raise PolicyFault(text[:_LONGEST_TEXT]) from error
        if fault:
            raise PolicyFault(fault[:_LONGEST_TEXT])
        return Ranking(tuple(ranking.candidates), tuple(ranking.excluded), self.name)


def guarded(name: str, policy: BalancePolicy) -> Guarded:
    """`policy` under guard, once."""
    return policy if isinstance(policy, Guarded) else Guarded(name, policy)


def ranking_fault(ranking: object, ask: BalanceAsk, views: Sequence[ReplicaView]) -> str | None:
    """Why a ranking of these views cannot be used, or None."""
    if not isinstance(ranking, Ranking):
        return f"returned {type(ranking).__name__}, not a Ranking"
    chosen = [candidate.replica for candidate in ranking.candidates]
    if len(set(chosen)) < len(chosen):
        return "a replica is a candidate twice"
    may = {view.id for view in views if view.available and view.id not in ask.tried}
    if not may.issuperset(chosen):
        others = sorted(map(str, set(chosen) - may))
        return f"{others[0]} is a candidate and unknown, tried or unavailable"
    reasons = {str(replica): str(reason) for replica, reason in ranking.excluded}
    left = may.difference(chosen, (replica for replica, reason in reasons.items() if reason))
    if left:
        return f"{min(left)} is neither a candidate nor left out with a reason"
    return next(filter(None, map(_candidate_fault, ranking.candidates)), None)


def _candidate_fault(candidate: Candidate) -> str | None:
    cost, total = candidate.cost, candidate.score + candidate.ttft_s + candidate.tpot_s
    if cost is not None:
        total += cost.base_s + cost.request_s + cost.prefill_token_s + cost.output_token_s
    # Not finite where one of them is not; text among them raises, which is a fault as well.
    if not math.isfinite(total + sum(candidate.reasons.values())):
        return f"a number of {candidate.replica} is not finite"
    if candidate.ttft_s < 0 or candidate.tpot_s < 0:
        return f"a predicted time of {candidate.replica} is negative"
    if len(candidate.reasons) > _MOST_REASONS:
        return f"more than {_MOST_REASONS} reasons for {candidate.replica}"
    return None
