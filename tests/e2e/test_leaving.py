"""Clients that leave: whatever they held is free within a second, up to the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from e2e.stand import GONE_WITHIN_S, RawClient, body_of, engine, stand, until

# How far a request is when its client leaves -> (what is asked, what is read first).
MOMENTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "waiting for a whole answer": (body_of("Write a book. [[answer 20000]]"), b""),
    "before the first token": (body_of("Wait. [[fault:hang]]", stream=True), b""),
    "in mid-stream": (body_of("Write. [[answer 20000]]", stream=True), b'"content":"'),
    "on a stalled stream": (body_of("Stall. [[fault:stall 3]]", stream=True), b'"content":"'),
    "on a stream that bypasses the cache": (
        body_of("Write. [[answer 20000]]", stream=True, temperature=1.9),
        b'"content":"',
    ),
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_client_that_leaves_holds_nothing(moment: str, reset: bool) -> None:
    asked, mark = MOMENTS[moment]

    async def main() -> None:
        async with stand(engine(speed=2.0)) as made:
            client = await RawClient.post(made.url, asked)
            if mark:
                await client.read_until(mark)
            assert await until(lambda: made.running == 1 and made.inflight == 1)
            await client.leave(reset=reset)
            assert await until(made.idle, within_s=GONE_WITHIN_S)
            assert made.engines[0].engine.totals.finished["abort"] == 1
            assert made.cache["entries"] == 0
            (replica,) = made.replicas
            assert (replica["failed"], replica["breaker"]) == (0, "closed")

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_hundred_clients_leaving_at_once(stream: bool) -> None:
    async def main() -> None:
        async with stand(engine(0, speed=2.0), engine(1, speed=2.0)) as made:
            clients = await asyncio.gather(
                *(
                    RawClient.post(made.url, body_of(f"Write {n}. [[answer 20000]]", stream=stream))
                    for n in range(100)
                )
            )
            assert await until(lambda: made.inflight == 100 and made.running == 100)
            await asyncio.gather(*(client.leave() for client in clients))
            assert await until(made.idle, within_s=2 * GONE_WITHIN_S)
            assert all(replica["breaker"] == "closed" for replica in made.replicas)
            assert (await made.ask("Still there?")).status_code == 200

    asyncio.run(main())


def test_the_other_asker_keeps_what_the_first_one_left() -> None:
    async def main() -> None:
        async with stand(engine(speed=2.0)) as made:
            asked = body_of("Write. [[answer 150]]", stream=True)
            first = await RawClient.post(made.url, asked)
            await first.read_until(b'"content":"')
            second = await RawClient.post(made.url, asked)
            head = await second.read_until(b"\r\n\r\n")
            assert b"x-tierway-cache: shared" in head
            await first.leave()
            await second.read_until(b"data: [DONE]\n\n")
            await second.leave()
            assert made.engines[0].engine.totals.finished["stop"] == 1
            assert await until(made.idle, within_s=GONE_WITHIN_S)
            assert made.cache["entries"] == 1

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_its_body() -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            client = await RawClient.post(made.url, b'{"model": ', b"content-length: 1000")
            await client.leave()
            assert (await made.ask("Still there?")).status_code == 200
            assert made.generated == 1
            assert made.idle()

    asyncio.run(main())
