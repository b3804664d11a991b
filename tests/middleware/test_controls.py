"""Request controls, who asks, and which conversation a call belongs to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tierway.middleware.wire import PATHS
from tierway.policies.errors import BadCall
from tierway.policies.types import CacheControl, Call, Controls


def parse(headers: dict[str, str] | None = None, **fields: Any) -> Call:
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return PATHS["/v1/chat/completions"].parse(
        json.dumps(body).encode(),
        {name.encode(): value.encode() for name, value in (headers or {}).items()},
        request_id="r1",
        tenant="",
        arrived_s=10.0,
        default_timeout_s=60.0,
    )


CASES = [
    ("tier", "small", "tier", "small"),
    ("quality", "0.25", "quality", 0.25),
    ("quality", "1", "quality", 1.0),
    ("session", "s-1", "session", "s-1"),
    ("user", "王", "user", "王"),
    ("priority", "batch", "priority", "batch"),
    ("namespace", "docs", "namespace", "docs"),
    ("timeout-ms", "1500", "timeout_s", 1.5),
    ("max-error-rate", "0.01", "max_error_rate", 0.01),
    ("placement", "on_prem_only", "placement", "on_prem_only"),
    ("debug", "1", "debug", True),
    ("debug", "false", "debug", False),
]


@pytest.mark.parametrize(("name", "text", "field", "value"), CASES)
def test_a_control_is_read_from_header_and_body(
    name: str, text: str, field: str, value: Any
) -> None:
    key = name.replace("-", "_")
    in_body = json.loads(text) if text[0].isdigit() or text == "false" else text
    assert getattr(parse({f"x-tierway-{name}": text}).controls, field) == value
    assert getattr(parse(tierway={key: in_body}).controls, field) == value


def test_nothing_given_is_the_defaults() -> None:
    assert parse().controls == parse(tierway={"tier": None}, cache=None).controls == Controls()


def test_the_header_wins() -> None:
    call = parse({"x-tierway-quality": "0.9"}, tierway={"quality": 0.1, "tier": "large"})
    assert (call.controls.quality, call.controls.tier) == (0.9, "large")


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("quality", "1.01", "a number from 0 to 1"),
        ("quality", "nan", "a number from 0 to 1"),
        ("quality", "", "a number from 0 to 1"),
        ("max-error-rate", "2%", "a number from 0 to 1"),
        ("priority", "high", "urgent, normal, batch"),
        ("placement", "moon", "on_prem_only"),
        ("timeout-ms", "0", "a whole number from 1"),
        ("timeout-ms", "1.5", "a whole number from 1"),
        ("timeout-ms", "9" * 5000, "a whole number from 1"),
        ("debug", "yes", "1 or 0"),
        ("tier", " ", "printable"),
        ("session", "x" * 257, "printable"),
        ("user", "a\x00b", "printable"),
    ],
)
def test_a_wrong_header_is_refused_with_field_value_and_allowed(
    name: str, text: str, allowed: str
) -> None:
    with pytest.raises(BadCall, match=allowed) as caught:
        parse({f"x-tierway-{name}": text})
    assert (caught.value.status, caught.value.param) == (400, f"x-tierway-{name}")
    assert len(caught.value.public) < 250


@pytest.mark.parametrize(
    ("ours", "param", "words"),
    [
        ({"quality": True}, "tierway.quality", "not True"),
        ({"quality": [1]}, "tierway.quality", "not \\[1\\]"),
        ({"timeout_ms": 1.5}, "tierway.timeout_ms", "not 1.5"),
        ({"priority": {}}, "tierway.priority", "one of"),
        ({"tier": 5}, "tierway.tier", "printable"),
        ({"qualty": 1}, "tierway", "'qualty': did you mean quality?"),
        ({"timeout-ms": 1}, "tierway", "did you mean timeout_ms?"),
        ("small", "tierway", "an object"),
        ({"cache": {"contxt_id": "d"}}, "tierway.cache.contxt_id", "context_id"),
    ],
)
def test_a_wrong_body_object_is_refused(ours: Any, param: str, words: str) -> None:
    with pytest.raises(BadCall, match=words) as caught:
        parse(tierway=ours)
    assert caught.value.param == param


def test_cache_controls_come_together() -> None:
    call = parse(
        {"cache-control": "no-store, max-age=60"},
        cache={"ttl": 30, "namespace": "shop"},
        tierway={"cache": {"query": "q", "context_id": "d1"}},
    )
    assert call.controls.namespace == "shop"
    assert call.controls.cache == CacheControl(
        no_store=True, max_age_s=60, ttl_s=30, query="q", context_id="d1"
    )
    assert parse({"x-tierway-namespace": "a"}, cache={"namespace": "b"}).controls.namespace == "a"


def test_a_client_may_shorten_its_time_not_lengthen_it() -> None:
    assert parse({"x-tierway-timeout-ms": "500"}).deadline_s == 10.5
    assert parse({"x-tierway-timeout-ms": "90000"}).deadline_s == 70.0


@pytest.mark.parametrize(
    ("headers", "fields", "user"),
    [
        ({"x-tierway-user": "h"}, {"safety_identifier": "s"}, "h"),
        ({}, {"safety_identifier": "s", "user": "u"}, "s"),
        ({}, {"user": "u", "metadata": {"user_id": "m"}}, "u"),
        ({}, {"user": 5, "metadata": {"user_id": "m"}}, "m"),
        ({}, {"metadata": "m"}, ""),
    ],
)
def test_who_asks(headers: dict[str, str], fields: dict[str, Any], user: str) -> None:
    assert parse(headers, **fields).user == user


def test_a_conversation_keeps_its_session() -> None:
    first = [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}]
    later = [*first, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    other = [{"role": "system", "content": "S"}, {"role": "user", "content": "B"}]
    sessions = [parse(messages=messages).session for messages in (first, later, other)]
    assert sessions[0] == sessions[1] != sessions[2]
    assert parse(messages=first, prompt_cache_key="k").session == "k"
    assert parse({"x-tierway-session": "h"}, prompt_cache_key="k").session == "h"


def test_requests_without_text_do_not_share_a_session() -> None:
    def session(prompt: list[int]) -> str:
        return (
            PATHS["/v1/completions"]
            .parse(
                json.dumps({"model": "m", "prompt": prompt}).encode(),
                {},
                request_id="r",
                tenant="",
                arrived_s=0,
                default_timeout_s=1,
            )
            .session
        )

    assert session([1, 2]) != session([1, 3])
