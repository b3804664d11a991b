"""Answers that call tools, stored where the operator wants it: the same request, every form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
from e2e.stand import Stand, engine, stand, until

PARAMETERS = {"type": "object", "properties": {"to": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "pay", "parameters": PARAMETERS}}
CLAUDE_TOOL = {"name": "pay", "input_schema": PARAMETERS}
QUESTION = "Pay the bill of the power company. [[tool]]"


def run(test: Callable[[Stand], Coroutine[Any, Any, None]], **cache: Any) -> None:
    async def main() -> None:
        async with stand(engine(), cache={"store": {"kind": "memory"}, **cache}) as made:
            await test(made)

    asyncio.run(main())


async def pay(made: Stand, question: str = QUESTION, **fields: Any) -> httpx.Response:
    answer = await made.ask(question, tools=[TOOL], max_tokens=200, **fields)
    assert answer.status_code == 200, answer.text
    await made.settled()
    return answer


def cache_of(answer: httpx.Response) -> str:
    return answer.headers["x-tierway-cache"]


def calls_of(stream: httpx.Response) -> list[dict[str, Any]]:
    """The tool calls of a stream, its pieces put together."""
    lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    assert choices[-1]["finish_reason"] == "tool_calls"
    calls: dict[int, dict[str, Any]] = {}
    for piece in (call for choice in choices for call in choice["delta"].get("tool_calls", [])):
        call = calls.setdefault(piece["index"], {"arguments": ""})
        call |= {"id": piece["id"]} if piece.get("id") else {}
        call |= {"name": piece["function"]["name"]} if piece["function"].get("name") else {}
        call["arguments"] += piece["function"].get("arguments") or ""
    return list(calls.values())


def test_by_default_they_are_not_stored() -> None:
    async def main(made: Stand) -> None:
        assert [cache_of(await pay(made)) for _ in range(2)] == ["miss", "miss"]
        assert made.cache["entries"] == 0

    run(main)


def test_the_same_request_gets_the_same_call_in_every_form() -> None:
    async def main(made: Stand) -> None:
        first = await pay(made)
        assert cache_of(first) == "miss"
        (call,) = first.json()["choices"][0]["message"]["tool_calls"]
        again = await pay(made)
        assert cache_of(again) == "hit"
        assert again.json()["choices"] == first.json()["choices"]
        streamed = await pay(made, stream=True)
        assert cache_of(streamed) == "hit"
        assert calls_of(streamed) == [{"id": call["id"], **call["function"]}]
        body = {
            "model": "auto",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": QUESTION}],
            "tools": [CLAUDE_TOOL],
        }
        claude = await made.client.post("/v1/messages", json=body)
        assert cache_of(claude) == "hit"
        (use,) = (part for part in claude.json()["content"] if part["type"] == "tool_use")
        assert (use["id"], use["name"]) == (call["id"], "pay")
        assert use["input"] == json.loads(call["function"]["arguments"])
        assert claude.json()["stop_reason"] == "tool_use"
        events = await made.client.post("/v1/messages", json={**body, "stream": True})
        assert cache_of(events) == "hit"
        assert '"type":"tool_use"' in events.text.replace(" ", "")
        assert "event: message_stop" in events.text
        assert made.generated == 1

    run(main, store_tool_calls=True)


def test_a_stream_of_calls_fills_the_same_entry() -> None:
    async def main(made: Stand) -> None:
        first = await pay(made, stream=True)
        assert await until(lambda: made.cache["entries"] == 1)
        whole = await pay(made)
        assert (cache_of(first), cache_of(whole)) == ("miss", "hit")
        (call,) = whole.json()["choices"][0]["message"]["tool_calls"]
        assert calls_of(first) == [{"id": call["id"], **call["function"]}]

    run(main, store_tool_calls=True)


def test_other_words_never_get_a_stored_call() -> None:
    async def main(made: Stand) -> None:
        await pay(made)
        debug = {"x-tierway-debug": "1"}
        other = await pay(made, "Pay the power company's bill. [[tool]]", headers=debug)
        assert cache_of(other) == "miss"
        assert json.loads(other.headers["x-tierway-reason"])["cache"] == "nothing-near"
        assert made.cache["entries"] == 2

    run(main, store_tool_calls=True)
