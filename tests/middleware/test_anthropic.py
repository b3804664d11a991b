"""The Anthropic wire: a Messages request as a chat body, chat answers as Messages and events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import anthropic
import httpx2 as httpx  # the one that the SDK uses
import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tierway.middleware.wire import PATHS, Renderer
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

CODEC = PATHS["/v1/messages"]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
HI = {"role": "user", "content": "Hi"}


def parse(*messages: Any, **fields: Any) -> Call:
    body = {"model": "auto", "max_tokens": 64, "messages": list(messages) or [HI], **fields}
    return CODEC.parse(
        json.dumps({key: value for key, value in body.items() if value is not ...}).encode(),
        {},
        request_id="r1",
        tenant="acme",
        arrived_s=1.0,
        default_timeout_s=60.0,
    )


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# --- requests ---------------------------------------------------------------------------------


def test_a_plain_request() -> None:
    call = parse(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"], stream=True)
    assert (call.wire, call.model, call.stream, call.includes_usage) == (
        "messages",
        "auto",
        True,
        True,
    )
    assert json.loads(call.raw)["stop_sequences"] == ["END"]
    assert call.body == {
        "model": "auto",
        "messages": [HI],
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert call.ask.max_tokens == 64


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be brief.", cache_control={"type": "ephemeral"})], "Be brief."),
        ([text("A"), text("B", citations=None)], [text("A"), text("B")]),
    ],
)
def test_system_texts(system: Any, message: Any) -> None:
    call = parse(system=system)
    assert call.body["messages"] == [{"role": "system", "content": message}, HI]
    assert call.ask.system in ("Be brief.", "A\nB")


def test_images_become_urls() -> None:
    png = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    web = {"type": "url", "url": "https://x/y.png"}
    call = parse(
        user(text("Look"), {"type": "image", "source": png}, {"type": "image", "source": web})
    )
    assert call.body["messages"][0]["content"] == [
        text("Look"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ]
    assert call.ask.turns == (Turn("user", "Look", ("image", "image"), 3),)


def test_a_conversation_with_tools() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "get", "input": {"city": "巴黎"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("12 C")]}
    failed = {**result, "tool_use_id": "t2", "content": "no net", "is_error": True}
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    call = parse(
        HI,
        {"role": "assistant", "content": [text("I look."), use, {**use, "id": "t2"}]},
        user(result, failed, text("And now?")),
        tools=[
            {"name": "get", "description": "d", "input_schema": schema, "defer_loading": False},
            {"type": "custom", "name": "put", "input_schema": schema, "strict": True},
        ],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    arguments = '{"city":"巴黎"}'
    function = {"name": "get", "arguments": arguments}
    assert call.body["messages"] == [
        HI,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": function},
                {"id": "t2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "12 C"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no net"},
        {"role": "user", "content": "And now?"},
    ]
    assert call.body["tools"] == [
        {"type": "function", "function": {"name": "get", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "put", "parameters": schema, "strict": True}},
    ]
    assert call.body["tool_choice"] == "required"
    assert call.body["parallel_tool_calls"] is False
    assert call.ask.has_tools
    assert call.ask.question == "And now?"


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choices(given: Any, choice: Any) -> None:
    body = parse(tool_choice=given).body
    assert body["tool_choice"] == choice
    assert "parallel_tool_calls" not in body


def test_json_output_and_effort_are_carried() -> None:
    schema = {"type": "object"}
    call = parse(
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    )
    assert call.body["response_format"]["json_schema"]["schema"] == schema
    assert call.body["reasoning_effort"] == "low"
    assert call.ask.wants_json


def test_who_asks_and_controls_are_read_and_not_sent_on() -> None:
    call = parse(metadata={"user_id": "u9"}, tierway={"tier": "small"}, cache={"no-store": True})
    assert (call.user, call.controls.tier, call.controls.cache.no_store) == ("u9", "small", True)
    assert call.body == {"model": "auto", "messages": [HI], "max_tokens": 64, "user": "u9"}


@pytest.mark.parametrize(
    "harmless",
    [
        {"thinking": {"type": "disabled"}},
        {"thinking": None},
        {"service_tier": "auto"},
        {"cache_control": {"type": "ephemeral"}},
        {"speed": "standard"},
        {"tools": []},
        {"stop_sequences": []},
        {"system": ""},
    ],
)
def test_what_changes_no_answer_is_dropped(harmless: dict[str, Any]) -> None:
    assert parse(**harmless).body == {"model": "auto", "messages": [HI], "max_tokens": 64}


DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "1"}


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([], {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ([], {"mcp_servers": []}, "mcp_servers"),
        ([], {"frequency_penalty": 1}, "frequency_penalty"),
        ([], {"speed": "fast"}, "speed"),
        ([], {"tools": [{"type": "web_search_20250305", "name": "s"}]}, "tools.0.type"),
        ([], {"metadata": {"team": "x"}}, "metadata.team"),
        ([user(DOCUMENT)], {}, "messages.0.content.0"),
        ([user(text("x", citations=[{}]))], {}, "messages.0.content.0.citations"),
        (
            [user({"type": "image", "source": {"type": "file", "file_id": "f"}})],
            {},
            "messages.0.content.0.source",
        ),
        ([user({**RESULT, "content": [DOCUMENT]})], {}, "messages.0.content.0.content.0"),
        ([HI, {"role": "assistant", "content": "The best is ("}], {}, "messages.1"),
        (
            [HI, {"role": "assistant", "content": [USE, text("x")]}, HI],
            {},
            "messages.1.content.1",
        ),
        (
            [HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, HI],
            {},
            "messages.1.content.0",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(
    messages: list[Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadCall, match="cannot be carried") as caught:
        parse(*messages, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.public.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([], {"model": ...}, "model"),
        ([], {"max_tokens": ...}, "max_tokens"),
        ([], {"max_tokens": 0}, "max_tokens"),
        ([], {"max_tokens": True}, "max_tokens"),
        ([], {"messages": ...}, "messages"),
        ([], {"messages": []}, "messages"),
        ([], {"stream": 1}, "stream"),
        ([], {"stop_sequences": "END"}, "stop_sequences"),
        ([], {"system": 5}, "system"),
        ([], {"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ([], {"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        (["hi"], {}, "messages.0"),
        ([{"role": "system", "content": "x"}], {}, "messages.0.role"),
        ([{"role": "user"}], {}, "messages.0.content"),
        ([user("hi")], {}, "messages.0.content.0"),
        ([user({"type": "text"})], {}, "messages.0.content.0.text"),
        ([user(text("x"), RESULT)], {}, "messages.0.content.1"),
        ([HI, {"role": "assistant", "content": [{**USE, "input": "x"}]}, HI], {},
         "messages.1.content.0.input"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(
    messages: list[Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadCall) as caught:
        parse(*messages, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(BadCall, match="did you mean max_tokens"):
        parse(max_token=5)


# --- whole answers ----------------------------------------------------------------------------


def renderer(*, stream: bool, stop: list[str] | None = None) -> Renderer:
    call = parse(stream=stream, stop_sequences=stop or [])
    rendering = CODEC.renderer(call, Head(200, (), "chat", stream=stream))
    assert rendering is not None
    return rendering


def completion(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-77",
        "object": "chat.completion",
        "created": 1,
        "model": "Qwen/7B",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", **message},
                "finish_reason": finish,
                **choice,
            }
        ],
        "usage": {
            "prompt_tokens": 30,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 20},
        },
    }


def rendered(answer: dict[str, Any], **options: Any) -> Message:
    rendering = renderer(stream=False, **options)
    raw = json.dumps(answer).encode()
    assert rendering.feed(raw[:20]) + rendering.feed(raw[20:]) == b""
    return Message.model_validate_json(rendering.finish(), strict=True)


def test_a_completion_becomes_a_message() -> None:
    message = rendered(completion({"content": "Blue.", "reasoning": "hm"}))
    assert (message.id, message.model, message.role) == ("msg_77", "Qwen/7B", "assistant")
    assert [block.to_dict() for block in message.content] == [text("Blue.")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == 10
    assert message.usage.cache_read_input_tokens == 20
    assert message.usage.output_tokens == 5


TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def test_tool_calls_become_tool_use() -> None:
    message = rendered(completion({"content": None, "tool_calls": [TOOL_CALL]}, "tool_calls"))
    assert [block.to_dict() for block in message.content] == [
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
    ]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("message", "finish", "choice", "reason", "sequence"),
    [
        ({"content": "x"}, "length", {}, "max_tokens", None),
        ({"content": "x"}, "content_filter", {}, "refusal", None),
        ({"content": None, "refusal": "No."}, "stop", {}, "refusal", None),
        ({"content": "x"}, "stop", {"stop_reason": "END"}, "stop_sequence", "END"),
        ({"content": "x"}, "stop", {"stop_reason": 151643}, "end_turn", None),
        ({"content": "x"}, "stop", {"stop_reason": "other"}, "end_turn", None),
        ({"content": "", "tool_calls": [TOOL_CALL]}, "stop", {}, "tool_use", None),
    ],
)
def test_stop_reasons(
    message: dict[str, Any], finish: str, choice: Any, reason: str, sequence: str | None
) -> None:
    answer = completion(message, finish, **choice)
    whole = rendered(answer, stop=["END"])
    assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
    events = streamed(as_stream(answer), stop=["END"])
    assert (events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]) == (
        reason,
        sequence,
    )


def test_a_cached_answer_says_so_in_its_usage() -> None:
    answer = completion({"content": "x"})
    answer["usage"]["cached"] = True
    assert rendered(answer).usage.to_dict()["cached"] is True
    assert streamed(as_stream(answer))[-2]["usage"]["cached"] is True


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": []},
        {"error": {"message": "oops"}},
        completion({"tool_calls": [{"function": {"name": "f", "arguments": '{"a'}}]}, "length"),
    ],
)
def test_an_answer_that_is_no_message_is_a_broken_one(answer: dict[str, Any]) -> None:
    with pytest.raises(BrokenStream):
        rendered(answer)
    half = renderer(stream=False)
    half.feed(b'{"choices": [')
    with pytest.raises(BrokenStream):
        half.finish()


def test_an_answer_in_this_wire_passes() -> None:
    assert CODEC.renderer(parse(), Head(200, (), "messages", stream=False)) is None


# --- streams ----------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    fields = {"id": "chatcmpl-77", "model": "Qwen/7B", "choices": choices, **more}
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def as_stream(answer: dict[str, Any]) -> bytes:
    choice = answer["choices"][0]
    delta = dict(choice["message"])
    calls = [{"index": at, **call} for at, call in enumerate(delta.pop("tool_calls", ()))]
    last = {**choice, "delta": {}}
    return b"".join(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk(delta),
            *(chunk({"tool_calls": [call]}) for call in calls),
            b"data: " + json.dumps({"id": "chatcmpl-77", "choices": [last]}).encode() + b"\n\n",
            chunk(None, usage=answer["usage"]),
            b"data: [DONE]\n\n",
        ]
    )


def render(stream: bytes, cuts: Iterable[int] = (), **options: Any) -> bytes:
    """The rendering of a stream that arrives in pieces cut there."""
    rendering = renderer(stream=True, **options)
    pieces = [stream[start:end] for start, end in pairwise([0, *sorted(cuts), len(stream)])]
    return b"".join(map(rendering.feed, pieces)) + rendering.finish()


def streamed(stream: bytes, cuts: Iterable[int] = (), **options: Any) -> list[dict[str, Any]]:
    """The events that come out, each checked for its form."""
    events = []
    for event in render(stream, cuts, **options).split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        events.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
        EVENT.validate_python(events[-1])
    return events


def message_from(body: bytes) -> Message:
    """What the official SDK makes of a stream."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        anthropic.Anthropic(api_key="k", base_url="http://x", http_client=http) as client,
        client.messages.stream(
            model="auto", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        ) as stream,
    ):
        return stream.get_final_message()


TEXT_STREAM = b"".join(
    [
        chunk({"role": "assistant", "content": ""}),
        b": ping\n\n",
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "天是"}),
        chunk({"content": "蓝的。"}, usage=None),
        chunk({}, "stop"),
        chunk(
            None,
            usage={
                "prompt_tokens": 30,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 20},
            },
        ),
        b"data: [DONE]\n\n",
    ]
)
TEXT_EVENTS = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_77",
            "type": "message",
            "role": "assistant",
            "model": "Qwen/7B",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 0,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": text("")},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "天是"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "蓝的。"},
    },
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 20,
            "output_tokens": 5,
        },
    },
    {"type": "message_stop"},
]


@given(st.sets(st.integers(0, len(TEXT_STREAM)), max_size=8))
def test_a_text_stream_in_order_wherever_it_is_cut(cuts: set[int]) -> None:
    assert streamed(TEXT_STREAM, cuts) == TEXT_EVENTS


def test_line_ends_and_a_missing_last_one_do_not_matter() -> None:
    assert streamed(TEXT_STREAM.replace(b"\n", b"\r\n")) == TEXT_EVENTS
    assert streamed(TEXT_STREAM.removesuffix(b"\n\n")) == TEXT_EVENTS
    assert streamed(TEXT_STREAM.removesuffix(b"data: [DONE]\n\n")) == TEXT_EVENTS
    assert streamed(TEXT_STREAM.replace(b"data: ", b"data:")) == TEXT_EVENTS


def test_text_is_said_as_soon_as_its_event_is_there() -> None:
    rendering = renderer(stream=True)
    assert b"message_start" in rendering.feed(chunk({"role": "assistant", "content": ""}))
    assert b'"text":"a"' in rendering.feed(chunk({"content": "a"}))


def call_delta(index: int, arguments: str, **more: Any) -> bytes:
    name = {"name": more.pop("name")} if "name" in more else {}
    call = {"index": index, **more, "function": {**name, "arguments": arguments}}
    return chunk({"tool_calls": [call]})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, "c1"), (1, "c2")),
        ((1, "c1"), (2, "c2")),
        ((0, "c1"), (0, "c2")),  # an engine that numbers every call 0
    ],
)
@pytest.mark.parametrize("later_id", [{}, {"id": None}, {"id": ""}])
def test_parallel_tool_calls_stay_apart(
    first: tuple[int, str], second: tuple[int, str], later_id: dict[str, Any]
) -> None:
    stream = b"".join(
        [
            chunk({"content": "I look."}),
            call_delta(first[0], "", id=first[1], name="get"),
            call_delta(first[0], '{"city":', **later_id),
            call_delta(first[0], '"Paris"}', **later_id),
            call_delta(second[0], "", id=second[1], name="put"),
            call_delta(second[0], "{}", **later_id),
            chunk({}, "tool_calls"),
            b"data: [DONE]\n\n",
        ]
    )
    events = streamed(stream)
    borders = [(e["type"][14:], e["index"]) for e in events if e["type"].endswith(("rt", "op"))
               and "index" in e]  # fmt: skip
    assert borders == [(kind, at) for at in range(3) for kind in ("start", "stop")]
    content = [block.to_dict() for block in message_from(render(stream)).content]
    assert content == [
        text("I look."),
        {"type": "tool_use", "id": "c1", "name": "get", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "c2", "name": "put", "input": {}},
    ]


def test_a_tool_call_without_an_id_gets_one() -> None:
    stream = call_delta(0, "{}", name="f") + chunk({}, "tool_calls")
    block = message_from(render(stream)).content[0]
    assert block.to_dict() == {"type": "tool_use", "id": "call_0", "name": "f", "input": {}}


@pytest.mark.parametrize(
    "rest",
    [
        b'data: {"error": {"message": "out of memory"}}\n\n',
        b'data: {"choices": [{"delta": {"con\n\n',
        b"data: [DONE]\n\n",
        call_delta(0, "{}"),
        call_delta(0, "", id="a", name="f") + call_delta(1, "", id="b", name="g")
        + call_delta(0, "{}", id="a", name="f"),
        b"",
    ],
)  # fmt: skip
def test_what_was_good_is_said_before_the_fault(rest: bytes) -> None:
    rendering = renderer(stream=True)
    assert b'"text":"a"' in rendering.feed(chunk({"content": "a"}) + rest)
    with pytest.raises(BrokenStream):
        rendering.finish()


KEYS = ["choices", "delta", "message", "content", "tool_calls", "function", "index", "id", "usage"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["stop", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([*KEYS, "name", "arguments", "finish_reason", "prompt_tokens"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JUNK), max_size=4))
def test_any_answer_is_rendered_or_broken(answers: list[dict[str, Any]]) -> None:
    events, whole = renderer(stream=True), renderer(stream=False)
    with suppress(BrokenStream):
        for answer in answers:
            events.feed(b"data: " + orjson.dumps(answer) + b"\n")
        assert b"message_stop" in events.finish()
    with suppress(BrokenStream):
        whole.feed(orjson.dumps(answers[-1] if answers else None))
        assert orjson.loads(whole.finish())["type"] == "message"


def test_nothing_said_is_an_empty_message() -> None:
    events = streamed(chunk({"role": "assistant", "content": ""}) + chunk({}, "stop"))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after", "final"),
    [
        (BadCall("Bad."), 400, "invalid_request_error", None, False),
        (BadCall("Where?", status=404), 404, "not_found_error", None, False),
        (BadCall("Odd.", status=422), 422, "invalid_request_error", None, False),
        (Unauthorised("Who?"), 401, "authentication_error", None, False),
        (Overloaded("Later.", retry_after_s=3), 429, "rate_limit_error", b"3", False),
        (NoCapacity("None left."), 529, "overloaded_error", b"5", True),
        (NoCapacity("None left.", status=500), 500, "api_error", b"5", True),
        (UpstreamTimeout("total", 9), 504, "timeout_error", None, True),
        (BrokenStream("Cut."), 502, "api_error", None, True),
        (Rejected(503, (), b""), 529, "overloaded_error", None, True),
        (Rejected(529, (), b""), 529, "overloaded_error", None, True),
        (Rejected(500, (), b""), 500, "api_error", None, True),
        (GatewayError("Inside."), 500, "api_error", None, False),
    ],
)
def test_an_error_in_this_wires_shape(
    error: GatewayError, status: int, kind: str, retry_after: bytes | None, final: bool
) -> None:
    got, headers, body = CODEC.error(error, "r1")
    fields = dict(headers)
    assert got == status
    parsed = ErrorResponse.model_validate_json(body)
    assert (parsed.error.type, parsed.error.message) == (kind, error.public)
    assert parsed.request_id == "r1"
    assert fields[b"request-id"] == fields[b"x-request-id"] == b"r1"
    assert fields.get(b"retry-after") == retry_after
    assert fields.get(b"x-should-retry") == (b"false" if final else None)


def test_a_body_that_is_too_large_has_its_own_type() -> None:
    status, _, body = CODEC.error(BadCall("Big.", status=413), "r1")
    assert (status, orjson.loads(body)["error"]["type"]) == (413, "request_too_large")


def test_an_overload_before_any_attempt_may_be_retried() -> None:
    error = Overloaded("Full.", retry_after_s=2)
    error.status = 503
    status, headers, body = CODEC.error(error, "r1")
    assert (status, orjson.loads(body)["error"]["type"]) == (529, "overloaded_error")
    assert b"x-should-retry" not in dict(headers)


def test_an_upstreams_refusal_is_told_in_this_shape() -> None:
    openai = b'{"error":{"message":"too long","type":"x","param":null,"code":400}}'
    status, _, body = CODEC.error(Rejected(400, (), openai), "r1")
    assert status == 400
    assert orjson.loads(body)["error"] == {"type": "invalid_request_error", "message": "too long"}
    own = b'{"type":"error","error":{"type":"invalid_request_error","message":"m"}}'
    assert CODEC.error(Rejected(400, (), own), "r1")[2] == own


def test_an_error_in_a_stream_is_an_error_event_for_the_sdk() -> None:
    event = CODEC.error_event(NoCapacity("None left."), "r1")
    name, data, rest = event.split(b"\n", 2)
    assert (name, rest) == (b"event: error", b"\n")
    body = orjson.loads(data.removeprefix(b"data: "))
    assert body["error"]["type"] == "overloaded_error"
    assert anthropic.types.shared.ErrorResponse.model_validate(body).request_id == "r1"
