"""From settings to models, upstreams and what gateways share."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from tierway.middleware import catalog
from tierway.middleware.classes import load
from tierway.middleware.config import Settings
from tierway.policies.protocols import (
    SharedState,
    Upstream,
)
from tierway.policies.types import Model, Pace
from tierway.router.discover import ask_model
from tierway.router.engines import ENGINES
from tierway.router.facts import LoadReport
from tierway.router.fleet import Fleet
from tierway.router.nvml import NvmlReader
from tierway.router.pace import PaceLearner
from tierway.router.prefixes import PrefixIndex
from tierway.router.prompts import hearing
from tierway.router.shared import HURRY_S, PATIENCE_S, MemoryState
from tierway.router.telemetry import GpuReader, PageReader
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


def made_upstreams(
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
            made[name] = load("upstream.litellm")(
                given.litellm,
                models[name],
                timeouts=timeouts,
                clock=time.monotonic,
                api_key=environ.get(given.api_key_env or "", ""),
            )
    return made


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
    link = load("link.redis")(
        given.url,
        password=environ.get(given.password_env or ""),
        clock=time.monotonic,
        draw=random.random,
        timeout_s=HURRY_S,
        patience_s=PATIENCE_S,
    )
    shared: SharedState = load("state.redis")(
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


def promise(pace: PaceLearner, known: Mapping[str, Pace]) -> None:
    for replica, prior in known.items():
        pace.promise(replica, prior)


def gpu_reader(transport: Transport, source: str) -> GpuReader:
    return NvmlReader() if source == "nvml" else PageReader(transport, source)
