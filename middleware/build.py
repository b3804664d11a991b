"""From settings to running objects. With build_cache.py, build_fleet.py and classes.py the only
place that names concrete classes."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tierway.middleware import catalog
from tierway.middleware import config as configuration
from tierway.middleware.build_cache import cache_stage, second_opinion
from tierway.middleware.build_fleet import fleet_stage, known_models, start_polling
from tierway.middleware.build_maintenance import started_maintenance
from tierway.middleware.build_members import Members
from tierway.middleware.build_overlay import Drains, started_overlay
from tierway.middleware.build_prefetch import started_prefetch
from tierway.middleware.config import Settings, read_secret
from tierway.middleware.demo import DEMO_STORE, start_demo_fleet
from tierway.middleware.edge import Edge
from tierway.middleware.fleet_metrics import (
    maintenance_collector,
    prefetch_collector,
    topology_collector,
)
from tierway.middleware.length_metrics import LengthCollector
from tierway.middleware.logs import log_request
from tierway.middleware.metrics import Metrics
from tierway.middleware.overlay_policies import PolicyOverlay, said
from tierway.middleware.parts import AdminKeys, Parts
from tierway.middleware.pipeline import CacheStage, Pipeline
from tierway.middleware.policy_metrics import PolicyCollector
from tierway.middleware.reload import Reloader
from tierway.middleware.shadow import Shadow
from tierway.middleware.tally import Prices, Tally
from tierway.middleware.tenants import Tenants
from tierway.middleware.watch import Watch
from tierway.policies.complexity import LexicalClassifier
from tierway.policies.protocols import (
    Hook,
)
from tierway.policies.types import Tier
from tierway.router.balancer import Balancer
from tierway.router.fleet import Fleet
from tierway.router.maintenance import Maintainer
from tierway.router.prefetch import Prefetcher
from tierway.router.route import TierRouter
from tierway.router.transport import Transport

logger = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Helpers:
    """What works beside the road, in a gateway that lives."""

    maintainer: Maintainer | None = None
    prefetcher: Prefetcher | None = None

    def mended(self) -> Mapping[tuple[str, str], int]:
        return self.maintainer.outcomes if self.maintainer else {}

    def prefetched(self) -> Mapping[str, int]:
        return self.prefetcher.outcomes if self.prefetcher else {}


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
    models = await known_models(settings, environ, transport, live=live)
    tiers = catalog.tiers(settings, models)
    made = await fleet_stage(settings, environ, transport, models, stack, live=live)
    fleet, dispatcher = made.fleet, made.dispatcher
    router = TierRouter(
        tiers, LexicalClassifier(), fleet, rules=catalog.route_rules(settings), draw=random.random
    )
    opinion = await second_opinion(settings, dispatcher, tiers, stack) if live else None
    stage, switch = await cache_stage(settings, environ, transport, stack, opinion)
    pipeline = Pipeline(router, dispatcher, stage, clock=clock)
    overlay = await started_overlay(settings, environ, stack, live=live)
    policies = PolicyOverlay(made.holder, overlay, said(settings, settings.tiers))
    fleet.follow(Drains(fleet, overlay))
    members = Members(settings, environ, models, fleet, overlay)
    reload = Reloader(settings, environ, made.holder, policies, members, router)
    helpers = _Helpers()
    if live:
        _shadow(settings, pipeline, stage, stack)
        await members.start(settings, stack)
        start_polling(settings, made, transport, stack)
        helpers.prefetcher = started_prefetch(settings, made, models, stack)
        helpers.maintainer = started_maintenance(settings, environ, fleet, overlay, stack)
        if settings.server.watch_config == "on":
            _watch(reload, stack)
    prices = catalog.prices(models)
    metrics = _metrics(fleet, tiers, stage, dispatcher.balancer, prices, helpers)
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
        holder=made.holder,
        stage=stage,
        switch=switch,
        metrics=metrics,
        tenants=edge.tenants,
        admin_keys=_admin_keys(settings, environ),
        reload=reload,
        overlay=overlay,
        policies=policies,
        members=members,
        maintainer=helpers.maintainer,
    )


def _shadow(
    settings: Settings, pipeline: Pipeline, stage: CacheStage, stack: AsyncExitStack
) -> None:
    share = settings.cache.shadow_sample
    if share:
        stage.shadow = Shadow(
            share,
            pipeline.ask_fleet,
            stage.cache.journal,
            draw=random.random,
            clock=time.monotonic,
        )
        stack.push_async_callback(stage.shadow.aclose)


def _watch(reload: Reloader, stack: AsyncExitStack) -> None:
    if reload.path is None:
        logger.warning("server.watch_config: there is no file to watch")
        return
    watch = Watch(reload.path, partial(reload.attempt, quiet=True))
    watch.start()
    stack.push_async_callback(watch.aclose)


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
    helpers: _Helpers,
) -> Metrics:
    names = [model.name for tier in tiers for model in tier.models]
    return Metrics(
        views=lambda: fleet.snapshot(names),
        breakers=lambda: {spec.id: fleet.breaker_state(spec.id) for spec in fleet.specs()},
        entries=lambda: len(stage.cache),
        policy_version=lambda: balancer.policies.current.version,
        prices=prices,
        shadow=lambda: stage.shadow.counts if stage.shadow else {},
        collectors=(
            PolicyCollector(balancer.shadows),
            LengthCollector(balancer.lengths),
            topology_collector(lambda: balancer.places),
            prefetch_collector(helpers.prefetched),
            maintenance_collector(helpers.mended),
        ),
        shared=balancer.shared.status,
    )
