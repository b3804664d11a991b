"""From a call and its probabilities to the tiers that may answer it, in order.

1. names.py: what was asked for, everything (`auto`), a tier, or certain models.
2. limits.py: models that cannot take the call are dropped, and the decision says why.
3. For `auto`, the cheapest tier left with  p >= p_best - (1 - quality) ** 3  is chosen: with a
   quality of 1 only the best will do, with 0 any. The cube puts the middle of the dial at
   0.125, where small talk and look-ups stay on the smallest tier and exam questions spread over
   three (`bench/train_router.py --eval`). Without probabilities it is the middle tier.
4. The plan goes on with what the call may degrade to: other models of a pinned model's tier,
   the stronger tiers upwards, the weaker ones downwards, the cloud last.

Tiers known to be out are passed over unless nothing else is left; the plan is then as if they
were up, and whoever dispatches finds out. An embedding never moves to another model, since the
vectors of two models do not compare.

`reason` is one of the REASON_* constants here and in names.py; they label metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tierway.policies.limits import (
    EstimateTokens,
    estimated_tokens,
    needs,
    refusal,
    sift,
)
from tierway.policies.names import Aliases, Target, UnknownModel, resolve
from tierway.policies.types import Call, Tier, TierDecision, TierPlan

REASON_CLASSIFIER = "classifier"  # the rule chose among several tiers
REASON_ONLY_CHOICE = "only-choice"  # one tier was left by the limits
REASON_UNCLASSIFIED = "unclassified"  # there were no probabilities

UNAVAILABLE = "unavailable"
_CLOUD = "cloud"


def choose(
    call: Call,
    tiers: Sequence[Tier],
    probabilities: Mapping[str, float],
    *,
    quality: float,
    aliases: Aliases | None = None,
    unknown_model: UnknownModel = "reject",
    available: Collection[str] | None = None,
    placement: str = "prefer_on_prem",
    draw: float = 0.0,
    estimate_tokens: EstimateTokens = estimated_tokens,
    target: Target | None = None,
) -> TierDecision:
    """`target` is what the name was resolved to, when that was done before. `probabilities`
    are by model class, empty where nothing was classified (only a target of `auto` needs
    them); `available` names the tiers that are up, None for all; of the placements only
    `on_prem_only` bars a model. The decision's probabilities are by tier.

    Raises BadCall: 404 for a name that is nothing, 400 for an unknown tier and for a call that
    no model in question can take.
    """
    ordered = sorted(tiers, key=lambda tier: tier.rank)
    if target is None:
        target = resolve(call, ordered, aliases or {}, unknown_model=unknown_model, draw=draw)
    wanted = needs(call, on_prem_only=placement == "on_prem_only", estimate_tokens=estimate_tokens)
    fit, excluded = sift(ordered, wanted)
    asked = target.within(fit)
    if not asked:
        raise refusal(wanted, target.within(ordered))
    shares = _shares(fit, probabilities) if target.auto else {}
    chosen, reason = _pick(target, _up(asked, available), shares, quality)
    plan = _plan(chosen, _up(fit, available))
    out = [(tier.name, UNAVAILABLE) for tier in fit if not _is_up(tier, available)]
    return TierDecision(
        plan=_one_model(plan) if call.wire == "embeddings" else plan,
        reason=reason,
        probabilities=shares,
        excluded=(*excluded, *out),
        quality=quality,
    )


def serves(
    stored_tier: str, stored: Mapping[str, float], tiers: Sequence[Tier], quality: float
) -> bool:
    """Whether an answer made by `stored_tier` is good enough for an asker with this dial.

    It is when the rule, on the probabilities `stored` with the answer, chooses that tier or a
    weaker one. Without probabilities the entry was made for a pinned name, which only the
    same name finds again. A tier that is no longer configured serves nobody.
    """
    by_name = {tier.name: tier for tier in tiers}
    if stored_tier not in by_name:
        return False
    known = [by_name[name] for name in stored if name in by_name]
    return not known or by_name[stored_tier].rank >= cheapest(known, stored, quality).rank


def cheapest(tiers: Sequence[Tier], probabilities: Mapping[str, float], quality: float) -> Tier:
    """The weakest tier within the tolerance of the best; `tiers` has at least one."""
    best = max(probabilities[tier.name] for tier in tiers)
    enough = best - (1.0 - min(1.0, max(0.0, quality))) ** 3
    good = [tier for tier in tiers if probabilities[tier.name] >= enough]
    return min(good, key=lambda tier: tier.rank)


def _pick(
    target: Target, asked: Sequence[Tier], shares: Mapping[str, float], quality: float
) -> tuple[Tier, str]:
    if not target.auto:
        return asked[0], target.reason
    if len(asked) == 1:
        return asked[0], REASON_ONLY_CHOICE
    if not shares:
        return asked[(len(asked) - 1) // 2], REASON_UNCLASSIFIED
    return cheapest(asked, shares, quality), REASON_CLASSIFIER


def _plan(chosen: Tier, fit: Sequence[Tier]) -> tuple[TierPlan, ...]:
    rest = [tier for tier in fit if tier.name != chosen.name]
    local = [tier for tier in rest if tier.model_class != _CLOUD]
    stronger = [tier for tier in local if tier.rank > chosen.rank]
    weaker = [tier for tier in reversed(local) if tier.rank < chosen.rank]
    cloud = [tier for tier in rest if tier.model_class == _CLOUD]
    plans = [TierPlan(tier.name, tier.models) for tier in [chosen, *stronger, *weaker, *cloud]]
    names = {model.name for model in chosen.models}
    same = [tier for tier in fit if tier.name == chosen.name]
    others = tuple(model for tier in same for model in tier.models if model.name not in names)
    if others:
        plans.insert(1, TierPlan(chosen.name, others))
    return tuple(plans)


def _one_model(plan: Sequence[TierPlan]) -> tuple[TierPlan, ...]:
    return (TierPlan(plan[0].tier, plan[0].models[:1]),)


def _shares(tiers: Sequence[Tier], probabilities: Mapping[str, float]) -> dict[str, float]:
    if not probabilities:
        return {}
    return {tier.name: probabilities.get(tier.model_class, 0.0) for tier in tiers}


def _is_up(tier: Tier, available: Collection[str] | None) -> bool:
    return available is None or tier.name in available


def _up(tiers: Sequence[Tier], available: Collection[str] | None) -> Sequence[Tier]:
    return [tier for tier in tiers if _is_up(tier, available)] or tiers
