"""From settings to the cache's store, and to where a gateway asks that does not hold all of it.

The classes are build.py's to name; here they come by kind, from `load`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tierway.cache.follower import STALE_GRACE_S
from tierway.cache.remote import Elsewhere
from tierway.cache.sealing import Key, Sealer
from tierway.cache.upkeep import Faults
from tierway.middleware.settings import CacheSettings
from tierway.policies.errors import ConfigError
from tierway.policies.protocols import CacheStore, RemoteIndex


@dataclass(frozen=True, slots=True)
class Made:
    """A store that is not started yet. `elsewhere` is where to ask for what this process does
    not hold; None where it holds everything."""

    store: CacheStore
    elsewhere: Elsewhere | None = None


def made_store(
    load: Callable[[str], Any],
    given: CacheSettings,
    environ: Mapping[str, str],
    faults: Faults,
    *,
    encoder: str = "",
    whole: bool = False,
) -> Made:
    """The configured store, sealed where a key is named. `encoder` is whose vectors are
    searched; with `whole` a store that can be listed tells of everything it has."""
    kind = given.store.kind
    partial = not whole and (kind == "memcached" or given.index.kind == "redis")
    store, index = _bare(load, given, environ, encoder=encoder, partial=partial)
    names = [name for name in (given.store.key_env, given.store.old_key_env) if name]
    if names:
        sealer = Sealer([_key(name, environ) for name in names])
        store = load("store.sealed-partial" if partial else "store.sealed")(
            store, sealer, faults.add
        )
    return Made(store, Elsewhere(store, index) if partial else None)


def _bare(
    load: Callable[[str], Any],
    given: CacheSettings,
    environ: Mapping[str, str],
    *,
    encoder: str,
    partial: bool,
) -> tuple[Any, RemoteIndex | None]:
    store, make = given.store, load("store." + given.store.kind)
    if store.kind == "sqlite":
        return make(store.path), None
    if store.kind == "memory":
        return make(), None
    link = load("link." + store.kind)(
        store.url,
        password=environ.get(store.password_env or ""),
        timeout_s=store.timeout_s,
        clock=time.monotonic,
        draw=random.random,
    )
    if store.kind == "memcached":
        return make(link, wall=time.time, grace_s=STALE_GRACE_S), None
    index = None
    if given.index.kind == "redis":
        index = load("index.redis")(link, encoder=encoder, wall=time.time)
    made = make(link, wall=time.time, grace_s=STALE_GRACE_S, vectors=index, partial=partial)
    return made, index


def _key(name: str, environ: Mapping[str, str]) -> Key:
    try:
        return Key.derive(environ.get(name, ""))
    except ValueError as error:
        raise ConfigError([f"cache.store: the value of {name} {error}"]) from error
