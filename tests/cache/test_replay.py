"""Streams become the object they stand for, and stored objects become streams again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tierway.cache.assemble import assemble
from tierway.cache.replay import as_events, as_json, as_stored, fast_cached_json
from tierway.policies.errors import CacheError
from tierway.policies.types import Usage
from tierway.policies.usage import usage_of

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, **choice: Any) -> bytes:
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return event({**head, "choices": [{"index": 0, "delta": delta or {}, **choice}]})


def stream(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    return b"".join(map(chunk, deltas)) + chunk(finish_reason=finish) + DONE


def message(data: bytes) -> dict[str, Any]:
    whole = assemble(data, "chat")
    assert whole is not None
    found: dict[str, Any] = whole["choices"][0]["message"]
    return found


def payloads(events: Iterable[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(one[6:]) for one in events if one != DONE]


def test_a_chat_stream_becomes_one_completion() -> None:
    head = {"id": "c-1", "created": 7, "model": "m", "system_fingerprint": "fp", "x_new": [1]}
    first = {"role": "assistant", "content": "", "refusal": None}
    data = b"".join(
        [
            event({**head, "obfuscation": "a8", "choices": [{"index": 0, "delta": first}]}),
            chunk({"content": "Par"}),
            b": keep-alive\n\n",
            chunk({"content": "is."}, logprobs=None, finish_reason=None),
            chunk(finish_reason="stop", stop_reason=128009, token_ids=None),
            event({**head, "choices": [], "usage": USAGE}),
            DONE,
        ]
    )
    whole = assemble(data, "chat")
    said = {"role": "assistant", "content": "Paris.", "refusal": None}
    end = {"logprobs": None, "finish_reason": "stop", "stop_reason": 128009}
    assert whole == {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, **end}],
        "usage": USAGE,
    }
    ChatCompletion.model_validate(whole)


def test_azure_s_empty_opening_does_not_hide_id_and_model() -> None:
    opening = {"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": [1]}
    whole = assemble(event(opening) + stream({"content": "x"}), "chat")
    assert whole is not None
    assert (whole["id"], whole["model"], whole["created"]) == ("c-1", "m", 7)
    assert whole["prompt_filter_results"] == [1]


def test_usage_in_every_chunk_counts_once_and_last() -> None:
    counts = [{"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n} for n in (1, 2)]
    data = b"".join(event({"choices": [], "usage": count}) for count in counts)
    whole = assemble(data + stream({"content": "x"}), "chat")
    assert whole is not None
    assert whole["usage"] == counts[1]


def test_every_kind_of_text_is_joined_on_its_own() -> None:
    said = message(
        stream(
            {"reasoning": "Let ", "reasoning_content": "Let "},
            {"reasoning": "me", "reasoning_content": "me"},
            {"content": "我"},
            {"content": "们🙂"},
        )
    )
    assert said["reasoning"] == said["reasoning_content"] == "Let me"
    assert said["content"] == "我们🙂"
    assert message(stream({"content": ""}, {"refusal": "I "}, {"refusal": "won't."})) == {
        "role": "assistant",
        "content": None,
        "refusal": "I won't.",
    }


def call_delta(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **fields.pop("function", {})}
    return {"tool_calls": [{"index": index, "function": function, **fields}]}


def test_tool_calls_are_merged_by_index_with_ids_null_or_absent_later() -> None:
    said = message(
        stream(
            {"role": "assistant", "content": ""},
            call_delta(1, "", id="a", type="function", function={"name": "get"}),
            call_delta(2, "", id="b", type="function", function={"name": "put"}),
            call_delta(1, '{"x"', id=None, type=None, function={"name": None}),
            call_delta(2, "{}"),
            call_delta(1, ":1}", id="", function={"name": ""}),
            finish="tool_calls",
        )
    )
    assert said["content"] is None
    assert said["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "put", "arguments": "{}"}},
    ]
    legacy = message(
        stream(
            {"function_call": {"name": "get", "arguments": ""}},
            {"function_call": {"arguments": "{}"}},
            finish="function_call",
        )
    )
    assert legacy["function_call"] == {"name": "get", "arguments": "{}"}


def test_logprobs_and_token_ids_are_concatenated() -> None:
    data = (
        chunk({"content": "a"}, logprobs={"content": [{"token": "a"}], "refusal": None})
        + chunk({"content": "b"}, logprobs={"content": [{"token": "b"}]}, token_ids=[1])
        + chunk(finish_reason="stop", token_ids=[2, 3])
        + DONE
    )
    whole = assemble(data, "chat")
    assert whole is not None
    choice = whole["choices"][0]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}
    assert choice["token_ids"] == [1, 2, 3]


def test_a_completion_stream_becomes_one_text_completion() -> None:
    head = {"id": "t-1", "object": "text_completion", "created": 7, "model": "m"}
    parts: list[dict[str, Any]] = [
        {"text": "On", "logprobs": {"tokens": ["On"], "token_logprobs": [-0.5]}},
        {"text": "ce", "logprobs": {"tokens": ["ce"], "token_logprobs": [-1.5]}},
        {"text": "", "logprobs": None, "finish_reason": "stop"},
    ]
    data = b"".join(event({**head, "choices": [{"index": 0, **part}]}) for part in parts)
    whole = assemble(data + DONE, "completions")
    logprobs = {"tokens": ["On", "ce"], "token_logprobs": [-0.5, -1.5]}
    choice = {"index": 0, "text": "Once", "logprobs": logprobs, "finish_reason": "stop"}
    assert whole == {**head, "choices": [choice]}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_the_stream_may_be_framed_as_sse_allows(line_end: bytes) -> None:
    data = (
        b"\xef\xbb\xbfid: 1\nevent: message\nretry: 5\ndata:"
        + orjson.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}}]})
        + b'\n\n\n: note\n\ndata: {"choices": [{"delta": {},\ndata:  "finish_reason": "stop"}]}'
        + b"\n\ndata:[DONE]"
    )
    whole = assemble(data.replace(b"\n", line_end), "chat")
    assert whole is not None
    assert whole["choices"][0]["message"]["content"] == "x"


GOOD = stream({"content": "x"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        DONE,
        GOOD.removesuffix(DONE),
        chunk({"content": "x"}) + DONE,
        GOOD[: len(GOOD) // 2] + DONE,
        b"data: {oops}\n\n" + GOOD,
        b"data: 5\n\n" + GOOD,
        event({"error": {"message": "boom"}}) + GOOD,
        b"event: error\ndata: {}\n\n" + GOOD,
        event({"choices": {"odd": 1}}) + GOOD,
        event({"choices": ["odd"]}) + GOOD,
        event({"choices": [], "usage": 5}) + GOOD,
        event({"choices": [{"index": 0}, {"index": 1}]}) + GOOD,
        chunk({"content": "y"}, index=1) + GOOD,
        chunk({"content": ["parts"]}) + GOOD,
        chunk({"audio": {"data": "x"}}) + GOOD,
        chunk({"new_field": 0}) + GOOD,
        chunk({"role": "user"}) + GOOD,
        chunk(new_choice_field={"x": 1}) + GOOD,
        event({"choices": [{"delta": "odd"}]}) + GOOD,
        chunk(logprobs={"content": "odd"}) + GOOD,
        chunk(logprobs="odd") + GOOD,
        chunk(finish_reason=5) + GOOD,
        chunk(token_ids=5) + GOOD,
        stream({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]}),
        stream({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}),
        stream({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": ""}}]}),
        stream(call_delta(0, "{}", id="a", extra={"x": 1}, function={"name": "f"})),
        stream(call_delta(0, "{}", id="a", function={"name": "f", "extra": 1})),
        stream(call_delta(0, "{}", id=5, function={"name": "f"})),
        stream({"tool_calls": ["odd"]}),
        stream({"function_call": {"arguments": "{}"}}),
    ],
)
def test_what_cannot_be_joined_faithfully_is_not_joined(data: bytes) -> None:
    assert assemble(data, "chat") is None


def test_two_tool_calls_at_one_index_are_not_glued() -> None:
    one, two = (call_delta(0, "{}", id=name, function={"name": "f"}) for name in "ab")
    assert assemble(stream(one, two), "chat") is None
    renamed = call_delta(0, "{}", function={"name": "g"})
    assert assemble(stream(one, renamed), "chat") is None


def test_a_chat_stream_is_no_completion_and_the_other_way() -> None:
    assert assemble(GOOD, "completions") is None
    text = event({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}) + DONE
    assert assemble(text, "chat") is None
    assert assemble(text, "completions") is not None


def test_empty_unknown_fields_lose_nothing() -> None:
    delta = {"content": "x", "annotations": [], "tool_calls": [], "audio": None, "extra": {}}
    assert message(stream(delta))["content"] == "x"


def answer(content: str | None = "Paris is it.", **fields: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": content, "refusal": None, **fields}
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": "stop"}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [choice],
        "usage": USAGE,
    }


def test_a_hit_as_json_is_the_stored_object_marked_as_cached() -> None:
    body = orjson.loads(as_json(answer()))
    assert body == {**answer(), "usage": {**USAGE, "cached": True}}
    ChatCompletion.model_validate(body)
    bare = {name: value for name, value in answer().items() if name != "usage"}
    zeros = dict.fromkeys(USAGE, 0)
    assert orjson.loads(as_json(bare))["usage"] == {**zeros, "cached": True}


USAGES = [
    USAGE,
    {**USAGE, "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None}},
    {**USAGE, "prompt_tokens_details": None},
    {},
    {**USAGE, "cached": True},
    {**USAGE, "cached": False},
    {**USAGE, "cost": 0.25, "note": '}},"usage":{"x":1}}'},
    {**USAGE, "a": {"usage": {"x": 1}}},
    {"a": 1, "usage": {"x": 1}},
]


@pytest.mark.parametrize("usage", USAGES)
def test_the_fast_way_to_a_hit_s_json_is_exact(usage: dict[str, Any]) -> None:
    whole = {**answer(content='say ,"usage":{"prompt_tokens":1}} twice'), "usage": usage}
    expected = orjson.loads(as_json(whole))
    for raw in (as_stored(whole), orjson.dumps({**whole, "x": 1}), orjson.dumps(whole)):
        assert {**orjson.loads(fast_cached_json(raw)), "x": 1} == {**expected, "x": 1}
        assert fast_cached_json(raw).count(b'"cached":') == 1
    assert b" " not in as_stored({"a": 1, "usage": usage})[:8]


def test_usage_inside_another_member_is_not_taken_for_the_answer_s() -> None:
    raw = orjson.dumps({"a": 1, "x_groq": {"id": 1, "usage": {"total_tokens": 1}}})
    body = orjson.loads(fast_cached_json(raw))
    assert body["x_groq"] == {"id": 1, "usage": {"total_tokens": 1}}
    assert body["usage"]["cached"] is True


def test_stored_bytes_put_usage_last_and_lose_nothing() -> None:
    whole = {"usage": USAGE, **answer(), "prompt_logprobs": None}
    assert list(orjson.loads(as_stored(whole)))[-1] == "usage"
    assert orjson.loads(as_stored(whole)) == whole
    assert orjson.loads(as_stored({"a": 1, "usage": None})) == {"a": 1}


@pytest.mark.parametrize("raw", [b"", b"[]", b"5", b"{oops", b'{"usage": 5}'])
def test_broken_stored_bytes_are_a_cache_error(raw: bytes) -> None:
    with pytest.raises(CacheError):
        fast_cached_json(raw)


def test_a_hit_as_a_stream_has_the_shape_of_a_real_one() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 8
    events = as_events(answer(text, reasoning="Think."), include_usage=False)
    assert events[-1] == DONE
    chunks = payloads(events)
    for one in chunks:
        ChatCompletionChunk.model_validate(one)
        assert (one["id"], one["created"], one["system_fingerprint"]) == ("c-1", 7, "fp")
        assert "usage" not in one
    deltas = [one["choices"][0]["delta"] for one in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"reasoning": "Think."}
    pieces = [delta["content"] for delta in deltas[2:-1]]
    assert 2 <= len(pieces) <= 16
    assert "".join(pieces) == text
    assert deltas[-1] == {}
    finish = [one["choices"][0]["finish_reason"] for one in chunks]
    assert finish == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_comes_as_a_chunk_of_its_own_when_asked_for() -> None:
    chunks = payloads(as_events(answer(), include_usage=True))
    assert [one["usage"] for one in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {**USAGE, "cached": True}
    ChatCompletionChunk.model_validate(chunks[-1])


def test_tool_calls_open_with_id_and_name_then_bring_arguments() -> None:
    function = {"name": "get", "arguments": '{"city": "Paris, France"}'}
    calls = [{"id": name, "type": "function", "function": function} for name in "ab"]
    whole = answer(None, tool_calls=calls)
    chunks = payloads(as_events(whole, include_usage=False))
    deltas = [one["choices"][0]["delta"] for one in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    pieces = list(itertools.chain(*(delta.get("tool_calls", []) for delta in deltas)))
    assert {piece["index"] for piece in pieces} == {0, 1}
    assert [piece["id"] for piece in pieces if "id" in piece] == ["a", "b"]
    for one in chunks:
        ChatCompletionChunk.model_validate(one)


def entry(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.25, "bytes": list(token.encode()), "top_logprobs": []}


def test_logprobs_go_with_the_text_they_belong_to() -> None:
    tokens = [f"tok{number} " for number in range(40)]
    whole = answer("".join(tokens))
    whole["choices"][0]["logprobs"] = {"content": [entry(one) for one in tokens], "refusal": None}
    chunks = payloads(as_events(whole, include_usage=False))
    seen = 0
    for one in chunks:
        ChatCompletionChunk.model_validate(one)
        choice = one["choices"][0]
        own = [item["token"] for item in (choice["logprobs"] or {}).get("content") or []]
        assert "".join(own) == (choice["delta"].get("content") or "")
        seen += len(own)
    assert seen == 40
    assert 2 <= len(chunks) - 2 <= 16


def test_logprobs_that_do_not_spell_the_text_are_not_lost() -> None:
    whole = answer("我们" * 20)
    entries = [entry("\\xe6"), entry("\\x88\\x91")]
    whole["choices"][0]["logprobs"] = {"content": entries, "refusal": None}
    joined = assemble(b"".join(as_events(whole, include_usage=False)), "chat")
    assert joined is not None
    assert joined["choices"] == whole["choices"]


def test_a_refusal_keeps_its_own_logprobs() -> None:
    whole = answer(None, refusal="No way.")
    whole["choices"][0]["logprobs"] = {"content": None, "refusal": [entry("No"), entry(" way.")]}
    events = as_events(whole, include_usage=False)
    first = payloads(events)[1]["choices"][0]
    assert (first["delta"], first["logprobs"]["refusal"]) == ({"refusal": "No"}, [entry("No")])
    joined = assemble(b"".join(events), "chat")
    assert joined is not None
    assert joined["choices"] == whole["choices"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"choices": []},
        {"choices": [{}, {}]},
        {"choices": [{"message": None}]},
        {"choices": [5]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]},
        {"choices": [{"message": {"content": "x"}, "logprobs": {"content": [5]}}]},
    ],
)
def test_an_object_that_is_no_answer_is_a_cache_error(broken: dict[str, Any]) -> None:
    with pytest.raises(CacheError):
        as_events(broken, include_usage=False)


TEXT = st.text(max_size=200)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: {
            "id": f"call-{name}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.text(min_size=1, max_size=5),
        TEXT,
    ),
    max_size=3,
)


@given(TEXT, TEXT, CALLS, st.none() | st.lists(st.text(max_size=4), max_size=40), st.booleans())
def test_a_chat_answer_survives_the_way_out_and_back(
    content: str, reasoning: str, calls: list[Any], tokens: list[str] | None, usage: bool
) -> None:
    said = {"reasoning": reasoning} if reasoning else {}
    said |= {"tool_calls": calls} if calls else {}
    whole = answer(content or (None if calls else ""), **said)
    choice = whole["choices"][0]
    choice["stop_reason"] = "###"
    if tokens:
        choice["logprobs"] = {"content": [entry(one) for one in tokens], "refusal": None}
    back = assemble(b"".join(as_events(whole, include_usage=usage)), "chat")
    assert back is not None
    reported = back.pop("usage", None)
    assert reported == ({**USAGE, "cached": True} if usage else None)
    assert back == {name: value for name, value in whole.items() if name != "usage"}


@given(TEXT, st.none() | st.lists(st.text(max_size=4), min_size=1, max_size=40))
def test_a_text_completion_survives_the_way_out_and_back(
    text: str, tokens: list[str] | None
) -> None:
    logprobs = tokens and {
        "tokens": tokens,
        "token_logprobs": [-1.0] * len(tokens),
        "top_logprobs": None,
        "text_offset": list(range(len(tokens))),
    }
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": "stop"}
    whole = {"id": "t", "object": "text_completion", "created": 7, "model": "m"}
    whole |= {"choices": [choice], "usage": USAGE}
    events = as_events(whole, include_usage=True)
    back = assemble(b"".join(events), "completions")
    assert back == {**whole, "usage": {**USAGE, "cached": True}}
    # The SDK's type has no null finish reason, which every real stream sends until its end.
    ended = payloads(events)[-2]
    assert ended["choices"][0]["finish_reason"] == "stop"
    Completion.model_validate(ended)


@given(st.text(max_size=40), st.integers(0, 3))
def test_the_tail_of_a_stream_tells_its_usage_wherever_it_is_cut(text: str, cut: int) -> None:
    details = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}
    tricky = text + ' "usage": {"prompt_tokens": 99} '
    events = as_events({**answer(tricky), "usage": details}, include_usage=True)
    tail = b"".join(events)
    assert usage_of(tail[len(tail) * cut // 5 :]) == Usage(9, 2, 4)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b'{"usage": null}', None),
        (b'{"usage": {"prompt_tokens": ', None),
        (b'{"usage": {oops}}', None),
        (b'{"usage": {"note": 1, "x_tokens_y": 3, "prompt_tokens": true}}', None),
        (b'{"object":"list","usage" : {"prompt_tokens": 5, "total_tokens": 5}}', Usage(5, 0, 0)),
        (b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":null}}', Usage(5, 0, 0)),
        (b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":{}}}', Usage(5, 0, 0)),
        (
            b'data: {"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
            b'data: {"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n',
            Usage(5, 2, 0),
        ),
        (
            b'data: {"message":{"usage":{"input_tokens":7,"output_tokens":1,'
            b'"cache_read_input_tokens":20,"cache_creation_input_tokens":3}}}\n\n'
            b'data: {"delta":{},"usage":{"output_tokens":12}}\n\n',
            Usage(30, 12, 20),
        ),
        (
            b'{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},'
            b'"output_tokens":1}}',
            Usage(7, 1, 2),
        ),
    ],
)
def test_usage_is_read_in_every_spelling(data: bytes, expected: Usage | None) -> None:
    assert usage_of(data) == expected
