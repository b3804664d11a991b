"""From settings to a running cache."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from tierway.cache.feedback import Feedback
from tierway.cache.keys import Ignore
from tierway.cache.lessons import Lessons
from tierway.cache.lookup import Limits
from tierway.cache.observer import Observer
from tierway.cache.remote import ENTRIES_HELD
from tierway.cache.semantic import SemanticCache
from tierway.cache.upkeep import Faults
from tierway.middleware import catalog
from tierway.middleware.cache_stores import Made, made_store
from tierway.middleware.classes import load
from tierway.middleware.config import Settings
from tierway.middleware.pipeline import CacheStage
from tierway.middleware.settings import CacheSettings, EmbedderSettings
from tierway.middleware.switches import CacheSwitch
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.protocols import (
    CacheStore,
    Embedder,
    SecondOpinion,
)
from tierway.policies.types import Tier
from tierway.router.dispatch import Dispatcher
from tierway.router.post import JsonPost
from tierway.router.transport import Transport
from tierway.router.upstreams import api_origin

logger = logging.getLogger(__name__)

_SAMPLED = 32  # held questions that tell which languages are asked


async def cache_stage(
    settings: Settings,
    environ: Mapping[str, str],
    transport: Transport,
    stack: AsyncExitStack,
    opinion: SecondOpinion | None,
) -> tuple[CacheStage, CacheSwitch]:
    given = settings.cache
    embedder = None
    if given.mode != "off" and given.store.kind != "memcached":  # which is exact only
        embedder = await started_embedder(given.embedder, environ, transport, stack)
    faults = Faults()
    encoder = embedder.id if embedder else ""
    kind, made = await started_store(settings, environ, faults, stack, encoder=encoder)
    cache = _cache(given, kind, made, embedder, faults, opinion)
    feedback = Feedback(cache, wall=time.time, shared=kind != "memory")
    stack.push_async_callback(feedback.aclose)
    stage = _stage(settings, cache, kind, feedback, stack)
    switch = CacheSwitch(stage, cache.journal)
    await cache.start()
    stack.push_async_callback(cache.aclose)
    if stage.observer is not None:
        stage.observer.start()
    if warm := getattr(embedder, "warm", None):
        stack.callback(asyncio.ensure_future(warm(cache.questions(_SAMPLED))).cancel)
    if stage.rules.mode != given.mode:
        logger.warning(
            "cache.mode is %s by an admin call, not %s as configured", stage.rules.mode, given.mode
        )
    return stage, switch


def _cache(
    given: CacheSettings,
    kind: str,
    made: Made,
    embedder: Embedder | None,
    faults: Faults,
    opinion: SecondOpinion | None,
) -> SemanticCache:
    """The cache over a started store and embedder; not started."""
    limits = Limits(
        encode_deadline_s=catalog.encode_timeout_s(given.embedder),
        store_bytes=catalog.store_bytes(given.store, kind),
    )
    if made.elsewhere:
        limits = replace(limits, entries=ENTRIES_HELD)
    return SemanticCache(
        made.store,
        embedder=embedder,
        index=load("index.elsewhere" if made.elsewhere else "index.faiss")(
            embedder.dim if embedder else 1
        ),
        equivalence=_equivalence(given, embedder),
        wall=time.time,
        limits=limits,
        elsewhere=made.elsewhere,
        faults=faults,
        opinion=opinion,
        opinion_rules=catalog.opinion_rules(given.second_opinion),
        lessons=Lessons(given.max_error_rate, time.time),
    )


def _equivalence(given: CacheSettings, embedder: Embedder | None) -> Equivalence:
    equivalence = Equivalence.shipped(
        max_error_rate=given.max_error_rate, more=catalog.verifiers(given)
    )
    if embedder and not any(equivalence.calibrated(embedder.id, lang) for lang in ("en", "zh")):
        logger.warning(
            "cache encoder: there is no calibration for %s: nothing is served by meaning until "
            "there is one (tierway cache calibrate, cache.calibration).",
            embedder.id,
        )
    return equivalence


def _stage(
    settings: Settings,
    cache: SemanticCache,
    kind: str,
    feedback: Feedback,
    stack: AsyncExitStack,
) -> CacheStage:
    given, observer = settings.cache, None
    if given.note_questions:
        observer = Observer(cache.journal, wall=time.time, draw=random.random, scope=given.scope)
        stack.push_async_callback(observer.aclose)
    return CacheStage(
        cache,
        catalog.cache_rules(given),
        ignore=tuple(Ignore(rule.part, re.compile(rule.regex)) for rule in given.ignore),
        serve_stale="stale_cache" in settings.degrade,
        replay_tokens_per_s=given.replay_tokens_per_s,
        store=kind,
        feedback=feedback,
        observer=observer,
    )


def make_store(settings: Settings, environ: Mapping[str, str], faults: Faults) -> CacheStore:
    """The configured store, whose log tells of everything it holds; not started."""
    return made_store(load, settings.cache, environ, faults, whole=True).store


async def started_store(
    settings: Settings,
    environ: Mapping[str, str],
    faults: Faults,
    stack: AsyncExitStack,
    *,
    encoder: str,
) -> tuple[str, Made]:
    """The configured store and its kind; memory, counted, when it cannot be used."""
    if settings.cache.mode != "off":
        made = made_store(load, settings.cache, environ, faults, encoder=encoder)
        try:
            await made.store.start()
        except CacheError as error:
            logger.warning("cache store: %s Answers are kept in memory only.", error.public)
            faults.add("store", error)
            await made.store.aclose()
        else:
            stack.push_async_callback(made.store.aclose)
            return settings.cache.store.kind, made
    made = Made(load("store.memory")())
    await made.store.start()
    stack.push_async_callback(made.store.aclose)
    return "memory", made


async def started_embedder(
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


async def second_opinion(
    settings: Settings, dispatcher: Dispatcher, tiers: Sequence[Tier], stack: AsyncExitStack
) -> SecondOpinion | None:
    """The configured judge of doubtful hits; None, with a warning, when it does not come up."""
    given = settings.cache.second_opinion
    if given.kind == "none" or settings.cache.mode == "off":
        return None
    make = load("opinion." + given.kind)
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
    make = load("embedder." + given.kind)
    made: Embedder
    if given.url is None:
        made = make(given.model) if given.model else make()
        return made
    key = environ.get(given.api_key_env or "", "")
    post = JsonPost(transport, api_origin(given.url), b"/embeddings", api_key=key)
    made = make(post, given.model, **catalog.remote_embedder(given))
    return made
