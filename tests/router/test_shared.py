"""The balancer before a state that gateways share: what it offers, and what it tells."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from fakes import FakeClock

from tierway.bench.hub import MemoryHub
from tierway.policies.policyset import PolicySet
from tierway.policies.sharing import OFFERED, Offer
from tierway.policies.types import Counts, Model, StateStatus, Tier, Work
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec
from tierway.router.shared import REFRESH_S, TICK_S

MODEL = Model("m", "small")
BLOCKS = tuple(range(1, 41))
LOOK = Look("s", 40 * 64, 100, BLOCKS, block_tokens=64.0)


class Scripted:
    """A shared state that takes the place it is told, and keeps what it was told."""

    def __init__(self, place: int = 0) -> None:
        self.place = place
        self.offers: list[tuple[Offer, ...]] = []
        self.told: list[tuple[str, tuple[int, ...]]] = []

    async def start(self) -> None:
        pass

    async def pick(self, offers: Iterable[Offer], draw: float) -> int:
        self.offers.append(tuple(offers))
        return self.place

    def placed(self, replica: str, blocks: Sequence[int]) -> None:
        self.told.append((replica, tuple(blocks)))

    def status(self) -> StateStatus:
        return StateStatus("memory")

    async def aclose(self) -> None:
        pass


def balancer(
    shared: Scripted, *, policy: str = "llm", count: int = 6, draw: float = 0.5
) -> Balancer:
    clock = FakeClock()
    fleet = Fleet([ReplicaSpec(f"m@h{n}:1", "m", "small", "") for n in range(count)], clock=clock)
    holder = PolicyHolder(PolicySet.build([Tier("small", 0, "7b", (MODEL,), policy=policy)]))
    return Balancer(
        fleet,
        holder,
        clock=clock,
        draw=lambda: draw,
        prefixes=PrefixIndex(),
        shared=shared,
    )


async def send(made: Balancer, look: Look = LOOK) -> str:
    return (await made.take(made.rank("small", ["m"], look))).replica


def test_the_best_are_offered_with_what_the_policy_knew_of_them() -> None:
    async def main() -> None:
        shared = Scripted(place=2)
        made = balancer(shared)
        made.fleet.lease("m@h3:1", Work(10, 10, 5))
        made.fleet.set_others({"m@h3:1": Counts(2, 30, 20, 10, 40)})
        choice = made.rank("small", ["m"], LOOK)
        lease = await made.take(choice)
        (offers,) = shared.offers
        ranked = [candidate.replica for candidate in choice.ranking.candidates]
        assert [offer.replica for offer in offers] == ranked[:OFFERED]
        assert lease.replica == ranked[2]
        for offer in offers:
            view = choice.view(offer.replica)
            assert offer.known.requests == view.inflight
            assert offer.known.prefill_tokens == view.prefill_tokens
            assert offer.work == Work(2560, 2560, 100)
        assert choice.view("m@h3:1").inflight == 3

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["llm", "least_request", "weighted_least_request"])
def test_a_burst_over_sixteen_gateways_is_spread_by_each_policy_that_counts(policy: str) -> None:
    """Known fault 16, and 15: nobody has heard anything of the others when all choose."""

    async def main() -> None:
        for replicas, most in ((4, 4), (16, 2)):
            clock = FakeClock()
            hub = MemoryHub(clock)
            placed: Counter[str] = Counter()
            for number in range(16):
                made = balancer(Scripted(), policy=policy, count=replicas, draw=number / 16)
                made.clock = made.fleet.clock = clock
                made.shared = hub.join(made.fleet)
                placed[await send(made)] += 1
            assert max(placed.values()) <= most

    asyncio.run(main())


def test_a_policy_without_prices_keeps_its_order() -> None:
    async def main() -> None:
        shared = Scripted()
        made = balancer(shared, policy="round_robin")
        assert await send(made) == "m@h0:1"
        assert shared.offers == [()]

    asyncio.run(main())


@pytest.mark.parametrize(("draw", "told"), [(0.5, BLOCKS[29:]), (0.1, BLOCKS)])
def test_others_are_told_of_new_blocks_and_now_and_then_of_all(
    draw: float, told: tuple[int, ...]
) -> None:
    async def main() -> None:
        shared = Scripted()
        made = balancer(shared, draw=draw, count=1)
        await send(made, Look("s", 30 * 64, 100, BLOCKS[:30], block_tokens=64.0))
        await send(made)
        assert shared.told == [("m@h0:1", BLOCKS[:30]), ("m@h0:1", told)]

    asyncio.run(main())


def test_sessions_that_change_gateways_keep_their_replica() -> None:
    """Sixteen gateways, each seeing a sixteenth of every conversation."""

    async def main() -> None:
        clock = FakeClock()
        hub = MemoryHub(clock)
        gateways = []
        for number in range(16):
            made = balancer(Scripted(), count=4, draw=number / 16)
            made.clock = made.fleet.clock = clock
            assert isinstance(made.prefixes, PrefixIndex)
            made.shared = hub.join(made.fleet, made.prefixes.insert)
            gateways.append(made)
        homes: dict[int, list[str]] = {session: [] for session in range(8)}
        for turn in range(12):
            for session, replicas in homes.items():
                made = gateways[(turn * 5 + session * 3) % 16]
                blocks = tuple(range(session * 1000, session * 1000 + 20 * (turn + 1)))
                look = Look(f"s{session}", len(blocks) * 64, 100, blocks, block_tokens=64.0)
                lease = await made.take(made.rank("small", ["m"], look))
                replicas.append(lease.replica)
                lease.first_token()
                lease.finish()
                clock.advance(TICK_S)
                hub.tick()
        moves = sum(len(set(replicas)) - 1 for replicas in homes.values())
        assert moves <= 1
        assert len({replicas[0] for replicas in homes.values()}) > 1
        clock.advance(REFRESH_S)
        hub.tick()
        assert all(view.inflight == 0 for made in gateways for view in made.fleet.snapshot(["m"]))

    asyncio.run(main())
