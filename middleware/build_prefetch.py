"""From settings to what prefills replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from tierway.middleware.build_fleet import FleetStage
from tierway.middleware.cache_warm import prefill_call
from tierway.middleware.config import Settings
from tierway.policies.errors import ConfigError
from tierway.policies.types import Call, Model
from tierway.router.prefetch import Head, Prefetcher


def started_prefetch(
    settings: Settings, made: FleetStage, models: Mapping[str, Model], stack: AsyncExitStack
) -> Prefetcher:
    """Raises ConfigError for a prompt whose file cannot be read."""
    dispatcher = made.dispatcher
    prefetcher = Prefetcher(
        dispatcher.balancer,
        dispatcher.upstreams,
        models,
        _call,
        configured=tuple(_configured(settings)),
        learn=settings.fleet.prefetch.learn,
    )
    dispatcher.note = prefetcher.heads.note
    prefetcher.start()
    stack.push_async_callback(prefetcher.aclose)
    return prefetcher


def _call(head: Head) -> Call:
    return prefill_call(head.model, head.text, head.tenant)


def _configured(settings: Settings) -> Iterator[Head]:
    for number, prompt in enumerate(settings.fleet.prefetch.prompts):
        text = prompt.system
        if prompt.file is not None:
            try:
                text = Path(prompt.file).read_text("utf-8")
            except (OSError, UnicodeError) as error:
                fault = f"fleet.prefetch.prompts.{number}.file = {prompt.file!r}: {error}"
                raise ConfigError([fault]) from error
        yield Head(prompt.model, "", text or "")
