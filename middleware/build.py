"""From settings to running objects: the only module that names concrete classes.

Stores, indexes, embedders and upstreams stand in `CLASSES` as "module:Class", imported when a
configuration asks for them, so that nothing heavy is loaded for what is not used.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from tierway.cache.feedback import Feedback
from tierway.cache.keys import Ignore
from tierway.cache.lessons import Lessons
from tierway.cache.lookup import Limits
from tierway.cache.observer import Observer
from tierway.cache.remote import ENTRIES_HELD
from tierway.cache.semantic import SemanticCache
from tierway.cache.upkeep import Faults
from tierway.middleware import catalog
from tierway.middleware import config as configuration
from tierway.middleware.cache_stores import Made, made_store
from tierway.middleware.config import Settings, read_secret
from tierway.middleware.demo import DEMO_STORE, start_demo_fleet
from tierway.middleware.edge import Edge
from tierway.middleware.length_metrics import LengthCollector
from tierway.middleware.logs import log_request
from tierway.middleware.metrics import Metrics
from tierway.middleware.parts import AdminKeys, Parts
from tierway.middleware.pipeline import CacheStage, Pipeline
from tierway.middleware.plugins import registry
from tierway.middleware.policy_metrics import PolicyCollector
from tierway.middleware.reload import Reloader
from tierway.middleware.settings import EmbedderSettings
from tierway.middleware.shadow import Shadow
from tierway.middleware.switches import CacheSwitch
from tierway.middleware.tally import Prices, Tally
from tierway.middleware.tenants import Tenants
from tierway.middleware.watch import Watch
from tierway.policies.complexity import LexicalClassifier
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.policyset import PolicySet
from tierway.policies.protocols import (
    CacheStore,
    Embedder,
    Hook,
    SecondOpinion,
    SharedState,
    Upstream,
)
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import Model, Pace, Tier
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.discover import ask_model
from tierway.router.dispatch import Dispatcher
from tierway.router.engines import ENGINES
from tierway.router.facts import LoadReport
from tierway.router.fleet import Fleet
from tierway.router.nvml import NvmlReader
from tierway.router.pace import PaceLearner
from tierway.router.post import JsonPost
from tierway.router.prefixes import PrefixIndex
from tierway.router.probes import HttpProbe, Poller
from tierway.router.prompts import PromptLearner, hearing
from tierway.router.ratio import TokenRatios
from tierway.router.route import TierRouter
from tierway.router.shared import HURRY_S, PATIENCE_S, MemoryState
from tierway.router.telemetry import GpuReader, PageReader, Telemetry
from tierway.router.transport import Transport
from tierway.router.upstreams import HttpUpstream, Timeouts, api_origin

logger = logging.getLogger(__name__)

_SAMPLED = 32  # held questions that tell which languages are asked

CLASSES: Mapping[str, str] = {
    "store.sqlite": "tierway.cache.sqlite_store:SqliteStore",
    "store.memory": "tierway.cache.memory_store:MemoryStore",
    "store.redis": "tierway.cache.redis_store:RedisStore",
    "store.memcached": "tierway.cache.memcached_store:MemcachedStore",
    "link.memcached": "tierway.cache.memcached_link:MemcachedLink",
    "link.redis": "tierway.cache.redis_link:RedisLink",
    "store.sealed": "tierway.cache.sealed_store:sealed_store",
    "store.sealed-partial": "tierway.cache.sealed_store:SealedPartialStore",
    "index.faiss": "tierway.cache.index:Arena",
    "index.redis": "tierway.cache.redis_index:RedisIndex",
    "index.elsewhere": "tierway.cache.remote:NoIndex",
    "embedder.builtin": "tierway.cache.embedders:PairEmbedder",
    "embedder.openai": "tierway.cache.remote_embedder:OpenAIEmbedder",
    "embedder.sentence-transformers": "tierway.cache.embedders:SentenceTransformersEmbedder",
    "opinion.cross_encoder": "tierway.cache.opinion:CrossEncoderOpinion",
    "opinion.tier": "tierway.router.opinion:TierOpinion",
    "state.redis": "tierway.router.shared_redis:RedisState",
    "upstream.litellm": "tierway.router.cloud:LitellmUpstream",
}


async def build(
    config: Any = None,
    environ: Mapping[str, str] | None = None,
    *,
    live: bool = True,
    hooks: Sequence[Hook] | None = None,
) -> Parts:
    """Builds and starts everything. Raises ConfigError for a wrong configuration.

    With `live` False nothing is asked of replicas and nothing polls them: for `explain`.
    `hooks` take the place of the log line.
    """
    environ = os.environ if environ is None else environ
    async with AsyncExitStack() as stack:
        settings = configuration.resolve(config, environ)
        if settings is None:
            settings = await _demo(stack, environ, live=live)
        for warning in settings.warnings:
            logger.warning("%s", warning)
        hooks = (log_request,) if hooks is None else hooks
        parts = await _assemble(settings, environ, stack, live=live, hooks=hooks)
        parts.stack = stack.pop_all()
        return parts


async def _demo(stack: AsyncExitStack, environ: Mapping[str, str], *, live: bool) -> Settings:
    if not live:
        return demo_at_rest(environ)
    fleet = await start_demo_fleet()
    stack.push_async_callback(fleet.aclose)
    return configuration.demo_settings(fleet.urls, store_path=DEMO_STORE, environ=environ)


def demo_at_rest(environ: Mapping[str, str]) -> Settings:
    """The embedded demo without its engines: for looking at its choices and its cache."""
    urls = {tier: ["http://127.0.0.1:1"] for tier in ("small", "medium", "large")}
    return configuration.demo_settings(urls, store_path=DEMO_STORE, environ=environ)


async def _assemble(
    settings: Settings,
    environ: Mapping[str, str],
    stack: AsyncExitStack,
    *,
    live: bool,
    hooks: Sequence[Hook],
) -> Parts:
    clock = time.monotonic
    transport = Transport(connect_timeout_s=settings.resilience.connect_timeout_s)
    stack.push_async_callback(transport.aclose)
    models = await _models(settings, environ, transport, live=live)
    tiers = catalog.tiers(settings, models)
    fleet = Fleet(catalog.replicas(settings, tiers), clock=clock)
    holder = PolicyHolder(PolicySet.build(tiers, registry=registry(settings.plugins)))
    pace = PaceLearner(fleet, catalog.paces(fleet.specs(), tiers))
    prefixes, ratios = PrefixIndex(), TokenRatios()
    shared = await _shared_state(settings, environ, fleet, prefixes, stack, live=live)
    balancer = Balancer(
        fleet,
        holder,
        clock=clock,
        draw=random.random,
        prefixes=prefixes,
        ratios=ratios,
        shared=shared,
        learners=[pace, PromptLearner(prefixes, ratios)],
    )
    dispatcher = Dispatcher(
        balancer,
        _upstreams(settings, environ, transport, models, fleet),
        clock=clock,
        budget=RetryBudget(share=settings.resilience.retry_budget),
        ladder=catalog.ladder(settings),
        message_status=settings.resilience.message_status,
    )
    stack.push_async_callback(dispatcher.aclose)
    router = TierRouter(
        tiers, LexicalClassifier(), fleet, rules=catalog.route_rules(settings), draw=random.random
    )
    opinion = await _opinion(settings, dispatcher, tiers, stack) if live else None
    stage, switch = await _cache_stage(settings, environ, transport, stack, opinion)
    pipeline = Pipeline(router, dispatcher, stage, clock=clock)
    if live and settings.cache.shadow_sample:
        stage.shadow = Shadow(
            settings.cache.shadow_sample,
            pipeline.ask_fleet,
            stage.cache.journal,
            draw=random.random,
            clock=clock,
        )
        stack.push_async_callback(stage.shadow.aclose)
    if live:
        for upstream in dispatcher.upstreams.values():
            if warm := getattr(upstream, "warm", None):
                stack.callback(asyncio.ensure_future(warm()).cancel)
        poller = Poller(fleet, HttpProbe(transport), clock=clock)
        poller.start()
        stack.push_async_callback(poller.aclose)
        telemetry = Telemetry(
            fleet,
            partial(_gpu_reader, transport),
            clock=clock,
            on_gpu=lambda spec: _promise(pace, catalog.paces([spec], tiers)),
        )
        telemetry.start()
        stack.push_async_callback(telemetry.aclose)
    reload = Reloader(settings, environ, holder, router)
    if live and settings.server.watch_config == "on":
        _watch(reload, stack)
    prices = catalog.prices(models)
    metrics = _metrics(fleet, tiers, stage, balancer, prices)
    tally = Tally(stage.cache.journal, prices)
    tally.start()
    stack.push_async_callback(tally.aclose)
    edge = Edge(
        pipeline,
        _tenants(settings, environ),
        limits=catalog.limits(settings),
        clock=clock,
        hooks=(metrics, tally, *hooks),
    )
    return Parts(
        settings=settings,
        edge=edge,
        pipeline=pipeline,
        router=router,
        dispatcher=dispatcher,
        fleet=fleet,
        tiers=tiers,
        holder=holder,
        stage=stage,
        switch=switch,
        metrics=metrics,
        tenants=edge.tenants,
        admin_keys=_admin_keys(settings, environ),
        reload=reload,
    )


def _watch(reload: Reloader, stack: AsyncExitStack) -> None:
    if reload.path is None:
        logger.warning("server.watch_config: there is no file to watch")
        return
    watch = Watch(reload.path, partial(reload.attempt, quiet=True))
    watch.start()
    stack.push_async_callback(watch.aclose)


# ---- models, tiers, replicas -----------------------------------------------------------------


async def _models(
    settings: Settings, environ: Mapping[str, str], transport: Transport, *, live: bool
) -> Mapping[str, Model]:
    """The configured models; what the file leaves open is asked of their replicas."""
    made = {name: catalog.model(name, given) for name, given in settings.models.items()}
    if not live:
        return made
    asked = {
        name: [
            (api_origin(replica.url), environ.get(replica.api_key_env or "", ""))
            for replica in settings.models[name].replicas
        ]
        for name, model in made.items()
        if not model.cloud and (model.served_name is None or model.context_tokens is None)
    }
    answers = await asyncio.gather(
        *(ask_model(transport, asked[name], made[name]) for name in asked)
    )
    return {**made, **dict(zip(asked, answers, strict=True))}


def _upstreams(
    settings: Settings,
    environ: Mapping[str, str],
    transport: Transport,
    models: Mapping[str, Model],
    fleet: Fleet,
) -> Mapping[str, Upstream]:
    rules = settings.resilience
    timeouts = Timeouts(rules.first_token_timeout_s, rules.idle_timeout_s, rules.total_timeout_s)
    made: dict[str, Upstream] = {}

    def over_http(
        url: str,
        model: Model,
        key_env: str | None,
        on_load: Callable[[LoadReport], None] | None = None,
    ) -> HttpUpstream:
        return HttpUpstream(
            transport,
            api_origin(url),
            model,
            timeouts=timeouts,
            clock=time.monotonic,
            api_key=environ.get(key_env or "", ""),
            on_load=on_load,
        )

    for name, given in settings.models.items():
        for replica in given.replicas:
            known = catalog.replica_id(name, replica.url)
            reports = ENGINES[replica.engine].reports_load
            made[known] = over_http(
                replica.url,
                models[name],
                replica.api_key_env,
                partial(fleet.update_load, known) if reports else None,
            )
        if given.url is not None:
            made[name] = over_http(given.url, models[name], given.api_key_env)
        elif given.litellm is not None:
            made[name] = _load("upstream.litellm")(
                given.litellm,
                models[name],
                timeouts=timeouts,
                clock=time.monotonic,
                api_key=environ.get(given.api_key_env or "", ""),
            )
    return made


async def _shared_state(
    settings: Settings,
    environ: Mapping[str, str],
    fleet: Fleet,
    prefixes: PrefixIndex,
    stack: AsyncExitStack,
    *,
    live: bool,
) -> SharedState:
    """What this gateway shares with others before the same replicas."""
    given = settings.state
    if given.backend == "memory" or not live:
        return MemoryState()
    link = _load("link.redis")(
        given.url,
        password=environ.get(given.password_env or ""),
        clock=time.monotonic,
        draw=random.random,
        timeout_s=HURRY_S,
        patience_s=PATIENCE_S,
    )
    shared: SharedState = _load("state.redis")(
        link,
        fleet,
        name=given.name,
        gateway=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        clock=time.monotonic,
        on_placed=hearing(prefixes, fleet),
    )
    await shared.start()
    stack.push_async_callback(shared.aclose)
    return shared


def _promise(pace: PaceLearner, known: Mapping[str, Pace]) -> None:
    for replica, prior in known.items():
        pace.promise(replica, prior)


def _gpu_reader(transport: Transport, source: str) -> GpuReader:
    return NvmlReader() if source == "nvml" else PageReader(transport, source)


# ---- cache -----------------------------------------------------------------------------------


async def _cache_stage(
    settings: Settings,
    environ: Mapping[str, str],
    transport: Transport,
    stack: AsyncExitStack,
    opinion: SecondOpinion | None,
) -> tuple[CacheStage, CacheSwitch]:
    given = settings.cache
    embedder = None
    if given.mode != "off" and given.store.kind != "memcached":  # which is exact only
        embedder = await _embedder(given.embedder, environ, transport, stack)
    faults = Faults()
    encoder = embedder.id if embedder else ""
    kind, made = await _started_store(settings, environ, faults, stack, encoder=encoder)
    index = "index.elsewhere" if made.elsewhere else "index.faiss"
    limits = Limits(
        encode_deadline_s=catalog.encode_timeout_s(given.embedder),
        store_bytes=catalog.store_bytes(given.store, kind),
    )
    if made.elsewhere:
        limits = replace(limits, entries=ENTRIES_HELD)
    equivalence = Equivalence.shipped(
        max_error_rate=given.max_error_rate, more=catalog.verifiers(given)
    )
    if embedder and not any(equivalence.calibrated(embedder.id, lang) for lang in ("en", "zh")):
        logger.warning(
            "cache encoder: there is no calibration for %s: nothing is served by meaning until "
            "there is one (tierway cache calibrate, cache.calibration).",
            embedder.id,
        )
    cache = SemanticCache(
        made.store,
        embedder=embedder,
        index=_load(index)(embedder.dim if embedder else 1),
        equivalence=equivalence,
        wall=time.time,
        limits=limits,
        elsewhere=made.elsewhere,
        faults=faults,
        opinion=opinion,
        opinion_rules=catalog.opinion_rules(given.second_opinion),
        lessons=Lessons(given.max_error_rate, time.time),
    )
    feedback = Feedback(cache, wall=time.time, shared=kind != "memory")
    stack.push_async_callback(feedback.aclose)
    observer = None
    if given.note_questions:
        observer = Observer(cache.journal, wall=time.time, draw=random.random, scope=given.scope)
        stack.push_async_callback(observer.aclose)
    stage = CacheStage(
        cache,
        catalog.cache_rules(given),
        ignore=tuple(Ignore(rule.part, re.compile(rule.regex)) for rule in given.ignore),
        serve_stale="stale_cache" in settings.degrade,
        replay_tokens_per_s=given.replay_tokens_per_s,
        store=kind,
        feedback=feedback,
        observer=observer,
    )
    switch = CacheSwitch(stage, cache.journal)
    await cache.start()
    stack.push_async_callback(cache.aclose)
    if observer is not None:
        observer.start()
    if warm := getattr(embedder, "warm", None):
        stack.callback(asyncio.ensure_future(warm(cache.questions(_SAMPLED))).cancel)
    if stage.rules.mode != given.mode:
        logger.warning(
            "cache.mode is %s by an admin call, not %s as configured", stage.rules.mode, given.mode
        )
    return stage, switch


def make_store(settings: Settings, environ: Mapping[str, str], faults: Faults) -> CacheStore:
    """The configured store, whose log tells of everything it holds; not started."""
    return made_store(_load, settings.cache, environ, faults, whole=True).store


async def _started_store(
    settings: Settings,
    environ: Mapping[str, str],
    faults: Faults,
    stack: AsyncExitStack,
    *,
    encoder: str,
) -> tuple[str, Made]:
    """The configured store and its kind; memory, counted, when it cannot be used."""
    if settings.cache.mode != "off":
        made = made_store(_load, settings.cache, environ, faults, encoder=encoder)
        try:
            await made.store.start()
        except CacheError as error:
            logger.warning("cache store: %s Answers are kept in memory only.", error.public)
            faults.add("store", error)
            await made.store.aclose()
        else:
            stack.push_async_callback(made.store.aclose)
            return settings.cache.store.kind, made
    made = Made(_load("store.memory")())
    await made.store.start()
    stack.push_async_callback(made.store.aclose)
    return "memory", made


async def _embedder(
    given: EmbedderSettings,
    environ: Mapping[str, str],
    transport: Transport,
    stack: AsyncExitStack,
) -> Embedder | None:
    """The configured embedder; None, with a warning, when it does not come up."""
    embedder = new_embedder(given, environ, transport)
    try:
        await embedder.start()
    except CacheError as error:
        logger.warning("cache encoder: %s The cache is exact only.", error.public)
        await embedder.aclose()
        return None
    stack.push_async_callback(embedder.aclose)
    return embedder


async def _opinion(
    settings: Settings, dispatcher: Dispatcher, tiers: Sequence[Tier], stack: AsyncExitStack
) -> SecondOpinion | None:
    """The configured judge of doubtful hits; None, with a warning, when it does not come up."""
    given = settings.cache.second_opinion
    if given.kind == "none" or settings.cache.mode == "off":
        return None
    make = _load("opinion." + given.kind)
    opinion: SecondOpinion
    if given.kind == "cross_encoder":
        opinion = make(given.model)
    else:
        opinion = make(dispatcher, catalog.judging_tier(tiers, given.tier), clock=time.monotonic)
    try:
        await opinion.start()
    except CacheError as error:
        logger.warning("second opinion: %s Doubtful answers are not served.", error.public)
        await opinion.aclose()
        return None
    stack.push_async_callback(opinion.aclose)
    return opinion


def new_embedder(
    given: EmbedderSettings, environ: Mapping[str, str], transport: Transport
) -> Embedder:
    """The configured embedder, not started."""
    make = _load("embedder." + given.kind)
    made: Embedder
    if given.url is None:
        made = make(given.model) if given.model else make()
        return made
    key = environ.get(given.api_key_env or "", "")
    post = JsonPost(transport, api_origin(given.url), b"/embeddings", api_key=key)
    made = make(post, given.model, **catalog.remote_embedder(given))
    return made


# ---- edge ------------------------------------------------------------------------------------


def _tenants(settings: Settings, environ: Mapping[str, str]) -> Tenants:
    keys = ((read_secret(tenant, environ), tenant.name) for tenant in settings.tenants)
    return Tenants((key, name) for key, name in keys if key)


def _admin_keys(settings: Settings, environ: Mapping[str, str]) -> AdminKeys:
    keys = ((read_secret(key, environ), key.role) for key in settings.admin.keys)
    return AdminKeys((key, role) for key, role in keys if key)


def _metrics(
    fleet: Fleet,
    tiers: Sequence[Tier],
    stage: CacheStage,
    balancer: Balancer,
    prices: Prices,
) -> Metrics:
    names = [model.name for tier in tiers for model in tier.models]
    return Metrics(
        views=lambda: fleet.snapshot(names),
        breakers=lambda: {spec.id: fleet.breaker_state(spec.id) for spec in fleet.specs()},
        entries=lambda: len(stage.cache),
        policy_version=lambda: balancer.policies.current.version,
        prices=prices,
        shadow=lambda: stage.shadow.counts if stage.shadow else {},
        collectors=(PolicyCollector(balancer.shadows), LengthCollector(balancer.lengths)),
        shared=balancer.shared.status,
    )


def _load(kind: str) -> Any:
    module, _, name = CLASSES[kind].partition(":")
    return getattr(importlib.import_module(module), name)
