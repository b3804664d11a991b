"""What needs more than one key, or the secrets themselves, to judge."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tierway.cache.memcached_link import parse_address as memcached_address
from tierway.cache.redis_link import parse_address as redis_address
from tierway.cache.sealing import read_key
from tierway.middleware.checks_fleet import fleet_faults, replica_faults
from tierway.middleware.config_source import ADMIN_KEY, env_names
from tierway.middleware.config_text import Fault, Key, dotted
from tierway.middleware.settings import (
    CacheSettings,
    EmbedderSettings,
    ModelSettings,
    SecretRef,
    SettingsTree,
    StateSettings,
)
from tierway.policies.errors import ConfigError
from tierway.policies.registry import POLICIES


def cross_faults(tree: SettingsTree) -> Iterator[Fault]:
    yield from _server_faults(tree)
    yield from _cache_faults(tree.cache)
    yield from _opinion_faults(tree)
    yield from _ttl_rule_faults(tree)
    yield from _policy_faults(tree)
    for name in tree.tiers:
        if name == "auto":
            yield Fault(
                ("tiers", name), "'auto' lets the classifier choose: name the tier otherwise"
            )
    for name, model in tree.models.items():
        yield from _model_faults(name, model, tree)
    yield from fleet_faults(tree)
    yield from _alias_faults(tree)
    yield from _key_faults(tree)
    for step, count in Counter(tree.degrade).items():
        if count > 1:
            yield Fault(("degrade",), f"'{step}' stands {count} times: each step at most once")


def _server_faults(tree: SettingsTree) -> Iterator[Fault]:
    server, admin, state = tree.server, tree.admin, tree.state
    if server.workers > 1 and state.backend != "redis":
        yield Fault(("server", "workers"), "more than 1 needs state.backend: redis", server.workers)
    if server.port == admin.port != 0 and server.host == admin.host:
        yield Fault(("admin", "port"), "is server.port too: each needs its own", admin.port)
    yield from _state_faults(state)


def _state_faults(state: StateSettings) -> Iterator[Fault]:
    if state.backend != "redis":
        for key in ("url", "password_env"):
            if getattr(state, key) is not None:
                yield Fault(("state", key), "goes with state.backend: redis")
    elif state.url is None:
        yield Fault(("state", "url"), "is required with state.backend: redis")
    else:
        try:
            redis_address(state.url)
        except ValueError as error:
            yield Fault(("state", "url"), str(error))


def _cache_faults(cache: CacheSettings) -> Iterator[Fault]:
    yield from _embedder_faults(cache.embedder)
    if cache.store.key_env is not None and cache.index.kind == "redis":
        text = "keeps vectors in the clear, and a vector gives its text away: not with key_env"
        yield Fault(("cache", "index", "kind"), text, cache.index.kind)
    if cache.store.old_key_env is not None and cache.store.key_env is None:
        text = "goes with key_env, which seals; this one only opens what is there"
        yield Fault(("cache", "store", "old_key_env"), text, cache.store.old_key_env)
    yield from _store_faults(cache)
    kinds = {tuple(rule.model_dump(exclude={"ttl_s"}).values()) for rule in cache.ttl_rules}
    if len(kinds) < len(cache.ttl_rules):
        yield Fault(("cache", "ttl_rules"), "each match at most once")


def _opinion_faults(tree: SettingsTree) -> Iterator[Fault]:
    given, path = tree.cache.second_opinion, ("cache", "second_opinion")
    for key, kind in (("model", "cross_encoder"), ("tier", "tier")):
        if getattr(given, key) is not None and given.kind != kind:
            yield Fault((*path, key), f"goes with kind: {kind}", getattr(given, key))
    if given.kind == "cross_encoder" and given.model is None:
        yield Fault((*path, "model"), "is required with kind: cross_encoder")
    judges = [name for name in tree.tiers if _has_judge(name, tree)]
    if given.kind == "tier" and (given.tier not in judges if given.tier else not judges):
        text = "needs a tier with a chat model that has replicas (no cloud model is asked)"
        found = f"{text}: {', '.join(judges) or 'there is none'}"
        yield Fault((*path, "tier"), found, given.tier)


def _has_judge(tier: str, tree: SettingsTree) -> bool:
    models = [model for model in tree.models.values() if model.tier == tier]
    return any(model.kind == "chat" and model.replicas for model in models)


_ADDRESSES: Mapping[str, Callable[[str], object]] = {
    "redis": redis_address,
    "memcached": memcached_address,
}


def _store_faults(cache: CacheSettings) -> Iterator[Fault]:
    store, path = cache.store, ("cache", "store")
    if cache.index.kind == "redis" and store.kind != "redis":
        text = f"searches in the Redis of cache.store, whose kind is {store.kind}"
        yield Fault(("cache", "index", "kind"), text, "redis")
    check = _ADDRESSES.get(store.kind)
    if check is None:
        for name in ("url", "password_env"):
            if getattr(store, name) is not None:
                yield Fault((*path, name), f"does not go with kind: {store.kind}")
    elif store.url is None:
        yield Fault((*path, "url"), f"is required with kind: {store.kind}")
    elif store.kind == "memcached" and store.password_env is not None:
        yield Fault((*path, "password_env"), "does not go with kind: memcached")
    else:
        try:
            check(store.url)
        except ValueError as error:
            yield Fault((*path, "url"), str(error))


def _embedder_faults(embedder: EmbedderSettings) -> Iterator[Fault]:
    path = ("cache", "embedder")
    if embedder.kind == "builtin" and embedder.model is not None:
        text = "goes with kind: sentence-transformers or openai; the built-in encoder has no name"
        yield Fault((*path, "model"), text, embedder.model)
    if embedder.kind != "builtin" and embedder.model is None:
        yield Fault((*path, "model"), f"is required with kind: {embedder.kind}")
    if embedder.kind == "openai" and embedder.url is None:
        yield Fault((*path, "url"), "is required with kind: openai")
    for key in ("url", "api_key_env", "dim", "max_chars"):
        if embedder.kind != "openai" and (value := getattr(embedder, key)) is not None:
            yield Fault((*path, key), "goes with kind: openai", value)


def _ttl_rule_faults(tree: SettingsTree) -> Iterator[Fault]:
    """A rule for a name that nobody can give would never hold."""
    tenants = [tenant.name for tenant in tree.tenants]
    models = ["auto", *tree.tiers, *tree.models, *tree.aliases]
    for at, rule in enumerate(tree.cache.ttl_rules):
        path = ("cache", "ttl_rules", at)
        if rule.tenant is not None and rule.tenant not in tenants:
            known = ", ".join(tenants) or "there are none"
            yield Fault((*path, "tenant"), f"must be one of the tenants: {known}", rule.tenant)
        if rule.model is not None and rule.model not in models:
            text = f"must be auto, a tier, a model or an alias: {', '.join(models)}"
            yield Fault((*path, "model"), text, rule.model)


def _policy_faults(tree: SettingsTree) -> Iterator[Fault]:
    """Names that are built in, and their options; others may be a plugin's, if there are any."""
    for name, tier in tree.tiers.items():
        path = ("tiers", name)
        yield from _named_policy_faults((*path, "policy"), tier.policy, tier.options, tree)
        if tier.shadow_policy is not None:
            shadow = (tier.shadow_policy, tier.shadow_options)
            yield from _named_policy_faults((*path, "shadow_policy"), *shadow, tree)
        elif tier.shadow_options:
            yield Fault((*path, "shadow_options"), "goes with shadow_policy")


def _named_policy_faults(
    path: tuple[str, ...], policy: str, options: Mapping[str, object], tree: SettingsTree
) -> Iterator[Fault]:
    where = "shadow_options" if path[-1] == "shadow_policy" else "options"
    if policy in POLICIES:
        try:
            POLICIES[policy](options)
        except ConfigError as error:
            for fault in error.faults:
                named, _, text = fault.partition(": ")
                key = named.removeprefix("options.").partition(" = ")[0]
                place = (*path[:-1], where, key)
                yield Fault(place, text, options.get(key))
    elif not tree.plugins:
        close = difflib.get_close_matches(policy, POLICIES, 1, 0.5)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        yield Fault(path, f"must be one of {', '.join(POLICIES)}{nearest}", policy)


def _model_faults(name: str, model: ModelSettings, tree: SettingsTree) -> Iterator[Fault]:
    path = ("models", name)
    if name == "auto" or name in tree.tiers:
        yield Fault(path, "is the name of a tier or 'auto': name the model otherwise")
    if model.tier not in tree.tiers:
        yield Fault(
            (*path, "tier"), f"must be one of the tiers: {', '.join(tree.tiers)}", model.tier
        )
    ways = {"replicas": bool(model.replicas), "litellm": model.litellm, "url": model.url}
    given = [way for way, value in ways.items() if value]
    elsewhere = tree.fleet.file is not None or tree.fleet.allowed_networks
    may_come = elsewhere and "replicas" in model.model_fields_set  # `replicas: []` says so
    if len(given) > 1 or (not given and not may_come):
        found = f"has {' and '.join(given)}" if given else "has none of them"
        yield Fault(path, f"needs exactly one of replicas, litellm and url; {found}")
    if model.cloud and model.join is not None:
        yield Fault((*path, "join"), "goes with replicas")
    if model.cloud and model.cache_salt != "none":
        yield Fault((*path, "cache_salt"), "goes with replicas", model.cache_salt)
    if model.replicas and model.api_key_env is not None:
        yield Fault((*path, "api_key_env"), "belongs to each of the replicas here")
    yield from replica_faults(path, model, tree)


def _alias_faults(tree: SettingsTree) -> Iterator[Fault]:
    names = ("auto", *tree.tiers, *tree.models)
    for alias, targets in tree.aliases.items():
        if alias in names:
            text = "is 'auto', a tier or a model already: name the alias otherwise"
            yield Fault(("aliases", alias), text)
        for index, target in enumerate(targets):
            if target.model not in names:
                text = f"must be 'auto', a tier or a model: {', '.join(names)}"
                yield Fault(("aliases", alias, index, "model"), text, target.model)


def _key_faults(tree: SettingsTree) -> Iterator[Fault]:
    for path, ref in _secret_refs(tree):
        if (ref.key_env is None) == (ref.key_file is None):
            yield Fault(path, "needs exactly one of key_env and key_file")
    for name, count in Counter(tenant.name for tenant in tree.tenants).items():
        if count > 1:
            yield Fault(("tenants",), f"the name {name!r} stands {count} times: each tenant once")


def _secret_refs(tree: SettingsTree) -> Iterator[tuple[tuple[Key, ...], SecretRef]]:
    """The keys of administrators and tenants, with their paths."""
    for index, key in enumerate(tree.admin.keys):
        yield ("admin", "keys", index), key
    for index, tenant in enumerate(tree.tenants):
        yield ("tenants", index), tenant


def read_secret(ref: SecretRef, environ: Mapping[str, str]) -> str | None:
    """The secret that `ref` names, or None where it is missing, empty or unreadable."""
    if ref.key_file is None:
        return environ.get(ref.key_env or "") or None
    try:
        return Path(ref.key_file).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def secret_faults(tree: SettingsTree, environ: Mapping[str, str]) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    for path, ref in _secret_refs(tree):
        if (ref.key_env is None) == (ref.key_file is None):
            continue  # told as a fault of its own
        which = "key_env" if ref.key_file is None else "key_file"
        secret = read_secret(ref, environ)
        made_for_the_run = ref.key_env == ADMIN_KEY and path[0] == "admin"
        if secret is None and not made_for_the_run:
            yield _missing((*path, which), getattr(ref, which))
        elif secret is not None and owners.setdefault(secret, dotted(path)) != dotted(path):
            yield Fault(
                (*path, which), f"has the same key as {owners[secret]}", getattr(ref, which)
            )
    yield from _store_key_faults(tree.cache, environ)
    for path, password_env in (
        (("cache", "store", "password_env"), tree.cache.store.password_env),
        (("state", "password_env"), tree.state.password_env),
    ):
        if password_env is not None and not environ.get(password_env):
            yield _missing(path, password_env)
    given = tree.model_dump(mode="json", by_alias=True, include={"models", "cache"})
    for place, name in env_names(given):
        if place[-1] == "api_key_env" and not environ.get(name):
            yield _missing(place, name)


def _store_key_faults(cache: CacheSettings, environ: Mapping[str, str]) -> Iterator[Fault]:
    for key in ("key_env", "old_key_env"):
        name: str | None = getattr(cache.store, key)
        if name is None:
            continue
        path = ("cache", "store", key)
        if not environ.get(name):
            yield _missing(path, name)
            continue
        try:
            read_key(environ[name])
        except ValueError as error:
            yield Fault(path, f"the variable's value {error}", name)


def _missing(path: tuple[Key, ...], name: str) -> Fault:
    wanted = (
        "a readable file that is not empty" if path[-1] == "key_file" else "a variable that is set"
    )
    return Fault(path, f"must name {wanted}", name)


def exact_only(tree: SettingsTree) -> Iterator[str]:
    if tree.cache.store.kind == "memcached" and tree.cache.mode != "off":
        yield "cache.store.kind: memcached is exact only, nothing is matched by meaning"


def idle_tiers(tree: SettingsTree) -> Iterator[str]:
    used = {model.tier for model in tree.models.values()}
    if not tree.models:
        yield "models: there is none, so only the cache can answer"
        return
    for name in tree.tiers:
        if name not in used:
            yield f"tiers.{name}: no model is of this tier"
