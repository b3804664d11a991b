"""The rules of the cache, as configured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import make_call

from tierway.middleware.catalog import cache_rules, paces
from tierway.middleware.settings import CacheSettings
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.types import CacheControl, Controls, Model, Tier
from tierway.router.replica import ReplicaSpec


def rules(*ttl_rules: dict[str, Any], **more: Any) -> CacheRules:
    return cache_rules(CacheSettings.model_validate({"ttl_rules": ttl_rules, **more}))


def ttl_of(question: str, found: CacheRules, **fields: Any) -> float:
    call = replace(make_call(question), user="ann", **fields)
    return lookup(call, found).ttl_s


def test_by_default_what_ages_lives_a_minute() -> None:
    found = cache_rules(CacheSettings())
    assert ttl_of("What is the weather in Oslo?", found) == 60
    assert ttl_of("今天天气怎么样", found) == 60
    assert ttl_of("What is the price elasticity of demand?", found) == 86400
    assert found.max_turns == 6


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ({"regex": "(?i)flash SALE"}, {}),
        ({"model": "auto"}, {}),
        ({"tenant": "acme"}, {"tenant": "acme"}),
        ({"namespace": "docs"}, {"controls": Controls(namespace="docs")}),
        ({"match": "any"}, {}),
    ],
)
def test_a_rule_holds_where_all_it_names_holds(
    rule: dict[str, Any], fields: dict[str, Any]
) -> None:
    found = rules({**rule, "ttl_s": 5})
    assert ttl_of("When is the flash sale?", found, **fields) == 5
    narrowed = rules({**rule, "regex": "no such text", "ttl_s": 5})
    assert ttl_of("When is the flash sale?", narrowed, **fields) == 86400


@pytest.mark.parametrize(
    "rule", [{"model": "small"}, {"tenant": "acme"}, {"namespace": "docs"}, {"match": "personal"}]
)
def test_a_rule_for_others_does_not_hold(rule: dict[str, Any]) -> None:
    assert ttl_of("When is the flash sale?", rules({**rule, "ttl_s": 5})) == 86400


def test_the_query_is_what_a_rule_reads() -> None:
    found = rules({"regex": "sale", "ttl_s": 5}, {"match": "time_sensitive", "ttl_s": 60})
    query = Controls(cache=CacheControl(query="Who wrote Hamlet?"))
    assert ttl_of("The weather and the sale today?", found, controls=query) == 86400


def test_personal_words_are_for_scope_and_rules() -> None:
    found = rules({"match": "personal", "ttl_s": 5}, personal=["badge"])
    assert ttl_of("Which badge opens it?", found) == 5
    assert ttl_of("What is my account balance?", found) == 5
    assert lookup(make_call("Which badge opens it?"), found).reason == "personal"


def test_no_seconds_are_a_bypass() -> None:
    found = rules({"match": "time_sensitive", "ttl_s": 0})
    assert lookup(make_call("What is the weather in Oslo?"), found).reason == "ttl-rule"


def test_a_known_gpu_promises_a_pace() -> None:
    tiers = [
        Tier("small", 0, "7b", (Model("m", "small"),)),
        Tier("cloud", 1, "cloud", (Model("c", "cloud", cloud=True),)),
    ]
    specs = [
        ReplicaSpec("slow", "m", "small", "", gpu="a10"),
        ReplicaSpec("fast", "m", "small", "", gpu="NVIDIA H100 80GB HBM3"),
        ReplicaSpec("unknown", "m", "small", ""),
        ReplicaSpec("c", "c", "cloud", "", gpu="a10"),
    ]
    found = paces(specs, tiers)
    assert set(found) == {"slow", "fast"}
    assert found["slow"].prefill_s > 4 * found["fast"].prefill_s
    assert found["slow"].step_s > 3 * found["fast"].step_s
