"""Official clients against the running gateway: nothing of theirs is changed but the address."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import GatewayProcess

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "How do tides work?"}


@pytest.fixture
def sdk(tierway: GatewayProcess, namespace: str) -> Iterator[openai.OpenAI]:
    headers = {"x-tierway-namespace": namespace}
    with openai.OpenAI(
        base_url=tierway.url + "/v1", api_key="unused", default_headers=headers, max_retries=0
    ) as client:
        yield client


@pytest.fixture
def claude(tierway: GatewayProcess, namespace: str) -> Iterator[anthropic.Anthropic]:
    headers = {"x-tierway-namespace": namespace}
    with anthropic.Anthropic(
        base_url=tierway.url, api_key="unused", default_headers=headers, max_retries=0
    ) as client:
        yield client


def text_of(stream: Any) -> str:
    return "".join(part.choices[0].delta.content or "" for part in stream if part.choices)


def test_openai_reads_a_whole_answer(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="small", messages=[USER])
    assert "How do tides work?" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "sim-7b"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_openai_streams_the_same_text_with_usage_when_asked(sdk: openai.OpenAI) -> None:
    # One replica: the small ones have seeds, and so lengths, of their own.
    fresh = {"Cache-Control": "no-cache"}
    whole = sdk.chat.completions.create(model="medium", messages=[USER])
    parts = list(
        sdk.chat.completions.create(
            model="medium",
            messages=[USER],
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=fresh,
        )
    )
    assert text_of(parts) == whole.choices[0].message.content
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_openai_stream_has_no_usage_chunk_unless_asked(sdk: openai.OpenAI) -> None:
    parts = list(sdk.chat.completions.create(model="small", messages=[USER], stream=True))
    assert all(part.choices and part.usage is None for part in parts)


def test_async_openai_client(tierway: GatewayProcess, namespace: str) -> None:
    async def main() -> tuple[str, str]:
        async with openai.AsyncOpenAI(
            base_url=tierway.url + "/v1",
            api_key="unused",
            default_headers={"x-tierway-namespace": namespace},
        ) as client:
            whole = await client.chat.completions.create(model="auto", messages=[USER])
            stream = await client.chat.completions.create(
                model="auto", messages=[USER], stream=True
            )
            parts = [part async for part in stream]
            return whole.choices[0].message.content or "", text_of(parts)

    whole, streamed = asyncio.run(main())
    assert whole == streamed != ""


def test_text_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="small", prompt="Once upon a time", max_tokens=12)
    assert answer.choices[0].text
    parts = sdk.completions.create(
        model="small", prompt="Once upon a time", max_tokens=12, stream=True
    )
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text


def test_tool_call_of_the_sdk(sdk: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": "Weather in Oslo? [[tool]]"}]
    answer = sdk.chat.completions.create(model="auto", messages=asked, tools=[WEATHER])
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls"


def events_of(url: str, body: dict[str, Any], **headers: str) -> list[str]:
    """The raw events of a stream, with what differs from request to request masked."""
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        raw = b"".join(answer.iter_raw()).decode()
    raw = re.sub(r'"created":\d+', '"created":0', raw)
    raw = re.sub(r'"(chatcmpl|cmpl)-(tool-)?[0-9a-f]+"', r'"\1-\2x"', raw)
    return raw.split("\n\n")


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("question", ["Weather in Oslo? [[tool]]", "天气怎么样?[[answer 30]]"])
def test_stream_bytes_pass_as_the_engine_wrote_them(
    tierway: GatewayProcess, fleet: EngineUrls, question: str, usage: bool
) -> None:
    body = {
        "model": "sim-175b",
        "messages": [{"role": "user", "content": question}],
        "tools": [WEATHER],
        "stream": True,
        **({"stream_options": {"include_usage": True}} if usage else {}),
    }
    path = "/v1/chat/completions"
    fresh = {"cache-control": "no-cache, no-store"}
    direct = events_of(fleet.large[0] + path, body)
    through = events_of(tierway.url + path, body, **fresh)
    if usage:  # the engine's prefix cache knows the prompt the second time
        cached = re.compile(r'"cached_tokens":\d+')
        direct, through = ([cached.sub("", event) for event in one] for one in (direct, through))
    assert through == direct
    assert through[-2:] == ["data: [DONE]", ""]


def test_embeddings(sdk: openai.OpenAI) -> None:
    found = sdk.embeddings.create(model="sim-embed", input=["one", "two"])
    assert [len(item.embedding) for item in found.data] == [len(found.data[0].embedding)] * 2
    assert found.data[0].embedding != found.data[1].embedding


def test_models_are_listed(sdk: openai.OpenAI) -> None:
    names = [model.id for model in sdk.models.list()]
    assert names[0] == "auto"
    assert {"small", "medium", "large", "sim-7b", "sim-70b", "sim-175b"} <= set(names)
    assert sdk.models.retrieve("sim-7b").id == "sim-7b"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("nobody")


def test_unknown_model_is_a_not_found_error_that_names_what_exists(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="nobody", messages=[USER])
    assert caught.value.code == "model_not_found"
    assert "sim-7b" in caught.value.message


def test_an_alias_of_an_openai_model_is_chosen_by_the_classifier(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="gpt-5-mini", messages=[USER])
    assert answer.model.startswith("sim-")


def test_a_wrong_field_is_a_bad_request_that_names_it(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="auto", messages="hello")
    assert caught.value.param == "messages"


def test_an_engines_refusal_passes_in_its_own_words(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="small", messages=[USER], n=99)
    assert caught.value.param == "n"


def test_anthropic_reads_a_whole_answer(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="small", max_tokens=200, messages=[USER])
    assert answer.content[0].type == "text"
    assert "How do tides work?" in answer.content[0].text
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens > 0


def test_anthropic_streams_the_same_text(claude: anthropic.Anthropic) -> None:
    # One replica: the small ones have seeds, and so lengths, of their own.
    asked: dict[str, Any] = {"model": "medium", "max_tokens": 200, "messages": [USER]}
    whole = claude.messages.create(**asked)
    fresh = {"Cache-Control": "no-cache"}
    with claude.messages.stream(**asked, extra_headers=fresh) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_anthropic_tool_call_arrives_in_deltas(claude: anthropic.Anthropic) -> None:
    tool = {"name": "weather", "input_schema": WEATHER["function"]["parameters"]}
    with claude.messages.stream(
        model="small",
        max_tokens=200,
        messages=[{"role": "user", "content": "Weather in Oslo? [[tool]]"}],
        tools=[tool],
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert "input_json" in kinds
    assert final.stop_reason == "tool_use"
    (call,) = [block for block in final.content if block.type == "tool_use"]
    assert "city" in call.input


def test_anthropic_errors_have_its_own_shape(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="nobody", max_tokens=10, messages=[USER])
    assert caught.value.body["type"] == "error"
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="small", max_tokens=0, messages=[])


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_as_the_command_prints_it(tierway: GatewayProcess) -> None:
    printed = (tierway.folder / "stdout").read_text()
    line = printed[printed.index("curl ") : printed.index("Admin:")].strip()
    done = subprocess.run(
        ["sh", "-c", line.replace("curl ", "curl -sS -m 60 ", 1)], capture_output=True, check=True
    )
    assert "France" in json.loads(done.stdout)["choices"][0]["message"]["content"]
