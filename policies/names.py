"""What a request's model name asks for: everything (`auto`), a tier, or certain models.

In this order: `x-tierway-tier` overrides; `auto`; a tier's name; an exact alias (before models,
so that an alias may stand in front of a model for a canary); a model's name; its served name;
an alias pattern (`gpt-*`, case matters, the first in the configuration that fits); else what
`unknown_model` says. An alias leads to `auto`, a tier or a model, never to another alias; one
with several targets is drawn by weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from tierway.policies.errors import BadCall
from tierway.policies.types import Call, Tier

AUTO = "auto"
REASON_PINNED = "pinned"  # the name of a tier
REASON_MODEL = "model"  # the name, or served name, of a model
REASON_ALIAS = "alias"  # an alias of either

Aliases = Mapping[str, Sequence[tuple[str, float]]]
"""Alias or pattern to its targets (name, weight), in the order of the configuration."""

UnknownModel = Literal["reject", "auto"]


@dataclass(frozen=True, slots=True)
class Target:
    """What was asked for: a tier, some models, or, with neither, whatever is best."""

    reason: str = ""
    tier: str = ""
    models: frozenset[str] = frozenset()

    @property
    def auto(self) -> bool:
        return not self.tier and not self.models

    def within(self, tiers: Sequence[Tier]) -> list[Tier]:
        """The tiers in question, holding only the models in question."""
        if self.auto:
            return list(tiers)
        if self.tier:
            return [tier for tier in tiers if tier.name == self.tier]
        kept = [(tier, tuple(m for m in tier.models if m.name in self.models)) for tier in tiers]
        return [
            tier if len(models) == len(tier.models) else replace(tier, models=models)
            for tier, models in kept
            if models
        ]


def resolve(
    call: Call,
    tiers: Sequence[Tier],
    aliases: Aliases,
    *,
    unknown_model: UnknownModel = "reject",
    draw: float = 0.0,
) -> Target:
    """Raises BadCall: 400 for an unknown tier, 404 `model_not_found` for an unknown name."""
    if call.controls.tier is not None:
        return _overridden(call.controls.tier, tiers)
    found = _named(call.model, tiers, aliases, draw)
    if found is not None:
        return found
    if unknown_model == AUTO:
        return Target()
    raise BadCall(
        f"The model {call.model!r} does not exist. Available: {_available(tiers, aliases)}.",
        status=404,
        code="model_not_found",
        param="model",
    )


def _overridden(name: str, tiers: Sequence[Tier]) -> Target:
    if name == AUTO:
        return Target()
    known = [tier.name for tier in tiers]
    if name in known:
        return Target(REASON_PINNED, tier=name)
    raise BadCall(
        f"There is no tier {name!r}. Tiers: {', '.join(known)}.",
        code="unknown_tier",
        param="x-tierway-tier",
    )


def _named(name: str, tiers: Sequence[Tier], aliases: Aliases, draw: float) -> Target | None:
    if name == AUTO:
        return Target()
    if any(tier.name == name for tier in tiers):
        return Target(REASON_PINNED, tier=name)
    if name in aliases:
        return _aliased(aliases[name], tiers, draw)
    found = _model(name, tiers)
    if found is not None:
        return found
    pattern = next((p for p in aliases if fnmatchcase(name, p)), None)
    return None if pattern is None else _aliased(aliases[pattern], tiers, draw)


def _aliased(
    targets: Sequence[tuple[str, float]], tiers: Sequence[Tier], draw: float
) -> Target | None:
    name = _drawn(targets, draw)
    found = _named(name, tiers, {}, draw)
    return found if found is None or found.auto else replace(found, reason=REASON_ALIAS)


def _model(name: str, tiers: Sequence[Tier]) -> Target | None:
    models = [model for tier in tiers for model in tier.models]
    names = {model.name for model in models if model.name == name}
    names = names or {model.name for model in models if model.served_name == name}
    return Target(REASON_MODEL, models=frozenset(names)) if names else None


def _drawn(targets: Sequence[tuple[str, float]], draw: float) -> str:
    left = draw * sum(weight for _, weight in targets)
    for name, weight in targets:
        if left < weight:
            return name
        left -= weight
    return targets[-1][0]


def _available(tiers: Sequence[Tier], aliases: Aliases) -> str:
    models = [model.name for tier in tiers for model in tier.models]
    filled = [tier.name for tier in tiers if tier.models]
    return ", ".join(dict.fromkeys([AUTO, *filled, *models, *aliases]))
