from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_cases import ENVIRON, MODELS, fault, faults, with_value

from tierway.middleware.config import (
    Settings,
    read_secret,
    resolve,
)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("cache/mode", "serv", "cache.mode = 'serv': must be one of serve, observe, off; did"),
        ("router/mode", 0, "router.mode = 0: must be one of serve"),
        ("resilience/hedge", 1, "resilience.hedge = 1: must be one of off"),
        ("server/port", 70000, "server.port = 70000: must be at most 65535"),
        ("server/port", True, "server.port = True: must be a number"),
        ("server/port", "x", "server.port = 'x': must be a whole number"),
        ("server/workers", 2, "server.workers = 2: more than 1 needs state.backend: redis"),
        ("server/lenient", "false", "server.lenient = 'false': must be true or false"),
        ("server/tls", 3, "server.tls = 3: must be a mapping of keys"),
        ("admin/port", 8080, "admin.port = 8080: is server.port too"),
        ("admin/keys", [{"role": "read"}], "admin.keys.0: needs exactly one of key_env and"),
        ("state/url", "redis://:pw@h", "state.url: goes with state.backend: redis"),
        ("state/password_env", "ACME_KEY", "state.password_env: goes with state.backend: redis"),
        ("state/name", "a{b}", "state.name = 'a{b}': must be a name of letters, digits"),
        ("state", {"backend": "redis"}, "state.url: is required with state.backend: redis"),
        ("state", {"backend": "redis", "url": "http://h"}, "state.url: must begin with one of"),
        ("state", {"backend": "redis", "url": "redis://:pw@h"}, "state.url: must hold no passw"),
        ("cache/max_error_rate", 0.6, "cache.max_error_rate = 0.6: must be at most 0.5"),
        ("cache/max_error_rate", 0, "cache.max_error_rate = 0: must be above 0"),
        ("cache/store/max_bytes", 10, "cache.store.max_bytes = 10: must be at least 1048576"),
        ("cache/store", {"kind": "redis"}, "cache.store.url: is required with kind: redis"),
        ("cache/store", {"kind": "redis", "url": "http://h"}, "cache.store.url: must begin with"),
        ("cache/store", {"kind": "redis", "url": "redis://:pw@h"}, "cache.store.url: must hold no"),
        ("cache/store", {"url": "redis://h"}, "cache.store.url: does not go with kind: sqlite"),
        (
            "cache/store",
            {"kind": "memcached", "url": "memcached://h", "password_env": "ACME_KEY"},
            "cache.store.password_env: does not go with kind: memcached",
        ),
        ("cache/index/kind", "redis", "cache.index.kind = 'redis': searches in the Redis of"),
        ("cache/ttl_s", -1, "cache.ttl_s = -1: must be above 0"),
        ("cache/ttl_s", float("inf"), "cache.ttl_s = inf: must be a finite number"),
        ("cache/ttl_s", None, "cache.ttl_s: must be a number"),
        ("cache/ttl_rules", [{"match": "timely", "ttl_s": 5}], "cache.ttl_rules.0.match = 'time"),
        ("cache/ttl_rules", [{"ttl_s": -1}], "cache.ttl_rules.0.ttl_s = -1: must be at least 0"),
        ("cache/ttl_rules", [{"match": "any"}], "cache.ttl_rules.0.ttl_s: is required"),
        ("cache/ttl_rules", [{"regex": "(", "ttl_s": 5}], "cache.ttl_rules.0.regex = '(': must"),
        ("cache/ttl_rules", [{"tenant": "x", "ttl_s": 5}], "cache.ttl_rules.0.tenant = 'x': must"),
        ("cache/ttl_rules", [{"model": "x", "ttl_s": 5}], "cache.ttl_rules.0.model = 'x': must be"),
        ("cache/ttl_rules", [{"ttl_s": 5}, {"ttl_s": 6}], "cache.ttl_rules: each match at most"),
        ("cache/max_turns", 0, "cache.max_turns = 0: must be at least 1"),
        ("cache/personal", "badge", "cache.personal = 'badge': must be a list"),
        ("cache/ignore", [{"in": "system", "regex": "("}], "cache.ignore.0.regex = '(': must be a"),
        ("cache/embedder/kind", "sentence-transformers", "cache.embedder.model: is required with"),
        ("cache/embedder/model", "x", "cache.embedder.model = 'x': goes with kind: sentence-tr"),
        ("cache/second_opinion", {"kind": "cross_encoder"}, "cache.second_opinion.model: is requi"),
        ("cache/second_opinion", {"kind": "tier", "model": "x"}, "cache.second_opinion.model = 'x"),
        ("cache/second_opinion/tier", "small", "cache.second_opinion.tier = 'small': goes with k"),
        ("cache/second_opinion", {"kind": "tier", "tier": "cloud"}, "cache.second_opinion.tier = "
         "'cloud': needs a tier with a chat model that has replicas (no cloud model is asked): sm"),
        ("cache/second_opinion", {"kind": "tier", "tier": "huge"}, "cache.second_opinion.tier = "),
        ("cache/second_opinion/accept", 0.4, "cache.second_opinion.accept = 0.4: must be at leas"),
        ("cache/second_opinion/at_most", 5, "cache.second_opinion.at_most = 5: must be at most 4"),
        ("cache/second_opinion/timeout_ms", 0, "cache.second_opinion.timeout_ms = 0: must be at "),
        ("cache/embedder", {"kind": "openai", "model": "m"}, "cache.embedder.url: is required"),
        ("cache/embedder/url", "http://h", "cache.embedder.url = 'http://h': goes with kind: op"),
        ("cache/embedder/dim", 0, "cache.embedder.dim = 0: must be at least 1"),
        ("cache/embedder/max_chars", 9, "cache.embedder.max_chars = 9: goes with kind: openai"),
        ("cache/embedder/timeout_ms", 0.5, "cache.embedder.timeout_ms = 0.5: must be a whole"),
        ("models/gpt/tier", "huge", "models.gpt.tier = 'huge': must be one of the tiers: small,"),
        ("models/gpt/litellm", "gpt", "models.gpt.litellm = 'gpt': must be provider/name"),
        ("models/gpt/url", "http://h", "models.gpt: needs exactly one of replicas, litellm and"),
        ("models/gpt/litellm", None, "models.gpt: needs exactly one of replicas, litellm and url;"),
        ("models/qwen-7b/api_key_env", "ACME_KEY", "models.qwen-7b.api_key_env: belongs to each"),
        ("models/gpt/cache_salt", "tenant", "models.gpt.cache_salt = 'tenant': goes with replicas"),
        ("models/qwen-7b/cache_salt", "user", "models.qwen-7b.cache_salt = 'user': must be one of"),
        ("models/qwen-7b/set", {"a": float("nan")}, "models.qwen-7b.set: must be JSON"),
        ("models/qwen-7b/revision", 1.1, "models.qwen-7b.revision = 1.1: must be text: put it"),
        ("models/qwen-7b/replicas/0/url", "h:80", "models.qwen-7b.replicas.0.url = 'h:80': must"),
        ("models/qwen-7b/replicas/0/url", "http://", "models.qwen-7b.replicas.0.url = 'http://':"),
        ("models/qwen-7b/replicas/0/url", "http://h:0", "models.qwen-7b.replicas.0.url = 'http"),
        ("models/qwen-7b/replicas/0/url", "http://h:99999", "models.qwen-7b.replicas.0.url = 'h"),
        ("models/qwen-7b/replicas/0/url", "http://h?k=v", "models.qwen-7b.replicas.0.url = 'http"),
        ("models/qwen-7b/replicas/0/weight", 0, "models.qwen-7b.replicas.0.weight = 0: must be"),
        ("models/qwen-7b/replicas/0/tp", 2, "models.qwen-7b.replicas.0.gpus = 1: must be at least"),
        ("models/qwen-7b/replicas/0/telemetry", "smi", "models.qwen-7b.replicas.0.telemetry = 's"),
        ("models/qwen-7b/replicas/0/gpu_indices", [-1], "models.qwen-7b.replicas.0.gpu_indices.0"),
        ("models/qwen-7b/replicas/0/gpu_uuids", ["a", "b"], "models.qwen-7b.replicas.0.gpu_uuids"),
        ("models/qwen-7b/replicas/0/engine", "trt", "models.qwen-7b.replicas.0.engine = 't"),
        ("models/auto", MODELS["q7"], "models.auto: is the name of a tier or 'auto'"),
        ("models/small", MODELS["q7"], "models.small: is the name of a tier or 'auto'"),
        ("models/a b", MODELS["q7"], "models.a b = 'a b': must be a name of visible ASCII"),
        ("tiers/auto", {"class": "7b"}, "tiers.auto: 'auto' lets the classifier choose"),
        ("tiers/x", {}, "tiers.x.class: is required"),
        ("tiers/small/plain_policy", "llm", "tiers.small.plain_policy = 'llm': must be one of rou"),
        ("tiers/small/policy", "lmm", "tiers.small.policy = 'lmm': must be one of round_robin"),
        ("tiers", {}, "tiers: must not be empty"),
        ("aliases/prod", "nobody", "aliases.prod.0.model = 'nobody': must be 'auto', a tier or"),
        ("aliases/prod/0/weight", 0, "aliases.prod.0.weight = 0: must be above 0"),
        ("aliases/prod", [], "aliases.prod: must not be empty"),
        ("aliases/gpt", "auto", "aliases.gpt: is 'auto', a tier or a model already"),
        ("router/quality", 1.5, "router.quality = 1.5: must be at most 1"),
        ("resilience/idle_timeout_s", 0, "resilience.idle_timeout_s = 0: must be above 0"),
        ("resilience/message_status", 302, "resilience.message_status = 302: must be one of 429,"),
        ("degrade", ["cloud", "cloud"], "degrade: 'cloud' stands 2 times"),
        ("degrade", ["clod"], "degrade.0 = 'clod': must be one of other_replica, other_tier"),
        ("degrade", "cloud", "degrade = 'cloud': must be a list"),
        ("tenants/0/key_file", "/k", "tenants.0: needs exactly one of key_env and key_file"),
        ("tenants/0/rpm", 0, "tenants.0.rpm = 0: must be at least 1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line_with_key_value_and_what_is_allowed(
    path: str, value: Any, told: str
) -> None:
    assert fault(path, value).startswith(told)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"cach": {"mode": "off"}}, "unknown key 'cach.mode': did you mean 'cache.mode'?"),
        ({"cache": {"mod": "off"}}, "unknown key 'cache.mod': did you mean 'cache.mode'?"),
        ({"port": 1}, "unknown key 'port': did you mean 'server.port'?"),
        ({"server": {"zzz": 1}}, "unknown key 'server.zzz': known here: host, port, workers, "),
        ({"server": {1: 1}}, "unknown key 'server.1': known here: host"),
        ({"tenants": [{"name": "a", "key": "s3cret", "key_env": "ACME_KEY"}]},
         "unknown key 'tenants.0.key': did you mean 'tenants.0.key_env'?"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest(data: dict[str, Any], told: str) -> None:
    (line,) = faults({"models": MODELS, **data})
    assert line.startswith(told)
    assert "s3cret" not in line


def test_secrets_must_be_there_and_differ(tmp_path: Path) -> None:
    key = tmp_path / "key"
    tenants = [{"name": "a", "key_file": str(key)}, {"name": "b", "key_env": "ACME_KEY"}]
    data = with_value("tenants", tenants)
    assert faults(data, {}) == [
        f"tenants.0.key_file = {str(key)!r}: must name a readable file that is not empty",
        "tenants.1.key_env = 'ACME_KEY': must name a variable that is set",
        "models.gpt.api_key_env = 'OPENAI_API_KEY': must name a variable that is set",
    ]
    key.write_text("acme-secret\n")
    (line,) = faults(data, ENVIRON)
    assert line == "tenants.1.key_env = 'ACME_KEY': has the same key as tenants.0"
    key.write_text("other\n")
    tree = resolve(data, ENVIRON)
    assert tree is not None
    assert [read_secret(tenant, ENVIRON) for tenant in tree.tenants] == ["other", "acme-secret"]


def test_a_key_of_the_store_is_judged_by_its_variable() -> None:
    store = {"kind": "memory", "key_env": "TIERWAY_STORE_KEY", "old_key_env": "OLD_STORE_KEY"}
    data = {"cache": {"store": store}, "models": {"q": MODELS["q7"]}}
    assert faults(data, {}) == [
        "cache.store.key_env = 'TIERWAY_STORE_KEY': must name a variable that is set",
        "cache.store.old_key_env = 'OLD_STORE_KEY': must name a variable that is set",
    ]
    given = {"TIERWAY_STORE_KEY": "c2hvcnQ=", "OLD_STORE_KEY": "0f" * 31}
    short, cut = faults(data, given)
    assert short.startswith("cache.store.key_env = 'TIERWAY_STORE_KEY': the variable's value must")
    assert cut.endswith("at least 16 characters; these are 31 bytes")
    assert "0f0f" not in cut
    tree = resolve(data, {"TIERWAY_STORE_KEY": "0f" * 32, "OLD_STORE_KEY": "a good passphrase"})
    assert tree is not None
    assert tree.cache.store.max_bytes == 2**29
    alone = {"store": {"old_key_env": "ACME_KEY"}}
    assert faults({"cache": alone, "models": MODELS})[0].startswith(
        "cache.store.old_key_env = 'ACME_KEY': goes with key_env"
    )


def test_the_admin_key_of_the_run_may_be_missing_others_not() -> None:
    assert resolve({"models": {"q": MODELS["q7"]}}, {}) is not None
    data = {"admin": {"keys": [{"key_env": "OPS_KEY"}]}}
    assert faults(data, {}) == [
        "admin.keys.0.key_env = 'OPS_KEY': must name a variable that is set"
    ]


@pytest.mark.parametrize(
    "secret", ["sk-proj-abcdef012345", "AKIAIOSFODNN7EXAMPLE", "9f8e-7d6c", "F00D" * 8]
)
def test_a_secret_in_place_of_its_variable_is_not_printed(secret: str) -> None:
    line = fault("models/gpt/api_key_env", secret)
    assert line.startswith("models.gpt.api_key_env = '***': must ")


def test_credentials_in_an_address_are_refused_and_not_printed() -> None:
    assert "s3" not in fault("models/qwen-7b/replicas/0/url", "http://u:s3@h")


def test_the_password_of_a_store_must_be_there() -> None:
    store = {"kind": "redis", "url": "redis://h", "password_env": "NOT_SET"}
    assert faults(with_value("cache/store", store), ENVIRON) == [
        "cache.store.password_env = 'NOT_SET': must name a variable that is set"
    ]


def test_memcached_is_exact_only_and_says_so() -> None:
    data = with_value("cache/store", {"kind": "memcached", "url": "memcached://h"})
    told = [line for line in Settings.from_dict(data).warnings if "exact only" in line]
    assert told == ["cache.store.kind: memcached is exact only, nothing is matched by meaning"]
