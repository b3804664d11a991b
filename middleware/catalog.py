"""What the settings describe, in the vocabulary of the policies: plain data, nothing started."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tierway.cache.consult import OpinionRules
from tierway.middleware.config import Settings
from tierway.middleware.edge import Limits
from tierway.middleware.settings import (
    MEMORY_BYTES,
    BreakerSettings,
    CacheSettings,
    EmbedderSettings,
    ModelSettings,
    SecondOpinionSettings,
    StoreSettings,
)
from tierway.middleware.settings import TtlRule as TtlRuleSettings
from tierway.middleware.settings_fleet import EngineSettings, ReplicaSettings
from tierway.policies import physics
from tierway.policies.cacheability import CacheRules, TtlRule
from tierway.policies.context import asked_of, concerns
from tierway.policies.errors import ConfigError
from tierway.policies.personal import Personal
from tierway.policies.resilience import BreakerRules
from tierway.policies.types import Call, Model, Pace, Tier
from tierway.policies.verifier import Verifier
from tierway.policies.volatile import time_sensitive
from tierway.router.dispatch import Ladder
from tierway.router.engines import ENGINES, Engine
from tierway.router.gpus import GpuSource
from tierway.router.opinion import may_judge
from tierway.router.replica import ReplicaSpec
from tierway.router.route import RouteRules
from tierway.router.transport import Origin
from tierway.router.upstreams import root_url


def model(name: str, given: ModelSettings) -> Model:
    cloud_name = given.litellm.split("/", 1)[1] if given.litellm else None
    return Model(
        name=name,
        tier=given.tier,
        served_name=given.served_name or cloud_name,
        kind=given.kind,
        revision=given.revision,
        context_tokens=given.context_tokens,
        capabilities=frozenset(given.capabilities),
        input_price=given.price.input if given.price else None,
        output_price=given.price.output if given.price else None,
        set=given.set,
        cloud=given.cloud,
        cache_salt=given.cache_salt,
    )


def prices(models: Mapping[str, Model]) -> dict[str, tuple[float, float]]:
    """US dollars per million input and output tokens, of the models that have a price."""
    return {
        name: (model.input_price, model.output_price)
        for name, model in models.items()
        if model.input_price is not None and model.output_price is not None
    }


def tiers(settings: Settings, models: Mapping[str, Model]) -> tuple[Tier, ...]:
    return tuple(
        Tier(
            name=name,
            rank=rank,
            model_class=tier.model_class,
            models=tuple(model for model in models.values() if model.tier == name),
            policy=tier.policy,
            plain_policy=tier.plain_policy,
            options=tier.options,
            shadow_policy=tier.shadow_policy,
            shadow_options=tier.shadow_options,
        )
        for rank, (name, tier) in enumerate(settings.tiers.items())
    )


def cloud_replicas(tiers: Sequence[Tier]) -> list[ReplicaSpec]:
    """A cloud model is one replica of itself: it too has requests in flight and a breaker."""
    return [
        ReplicaSpec(model.name, model.name, tier.name, url="", engine="cloud")
        for tier in tiers
        for model in tier.models
        if model.cloud
    ]


def engines(settings: Settings) -> dict[str, Engine]:
    """Those that are built in and those that the configuration adds."""
    return {**ENGINES, **{name: _engine(given) for name, given in settings.fleet.engines.items()}}


def _engine(given: EngineSettings) -> Engine:
    changed = given.model_dump(exclude={"like"}, exclude_none=True)
    return replace(ENGINES[given.like], **changed)


def replica_spec(
    model: Model, given: ReplicaSettings, engines: Mapping[str, Engine] = ENGINES
) -> ReplicaSpec:
    return ReplicaSpec(
        id=replica_id(model.name, given.url),
        model=model.name,
        tier=model.tier,
        url=root_url(given.url),
        api_url=given.url,
        api_key_env=given.api_key_env or "",
        engine=given.engine,
        weight=given.weight,
        gpu=given.gpu,
        gpus=given.gpus,
        preallocates=engines[given.engine].preallocates,
        telemetry=gpu_source(given),
        node=given.node,
        zone=given.zone,
        group=given.group,
        fabric=given.fabric,
        tp=given.tp,
        pp=given.pp,
    )


def paces(specs: Sequence[ReplicaSpec], tiers: Sequence[Tier]) -> dict[str, Pace]:
    """What the GPUs of the replicas promise, where they are known; see physics.py."""
    classes = {tier.name: tier.model_class for tier in tiers}
    found = {}
    for spec in specs:
        sheet = physics.gpu(spec.gpu)
        if sheet is not None and classes[spec.tier] in physics.CLASSES:
            model = physics.model_for_class(classes[spec.tier])
            found[spec.id] = physics.pace(model, sheet, spec.gpus)
    return found


def gpu_source(replica: ReplicaSettings) -> GpuSource | None:
    if replica.telemetry is None:
        return None
    return GpuSource(replica.telemetry, replica.gpu_uuids, replica.gpu_indices, replica.pod)


def replica_id(model: str, url: str) -> str:
    origin = Origin.parse(root_url(url))
    return f"{model}@{origin.host}:{origin.port}{origin.base_path}"


def route_rules(settings: Settings) -> RouteRules:
    return RouteRules(
        aliases={
            pattern: tuple((target.model, target.weight) for target in targets)
            for pattern, targets in settings.aliases.items()
        },
        unknown_model=settings.unknown_model,
        quality=settings.router.quality,
        placement=settings.placement.default,
        placements={
            tenant.name: tenant.placement for tenant in settings.tenants if tenant.placement
        },
    )


def breaker_rules(given: BreakerSettings) -> BreakerRules:
    return BreakerRules(**given.model_dump())


def ladder(settings: Settings) -> Ladder:
    steps = settings.degrade
    return Ladder("other_replica" in steps, "other_tier" in steps, "cloud" in steps)


def cache_rules(given: CacheSettings) -> CacheRules:
    personal = Personal(given.personal)
    return CacheRules(
        mode=given.mode,
        scope=given.scope,
        ttl_s=given.ttl_s,
        ttl_rules=tuple(TtlRule(rule.ttl_s, _matcher(rule, personal)) for rule in given.ttl_rules),
        max_temperature=given.max_temperature,
        store_tool_calls=given.store_tool_calls,
        personal=personal,
        max_turns=given.max_turns,
    )


def store_bytes(given: StoreSettings, kind: str) -> int:
    """The cap of the store in use, which is memory where the configured one failed."""
    return min(given.max_bytes, MEMORY_BYTES) if kind != given.kind else given.max_bytes


def opinion_rules(given: SecondOpinionSettings) -> OpinionRules:
    return OpinionRules(
        timeout_s=given.timeout_ms / 1000, at_most=given.at_most, accept=given.accept
    )


def judging_tier(tiers: Sequence[Tier], name: str | None) -> Tier:
    """The tier of that name, else the weakest that has a model to judge with."""
    wanted = [tier for tier in tiers if tier.name == name] if name else tiers
    return next(tier for tier in wanted if any(map(may_judge, tier.models)))


def encode_timeout_s(given: EmbedderSettings) -> float:
    """How long a request waits for its vector."""
    usual_ms = 300 if given.kind == "openai" else 250
    return (given.timeout_ms or usual_ms) / 1000


def remote_embedder(given: EmbedderSettings) -> Mapping[str, int | float]:
    """The arguments of a remote embedder that are not left to itself."""
    bounds = {"dim": given.dim, "max_chars": given.max_chars}
    chosen = {name: bound for name, bound in bounds.items() if bound is not None}
    return {**chosen, "timeout_s": encode_timeout_s(given)}


def _matcher(rule: TtlRuleSettings, personal: Personal) -> Callable[[Call], bool]:
    """Whether all that the rule names holds of a call; the cheap parts are looked at first."""
    pattern = re.compile(rule.regex) if rule.regex else None
    kinds: Mapping[str, Callable[[str], bool]] = {
        "time_sensitive": time_sensitive,
        "personal": personal,
    }
    about = kinds.get(rule.match)

    def matches(call: Call) -> bool:
        return (
            rule.model in (None, call.model)
            and rule.tenant in (None, call.tenant)
            and rule.namespace in (None, call.controls.namespace)
            and (pattern is None or pattern.search(asked_of(call)) is not None)
            and (about is None or concerns(call, about))
        )

    return matches


def limits(settings: Settings) -> Limits:
    return Limits(
        max_body_bytes=settings.server.max_body_bytes,
        total_timeout_s=settings.resilience.total_timeout_s,
        commit_after_s=settings.resilience.commit_after_s,
    )


def verifiers(given: CacheSettings) -> list[Verifier]:
    """The operator's own calibration, if there is one. Raises ConfigError."""
    if given.calibration is None:
        return []
    try:
        return [Verifier.read(given.calibration)]
    except (OSError, ValueError) as error:
        fault = f"cache.calibration: {given.calibration!r}: {error}"
        raise ConfigError([fault]) from error
