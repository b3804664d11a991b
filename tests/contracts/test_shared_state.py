"""The contract of a SharedState, over all that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from datastores import redis_server
from gateways import Member, fleet_of, over_redis

from tierway.bench.hub import MemoryHub
from tierway.policies.types import Counts
from tierway.router.shared import MemoryState

Make = Callable[[], Member]
ALL = [f"m@h{n}:1" for n in range(4)]


@pytest.fixture(params=["memory", "hub", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "redis":
        with redis_server(tmp_path) as server:
            yield lambda: over_redis(server.url)
    elif request.param == "hub":

        def joined() -> Member:
            fleet = fleet_of(4)
            return Member(MemoryHub(fleet.clock).join(fleet), fleet)

        yield joined
    else:
        yield lambda: Member(MemoryState(), fleet_of(4))


def run(make: Make, body: Callable[[Member], Awaitable[None]]) -> None:
    async def main() -> None:
        member = make()
        await member.state.start()
        try:
            await body(member)
        finally:
            await member.state.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_without_a_choice_the_first_is_taken(make: Make) -> None:
    async def body(member: Member) -> None:
        assert await member.state.pick((), 0.9) == 0
        assert await member.place(ALL[2:3], 0.9) == ALL[2]

    run(make, body)


def test_a_place_is_one_of_those_offered(make: Make) -> None:
    async def body(member: Member) -> None:
        for number in range(20):
            assert await member.place(ALL, number / 20) in ALL
        assert sum(member.fleet.inflight().values()) == 20

    run(make, body)


def test_nothing_is_left_of_calls_that_ended(make: Make) -> None:
    async def body(member: Member) -> None:
        for number in range(8):
            await member.place(ALL, number / 8)
        member.finish()
        await member.place(ALL[:2])
        member.finish()
        assert all(member.fleet.own(replica) == Counts() for replica in ALL)
        assert all(member.fleet.others(replica) == Counts() for replica in ALL)

    run(make, body)


def test_a_call_that_is_given_up_while_it_waits_takes_no_slot(make: Make) -> None:
    async def body(member: Member) -> None:
        for _ in range(5):
            waiting = [asyncio.ensure_future(member.place(ALL, n / 9)) for n in range(9)]
            await asyncio.sleep(0)
            for task in waiting[::2]:
                task.cancel()
            done = await asyncio.gather(*waiting, return_exceptions=True)
            placed = [one for one in done if isinstance(one, str)]
            assert len(placed) == len(member.leases)
            assert sum(member.fleet.inflight().values()) == len(placed)
            member.finish()

    run(make, body)


def test_it_says_how_it_is(make: Make) -> None:
    async def body(member: Member) -> None:
        status = member.state.status()
        assert status.backend in ("memory", "redis")
        assert (status.ok, status.gateways, status.error) == (True, 1, "")
        member.state.placed(ALL[0], [1, 2, 3])
        member.state.placed(ALL[0], [])

    run(make, body)
