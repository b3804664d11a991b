"""A stored answer in every form that somebody may ask for it again."""

from __future__ import annotations

import anthropic
import httpx
import openai
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import GatewayProcess, ask, generated, outcome, said

QUESTION = "How do tides work?"
USER = {"role": "user", "content": QUESTION}


def headers_of(namespace: str) -> dict[str, str]:
    return {"x-tierway-namespace": namespace}


def test_two_identical_streams_call_upstream_once(client: httpx.Client, fleet: EngineUrls) -> None:
    before = generated(*fleet.all)
    first = ask(client, QUESTION, stream=True)
    second = ask(client, QUESTION, stream=True)
    assert (outcome(first), outcome(second)) == ("miss", "hit")
    assert said(second) == said(first) != ""
    assert generated(*fleet.all) == before + 1


@pytest.mark.parametrize("filled_as_stream", [True, False])
def test_streams_and_whole_answers_fill_one_entry(
    client: httpx.Client, fleet: EngineUrls, filled_as_stream: bool
) -> None:
    before = generated(*fleet.all)
    first = ask(client, QUESTION, stream=filled_as_stream)
    second = ask(client, QUESTION, stream=not filled_as_stream)
    assert outcome(second) == "hit"
    assert said(second) == said(first)
    assert generated(*fleet.all) == before + 1
    if filled_as_stream:
        assert second.json()["usage"]["cached"] is True
        assert second.json()["usage"]["completion_tokens"] > 0


def test_a_hit_streams_usage_only_when_asked(client: httpx.Client) -> None:
    ask(client, QUESTION)
    plain = ask(client, QUESTION, stream=True)
    asked = ask(client, QUESTION, stream=True, stream_options={"include_usage": True})
    assert '"cached":true' not in plain.text
    assert '"cached":true' in asked.text
    assert said(plain) == said(asked)


def test_the_sdk_reads_a_hit_as_a_stream(
    tierway: GatewayProcess, client: httpx.Client, namespace: str
) -> None:
    stored = ask(client, QUESTION, model="small")
    with openai.OpenAI(
        base_url=tierway.url + "/v1", api_key="-", default_headers=headers_of(namespace)
    ) as sdk:
        stream = sdk.chat.completions.with_raw_response.create(
            model="small", messages=[USER], stream=True
        )
        assert stream.headers["x-tierway-cache"] == "hit"
        parts = list(stream.parse())
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == said(stored)
    assert parts[-1].choices[0].finish_reason == "stop"
    assert {part.id for part in parts} == {stored.json()["id"]}


@pytest.mark.parametrize("stream", [True, False])
def test_filled_by_one_wire_and_read_by_the_other(
    tierway: GatewayProcess, client: httpx.Client, namespace: str, stream: bool
) -> None:
    stored = ask(client, QUESTION, model="small", max_tokens=300)
    with anthropic.Anthropic(
        base_url=tierway.url, api_key="-", default_headers=headers_of(namespace)
    ) as claude:
        raw = claude.messages.with_raw_response.create(
            model="small", messages=[USER], max_tokens=300, stream=stream
        )
        assert raw.headers["x-tierway-cache"] == "hit"
        if stream:
            deltas = [e.delta for e in raw.parse() if e.type == "content_block_delta"]
            text = "".join(delta.text for delta in deltas)
        else:
            message = raw.parse()
            text = message.content[0].text
            assert message.stop_reason == "end_turn"
    assert text == said(stored)


def test_embeddings_and_text_completions_are_cached_too(
    client: httpx.Client, fleet: EngineUrls
) -> None:
    embedding = {"model": "sim-embed", "input": "tides"}
    text = {"model": "small", "prompt": "The tide", "max_tokens": 200}
    for path, body in (("/v1/embeddings", embedding), ("/v1/completions", text)):
        first = client.post(path, json=body)
        before = generated(*fleet.all)
        second = client.post(path, json=body)
        assert (outcome(first), outcome(second)) == ("miss", "hit")
        assert generated(*fleet.all) == before
        one, two = first.json(), second.json()
        assert two.pop("usage").pop("cached") is True
        assert two == {name: value for name, value in one.items() if name != "usage"}


def test_a_tool_call_is_not_stored(client: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}
    for _ in range(2):
        answer = ask(client, "Pay the bill. [[tool]]", tools=[tool])
        assert outcome(answer) == "miss"
        assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_cut_short_is_not_stored(client: httpx.Client) -> None:
    for _ in range(2):
        answer = ask(client, QUESTION, max_tokens=3)
        assert outcome(answer) == "miss"
        assert answer.json()["choices"][0]["finish_reason"] == "length"
