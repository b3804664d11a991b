"""The OpenAI wire: what a request is understood as, what is refused, how errors look."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import ErrorObject

from tierway.middleware.wire import PATHS
from tierway.policies.errors import (
    BadCall,
    BrokenStream,
    GatewayError,
    NoCapacity,
    Overloaded,
    Rejected,
    Unauthorised,
    UpstreamTimeout,
)
from tierway.policies.types import Call, Head, Turn

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
USER = {"role": "user", "content": "Why is the sky blue?"}


def parse(body: Any, path: str = CHAT, headers: dict[bytes, bytes] | None = None) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PATHS[path].parse(
        raw, headers or {}, request_id="r1", tenant="acme", arrived_s=100.0, default_timeout_s=60.0
    )


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": list(messages) or [USER], **fields}


def refusal(body: Any, path: str = CHAT) -> BadCall:
    with pytest.raises(BadCall) as caught:
        parse(body, path)
    assert caught.value.status == 400
    return caught.value


def test_a_chat_request_becomes_a_call() -> None:
    raw = json.dumps(chat(stream=True, user="u7", future_field=[1])).encode()
    call = parse(raw, headers={b"traceparent": b"00-1-2-01"})
    assert (call.id, call.wire, call.model, call.stream) == ("r1", "chat", "auto", True)
    assert (call.tenant, call.user, call.traceparent) == ("acme", "u7", b"00-1-2-01")
    assert (call.arrived_s, call.deadline_s) == (100.0, 160.0)
    assert call.raw == raw
    assert call.body == orjson.loads(raw)


def test_turns_are_flattened_and_the_newest_human_turn_is_the_question() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    ask = parse(
        chat(
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Use SI."}]},
            {"role": "user", "content": [{"type": "text", "text": "What"}, image, "is it?"]},
            {"role": "assistant", "content": None, "refusal": None},
            {"role": "user", "content": "天为什么蓝？"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        )
    ).ask
    assert ask.system == "Be brief.\nUse SI."
    assert ask.turns[2] == Turn("user", "What\nis it?", ("image",), 3)
    assert ask.turns[3] == Turn("assistant", "", parts=0)
    assert ask.turns[5].text == "No."
    assert ask.question == "天为什么蓝？"
    assert ask.media == ("image",)


@pytest.mark.parametrize(
    ("kind", "media"),
    [("input_audio", "audio"), ("video_url", "video"), ("file", "file"), ("hologram", "hologram")],
)
def test_media_are_named_by_kind(kind: str, media: str) -> None:
    ask = parse(chat({"role": "user", "content": [{"type": kind, kind: {}}]})).ask
    assert (ask.media, ask.question, ask.text_bytes) == ((media,), "", 0)


def test_text_bytes_count_utf8_tools_and_tool_calls() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    ask = parse(chat({"role": "user", "content": "天a"}, turn, tools=tools)).ask
    assert ask.has_tools
    assert ask.text_bytes == 4 + len(orjson.dumps(tools)) + len(orjson.dumps(calls))
    assert not parse(chat(tools=[])).ask.has_tools


@pytest.mark.parametrize(
    ("fields", "wants_json", "max_tokens"),
    [
        ({"response_format": {"type": "json_object"}}, True, None),
        ({"response_format": {"type": "json_schema"}, "max_tokens": 7}, True, 7),
        ({"response_format": {"type": "text"}, "max_completion_tokens": 9}, False, 9),
        ({"max_tokens": 7, "max_completion_tokens": 9}, False, 9),
        ({"response_format": "json", "max_tokens": True}, False, None),
    ],
)
def test_settings_that_choices_depend_on(
    fields: dict[str, Any], wants_json: bool, max_tokens: int | None
) -> None:
    ask = parse(chat(**fields)).ask
    assert (ask.wants_json, ask.max_tokens) == (wants_json, max_tokens)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER]}, "model"),
        ({"model": " ", "messages": [USER]}, "model"),
        ({"model": 3, "messages": [USER]}, "model"),
        ({"model": "m"}, "messages"),
        ({"model": "m", "messages": []}, "messages"),
        ({"model": "m", "messages": "hi"}, "messages"),
        (chat(USER, "hi"), "messages[1]"),
        (chat(USER, USER, {"content": "x"}), "messages[2].role"),
        (chat({"role": 1, "content": "x"}), "messages[0].role"),
        (chat({"role": "user", "content": 5}), "messages[0].content"),
        (chat({"role": "user", "content": {"text": "x"}}), "messages[0].content"),
        (chat({"role": "user", "content": [5]}), "messages[0].content[0]"),
        (chat({"role": "user", "content": [{"text": "x"}]}), "messages[0].content[0].type"),
        (chat({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
        (chat(stream="yes"), "stream"),
        (chat(stream=True, stream_options=True), "stream_options"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert param in error.public


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "The body is empty"),
        (b'{"model": "m",\n "messages": NaN}', "line 2 column 14"),
        (b'{"model": "m", "n": Infinity}', "column 21"),
        (b'{"model": "m",}', "trailing comma"),
        ('{"名": "m" x}'.encode(), "line 1 column 11, near"),
        (b'{\n"a": "\xff"}', "not UTF-8, line 2 column 7"),
        (b"[1]", "not an array"),
        (b"7", "not a number"),
        (b'"x"', "not a string"),
        (b"null", "not null"),
        (b"true", "not a boolean"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_with_its_place(raw: bytes, words: str) -> None:
    error = refusal(raw)
    assert error.code == "invalid_json"
    assert words in error.public
    assert len(error.public) < 200


def test_a_body_that_cannot_be_written_again_is_refused() -> None:
    for depth, fine in ((250, True), (260, False), (1000, False)):
        deep = b'{"model":"m","x":%s,"prompt":"p"}' % (b"[" * depth + b"]" * depth)
        if fine:
            assert parse(deep, COMPLETIONS).raw == deep
        else:
            assert "254 levels" in refusal(deep, COMPLETIONS).public
    wide = {"model": "m", "prompt": "p", "x": [[]] * 1000}
    assert parse(wide, COMPLETIONS).body == wide


FIELDS = [
    *("messages", "role", "content", "type", "text", "prompt", "input", "tierway", "cache"),
    *("metadata", "tools", "system", "stream", "max_tokens", "tool_choice", "stop_sequences"),
    *("output_config", "name", "source", "input_schema", "tool_use_id"),
]
WORDS = ["user", "assistant", "text", "image", "tool_use", "tool_result", "tool", "m", "", "模"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6)
    ),
    max_leaves=10,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JUNK).map(lambda junk: {"model": "m", **junk})


@settings(max_examples=60)
@given(st.binary(max_size=40) | BODIES.map(orjson.dumps), st.sampled_from(sorted(PATHS)))
def test_any_body_is_a_call_or_a_bad_call(raw: bytes, path: str) -> None:
    try:
        parse(raw, path)
    except BadCall as bad:
        status, _, body = PATHS[path].error(bad, "r1")
    else:
        return
    assert status == 400
    assert orjson.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "text", "text_bytes", "parts"),
    [
        ("天a", "天a", 4, 1),
        (["one", "two"], "one\ntwo", 7, 2),
        ([1, 2, 3], "", 3, 3),
        ([[1, 2], [3]], "", 3, 2),
    ],
)
@pytest.mark.parametrize(("path", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_prompts_and_inputs(
    path: str, field: str, prompt: Any, text: str, text_bytes: int, parts: int
) -> None:
    ask = parse({"model": "m", field: prompt}, path).ask
    assert ask.turns == (Turn("user", text, parts=parts),)
    assert (ask.question, ask.text_bytes) == (text, text_bytes)


@pytest.mark.parametrize("prompt", [None, [], 5, {}])
@pytest.mark.parametrize(("path", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_wrong_prompts_and_inputs(path: str, field: str, prompt: Any) -> None:
    assert refusal({"model": "m", field: prompt}, path).param == field


def test_embeddings_never_stream() -> None:
    assert not parse({"model": "m", "input": "x", "stream": True}, EMBEDDINGS).stream


def test_an_answer_needs_no_rendering() -> None:
    head = Head(200, (), "chat", stream=True)
    assert PATHS[CHAT].renderer(parse(chat(stream=True)), head) is None


def told(error: GatewayError, path: str = CHAT) -> tuple[int, dict[bytes, bytes], Any]:
    status, headers, body = PATHS[path].error(error, "r1")
    assert len(headers) == len(dict(headers))
    return status, dict(headers), orjson.loads(body)


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after", "final"),
    [
        (BadCall("Bad.", param="model", code="x"), 400, "x", None, False),
        (BadCall("Nothing stored.", status=504), 504, None, None, True),
        (Unauthorised("Who?"), 401, "invalid_api_key", None, False),
        (Overloaded("Later.", retry_after_s=0.2), 429, None, b"1", False),
        (Overloaded("Later.", retry_after_s=999), 429, None, b"120", False),
        (NoCapacity("None left.", retry_after_s=4.1), 503, "no_capacity", b"5", True),
        (UpstreamTimeout("idle", 30), 504, "upstream_timeout", None, True),
        (BrokenStream("Cut."), 502, "upstream_broken_stream", None, True),
        (GatewayError("Inside."), 500, None, None, False),
    ],
)
def test_an_error_has_all_four_keys_and_says_whether_to_come_again(
    error: GatewayError, status: int, code: str | None, retry_after: bytes | None, final: bool
) -> None:
    got, headers, body = told(error)
    assert got == status
    assert body == {
        "error": {
            "message": error.public,
            "type": error.type,
            "param": error.param,
            "code": code,
        }
    }
    ErrorObject.model_validate(body["error"])
    assert headers.get(b"retry-after") == retry_after
    assert headers.get(b"x-should-retry") == (b"false" if final else None)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"r1"


def test_an_upstreams_own_refusal_passes_as_it_came() -> None:
    body = b'{"error": {"message":"too long","type":"BadRequestError","param":null,"code":400}}'
    kind = (b"content-type", b"application/json; charset=utf-8")
    error = Rejected(429, (kind, (b"retry-after", b"300"), (b"set-cookie", b"x")), body)
    status, headers, got = PATHS[CHAT].error(error, "r1")
    assert (status, got) == (429, body)
    assert kind in headers
    assert (b"retry-after", b"300") in headers
    assert b"set-cookie" not in dict(headers)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail":"Not here"}', "Not here"),
        (b'{"error":"no such model","error_type":"validation"}', "no such model"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"type":"error","error":{"type":"not_found_error","message":"gone"}}', "gone"),
        (b"<html>", "The upstream answered with status 404."),
        (b"[1]", "The upstream answered with status 404."),
    ],
)
def test_a_refusal_in_another_shape_is_wrapped(body: bytes, message: str) -> None:
    status, headers, got = told(Rejected(404, ((b"content-type", b"text/html"),), body))
    assert status == 404
    assert headers[b"content-type"] == b"application/json"
    assert got["error"]["message"] == message
    assert got["error"].keys() == {"message", "type", "param", "code"}


def test_what_an_upstream_says_of_its_own_fault_stays_inside() -> None:
    body = b'{"error":{"message":"CUDA at 10.0.0.7","type":"x","param":null,"code":null}}'
    status, headers, got = told(Rejected(503, ((b"retry-after", b"2"),), body))
    assert (status, headers[b"retry-after"], headers[b"x-should-retry"]) == (503, b"2", b"false")
    assert got["error"]["message"] == "The upstream answered with status 503."
    assert told(Rejected(302, (), b""))[0] == 502


def test_an_error_in_a_stream_is_one_event() -> None:
    event = PATHS[CHAT].error_event(BrokenStream("Cut."), "r1")
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    assert orjson.loads(event[6:])["error"]["message"] == "Cut."
