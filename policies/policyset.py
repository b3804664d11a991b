"""PolicySet: all balancing policies of the gateway, as one frozen value with a version.

It is built whole from data and refused whole; a change gives a new set with the next version.
Whoever dispatches reads the current set once per attempt, so an attempt never mixes two.
With `llm_aware` off every tier is on its plain policy; what is configured for a tier stays
and comes back with the switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tierway.policies.errors import ConfigError
from tierway.policies.protocols import BalancePolicy
from tierway.policies.registry import POLICIES, Factory, build_policy
from tierway.policies.types import Tier


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """The two policies of a tier, and the options `aware` was built from."""

    aware: BalancePolicy
    plain: BalancePolicy
    options: Mapping[str, Any]


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
        built: dict[str, TierPolicy] = {}
        faults: list[str] = []
        for tier in tiers:
            try:
                built[tier.name] = TierPolicy(
                    build_policy(tier.policy, tier.options, registry=registry),
                    build_policy(tier.plain_policy, {}, registry=registry),
                    MappingProxyType(dict(tier.options)),
                )
            except ConfigError as error:
                faults += _located(tier.name, error)
        if faults:
            raise ConfigError(faults)
        return cls(MappingProxyType(built), llm_aware, version, registry)

    def for_tier(self, name: str) -> BalancePolicy:
        """The policy in force; raises ConfigError for a tier that is not in the set."""
        tier = self._tier(name)
        return tier.aware if self.llm_aware else tier.plain

    def with_policy(
        self, tier: str, name: str, options: Mapping[str, Any] | None = None
    ) -> PolicySet:
        """The same set with another policy for one tier; ConfigError leaves no trace."""
        old = self._tier(tier)
        try:
            policy = build_policy(name, options or {}, registry=self.registry)
        except ConfigError as error:
            raise ConfigError(_located(tier, error)) from error
        new = replace(old, aware=policy, options=MappingProxyType(dict(options or {})))
        tiers = MappingProxyType({**self.tiers, tier: new})
        return replace(self, tiers=tiers, version=self.version + 1)

    def with_llm_aware(self, enabled: bool) -> PolicySet:
        """The one switch; asking for what is already so is a new version all the same."""
        return replace(self, llm_aware=enabled, version=self.version + 1)

    def _tier(self, name: str) -> TierPolicy:
        tier = self.tiers.get(name)
        if tier is None:
            known = ", ".join(self.tiers) or "none"
            raise ConfigError([f"tiers.{name}: no such tier; known: {known}"])
        return tier


def _located(tier: str, error: ConfigError) -> list[str]:
    return [f"tiers.{tier}.{fault}" for fault in error.faults]
