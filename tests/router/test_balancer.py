"""The road of a choice, from a look to the end of a lease, when something on it goes wrong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fakes import FakeClock
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Model, Tier
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

LOOK = Look("s", 1000, stream=True)


class Broken:
    """A learner that cannot learn."""

    def on_first_token(self, *_: object) -> None:
        raise ValueError("math domain error")

    def on_end(self, *_: object) -> None:
        raise ZeroDivisionError


class Counting:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_first_token(self, *_: object) -> None:
        self.seen.append("first token")

    def on_end(self, *_: object) -> None:
        self.seen.append("end")


def balancer(*learners: object, policy: str = "llm") -> Balancer:
    clock = FakeClock()
    fleet = Fleet([ReplicaSpec(name, "m", "small", "") for name in "ab"], clock=clock)
    tier = Tier("small", 0, "7b", (Model("m", "small"),), policy=policy)
    return Balancer(
        fleet,
        PolicyHolder(PolicySet.build([tier])),
        clock=clock,
        draw=lambda: 0.0,
        learners=learners,  # type: ignore[arg-type]  # they take anything
    )


def test_a_learner_that_fails_harms_neither_the_call_nor_the_next_learner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    made = balancer(Broken(), counting)
    with caplog.at_level(logging.ERROR):
        lease = asyncio.run(made.take(made.rank("small", ("m",), LOOK)))
        lease.first_token()
        lease.finish()
    assert counting.seen == ["first token", "end"]
    assert [record.message for record in caplog.records] == ["a learner failed: Broken"] * 2
    assert set(made.fleet.inflight().values()) == {0}


def test_what_became_of_zones_and_groups_is_counted() -> None:
    async def main() -> None:
        specs = [
            ReplicaSpec(name, "m", "small", "", zone=zone, group=group)
            for name, zone, group in (("m@a:1", "a", "g1"), ("m@b:1", "b", "g2"))
        ]
        fleet = Fleet(specs, clock=FakeClock())
        tier = Tier("small", 0, "7b", (Model("m", "small"),), policy="llm")
        prefixes = PrefixIndex()
        balancer = Balancer(
            fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=fleet.clock,
            draw=lambda: 0.5,
            prefixes=prefixes,
            zone="a",
        )
        look = Look(session="s", prompt_tokens=640, blocks=tuple(range(1, 11)))
        for _ in range(2):
            choice = balancer.rank("small", ("m",), look)
            (await balancer.take(choice)).finish()
        assert balancer.places == {"zone_kept": 2, "group_kept": 1}
        fleet.remove("m@a:1")
        (await balancer.take(balancer.rank("small", ("m",), look))).finish()
        assert balancer.places["zone_crossed"] == 1

    asyncio.run(main())
