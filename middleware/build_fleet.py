"""From settings to models, a fleet, upstreams and what gateways share."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tierway.middleware import catalog
from tierway.middleware.classes import load
from tierway.middleware.config import Settings
from tierway.middleware.plugins import registry
from tierway.middleware.settings import StateSettings
from tierway.policies.policyset import PolicySet
from tierway.policies.protocols import SharedState, Upstream
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import Model, Tier
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.discover import ask_model
from tierway.router.dispatch import Dispatcher
from tierway.router.drains import DrainBound
from tierway.router.facts import LoadReport
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.joining import JoiningUpstream, JoinRules
from tierway.router.nvml import NvmlReader
from tierway.router.pace import PaceLearner
from tierway.router.prefixes import PrefixIndex
from tierway.router.pressure import PressureWatch
from tierway.router.probes import HttpProbe, Poller
from tierway.router.prompts import PromptLearner, hearing
from tierway.router.ratio import TokenRatios
from tierway.router.replica import ReplicaSpec
from tierway.router.shared import HURRY_S, PATIENCE_S, MemoryState
from tierway.router.telemetry import GpuReader, PageReader, Telemetry
from tierway.router.transport import Transport
from tierway.router.upstreams import HttpUpstream, Timeouts, api_origin


async def known_models(
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


class Upstreams(Follower, dict[str, Upstream]):
    """Whom to send a call to, by replica: follows a fleet."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        transport: Transport,
        models: Mapping[str, Model],
        fleet: Fleet,
    ) -> None:
        super().__init__()
        self._settings, self._environ, self._models = settings, environ, models
        self._transport, self._fleet = transport, fleet
        self._engines = catalog.engines(settings)
        rules = settings.resilience
        self._timeouts = Timeouts(
            rules.first_token_timeout_s, rules.idle_timeout_s, rules.total_timeout_s
        )

    def on_join(self, spec: ReplicaSpec) -> None:
        self[spec.id] = self._of_replica(spec) if spec.url else self._of_cloud(spec.model)

    def on_leave(self, spec: ReplicaSpec) -> None:
        """What it has in flight goes on over the connections it has."""
        del self[spec.id]
        if spec.url:
            self._transport.forget(api_origin(spec.api_url))

    def _of_replica(self, spec: ReplicaSpec) -> Upstream:
        reports = self._engines[spec.engine].reports_load
        on_load = partial(self._fleet.update_load, spec.id) if reports else None
        made = self._over_http(spec.api_url, spec.model, spec.api_key_env, on_load)
        join = self._settings.models[spec.model].join
        if join is None:
            return made
        rules = JoinRules(join.max_items, join.wait_ms / 1000, join.max_prompt_tokens)
        return JoiningUpstream(made, rules, clock=time.monotonic)

    def _of_cloud(self, name: str) -> Upstream:
        given = self._settings.models[name]
        if given.url is not None:
            return self._over_http(given.url, name, given.api_key_env)
        made: Upstream = load("upstream.litellm")(
            given.litellm,
            self._models[name],
            timeouts=self._timeouts,
            clock=time.monotonic,
            api_key=self._environ.get(given.api_key_env or "", ""),
        )
        return made

    def _over_http(
        self,
        url: str,
        model: str,
        key_env: str | None,
        on_load: Callable[[LoadReport], None] | None = None,
    ) -> HttpUpstream:
        return HttpUpstream(
            self._transport,
            api_origin(url),
            self._models[model],
            timeouts=self._timeouts,
            clock=time.monotonic,
            api_key=self._environ.get(key_env or "", ""),
            on_load=on_load,
        )


def state_link(given: StateSettings, environ: Mapping[str, str]) -> Any:
    """A connection to the Redis of the shared state, not open yet."""
    return load("link.redis")(
        given.url,
        password=environ.get(given.password_env or ""),
        clock=time.monotonic,
        draw=random.random,
        timeout_s=HURRY_S,
        patience_s=PATIENCE_S,
    )


async def shared_state(
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
    shared: SharedState = load("state.redis")(
        state_link(given, environ),
        fleet,
        name=given.name,
        gateway=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        clock=time.monotonic,
        on_placed=hearing(prefixes, fleet),
    )
    await shared.start()
    stack.push_async_callback(shared.aclose)
    return shared


@dataclass(frozen=True, slots=True)
class Promises(Follower):
    """What the GPUs of replicas promise, told to the learner of their pace: follows a fleet."""

    pace: PaceLearner
    tiers: Sequence[Tier]

    def on_join(self, spec: ReplicaSpec) -> None:
        for replica, prior in catalog.paces([spec], self.tiers).items():
            self.pace.promise(replica, prior)


@dataclass(frozen=True, slots=True)
class FleetStage:
    """The fleet and all that stands around it."""

    fleet: Fleet
    holder: PolicyHolder
    dispatcher: Dispatcher
    promises: Promises


async def fleet_stage(
    settings: Settings,
    environ: Mapping[str, str],
    transport: Transport,
    models: Mapping[str, Model],
    stack: AsyncExitStack,
    *,
    live: bool,
) -> FleetStage:
    clock, tiers = time.monotonic, catalog.tiers(settings, models)
    fleet = Fleet(
        catalog.cloud_replicas(tiers),
        clock=clock,
        rules=catalog.breaker_rules(settings.resilience.breaker),
        slow_start_s=settings.fleet.slow_start_s,
    )
    holder = PolicyHolder(PolicySet.build(tiers, registry=registry(settings.plugins)))
    pace, prefixes, ratios = PaceLearner(fleet, {}), PrefixIndex(), TokenRatios()
    promises = Promises(pace, tiers)
    upstreams = Upstreams(settings, environ, transport, models, fleet)
    rules = settings.fleet.pressure
    pressure = PressureWatch(fleet, alert=rules.alert, for_s=rules.for_s)
    for follower in (promises, prefixes, upstreams, pressure):
        fleet.follow(follower)
    shared = await shared_state(settings, environ, fleet, prefixes, stack, live=live)
    balancer = Balancer(
        fleet,
        holder,
        clock=clock,
        draw=random.random,
        prefixes=prefixes,
        ratios=ratios,
        shared=shared,
        learners=[pace, PromptLearner(prefixes, ratios), pressure],
        zone=settings.fleet.zone,
    )
    dispatcher = Dispatcher(
        balancer,
        upstreams,
        clock=clock,
        budget=RetryBudget(share=settings.resilience.retry_budget),
        ladder=catalog.ladder(settings),
        message_status=settings.resilience.message_status,
    )
    stack.push_async_callback(dispatcher.aclose)
    return FleetStage(fleet, holder, dispatcher, promises)


def start_polling(
    settings: Settings, made: FleetStage, transport: Transport, stack: AsyncExitStack
) -> None:
    """Begins to ask engines and GPUs how they are, and opens what is slow to open."""
    bound = DrainBound(
        made.fleet,
        lambda spec: transport.cut(api_origin(spec.api_url)),
        drain_timeout_s=settings.fleet.drain_timeout_s,
    )
    bound.start()
    stack.push_async_callback(bound.aclose)
    for upstream in made.dispatcher.upstreams.values():
        if warm := getattr(upstream, "warm", None):
            stack.callback(asyncio.ensure_future(warm()).cancel)
    poller = Poller(
        made.fleet,
        HttpProbe(transport),
        clock=made.fleet.clock,
        engines=catalog.engines(settings),
    )
    poller.start()
    stack.push_async_callback(poller.aclose)
    telemetry = Telemetry(
        made.fleet,
        partial(gpu_reader, transport),
        clock=made.fleet.clock,
        on_gpu=made.promises.on_join,
    )
    telemetry.start()
    stack.push_async_callback(telemetry.aclose)


def gpu_reader(transport: Transport, source: str) -> GpuReader:
    return NvmlReader() if source == "nvml" else PageReader(transport, source)
