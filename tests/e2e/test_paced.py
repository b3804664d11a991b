"""Hits streamed at a pace: the same text, in time, and cut when the client leaves."""

from __future__ import annotations

import asyncio
import time

from e2e.servers import said
from e2e.stand import RawClient, body_of, engine, stand, until

QUESTION = "How do tides work?"


def test_a_stream_takes_its_time_and_a_whole_answer_does_not() -> None:
    async def main() -> None:
        cache = {"store": {"kind": "memory"}, "replay_tokens_per_s": 100}
        async with stand(engine(), cache=cache) as made:
            first = await made.ask(QUESTION)
            await made.settled()
            words = len(said(first).split())
            assert words > 10
            began = time.monotonic()
            streamed = await made.ask(QUESTION, stream=True)
            took = time.monotonic() - began
            assert streamed.headers["x-tierway-cache"] == "hit"
            assert said(streamed) == said(first)
            assert took >= (words - 1) / 100
            began = time.monotonic()
            whole = await made.ask(QUESTION)
            assert whole.headers["x-tierway-cache"] == "hit"
            assert time.monotonic() - began < took

    asyncio.run(main())


def test_a_client_that_leaves_ends_it() -> None:
    async def main() -> None:
        cache = {"store": {"kind": "memory"}, "replay_tokens_per_s": 0.1}
        async with stand(engine(), cache=cache) as made:
            await made.ask(QUESTION)
            await made.settled()
            client = await RawClient.post(made.url, body_of(QUESTION, stream=True))
            assert b"data: " in await client.read_until(b"\n\n")
            await client.leave()
            left = 'outcome="client_left"'
            assert await until(lambda: left in made.gateway.parts.metrics.render().decode())
            assert made.idle()

    asyncio.run(main())
