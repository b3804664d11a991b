"""PolicySet: all balancing policies of the gateway, as one frozen value with a version.

It is built whole from data and refused whole; a change gives a new set with the next version.
Whoever dispatches reads the current set once per attempt, so an attempt never mixes two.
With `llm_aware` off every tier is on its plain policy; what is configured for a tier stays
and comes back with the switch. A tier may have a shadow besides: a policy that is asked the same
questions and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from tierway.policies.errors import ConfigError
from tierway.policies.guard import guarded
from tierway.policies.protocols import BalancePolicy
from tierway.policies.registry import POLICIES, Factory, build_policy
from tierway.policies.types import Tier

PolicyKey = Literal["policy", "plain_policy", "shadow_policy"]
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def _no_options() -> Mapping[str, Any]:
    return _NO_OPTIONS


@dataclass(frozen=True, slots=True)
class Change:
    """One policy of one tier and its options; `name` None ends a shadow."""

    tier: str
    key: PolicyKey
    name: str | None
    options: Mapping[str, Any] = field(default_factory=_no_options)


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """The policies of a tier, the options `aware` and `shadow` were built from, and the version
    of the set that last changed any of it."""

    aware: BalancePolicy
    plain: BalancePolicy
    options: Mapping[str, Any] = field(default_factory=_no_options)
    shadow: BalancePolicy | None = None
    shadow_options: Mapping[str, Any] = field(default_factory=_no_options)
    since: int = 1


@dataclass(frozen=True, slots=True)
class PolicySet:
    tiers: Mapping[str, TierPolicy]
    llm_aware: bool = True
    version: int = 1
    registry: Mapping[str, Factory] = field(default_factory=lambda: POLICIES, repr=False)

    @classmethod
    def build(
        cls,
        tiers: Sequence[Tier],
        llm_aware: bool = True,
        version: int = 1,
        *,
        registry: Mapping[str, Factory] = POLICIES,
    ) -> PolicySet:
        """Raises ConfigError with the faults of all tiers together."""
        builder = _Builder(registry)
        built = {tier.name: _tier_policy(tier, builder, version) for tier in tiers}
        builder.check()
        return cls(MappingProxyType(built), llm_aware, version, registry)

    def for_tier(self, name: str) -> BalancePolicy:
        """The policy in force; raises ConfigError for a tier that is not in the set."""
        tier = self._tier(name)
        return tier.aware if self.llm_aware else tier.plain

    def with_policy(
        self, tier: str, name: str, options: Mapping[str, Any] | None = None
    ) -> PolicySet:
        """The same set with another policy for one tier; ConfigError leaves no trace."""
        return self.with_changes([Change(tier, "policy", name, options or {})])

    def with_shadow(
        self, tier: str, name: str | None, options: Mapping[str, Any] | None = None
    ) -> PolicySet:
        """The same set with another shadow, or none, for one tier."""
        return self.with_changes([Change(tier, "shadow_policy", name, options or {})])

    def with_changes(self, changes: Sequence[Change]) -> PolicySet:
        """The set with all of the changes, one version on; ConfigError has every fault."""
        builder, version = _Builder(self.registry), self.version + 1
        tiers = dict(self.tiers)
        for change in changes:
            self._tier(change.tier)
            changed = _changed(tiers[change.tier], change, builder)
            tiers[change.tier] = replace(changed, since=version)
        builder.check()
        return replace(self, tiers=MappingProxyType(tiers), version=version)

    def with_llm_aware(self, enabled: bool) -> PolicySet:
        """The one switch; asking for what is already so is a new version all the same."""
        return replace(self, llm_aware=enabled, version=self.version + 1)

    def _tier(self, name: str) -> TierPolicy:
        tier = self.tiers.get(name)
        if tier is None:
            known = ", ".join(self.tiers) or "none"
            raise ConfigError([f"tiers.{name}: no such tier; known: {known}"])
        return tier


class _Builder:
    """Builds policies and gathers the faults: the set that one goes into is not to be used."""

    def __init__(self, registry: Mapping[str, Factory]) -> None:
        self._registry = registry
        self._faults: list[str] = []

    def __call__(
        self, tier: str, key: PolicyKey, name: str, options: Mapping[str, Any] = _NO_OPTIONS
    ) -> BalancePolicy:
        try:
            return build_policy(name, options, registry=self._registry)
        except ConfigError as error:
            prefix = f"tiers.{tier}.{key.removesuffix('policy')}"
            self._faults += [prefix + fault for fault in error.faults]
            return build_policy("random", _NO_OPTIONS)

    def check(self) -> None:
        """Raises ConfigError with every fault so far."""
        if self._faults:
            raise ConfigError(self._faults)


def _tier_policy(tier: Tier, build: _Builder, version: int) -> TierPolicy:
    aware = build(tier.name, "policy", tier.policy, tier.options)
    plain = build(tier.name, "plain_policy", tier.plain_policy)
    made = TierPolicy(aware, plain, MappingProxyType(dict(tier.options)), since=version)
    shadow = Change(tier.name, "shadow_policy", tier.shadow_policy, tier.shadow_options)
    return _changed(made, shadow, build)


def _changed(old: TierPolicy, change: Change, build: _Builder) -> TierPolicy:
    options = MappingProxyType(dict(change.options))
    if change.name is None:
        assert change.key == "shadow_policy", "only a shadow may be none"
        return replace(old, shadow=None, shadow_options=_NO_OPTIONS)
    policy = build(change.tier, change.key, change.name, options)
    if change.key == "plain_policy":
        return replace(old, plain=policy)
    if change.key == "policy":
        return replace(old, aware=policy, options=options)
    return replace(old, shadow=guarded(change.name, policy), shadow_options=options)
