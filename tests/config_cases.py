"""A configuration with every key, and what is wrong with variations of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tierway.middleware.config import resolve
from tierway.policies.errors import ConfigError

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
        "max_error_rate": 0.02, "second_opinion": {
            "kind": "none", "model": None, "tier": None, "timeout_ms": 400, "at_most": 1,
            "accept": 0.9,
        },
        "ttl_s": 86400,
        "ttl_rules": [{"match": "time_sensitive", "ttl_s": 60}], "scope": "tenant",
        "max_temperature": 1.0, "store_tool_calls": False, "replay_tokens_per_s": None,
        "ignore": [{"in": "system", "regex": "Current time: .*"}],
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
    "fleet": {"allowed_networks": []},
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
