"""What a tier's shadow policy would have chosen, and which policies failed.

A shadow ranks the same question over the same snapshot as the policy in force, once for each
dispatch, and changes nothing; compared are the two first candidates. Counts are bounded by tiers
and by the names of policies. How often two policies agree is counted from the last change of the
tier on, as other options make another policy; the counters for metrics never fall.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tierway.policies.guard import PolicyFault
from tierway.policies.policyset import TierPolicy
from tierway.policies.types import BalanceAsk, Ranking, ReplicaView

logger = logging.getLogger(__name__)

Agreement = Literal["yes", "no", "error"]


@dataclass(frozen=True, slots=True)
class Shadowed:
    """What the shadow said of one dispatch; `replica` is empty where it named none."""

    tier: str
    policy: str
    replica: str
    agrees: Agreement
    pair: tuple[str, int]


@dataclass(slots=True)
class _Compared:
    """The counts of one pair: the policy in force, and the version that last changed the tier."""

    pair: tuple[str, int]
    counts: Counter[Agreement] = field(default_factory=Counter)


class Shadows:
    """`counts` are by tier, shadow and agreement, `faults` by tier and policy in force."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, Agreement]] = Counter()
        self.faults: Counter[tuple[str, str]] = Counter()
        self._compared: dict[str, _Compared] = {}
        self._told: dict[tuple[str, str], int] = {}

    def ask(
        self,
        tier: str,
        policies: TierPolicy,
        ask: BalanceAsk,
        views: Sequence[ReplicaView],
        ranking: Ranking,
    ) -> Shadowed | None:
        """What the tier's shadow would have done; None without one, and for nobody to choose."""
        shadow = policies.shadow
        if shadow is None or not ranking.candidates:
            return None
        pair = (ranking.policy, policies.since)
        try:
            found = shadow.rank(ask, views).candidates
        except PolicyFault as fault:
            self._tell("shadow", tier, shadow.name, policies.since, fault)
            return Shadowed(tier, shadow.name, "", "error", pair)
        replica = found[0].replica if found else ""
        chosen = ranking.candidates[0].replica
        return Shadowed(tier, shadow.name, replica, "yes" if replica == chosen else "no", pair)

    def count(self, shadowed: Shadowed) -> None:
        """One dispatch that was made."""
        self.counts[shadowed.tier, shadowed.policy, shadowed.agrees] += 1
        compared = self._compared.get(shadowed.tier)
        if compared is None or compared.pair != shadowed.pair:
            compared = self._compared[shadowed.tier] = _Compared(shadowed.pair)
        compared.counts[shadowed.agrees] += 1

    def failed(self, tier: str, policy: str, version: int, fault: PolicyFault) -> None:
        """The policy in force failed, and the plain one took its place."""
        self.faults[tier, policy] += 1
        self._tell("policy", tier, policy, version, fault)

    def state(self, tier: str, policies: TierPolicy) -> dict[str, Any] | None:
        """The tier's shadow for /admin/state; `agreement` is a share, None before a dispatch."""
        if policies.shadow is None:
            return None
        compared = self._compared.get(tier)
        current = compared is not None and compared.pair[1] == policies.since
        counts = compared.counts if compared is not None and current else Counter[Agreement]()
        answered = counts["yes"] + counts["no"]
        return {
            "policy": policies.shadow.name,
            "options": dict(policies.shadow_options),
            "dispatches": counts.total(),
            "errors": counts["error"],
            "agreement": round(counts["yes"] / answered, 4) if answered else None,
        }

    def _tell(self, what: str, tier: str, policy: str, version: int, fault: PolicyFault) -> None:
        """Once for each policy that was put in; what follows is counted only."""
        if self._told.get((tier, policy)) != version:
            self._told[tier, policy] = version
            logger.warning("tiers.%s: %s %s failed: %s", tier, what, policy, fault)
