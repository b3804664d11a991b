"""Engines that restart on their port, and drains that take too long, under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from e2e.stand import Stand, body_of, engine, stand, until

from tierway.bench.engine_server import EngineServer

UNCACHED = {"mode": "off"}


@asynccontextmanager
async def busy(made: Stand, clients: int = 6) -> AsyncIterator[list[int]]:
    """Statuses of streams that are asked for all the time, 0 for one that was cut."""
    statuses: list[int] = []

    async def client(number: int) -> None:
        turn = 0
        while True:
            turn += 1
            question = f"{number}.{turn} [[answer 20]]"
            try:
                answer = await made.ask(question, stream=True)
                whole = answer.status_code != 200 or "[DONE]" in answer.text
            except httpx.HTTPError:
                whole = False
            statuses.append(answer.status_code if whole else 0)

    tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_restart_on_the_same_port_is_noticed_and_nothing_is_lost() -> None:
    async def main() -> None:
        first = [engine(seed) for seed in range(3)]
        async with stand(*first, cache=UNCACHED) as made, busy(made) as statuses:
            assert await until(lambda: len(statuses) > 60)
            old = made.replicas[0]
            assert await until(lambda: made.replicas[0]["facts_age_s"] is not None)
            prefixes = made.gateway.parts.dispatcher.balancer.prefixes
            assert prefixes is not None
            port = int(old["id"].rpartition(":")[2])
            await first[0].aclose()
            started_at = 4e9  # of another process
            new = EngineServer(
                "8b-l40s", model="sim-7b", seed=9, speed=20.0, wall_clock=lambda: started_at
            )
            await new.start(port=port)
            try:
                fleet = made.gateway.parts.fleet
                known = lambda: fleet.facts(old["id"])[0].process_start_s  # noqa: E731
                assert await until(lambda: known() == started_at, within_s=10)
                done = len(statuses)
                assert await until(lambda: len(statuses) > done + 100, within_s=20)
                assert await until(lambda: made.replicas[0]["available"], within_s=10)
                assert {status for status in statuses if status} == {200}
                assert statuses.count(0) <= 6  # what it was saying when it died
            finally:
                await new.aclose()

    asyncio.run(main())


def test_a_drain_past_its_bound_cuts_streams_and_moves_the_rest() -> None:
    async def main() -> None:
        slow, fast = engine(0, speed=0.2), engine(1)
        fleet = {"drain_timeout_s": 0.2, "slow_start_s": 0}
        async with (
            stand(slow, fast, cache=UNCACHED, fleet=fleet) as made,
            made.admin() as admin,
        ):
            there, other = (replica["id"] for replica in made.replicas)
            assert (await admin.post(f"/admin/replicas/{other}/drain")).status_code == 200
            ask = body_of("A [[answer 2000]]", stream=True)
            async with made.client.stream("POST", "/v1/chat/completions", json=ask) as begun:
                lines = begun.aiter_lines()
                read = [await anext(lines)]
                moved = asyncio.ensure_future(made.ask("B [[fault:slow 3]] [[answer 5]]"))
                assert await until(lambda: made.replicas[0]["inflight"] == 2)
                await admin.post(f"/admin/replicas/{other}/undrain")
                await admin.post(f"/admin/replicas/{there}/drain")
                read += [line async for line in lines]
            assert not any("[DONE]" in line for line in read)
            assert any('"error"' in line for line in read)
            answer = await asyncio.wait_for(moved, 20)
            assert answer.status_code == 200
            assert answer.headers["x-tierway-replica"] == other
            assert await until(made.idle)

    asyncio.run(main())
