"""Gateways of one process that share their counts, in time that passes only when told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from fakes import FakeClock
from gateways import Member, fleet_of, total
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.bench.hub import MemoryHub
from tierway.policies.sharing import plus
from tierway.policies.types import Counts
from tierway.router.shared import REFRESH_S, ROW_TTL_S

ALL = [f"m@h{n}:1" for n in range(4)]


def joined(hub: MemoryHub, clock: FakeClock, replicas: int = 4) -> Member:
    fleet = fleet_of(replicas, clock)
    member = Member(
        hub.join(fleet, lambda name, some: member.heard.append((name, (*some,)))), fleet
    )
    return member


def test_a_burst_over_sixteen_gateways_takes_every_replica_once() -> None:
    async def main() -> None:
        clock = FakeClock()
        hub = MemoryHub(clock)
        members = [joined(hub, clock, 16) for _ in range(16)]
        replicas = [f"m@h{n}:1" for n in range(16)]
        placed = [await member.place(replicas) for member in members]
        assert sorted(placed) == sorted(replicas)
        for member in members:
            member.finish()
        hub.tick()
        draw = random.Random(1)
        four = [await member.place(draw.sample(replicas, 4)) for member in members]
        assert max(Counter(four).values()) <= 2

    asyncio.run(main())


def test_counts_are_heard_with_the_next_refresh_and_expire() -> None:
    async def main() -> None:
        clock = FakeClock()
        hub = MemoryHub(clock)
        one, two = joined(hub, clock), joined(hub, clock)
        hub.tick()
        busy = await one.place(ALL)
        assert total(two.fleet, busy).requests == 0
        clock.advance(REFRESH_S)
        hub.tick()
        assert total(two.fleet, busy).requests == 1
        one.finish()
        assert total(two.fleet, busy).requests == 1
        clock.advance(REFRESH_S)
        hub.tick()
        hub.tick()
        assert total(two.fleet, busy).requests == 0
        await one.place(ALL[:2])
        clock.advance(ROW_TTL_S + REFRESH_S)  # nobody said anything for so long
        assert hub.others("gateway-1", busy) == Counts()

    asyncio.run(main())


def test_placements_arrive_after_their_delay_and_not_at_their_sender() -> None:
    clock = FakeClock()
    hub = MemoryHub(clock, delay_s=0.25)
    one, two, three = (joined(hub, clock) for _ in range(3))
    one.state.placed(ALL[0], [1, 2])
    clock.advance(0.2)
    hub.tick()
    assert two.heard == []
    clock.advance(0.1)
    hub.tick()
    assert two.heard == three.heard == [(ALL[0], (1, 2))]
    assert one.heard == []


def test_a_gateway_that_leaves_takes_its_counts_along() -> None:
    async def main() -> None:
        clock = FakeClock()
        hub = MemoryHub(clock)
        one, two = joined(hub, clock), joined(hub, clock)
        await one.place(ALL)
        assert two.state.status().gateways == 2
        await one.state.aclose()
        clock.advance(REFRESH_S)
        hub.tick()
        assert two.state.status().gateways == 1
        assert all(two.fleet.others(replica) == Counts() for replica in ALL)

    asyncio.run(main())


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["place", "end", "token"])), max_size=40
    )
)
def test_after_a_refresh_all_sums_are_those_of_the_leases(steps: list[tuple[int, str]]) -> None:
    async def main() -> None:
        clock = FakeClock()
        hub = MemoryHub(clock)
        members = [joined(hub, clock) for _ in range(3)]
        for number, action in steps:
            member = members[number]
            if action == "place":
                await member.place(ALL)
            elif member.leases and action == "end":
                member.leases.pop(0).finish()
            elif member.leases:
                member.leases[0].first_token()
        for _ in range(2):
            clock.advance(REFRESH_S)
            hub.tick()
        for replica in ALL:
            truth = Counts()
            for member in members:
                truth = plus(truth, member.fleet.own(replica))
            assert all(total(member.fleet, replica) == truth for member in members)

    asyncio.run(main())
