"""What runs behind a gateway, together with the few questions asked of all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from tierway.middleware.build_members import Members
from tierway.middleware.build_overlay import MENDING
from tierway.middleware.config import Settings
from tierway.middleware.edge import Edge
from tierway.middleware.metrics import Metrics
from tierway.middleware.overlay import Overlay
from tierway.middleware.overlay_policies import PolicyOverlay
from tierway.middleware.pipeline import CacheStage, Pipeline
from tierway.middleware.reload import Reloader
from tierway.middleware.reply import openai_error
from tierway.middleware.switches import CacheSwitch
from tierway.middleware.tenants import Tenants
from tierway.policies.types import ReplicaView, Tier
from tierway.router.balancer import PolicyHolder
from tierway.router.dispatch import Dispatcher
from tierway.router.fleet import Fleet
from tierway.router.maintenance import Maintainer
from tierway.router.route import TierRouter

ROLES = ("read", "operate", "admin")


class AdminKeys:
    """Roles by admin key, kept as digests."""

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        self._roles = {_digest(key.encode()): role for key, role in keys}

    def role(self, key: bytes) -> str | None:
        """The role of the key; None for one that is not known."""
        return self._roles.get(_digest(key))


def enough(held: str, wanted: str) -> bool:
    """Whether a key of the role `held` may do what needs `wanted`."""
    return ROLES.index(held) >= ROLES.index(wanted)


@dataclass(slots=True)
class Parts:
    settings: Settings
    edge: Edge
    pipeline: Pipeline
    router: TierRouter
    dispatcher: Dispatcher
    fleet: Fleet
    tiers: Sequence[Tier]
    holder: PolicyHolder
    stage: CacheStage
    switch: CacheSwitch
    metrics: Metrics
    tenants: Tenants
    admin_keys: AdminKeys
    reload: Reloader
    overlay: Overlay
    policies: PolicyOverlay
    members: Members
    maintainer: Maintainer | None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def aclose(self) -> None:
        """Ends everything, the last begun first."""
        await self.stack.aclose()

    def ready(self) -> bool:
        """True while anything can answer: a replica, a cloud model, or the cache."""
        names = [model.name for tier in self.tiers for model in tier.models]
        return self.fleet.has_available(names) or len(self.stage.cache) > 0

    def models(self, name: str, headers: Mapping[bytes, bytes]) -> tuple[int, Any]:
        """The body of /v1/models, or of one model's card. Raises Unauthorised."""
        self.tenants.identify(headers)
        cards = self.router.cards()
        if not name:
            return 200, {"object": "list", "data": cards}
        for card in cards:
            if card["id"] == name:
                return 200, card
        known = ", ".join(card["id"] for card in cards)
        message = f"The model {name!r} does not exist here; there are: {known}."
        return 404, openai_error("invalid_request_error", message, code="model_not_found")

    def state(self) -> dict[str, Any]:
        """The answer of GET /admin/state."""
        policies = self.holder.current
        return {
            "tiers": {tier.name: self._tier_state(tier) for tier in self.tiers},
            "cache": self._cache_state(),
            "state": asdict(self.dispatcher.balancer.shared.status()),
            "prefixes": self._prefix_state(),
            "lengths": self._length_state(),
            "maintenance": self._maintenance_state(),
            "topology": {
                "zone": self.settings.fleet.zone,
                **self.dispatcher.balancer.places,
            },
            "overlay": {"version": self.overlay.version, "kept": self.overlay.kept},
            "tenants": [tenant.name for tenant in self.settings.tenants],
            "policies": {
                "version": policies.version,
                "llm_aware": policies.llm_aware,
                "faults": self._policy_faults(),
            },
        }

    def _prefix_state(self) -> dict[str, Any] | None:
        prefixes = self.dispatcher.balancer.prefixes
        return None if prefixes is None else asdict(prefixes.stats())

    def _length_state(self) -> dict[str, Any]:
        """By model, how well the lengths of its answers are foretold."""
        errors = self.dispatcher.balancer.lengths.errors()
        return {model: asdict(found) for model, found in errors.items()}

    def _maintenance_state(self) -> dict[str, Any]:
        """`mending` is by whatever gateway, `last` what this one did."""
        made = self.maintainer
        return {
            "configured": made is not None,
            "mending": dict(self.overlay.section(MENDING)),
            "last": [] if made is None else [asdict(one) for one in made.history],
        }

    def _cache_state(self) -> dict[str, Any]:
        """`entries` are those held here, `bytes` what the store takes, as of seconds ago."""
        stage, cache = self.stage, self.stage.cache
        return {
            "mode": stage.rules.mode,
            "configured_mode": self.settings.cache.mode,
            "version": self.switch.version,
            "store": stage.store,
            "entries": len(cache),
            "bytes": cache.size.bytes if cache.size else None,
            "results": dict(self.metrics.results),
            "encoder": cache.encoder,
            "languages": cache.languages(),
            "lessons": cache.lessons.state(),
            "faults": dict(cache.counts),
            "flights": len(self.pipeline.flights),
        }

    def _policy_faults(self) -> dict[str, dict[str, int]]:
        """By tier and policy, how often the plain policy had to take its place."""
        found: dict[str, dict[str, int]] = {}
        for (tier, policy), count in self.dispatcher.balancer.shadows.faults.items():
            found.setdefault(tier, {})[policy] = count
        return found

    def _tier_state(self, tier: Tier) -> dict[str, Any]:
        names = [model.name for model in tier.models]
        policies = self.holder.current
        chosen = policies.tiers[tier.name]
        return {
            "class": tier.model_class,
            "policy": policies.for_tier(tier.name).name,
            "aware_policy": chosen.aware.name,
            "options": dict(chosen.options),
            "plain_policy": chosen.plain.name,
            "shadow": self.dispatcher.balancer.shadows.state(tier.name, chosen),
            "version": chosen.since,
            "models": names,
            "replicas": [self._replica_state(view) for view in self.fleet.snapshot(names)],
        }

    def _replica_state(self, view: ReplicaView) -> dict[str, Any]:
        served, failed = self.fleet.totals(view.id)
        _, gpu = self.fleet.facts(view.id)
        return {
            "id": view.id,
            "model": view.model,
            "source": self.members.membership.source(view.id),
            "available": view.available,
            "reason": view.unavailable_reason,
            "inflight": view.inflight,
            "inflight_here": self.fleet.own(view.id).requests,
            "inflight_tokens": view.inflight_tokens,
            "prefill_tokens": view.prefill_tokens,
            "output_tokens": view.output_tokens,
            "context_tokens": view.context_tokens,
            "waiting": view.waiting,
            "running": view.running,
            "kv_usage": view.kv_usage,
            "kv_capacity_tokens": view.kv_capacity_tokens,
            "pressure": view.pressure,
            "facts_age_s": self._age_s(view.facts_at_s),
            "gpu": view.gpu,
            "gpus": view.gpus,
            "gpu_utilisation": view.gpu_utilisation,
            "gpu_memory_used_bytes": view.gpu_memory_used_bytes,
            "gpu_memory_bytes": view.gpu_memory_bytes,
            "gpu_temperature_celsius": view.gpu_temperature_celsius,
            "gpu_throttled": view.gpu_throttled,
            "gpu_power_watts": gpu.power_watts,
            "gpu_clock_mhz": gpu.clock_mhz,
            "gpu_facts_age_s": self._age_s(view.gpu_facts_at_s),
            "breaker": self.fleet.breaker_state(view.id),
            "served": served,
            "failed": failed,
            "weight": view.weight,
            "node": view.node,
            "zone": view.zone,
            "group": view.group,
        }

    def _age_s(self, at_s: float | None) -> float | None:
        return None if at_s is None else round(self.fleet.clock() - at_s, 3)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
