"""Engines' prefix caches behind the gateway: who is sent where, who may meet, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from e2e.stand import Stand, engine, stand

SYSTEM = "You answer for the reading room of a large library, and never guess. " * 40
KEYS = {"ACME_KEY": "sk-acme", "GLOBEX_KEY": "sk-globex"}
TENANTS = [{"name": name, "key_env": f"{name.upper()}_KEY"} for name in ("acme", "globex")]


@asynccontextmanager
async def before(count: int, **model: Any) -> AsyncIterator[Stand]:
    """A stand of so many engines; nothing is answered from the gateway's own cache."""
    async with AsyncExitStack() as stack:
        engines = [engine(seed) for seed in range(count)]
        for one in engines:
            stack.push_async_callback(one.aclose)
        urls = [f"http://127.0.0.1:{await one.start()}" for one in engines]
        replicas = [{"url": url, "engine": "vllm"} for url in urls]
        named = {"tier": "small", "served_name": "sim-7b", "context_tokens": 32768}
        models = {"sim-7b": {**named, "replicas": replicas, **model}}
        cache = {"mode": "off"}
        yield await stack.enter_async_context(
            stand(models=models, cache=cache, tenants=TENANTS, environ=KEYS)
        )


async def chat(there: Stand, *said: str, tenant: str = "acme", **fields: Any) -> httpx.Response:
    """The system prompt and these turns, the user's first; every answer has 40 tokens."""
    roles = ("user", "assistant")
    turns = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    body = {
        "model": "small",
        "messages": [{"role": "system", "content": SYSTEM}, *turns],
        "max_tokens": 40,
        **fields,
    }
    headers = {"authorization": f"Bearer sk-{tenant}"}
    answer = await there.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def cached(answer: httpx.Response) -> int:
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_conversation_stays_where_its_cache_is() -> None:
    async def main() -> None:
        async with before(4) as there:
            for topic in ("tides", "maps", "bees"):
                said = [f"Tell me of {topic}. " * 60]
                homes = set()
                for turn in range(4):
                    answer = await chat(there, *said)
                    homes.add(answer.headers["x-tierway-replica"])
                    if turn:
                        assert cached(answer) > 0.7 * answer.json()["usage"]["prompt_tokens"]
                    words = answer.json()["choices"][0]["message"]["content"]
                    said += [words, f"And then, for the {turn}. time?"]
                assert len(homes) == 1

    asyncio.run(main())


@pytest.mark.parametrize("salt", ["none", "tenant"])
def test_tenants_meet_in_an_engine_only_where_they_may(salt: str) -> None:
    async def main() -> None:
        async with before(1, cache_salt=salt) as there:
            first = await chat(there, "What is new?")
            again = await chat(there, "What is old?")
            other = await chat(there, "What is new?", tenant="globex")
            own = await chat(there, "What is new?", cache_salt="mine")
            assert cached(first) == cached(own) == 0
            assert cached(again) > 400
            assert cached(other) > 400 if salt == "none" else cached(other) == 0

    asyncio.run(main())


def test_the_state_tells_of_the_index() -> None:
    async def main() -> None:
        async with before(1) as there:
            for number in range(6):
                await chat(there, f"{number}. question " * 60)
            found = there.gateway.parts.state()["prefixes"]
            assert set(found["blocks"]) == {one["id"] for one in there.replicas}
            assert all(blocks > 5 for blocks in found["blocks"].values())
            assert 0 < found["hit_share"] < 1
            assert 0 < found["approx_bytes"] < 1_000_000
            assert all(0.5 < share <= 1 for share in found["trust"].values())

    asyncio.run(main())
