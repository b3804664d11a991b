"""The client's wishes: the header, litellm's object and ours, and which of them wins."""

from __future__ import annotations

from typing import Any

import pytest

from tierway.policies.cache_control import cache_namespace, parse_cache_control
from tierway.policies.errors import BadCall
from tierway.policies.types import CacheControl


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, CacheControl()),
        ("", CacheControl()),
        ("no-cache", CacheControl(no_cache=True)),
        ("No-Store , max-age=60", CacheControl(no_store=True, max_age_s=60.0)),
        ("only-if-cached", CacheControl(only_if_cached=True)),
        ('max-age="5"', CacheControl(max_age_s=5.0)),
        ("max-age=9, max-age=3", CacheControl(max_age_s=3.0)),
        ("private, max-stale, min-fresh=5, s-maxage=x,,", CacheControl()),
    ],
)
def test_the_header_is_read_as_the_rfc_says(header: str | None, expected: CacheControl) -> None:
    assert parse_cache_control(header, None, None) == expected


def test_litellm_s_object_is_understood() -> None:
    litellm = {"no-cache": True, "no-store": False, "ttl": 5, "s-maxage": 9, "namespace": "blue"}
    assert parse_cache_control(None, litellm, None) == CacheControl(
        no_cache=True, ttl_s=5.0, max_age_s=9.0
    )
    assert cache_namespace(litellm) == "blue"
    assert cache_namespace({"ttl": 5}) == cache_namespace(None) == ""
    ages = {"s-maxage": 9, "s-max-age": 4.5, "ttl": None}
    assert parse_cache_control(None, ages, None) == CacheControl(max_age_s=4.5)


@pytest.mark.parametrize(("use", "expected"), [(True, False), (None, False), (False, True)])
def test_litellm_s_use_cache_false_keeps_out_of_the_cache(use: Any, expected: bool) -> None:
    found = parse_cache_control(None, {"use-cache": use, "no-cache": False}, None)
    assert (found.no_cache, found.no_store) == (expected, expected)


def test_our_object_holds_the_whole_control() -> None:
    ours = {
        "query": "Who wrote it?",
        "context_id": "doc-1",
        "no_store": True,
        "no_cache": False,
        "only_if_cached": False,
        "max_age_s": 5,
        "ttl_s": 7.5,
    }
    assert parse_cache_control(None, None, ours) == CacheControl(
        no_store=True, max_age_s=5.0, ttl_s=7.5, query="Who wrote it?", context_id="doc-1"
    )


def test_the_strictest_of_the_three_wins() -> None:
    found = parse_cache_control(
        "max-age=60, no-store",
        {"ttl": 50, "s-maxage": 10, "no-store": False},
        {"ttl_s": 90, "max_age_s": 30, "no_cache": True},
    )
    assert found == CacheControl(no_cache=True, no_store=True, max_age_s=10.0, ttl_s=50.0)


@pytest.mark.parametrize(
    ("header", "litellm", "ours", "param", "said"),
    [
        ("max-age=soon", None, None, "cache-control", "max-age=soon"),
        ("max-age", None, None, "cache-control", "whole seconds"),
        ("max-age=-1", None, None, "cache-control", "max-age=-1"),
        ("max-age=²", None, None, "cache-control", "whole seconds"),
        (None, True, None, "cache", "an object"),
        (None, {"ttl": "5"}, None, "cache.ttl", "0 or more"),
        (None, {"ttl": True}, None, "cache.ttl", "True"),
        (None, {"ttl": -1}, None, "cache.ttl", "-1"),
        (None, {"s-maxage": float("inf")}, None, "cache.s-maxage", "inf"),
        (None, {"no-cache": "yes"}, None, "cache.no-cache", "true or false"),
        (None, {"no_cache": True}, None, "cache.no_cache", "did you mean no-cache?"),
        (None, {"namespace": 5}, None, "cache.namespace", "text"),
        (None, None, [], "tierway.cache", "an object"),
        (None, None, {"query": " "}, "tierway.cache.query", "not empty"),
        (None, None, {"contextid": "a"}, "tierway.cache.contextid", "did you mean context_id?"),
        (None, None, {"zzz": "a"}, "tierway.cache.zzz", "one of no_cache"),
        (None, None, {"context_id": "x" * 90, "query": ["x" * 90]}, "tierway.cache.query", "..."),
    ],
)
def test_a_wrong_control_is_refused_by_name(
    header: str | None, litellm: Any, ours: Any, param: str, said: str
) -> None:
    with pytest.raises(BadCall) as caught:
        parse_cache_control(header, litellm, ours)
    assert caught.value.param == param
    assert said in caught.value.public
    assert caught.value.status == 400
