from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from config_cases import ENVIRON, FULL, MODELS, faults, with_value

from tierway.middleware.config import (
    Settings,
    load,
    resolve,
)
from tierway.policies.errors import ConfigError


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
    environ = {
        "TIERWAY_SERVER__PORT": "3",
        "TIERWAY_SERVER": "{port: 2, workers: 1, max_body_bytes: 9}",
    }
    assert overlaid(environ).server.model_dump(include={"port", "max_body_bytes"}) == {
        "port": 3,
        "max_body_bytes": 9,
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
