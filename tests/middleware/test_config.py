from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_cases import ENVIRON, FULL, MODELS, faults, with_value
from pydantic import ValidationError

from tierway.middleware import catalog
from tierway.middleware.config import (
    Settings,
    check_main,
    demo_settings,
    render,
    resolve,
)
from tierway.policies.errors import ConfigError
from tierway.router.engines import ENGINES

ROOT = Path(__file__).parents[2]


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


def test_every_fault_is_told_at_once() -> None:
    data = with_value("server/port", -1)
    data["cache"]["ttl_s"] = 0
    data["state"]["backend"] = "disk"
    assert len(faults(data)) == 3


def test_replicas_of_one_model_are_different_and_v1_is_not_part_of_an_address() -> None:
    data = with_value("models/qwen-7b/replicas", [{"url": "http://h:1"}, {"url": "http://h:1/v1/"}])
    assert faults(data) == ["models.qwen-7b.replicas: http://h:1 stands 2 times: each replica once"]


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://h", "https://h"),
        ("https://h/v1", "https://h"),
        ("https://h/openai/v1/", "https://h/openai"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4"),
        ("https://h/api/v3/", "https://h/api/v3"),
        ("https://h/v11", "https://h/v11"),
        ("https://h/v1/account/openai", "https://h/v1/account/openai"),
    ],
)
def test_an_address_keeps_its_path_and_any_version_but_v1(url: str, kept: str) -> None:
    cloud = {"tier": "cloud", "url": url}
    local = {"tier": "small", "replicas": [{"url": url}]}
    models = Settings.from_dict({"models": {"c": cloud, "l": local}}).models
    assert (models["c"].url, models["l"].replicas[0].url) == (kept, kept)


def test_every_engine_that_is_known_may_be_named_and_no_other() -> None:
    for engine in ENGINES:
        tree = Settings.from_dict(with_value("models/qwen-7b/replicas/0/engine", engine))
        assert tree.models["qwen-7b"].replicas[0].engine == engine


def test_an_engine_of_the_operators_own_is_one_more_table() -> None:
    own = {
        "like": "vllm",
        "running": "acme:running",
        "capacity": [["acme:blocks", "acme:block_size"]],
        "preallocates": False,
    }
    data = with_value("fleet", {"engines": {"acme": own}})
    data["models"]["qwen-7b"]["replicas"][0]["engine"] = "acme"
    settings = Settings.from_dict(data)
    made = catalog.engines(settings)["acme"]
    assert made == replace(
        ENGINES["vllm"],
        running=("acme:running",),
        capacity=(("acme:blocks", "acme:block_size"),),
        preallocates=False,
    )
    model = catalog.model("qwen-7b", settings.models["qwen-7b"])
    given = settings.models["qwen-7b"].replicas[0]
    spec = catalog.replica_spec(model, given, catalog.engines(settings))
    assert (spec.engine, spec.preallocates) == ("acme", False)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("vllm", {}, "fleet.engines.vllm: is the name of an engine that is built in"),
        ("acme", {"like": "vlm"}, "fleet.engines.acme.like = 'vlm': must be one of"),
        ("acme", {"running": "r"}, "fleet.engines.acme.metrics: is required"),
        ("acme", {"health": "health"}, "must be a path that begins with /"),
        ("acme", {"gauges": []}, "unknown key"),
        ("acme", {"priority_sign": 2}, "must be one of -1, 0, 1"),
    ],
)
def test_an_engine_that_is_wrong_is_told(name: str, given: dict[str, Any], told: str) -> None:
    lines = faults(with_value("fleet", {"engines": {name: given}}))
    assert any(told in line for line in lines), lines


def test_gpus_follow_the_parallel_ranks() -> None:
    replica = {"url": "https://h/prefix/", "tp": 4, "pp": 2}
    tree = Settings.from_dict(with_value("models/qwen-7b/replicas", [replica]))
    assert tree.models["qwen-7b"].replicas[0].gpus == 8
    assert tree.models["qwen-7b"].replicas[0].url == "https://h/prefix"


def test_tiers_without_models_are_warnings() -> None:
    tree = Settings.from_dict({"models": MODELS})
    expected = [f"tiers.{name}: no model is of this tier" for name in ("medium", "large")]
    assert list(tree.warnings) == expected
    assert len(Settings.from_dict({}).warnings) == 1


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
    large = tree.models["sim-175b"].replicas[1]
    assert (large.gpus, large.telemetry) == (8, "http://127.0.0.1:2/gpu/metrics")
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
