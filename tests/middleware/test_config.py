from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tierway.middleware.config import (
    Settings,
    check_main,
    demo_settings,
    load,
    read_secret,
    render,
    resolve,
)
from tierway.middleware.settings import GAPS, SettingsTree
from tierway.policies.errors import ConfigError

ROOT = Path(__file__).parents[2]
MODELS: dict[str, Any] = {
    "q7": {"tier": "small", "replicas": [{"url": "http://h:8000"}]},
    "gpt": {"tier": "cloud", "litellm": "openai/gpt-5-mini", "api_key_env": "OPENAI_API_KEY"},
}
ENVIRON = {"OPENAI_API_KEY": "sk-live-0123456789", "ACME_KEY": "acme-secret"}

# The configuration section of the contract with everything in it that this version serves.
FULL: dict[str, Any] = {
    "server": {"host": "127.0.0.1", "port": 8080, "workers": 1, "max_body_bytes": 16777216,
               "lenient": False, "tls": {"cert": None, "key": None}},
    "admin": {"host": "127.0.0.1", "port": 8081,
              "keys": [{"key_env": "TIERWAY_ADMIN_KEY", "role": "admin"}]},
    "state": {"backend": "memory"},
    "cache": {
        "mode": "serve", "embedder": {"kind": "builtin"}, "index": {"kind": "faiss"},
        "store": {"kind": "sqlite", "path": "c.sqlite3", "key_env": None},
        "max_error_rate": 0.02, "second_opinion": {"kind": "none"}, "ttl_s": 86400,
        "ttl_rules": [{"match": "time_sensitive", "ttl_s": 60}], "scope": "tenant",
        "max_temperature": 1.0, "ignore": [{"in": "system", "regex": "Current time: .*"}],
    },
    "models": {
        "qwen-7b": {
            "tier": "small", "served_name": "Qwen/Qwen2.5-7B-Instruct", "kind": "chat",
            "revision": "r1", "context_tokens": 32768, "capabilities": ["tools", "json"],
            "price": {"input": 0.05, "output": 0.1}, "set": {"chat_template_kwargs": {"a": 1}},
            "replicas": [{"url": "http://h1:8000", "engine": "vllm", "api_key_env": None,
                          "gpu": "a10", "gpus": 1, "tp": 1, "pp": 1, "node": "n1", "zone": "a",
                          "weight": 1, "telemetry": "http://h1:9400/metrics"}],
        },
        "gpt": {"tier": "cloud", "litellm": "openai/gpt-5-mini", "api_key_env": "OPENAI_API_KEY"},
    },
    "tiers": {
        "small": {"class": "7b", "policy": "llm", "plain_policy": "least_request"},
        "medium": {"class": "70b"}, "large": {"class": "175b"}, "cloud": {"class": "cloud"},
    },
    "aliases": {"gpt-*": "auto", "prod": [{"model": "qwen-7b", "weight": 95},
                                          {"model": "gpt", "weight": 5}]},
    "fleet": {"allowed_networks": ["10.0.0.0/8", "fd00::/8"]},
    "plugins": [],
    "unknown_model": "reject",
    "router": {"mode": "serve", "quality": 0.5, "shares": {}, "rules": []},
    "placement": {"default": "prefer_on_prem"},
    "long_context": {"action": "route"},
    "tenants": [{"name": "acme", "key_env": "ACME_KEY", "weight": 2, "rpm": 600, "tpm": 200000,
                 "budget_usd_per_day": 50, "priority": "normal", "placement": "on_prem_only",
                 "assumed_output_tokens": 512, "hit_factor": 0.1}],
    "resilience": {"connect_timeout_s": 2, "first_token_timeout_s": 30, "idle_timeout_s": 30,
                   "total_timeout_s": 600, "commit_after_s": 10, "overload_wait_s": 20,
                   "retry_budget": 0.2, "hedge": "off", "message_status": 503},
    "degrade": ["other_replica", "other_tier", "cloud", "stale_cache", "message"],
}  # fmt: skip


def with_value(path: str, value: Any) -> dict[str, Any]:
    """FULL with one value set; integer steps are indexes."""
    data = copy.deepcopy(FULL)
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split("/")]
    node: Any = data
    for step in steps:
        node = node[step]
    node[last] = value
    return data


def faults(data: dict[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(data, ENVIRON if environ is None else environ)
    assert all("\n" not in line for line in caught.value.faults)
    return caught.value.faults


def fault(path: str, value: Any) -> str:
    (line,) = faults(with_value(path, value))
    return line


def test_the_contract_loads_and_its_defaults_are_the_defaults() -> None:
    full = Settings.from_dict(FULL, ENVIRON)
    bare = Settings.from_dict({"models": MODELS})
    for section in ("server", "admin", "state", "router", "placement", "resilience", "degrade"):
        assert getattr(full, section) == getattr(bare, section)
    assert list(bare.tiers) == ["small", "medium", "large", "cloud"]
    assert full.tiers == bare.tiers
    assert full.models["qwen-7b"].replicas[0].zone == "a"
    assert full.aliases["gpt-*"][0].model == "auto"
    assert full.models["gpt"].cloud
    assert not full.models["qwen-7b"].cloud


def test_settings_are_frozen() -> None:
    tree = Settings.from_dict({"models": MODELS})
    with pytest.raises(ValidationError):
        tree.server.port = 1  # type: ignore[misc]  # what is tested


def test_rendered_configuration_loads_to_the_same() -> None:
    full = Settings.from_dict(FULL)
    assert Settings.from_dict(yaml.safe_load(render(full))) == full


def test_render_masks_secrets_and_shows_names_of_variables() -> None:
    forced = {
        "api_key": "top/secret",
        "max_tokens": 5,
        "extra": [{"Authorization": "Basic s3cret"}, {"X-Auth": "Bearer s3cret"}],
    }
    text = render(Settings.from_dict(with_value("models/qwen-7b/set", forced), ENVIRON))
    assert "top/secret" not in text
    assert "s3cret" not in text
    assert "sk-live" not in text
    assert "OPENAI_API_KEY" in text
    assert "max_tokens: 5" in text


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("cache/mode", "serv", "cache.mode = 'serv': must be one of serve, observe, off; did"),
        ("server/port", 70000, "server.port = 70000: must be at most 65535"),
        ("server/port", True, "server.port = True: must be a number"),
        ("server/port", "x", "server.port = 'x': must be a whole number"),
        ("server/workers", 2, "server.workers = 2: more than 1 needs state.backend: redis"),
        ("server/lenient", 3, "server.lenient = 3: must be true or false"),
        ("server/tls", 3, "server.tls = 3: must be a mapping of keys"),
        ("admin/port", 8080, "admin.port = 8080: is server.port too"),
        ("admin/keys", [{"role": "read"}], "admin.keys.0: needs exactly one of key_env and"),
        ("state/url", "redis://:pw@h", "state.url: goes with state.backend: redis"),
        ("cache/max_error_rate", 0.6, "cache.max_error_rate = 0.6: must be at most 0.5"),
        ("cache/max_error_rate", 0, "cache.max_error_rate = 0: must be above 0"),
        ("cache/ttl_s", -1, "cache.ttl_s = -1: must be above 0"),
        ("cache/ttl_s", float("inf"), "cache.ttl_s = inf: must be a finite number"),
        ("cache/ttl_s", None, "cache.ttl_s: must be a number"),
        ("cache/ignore", [{"in": "system", "regex": "("}], "cache.ignore.0.regex = '(': must be a"),
        ("cache/embedder/kind", "sentence-transformers", "cache.embedder.model: is required with"),
        ("cache/embedder/model", "x", "cache.embedder.model = 'x': goes with kind: sentence-tr"),
        ("models/gpt/tier", "huge", "models.gpt.tier = 'huge': must be one of the tiers: small,"),
        ("models/gpt/litellm", "gpt", "models.gpt.litellm = 'gpt': must be provider/name"),
        ("models/gpt/url", "http://h", "models.gpt: needs exactly one of replicas, litellm and"),
        ("models/gpt/litellm", None, "models.gpt: needs exactly one of replicas, litellm and url;"),
        ("models/qwen-7b/api_key_env", "ACME_KEY", "models.qwen-7b.api_key_env: belongs to each"),
        ("models/qwen-7b/set", {"a": float("nan")}, "models.qwen-7b.set: must be JSON"),
        ("models/qwen-7b/revision", 1.1, "models.qwen-7b.revision = 1.1: must be text: put it"),
        ("models/qwen-7b/replicas/0/url", "h:80", "models.qwen-7b.replicas.0.url = 'h:80': must"),
        ("models/qwen-7b/replicas/0/url", "http://", "models.qwen-7b.replicas.0.url = 'http://':"),
        ("models/qwen-7b/replicas/0/url", "http://h:0", "models.qwen-7b.replicas.0.url = 'http"),
        ("models/qwen-7b/replicas/0/url", "http://h:99999", "models.qwen-7b.replicas.0.url = 'h"),
        ("models/qwen-7b/replicas/0/url", "http://h?k=v", "models.qwen-7b.replicas.0.url = 'http"),
        ("models/qwen-7b/replicas/0/weight", 0, "models.qwen-7b.replicas.0.weight = 0: must be"),
        ("models/qwen-7b/replicas/0/tp", 2, "models.qwen-7b.replicas.0.gpus = 1: must be at least"),
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
        ("fleet/allowed_networks", ["10.0.0.1/8"], "fleet.allowed_networks.0 = '10.0.0.1/8': mus"),
        ("router/quality", 1.5, "router.quality = 1.5: must be at most 1"),
        ("resilience/idle_timeout_s", 0, "resilience.idle_timeout_s = 0: must be above 0"),
        ("resilience/message_status", 302, "resilience.message_status = 302: must be one of 200,"),
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


def test_every_fault_is_told_at_once() -> None:
    data = with_value("server/port", -1)
    data["cache"]["ttl_s"] = 0
    data["state"]["backend"] = "redis"
    assert len(faults(data)) == 3


def test_replicas_of_one_model_are_different_and_v1_is_not_part_of_an_address() -> None:
    data = with_value("models/qwen-7b/replicas", [{"url": "http://h:1"}, {"url": "http://h:1/v1/"}])
    assert faults(data) == ["models.qwen-7b.replicas: http://h:1 stands 2 times: each replica once"]


def test_gpus_follow_the_parallel_ranks() -> None:
    replica = {"url": "https://h/prefix/", "tp": 4, "pp": 2}
    tree = Settings.from_dict(with_value("models/qwen-7b/replicas", [replica]))
    assert tree.models["qwen-7b"].replicas[0].gpus == 8
    assert tree.models["qwen-7b"].replicas[0].url == "https://h/prefix"


@pytest.mark.parametrize("gap", [gap for gap in GAPS if gap.refused], ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_refused(gap: Any) -> None:
    path = {"models.*.kind": "models/gpt/kind", "tenants.*.placement": "tenants/0/placement"}
    path |= {f"tiers.*.{key}": f"tiers/small/{key}" for key in ("policy", "plain_policy")}
    anything = {"router.shares": {"a": 0.5}, "router.rules": [{}], "plugins": ["a"]}
    for value in gap.missing or (anything.get(gap.path, "X"),):
        where = path.get(gap.path, gap.path.replace(".", "/"))
        lines = [line for line in faults(with_value(where, value)) if "not available" in line]
        assert len(lines) == 1
        assert lines[0].startswith(where.replace("/", "."))


def test_limits_that_nothing_enforces_are_one_warning_for_each_tenant() -> None:
    tree = Settings.from_dict(FULL)
    (line,) = [line for line in tree.warnings if line.startswith("tenants.")]
    limits = ("weight", "rpm", "tpm", "budget_usd_per_day", "assumed_output_tokens", "hit_factor")
    assert line == f"tenants.acme: not enforced in this version: {', '.join(limits)}"
    data = with_value("tenants", [{"name": "b", "key_env": "ACME_KEY", "priority": "batch"}])
    assert not [line for line in Settings.from_dict(data).warnings if line.startswith("tenants.")]


def test_tiers_without_models_are_warnings() -> None:
    tree = Settings.from_dict({"models": MODELS})
    expected = [f"tiers.{name}: no model is of this tier" for name in ("medium", "large")]
    assert list(tree.warnings) == expected
    assert len(Settings.from_dict({}).warnings) == 1


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


# ---- the environment ---------------------------------------------------------------------------


def overlaid(environ: dict[str, str], data: dict[str, Any] | None = None) -> Settings:
    tree = resolve(FULL if data is None else data, {**ENVIRON, **environ})
    assert tree is not None
    return tree


def test_variables_are_laid_over_the_file() -> None:
    tree = overlaid({
        "TIERWAY_CACHE__MODE": "off",
        "TIERWAY_UNKNOWN_MODEL": "auto",
        "TIERWAY_DEGRADE": "[cloud]",
        "TIERWAY_MODELS__QWEN_7B__CONTEXT_TOKENS": "4096",
        "TIERWAY_MODELS__QWEN_7B__REPLICAS__1__URL": "http://h2:8000",
        "TIERWAY_MODELS__QWEN_7B__REPLICAS__0__ZONE": "b",
        "TIERWAY_ALIASES__NEW": "small",
    })  # fmt: skip
    assert (tree.cache.mode, tree.unknown_model, tree.degrade) == ("off", "auto", ("cloud",))
    model = tree.models["qwen-7b"]
    assert model.context_tokens == 4096
    assert [(each.url, each.zone) for each in model.replicas] == [
        ("http://h1:8000", "b"),
        ("http://h2:8000", ""),
    ]
    assert tree.aliases["new"][0].model == "small"
    assert FULL["cache"]["mode"] == "serve"


def test_lists_and_tiers_that_the_file_lacks_begin_with_their_defaults() -> None:
    environ = {"TIERWAY_TIERS__LARGE__POLICY": "random", "TIERWAY_ADMIN__KEYS__0__ROLE": "read"}
    tree = overlaid(environ, {"models": MODELS})
    assert list(tree.tiers) == ["small", "medium", "large", "cloud"]
    assert tree.tiers["large"].policy == "random"
    assert tree.admin.keys[0].key_env == "TIERWAY_ADMIN_KEY"
    assert tree.admin.keys[0].role == "read"


def test_a_whole_section_comes_before_its_keys() -> None:
    environ = {"TIERWAY_SERVER__PORT": "3", "TIERWAY_SERVER": "{port: 2, lenient: true}"}
    assert overlaid(environ).server.model_dump(include={"port", "lenient"}) == {
        "port": 3,
        "lenient": True,
    }


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TIERWAY_CACH__MODE", "off", "unknown key 'cach.mode': did you mean 'cache.mode'? ("),
        ("TIERWAY_SERVER_PORT", "1", "unknown key 'server_port': did you mean 'server.port'? ("),
        ("TIERWAY_CACHE__TTL_S", "0", "cache.ttl_s = 0: must be above 0 (from TIERWAY_CACHE"),
        ("TIERWAY_SERVER__PORT", "[", "TIERWAY_SERVER__PORT: line 1, column 2: "),
        ("TIERWAY_SERVER__PORT", "*s3cret", "TIERWAY_SERVER__PORT: line 1, column 1: found undef"),
        ("TIERWAY_SERVER__TLS", "{a: 1, a: 2}", "TIERWAY_SERVER__TLS: line 1, column 8: key 'a'"),
        ("TIERWAY_DEGRADE__9", "cloud", "TIERWAY_DEGRADE__9: degrade has 5 items: the index must"),
        ("TIERWAY_CACHE__MODE__X", "1", "TIERWAY_CACHE__MODE__X: cache.mode has no keys: its"),
        ("TIERWAY_", "1", "TIERWAY_: the form is TIERWAY_SECTION__KEY"),
        ("TIERWAY_SERVER", "{prot: 1}", "unknown key 'server.prot': did you mean 'server.port'? ("),
        ("TIERWAY_TOKEN", "s3cret", "unknown key 'token': "),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_named(name: str, value: str, told: str) -> None:
    (line,) = faults(FULL, {**ENVIRON, name: value})
    assert line.startswith(told)
    assert "s3cret" not in line


def test_a_fault_names_a_variable_only_where_it_is_to_blame() -> None:
    environ = {**ENVIRON, "TIERWAY_MODELS__GPT__REVISION": "2"}
    (line,) = faults(with_value("models/gpt/litellm", None), environ)
    assert "TIERWAY" not in line


def test_a_segment_that_may_mean_two_names_is_a_fault() -> None:
    data = {"models": {"a-b": MODELS["q7"], "a.b": MODELS["q7"]}}
    (line,) = faults(data, {"TIERWAY_MODELS__A_B__REVISION": "2"})
    assert line == "TIERWAY_MODELS__A_B__REVISION: A_B may mean 'a-b' or 'a.b': set it in the file"


def test_reserved_and_referenced_variables_are_no_settings() -> None:
    data = with_value("tenants", [{"name": "a", "key_env": "TIERWAY_ACME"}])
    environ = {
        "TIERWAY_ACME": "[not yaml",
        "TIERWAY_ADMIN_KEY": "k",
        "TIERWAY_CONFIG": "/nowhere",
        "TIERWAY_TENANTS__1__NAME": "b",
        "TIERWAY_TENANTS__1__KEY_ENV": "TIERWAY_OTHER",
        "TIERWAY_OTHER": "x",
        # What Kubernetes tells a pod about a Service called tierway.
        "TIERWAY_SERVICE_HOST": "10.0.0.1",
        "TIERWAY_SERVICE_PORT": "8080",
        "TIERWAY_SERVICE_PORT_HTTP": "8080",
        "TIERWAY_PORT": "tcp://10.0.0.1:8080",
        "TIERWAY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "TIERWAY_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert [tenant.name for tenant in overlaid(environ, data).tenants] == ["a", "b"]


# ---- the file ----------------------------------------------------------------------------------


def file_faults(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "t.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return [line.removeprefix(f"{path}: ") for line in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cache:\n  mode: [off\nserver: 1", "line 3, column 7: expected ',' or ']', but got ':'"),
        ("server:\n\tport: 1", "line 2, column 1: found character '\\t' that cannot start any"),
        ("a: \x01", "line 1, column 4: a character that YAML does not allow"),
        (b"a: \xff", "byte 3 is not UTF-8 text"),
        ("x: &a [*a]", "line 1, column 4: found unconstructable recursive node"),
        ("x: !!python/name:os.system", "line 1, column 4: could not determine a constructor"),
        ("server: {port: 0x" + "f" * 5000 + "}", "line 1, column 16: a value that cannot be read"),
        ("[" * 1000, "nested too deeply"),
        ("- 1", "must be a mapping of sections, not list"),
        ("a: 1\n---\nb: 1", "line 2, column 1: expected a single document in the stream, but"),
    ],
)
def test_yaml_that_cannot_be_read_says_where(tmp_path: Path, text: str | bytes, told: str) -> None:
    (line,) = file_faults(tmp_path, text)
    assert line.startswith(told)


def test_a_key_given_twice_is_a_fault_and_a_merged_one_is_not(tmp_path: Path) -> None:
    assert file_faults(tmp_path, "cache:\n  mode: off\n  mode: on\nserver: {}\nserver: {}") == [
        "line 3, column 3: key 'mode' is given twice (first in line 2)",
        "line 5, column 1: key 'server' is given twice (first in line 4)",
    ]
    path = tmp_path / "t.yaml"
    path.write_text(
        "models:\n  q:\n    tier: small\n    replicas:\n"
        "      - &r {url: 'http://a', gpu: a10}\n      - {<<: *r, url: 'http://b'}\n"
    )
    replicas = load(path, {}).models["q"].replicas
    assert [(replica.url, replica.gpu) for replica in replicas] == [
        ("http://a", "a10"),
        ("http://b", "a10"),
    ]


def test_what_yaml_reads_as_something_else(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "\ufeffcache: {mode: off}\nrouter: {mode: on}\nresilience: {hedge: off}\nserver:\n"
        "models:\n  q: {tier: small, url: 'http://h/v1', revision: 2026-01-31, served_name: 7}\n"
    )
    tree = load(path, {})
    assert (tree.cache.mode, tree.router.mode, tree.resilience.hedge) == ("off", "serve", "off")
    model = tree.models["q"]
    assert (model.revision, model.served_name, model.url) == ("2026-01-31", "7", "http://h")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(path, {})


def test_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(None, {}) is None
    Path("tierway.yaml").write_text("server: {port: 1}")
    Path("other.yaml").write_text("server: {port: 2}")

    def port(config: Any, environ: dict[str, str]) -> int:
        tree = resolve(config, environ)
        assert tree is not None
        return tree.server.port

    assert port(None, {}) == 1
    assert port(None, {"TIERWAY_CONFIG": ""}) == 1
    assert port(None, {"TIERWAY_CONFIG": "other.yaml"}) == 2
    assert port(Path("other.yaml"), {"TIERWAY_SERVER__PORT": "3"}) == 3
    assert port({"server": {"port": 4}}, {}) == 4
    assert port(Settings.from_dict({"server": {"port": 5}}), {"TIERWAY_SERVER__PORT": "3"}) == 5
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve(None, {"TIERWAY_CONFIG": "none.yaml"})


def test_check_prints_what_loads_or_one_line_for_each_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    assert check_main(ROOT / "tierway.example.yaml", {}, out, err) == 0
    assert Settings.from_dict(yaml.safe_load(out.getvalue()))
    assert err.getvalue() == ""
    out = io.StringIO()
    assert check_main(None, {"TIERWAY_SERVER__PORT": "7"}, out, err) == 0
    assert out.getvalue().startswith("# no configuration file")
    assert "# warning: models: " in out.getvalue()
    assert yaml.safe_load(out.getvalue())["server"]["port"] == 7
    Path("bad.yaml").write_text("server: {port: -1}\ncache: {ttl_s: 0}")
    out = io.StringIO()
    assert check_main("bad.yaml", {}, out, err) == 2
    assert (out.getvalue(), len(err.getvalue().splitlines())) == ("", 2)


def test_the_demo() -> None:
    urls = {tier: [f"http://127.0.0.1:{port}" for port in (1, 2)] for tier in ("small", "large")}
    tree = demo_settings(urls, environ={"TIERWAY_CACHE__MODE": "observe"})
    assert {name: model.tier for name, model in tree.models.items()} == {
        "sim-7b": "small",
        "sim-175b": "large",
    }
    assert [tier.model_class for tier in tree.tiers.values()] == ["7b", "70b", "175b"]
    assert tree.models["sim-7b"].context_tokens == 32768
    assert (tree.cache.mode, tree.cache.store.kind) == ("observe", "memory")
    with pytest.raises(ValueError, match="tiers: small, medium, large"):
        demo_settings({"sim-7b": ["http://h"]})
    kept = demo_settings(urls, store_path="x.db").cache.store
    assert (kept.kind, kept.path) == ("sqlite", "x.db")


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, tierway.middleware.config;"
        "heavy = {'fastapi', 'litellm', 'faiss', 'numpy', 'redis', 'torch', 'aiohttp'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


# ---- the documentation -------------------------------------------------------------------------


def keys_of(annotation: Any, path: str = "") -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from keys_of(field.annotation, f"{path}.{field.alias or name}".strip("."))
        return
    inner = [arg for arg in get_args(annotation) if isinstance(arg, type) or get_args(arg)]
    step = {dict: ".NAME", tuple: ".N"}.get(get_origin(annotation), "")
    sections = [arg for arg in inner if list(keys_of(arg)) not in ([], [""])]
    if sections:
        yield from keys_of(sections[-1], path + step)
    else:
        yield path


def test_every_key_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    told = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert told == set(keys_of(SettingsTree))


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.path)
def test_what_is_not_there_yet_is_documented(gap: Any) -> None:
    key = gap.path.replace("tenants.*", "tenants.N").replace("*", "NAME")
    text = (ROOT / "docs" / "configuration.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{key}` |")]
    assert ("not available in this version" if gap.refused else "not enforced") in row
    assert all(value in row for value in gap.missing or ())


# ---- anything at all ---------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.binary(max_size=3),
    st.sampled_from(["off", "auto", "small", "redis", "http://h", "http://[", "(", "10.0.0.0/8",
                     "A_NAME", "~nobody/x", "\udcff", 10**400, 1e308]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = list(places(FULL))


def outcome(read: Callable[[], Settings | None]) -> Settings | list[str] | None:
    """What was read, or the faults of a ConfigError, each of which must be one printable line."""
    try:
        return read()
    except ConfigError as error:
        faulty = [line for line in error.faults if not line.isprintable()]
        if faulty:
            raise AssertionError(faulty) from error
        return error.faults


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES, st.booleans()), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_mutation_loads_or_raises_config_error(mutations: list[Any]) -> None:
    data: Any = copy.deepcopy(FULL)
    for path, value, beside in mutations:
        node = data
        for step in path[:-1]:
            node = node[step] if step in (node if isinstance(node, dict) else range(9)) else {}
            node = node if isinstance(node, dict | list) else {}
        if isinstance(node, dict):
            node[value if beside and isinstance(value, str | int) else path[-1]] = value
        elif path[-1] in range(len(node)):
            node[path[-1]] = value
    end = outcome(lambda: resolve(data, ENVIRON))
    if isinstance(end, Settings):
        assert yaml.safe_load(render(end))


@given(st.text(max_size=40), st.sampled_from(["CACHE__MODE", "SERVER", "DEGRADE__0", "A__0__B"]))
@settings(max_examples=30, deadline=None)
def test_any_variable_loads_or_raises_config_error(text: str, name: str) -> None:
    assert outcome(lambda: resolve(FULL, {**ENVIRON, f"TIERWAY_{name}": text}))


@given(st.integers(0, 2000), st.text(max_size=3))
@settings(max_examples=25, deadline=None)
def test_a_damaged_file_loads_or_raises_config_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, text: str
) -> None:
    good = yaml.safe_dump(FULL)
    path = tmp_path_factory.mktemp("damaged") / "t.yaml"
    path.write_bytes((good[:at] + text + good[at + 1 :]).encode("utf-8", "surrogatepass"))
    assert outcome(lambda: load(path, ENVIRON))
