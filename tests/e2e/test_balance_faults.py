"""Balancers' faults that others met, before the real gateway: bad, dead, new and hot replicas.

The numbers in the names are those of the table of reported faults of balancers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from e2e.servers import SPEED, said
from e2e.stand import Stand, engine, stand, until

from tierway.bench.engine_server import EngineServer
from tierway.bench.profiles import profile

UNCACHED = {"mode": "off"}


def tries(made: Stand) -> list[int]:
    """Requests that each replica has had, in their order."""
    return [int(one["served"] + one["failed"]) for one in made.replicas]


def shares(made: Stand, before: list[int]) -> list[float]:
    """Of the tries since then, by replica."""
    since = [now - then for now, then in zip(tries(made), before, strict=True)]
    return [one / max(1, sum(since)) for one in since]


@asynccontextmanager
async def busy(made: Stand, clients: int = 8) -> AsyncIterator[Counter[int]]:
    """Clients that ask one question after the other while the block runs; what they got."""
    found: Counter[int] = Counter()

    async def client(name: int) -> None:
        for number in range(10_000):
            asked = f"Q {name} {number} [[answer 20]]"
            answer = await made.ask(asked, headers={"x-tierway-session": f"{name}-{number // 5}"})
            found[answer.status_code] += 1
            if answer.status_code != 200:
                await asyncio.sleep(0.02)

    asking = [asyncio.create_task(client(name)) for name in range(clients)]
    try:
        yield found
    finally:
        for task in asking:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*asking)


async def more(found: Counter[int], count: int, *, within_s: float = 10.0) -> None:
    """Returns after so many more good answers."""
    wanted = found[200] + count
    assert await until(lambda: found[200] >= wanted, within_s=within_s), found


def test_balancer_fault_10_a_replica_that_fails_fast_gets_next_to_nothing() -> None:
    """higress #3255: the fast 5xx always had the fewest in flight, and drew the traffic."""

    async def main() -> None:
        async with stand(engine(0), engine(1), engine(2), cache=UNCACHED) as made:
            made.engines[0].faults.set({"fault": "500"})
            async with busy(made) as found:
                await asyncio.sleep(2)
                before = tries(made)
                await more(found, 100)
                assert shares(made, before)[0] < 0.05
                assert set(found) == {200}

    asyncio.run(main())


def test_balancer_fault_10_most_of_the_replicas_fail_fast() -> None:
    """Two of three: a limit to what may be taken out must not leave one of them in."""

    async def main() -> None:
        async with stand(engine(0), engine(1), engine(2), cache=UNCACHED) as made:
            for one in made.engines[:2]:
                one.faults.set({"fault": "500"})
            async with busy(made) as found:
                await more(found, 40)
                before = tries(made)
                await more(found, 100)
                assert sum(shares(made, before)[:2]) < 0.05
                assert set(found) == {200}

    asyncio.run(main())


def test_balancer_fault_10_a_new_or_returned_replica_gets_its_share() -> None:
    """higress #3255: new nodes were left out, counts of old ones stale."""

    async def main() -> None:
        async with (
            stand(engine(0), engine(1), engine(2), cache=UNCACHED) as made,
            made.admin() as admin,
            busy(made) as found,
        ):
            new = made.replicas[2]["id"]
            assert (await admin.post(f"/admin/replicas/{new}/drain")).status_code == 200
            await more(found, 60)
            assert await until(lambda: made.replicas[2]["inflight"] == 0)
            before = tries(made)
            await more(found, 60)
            assert shares(made, before)[2] == 0.0
            assert (await admin.post(f"/admin/replicas/{new}/undrain")).status_code == 200
            back_s = time.monotonic()
            await more(found, 30)
            before = tries(made)
            await more(found, 150)
            assert time.monotonic() - back_s < 10
            assert 0.2 < shares(made, before)[2] < 0.5
            assert set(found) == {200}

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_balancer_fault_19_prompts_that_are_too_long_open_no_breaker(stream: bool) -> None:
    """sglang #25811: 400s for over-long prompts took a healthy worker out."""

    async def main() -> None:
        small = dataclasses.replace(profile("8b-l40s"), max_model_len=300)
        short = EngineServer(small, model="sim-7b", speed=SPEED)
        async with stand(short, cache=UNCACHED) as made:
            for number in range(20):
                answer = await made.ask(f"{number} " + "word " * 600, stream=stream)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "context_length_exceeded"
            (replica,) = made.replicas
            assert (replica["breaker"], replica["failed"]) == ("closed", 0)
            assert said(await made.ask("Hello", stream=stream))

    asyncio.run(main())


def test_balancer_fault_20_all_die_and_one_comes_back() -> None:
    """sglang #7028: with all workers dead the router fell into a panic and stayed there."""

    async def main() -> None:
        first = engine(0)
        async with stand(first, engine(1), engine(2), cache=UNCACHED) as made:
            port = int(made.replicas[0]["id"].rpartition(":")[2])
            async with busy(made) as found:
                await more(found, 30)
                for one in made.engines:
                    await one.aclose()
                assert await until(lambda: found[503] >= 20)
                assert set(found) <= {200, 502, 503}
                again = engine(0)
                assert await again.start(port=port) == port
                back_s = time.monotonic()
                good = found[200]
                assert await until(lambda: found[200] > good)
                assert time.monotonic() - back_s < 5
                await more(found, 60)
                bad = found.total() - found[200]
                await more(found, 60)
                assert found.total() - found[200] == bad  # once it is back, nothing fails
            await again.aclose()

    asyncio.run(main())


COSTS: Mapping[str, tuple[str, int]] = {
    "refused connections": ("refuse", 5),
    "errors": ("500", 5),
    "broken streams": ("cut 0", 5),
}


@pytest.mark.parametrize(("fault", "most"), COSTS.values(), ids=COSTS)
def test_balancer_fault_20_one_bad_replica_costs_few_tries(fault: str, most: int) -> None:
    """Infera #82: failures were forgotten between requests, the bad worker picked first."""

    async def main() -> None:
        async with stand(engine(0), engine(1), engine(2), cache=UNCACHED) as made:
            made.engines[1].faults.set({"fault": fault})
            for number in range(40):
                assert said(await made.ask(f"Q {number} [[answer 5]]", stream=True))
            assert 1 <= tries(made)[1] <= most
            assert made.replicas[1]["served"] == 0

    asyncio.run(main())


def test_balancer_fault_20_a_dead_replica_costs_one_try() -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1), dead=1, cache=UNCACHED) as made:
            for number in range(20):
                assert said(await made.ask(f"Q {number} [[answer 5]]"))
            assert tries(made)[2] <= 1

    asyncio.run(main())


SYSTEM = {
    "role": "system",
    "content": " ".join(f"Rule {n}: answer kindly, briefly and with care." for n in range(180)),
}


@pytest.mark.parametrize("clients", [1, 16])
def test_balancer_fault_01_a_system_prompt_of_all_is_no_hot_spot(clients: int) -> None:
    """dynamo #737: requests with one long head all went to one of 8 replicas."""

    async def main() -> None:
        engines = [engine(n, speed=5 * SPEED) for n in range(8)]
        async with stand(*engines, cache=UNCACHED) as made:
            numbers = iter(range(200))

            async def client() -> None:
                for number in numbers:
                    asked = {"role": "user", "content": f"{number}: what now? [[answer 10]]"}
                    assert said(await made.ask("", messages=[SYSTEM, asked]))

            await asyncio.gather(*(client() for _ in range(clients)))
            assert sum(tries(made)) == 200
            # With 16 at once two replicas stand near twice the mean: those that had the head first.
            assert max(tries(made)) <= 2 * 200 / 8

    asyncio.run(main())


def test_balancer_fault_03_a_trickle_uses_all_replicas() -> None:
    """Infera #103: nothing was in flight when the next came, so the first replica got all."""

    async def main() -> None:
        async with stand(engine(0), engine(1), cache=UNCACHED) as made:
            for number in range(40):
                session = {"x-tierway-session": f"agent-{number % 10}"}
                asked = f"Agent {number % 10}, step {number // 10}. [[answer 10]]"
                assert said(await made.ask(asked, headers=session))
            assert sum(tries(made)) == 40
            assert min(tries(made)) >= 8

    asyncio.run(main())
