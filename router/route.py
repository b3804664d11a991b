"""Chooses the tier of a call: names, dial and classifier brought together.

The rules are pure and stand in policies/; here they meet what is configured and what is up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tierway.policies.names import AUTO, Aliases, Target, UnknownModel, resolve
from tierway.policies.protocols import Classifier
from tierway.policies.tiering import choose, serves
from tierway.policies.types import Call, Model, Source, Tier, TierDecision
from tierway.router.fleet import Fleet

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

_REACH_KEPT = 1024
_LONGEST_KEPT = 256  # characters of a name; a client may send longer ones, and many of them


@dataclass(frozen=True, slots=True)
class RouteRules:
    """`placements` holds the tenants that differ from `placement`."""

    aliases: Aliases = field(default_factory=dict)
    unknown_model: UnknownModel = "reject"
    quality: float = 0.5
    placement: str = "prefer_on_prem"
    placements: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pick:
    """What a call's name came to. `names` is the name with the revisions of every model it
    can reach, for the cache's key."""

    target: Target
    names: str


class TierRouter:
    """`draw` gives uniform numbers in [0, 1)."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        classifier: Classifier,
        fleet: Fleet,
        *,
        rules: RouteRules,
        draw: Callable[[], float],
    ) -> None:
        self._tiers, self._classifier, self._fleet = tiers, classifier, fleet
        self._rules, self._draw = rules, draw
        self._branches = _branches(rules.aliases)
        self._reach: dict[str, str] = {}

    def resolve(self, call: Call) -> Pick:
        """Raises BadCall for a name that is nothing here."""
        return Pick(self._resolve(call, self._rules.aliases, self._draw()), self._names(call))

    def quality(self, call: Call) -> float:
        """The dial in force for a call, 0 the cheapest, 1 the best."""
        asked = call.controls.quality
        return self._rules.quality if asked is None else asked

    def set_quality(self, quality: float) -> None:
        """Turns the dial for calls that bring none of their own."""
        self._rules = replace(self._rules, quality=quality)

    def source(self, pick: Pick) -> Source:
        """The strongest that a name can reach, as the source of an answer from outside; it has
        no probabilities, so it serves every dial."""
        reached = [tier for tier in pick.target.within(self._tiers) if tier.models]
        tier = (reached or self._tiers)[-1]
        return Source(tier.name, tier.models[0].name if tier.models else "", "cache")

    def serves_for(self, call: Call) -> Callable[[str, Mapping[str, float]], bool]:
        """The rule that a stored answer must meet to serve this call."""
        quality = self.quality(call)
        return lambda tier, probabilities: serves(tier, probabilities, self._tiers, quality)

    def decide(self, call: Call, pick: Pick, vector: Vectors | None) -> TierDecision:
        """Raises BadCall for a call that no model in question can take."""
        probabilities: Mapping[str, float] = {}
        if pick.target.auto and call.wire != "embeddings":
            probabilities = self._classifier.classify(call.ask, vector)
        return choose(
            call,
            self._tiers,
            probabilities,
            quality=self.quality(call),
            available=self._available(),
            placement=self.placement(call),
            target=pick.target,
        )

    def cards(self) -> list[dict[str, Any]]:
        """The models as /v1/models lists them: auto, tiers, models and aliases."""
        models = [model for tier in self._tiers for model in tier.models]
        cards = [_card(AUTO, models)]
        cards += [_card(tier.name, tier.models) for tier in self._tiers if tier.models]
        cards += [_card(model.name, [model]) for model in models]
        taken = {card["id"] for card in cards}
        plain = [name for name in self._rules.aliases if not set(name) & set("*?[")]
        return cards + [_card(name, models) for name in plain if name not in taken]

    def _resolve(self, call: Call, aliases: Aliases, draw: float = 0.0) -> Target:
        return resolve(
            call, self._tiers, aliases, unknown_model=self._rules.unknown_model, draw=draw
        )

    def _names(self, call: Call) -> str:
        label = f"{call.controls.tier}\x1f{call.model}" if call.controls.tier else call.model
        known = self._reach.get(label)
        if known is None:
            known = "\x1e".join([label, *self._reached(call)])
            if len(self._reach) >= _REACH_KEPT:
                self._reach.clear()  # names that match nothing may be many; the rest is few
            if len(call.model) <= _LONGEST_KEPT:
                self._reach[label] = known
        return known

    def _reached(self, call: Call) -> list[str]:
        """`name@revision` of every model, over all targets of an alias."""
        ends = {self._resolve(call, aliases) for aliases in self._branches}
        models = {
            (model.name, model.revision)
            for target in ends
            for tier in target.within(self._tiers)
            for model in tier.models
        }
        return [f"{name}@{revision}" for name, revision in sorted(models)]

    def placement(self, call: Call) -> str:
        """A tenant's on_prem_only, or the default's, beats what the request asks."""
        rules = self._rules
        bound = rules.placements.get(call.tenant) or rules.placement
        if "on_prem_only" in (bound, rules.placement):
            return "on_prem_only"
        return call.controls.placement or bound

    def _available(self) -> list[str]:
        return [
            tier.name
            for tier in self._tiers
            if self._fleet.has_available([model.name for model in tier.models])
        ]


def _branches(aliases: Aliases) -> list[Aliases]:
    """The same aliases with one target each, so often that every target has its turn."""
    most = max(map(len, aliases.values()), default=1)
    return [
        {alias: (targets[min(turn, len(targets) - 1)],) for alias, targets in aliases.items()}
        for turn in range(most)
    ]


def _card(name: str, models: Sequence[Model]) -> dict[str, Any]:
    windows = [model.context_tokens for model in models if model.context_tokens]
    capabilities = sorted({name for model in models for name in model.capabilities})
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "tierway",
        "context_window": max(windows, default=None),
        "capabilities": capabilities,
    }
