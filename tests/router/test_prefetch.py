"""System prompts that are learnt and named, read by replicas before their callers come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from tierway.middleware.cache_warm import prefill_call
from tierway.policies.errors import Refused
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Call, Head, Model, Source, Tier, Usage
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.prefetch import Head as PromptHead
from tierway.router.prefetch import Heads, Prefetcher
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

LONG = "You answer questions about invoices. " * 20
OTHER = "You write release notes in one sentence. " * 20


class Whole:
    """An answer that is over at once."""

    head = Head(200, (), "chat", False)
    source = Source("small", "m", "a")
    usage = Usage(10, 1)

    async def read(self) -> bytes:
        return b""

    async def aclose(self) -> None:
        pass


class Upstreams(dict[str, "Upstreams"]):
    """One upstream for every replica, which notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.fault: Exception | None = None
        self.inflight: list[int] = []
        self.fleet: Fleet | None = None

    def __getitem__(self, _: str) -> Upstreams:
        return self

    async def open(self, call: Call, source: Source) -> Whole:
        assert self.fleet is not None
        self.inflight.append(self.fleet.own(source.replica).requests)
        if self.fault is not None:
            raise self.fault
        self.asked.append((source.replica, call.tenant, call.body["messages"][0]["content"]))
        assert call.body["max_tokens"] == 1
        return Whole()

    async def aclose(self) -> None:
        pass


class Stand:
    def __init__(self, configured: Iterable[PromptHead] = (), *, salt: str = "none") -> None:
        self.clock = FakeClock()
        specs = [ReplicaSpec(name, "m", "small", f"http://{name}") for name in "ab"]
        self.fleet, self.prefixes = Fleet(specs, clock=self.clock), PrefixIndex()
        self.model = Model("m", "small", cache_salt=salt)  # type: ignore[arg-type]  # a literal
        tier = Tier("small", 0, "7b", (self.model,))
        balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=self.clock,
            draw=lambda: 0.5,
            prefixes=self.prefixes,
        )
        self.upstreams = Upstreams()
        self.upstreams.fleet = self.fleet
        self.prefetcher = Prefetcher(
            balancer,
            self.upstreams,  # type: ignore[arg-type]  # a whole answer at once
            {"m": self.model},
            lambda head: prefill_call(head.model, head.text, head.tenant),
            configured=configured,
        )

    def call(self, text: str, tenant: str = "") -> None:
        self.prefetcher.heads.note(prefill_call("m", text, tenant), self.model)

    async def settled(self) -> None:
        await asyncio.gather(*self.prefetcher._tasks.values(), return_exceptions=True)


def test_a_restarted_replica_reads_what_calls_shared_and_routing_knows() -> None:
    async def main() -> None:
        stand = Stand()
        stand.prefetcher.start()
        for _ in range(3):
            stand.call(OTHER)
        for _ in range(5):
            stand.call(LONG)
        stand.call("You are brief. " * 60)
        stand.fleet.update_facts("a", Facts(running=0, process_start_s=1.0))
        assert stand.upstreams.asked == []  # it was there from the start
        stand.fleet.update_facts("a", Facts(running=0, process_start_s=9.0))
        await stand.settled()
        assert stand.upstreams.asked == [("a", "", LONG), ("a", "", OTHER)]
        assert stand.upstreams.inflight == [1, 1]
        assert stand.fleet.own("a").requests == 0
        assert stand.prefixes.stats().blocks["a"] > 0
        assert stand.prefetcher.outcomes == {"prefilled": 2}

    asyncio.run(main())


def test_who_joins_reads_what_the_operator_names_first() -> None:
    async def main() -> None:
        stand = Stand([PromptHead("m", "", OTHER), PromptHead("n", "", LONG)])
        stand.prefetcher.start()
        for _ in range(3):
            stand.call(LONG)
        stand.fleet.add(ReplicaSpec("c", "m", "small", "http://c"))
        await stand.settled()
        assert stand.upstreams.asked == [("c", "", OTHER), ("c", "", LONG)]

    asyncio.run(main())


def test_salted_prompts_go_under_their_tenant() -> None:
    async def main() -> None:
        stand = Stand(salt="tenant")
        stand.prefetcher.start()
        for tenant in ("red", "blue"):
            for _ in range(3):
                stand.call(LONG, tenant)
        stand.fleet.report_health("b", alive=False)
        stand.fleet.report_health("b", alive=True)
        await stand.settled()
        assert sorted(stand.upstreams.asked) == [("b", "blue", LONG), ("b", "red", LONG)]

    asyncio.run(main())


def test_a_replica_that_fails_or_leaves_is_left_alone() -> None:
    async def main() -> None:
        stand = Stand([PromptHead("m", "", LONG)])
        stand.prefetcher.start()
        stand.upstreams.fault = Refused("down", replica="a")
        stand.fleet.report_health("a", alive=False)
        stand.fleet.report_health("a", alive=True)
        await stand.settled()
        assert stand.prefetcher.outcomes == {"failed": 1}
        assert stand.fleet.own("a").requests == 0
        stand.upstreams.fault = None
        stand.fleet.add(ReplicaSpec("c", "m", "small", "http://c"))
        stand.fleet.remove("c")
        await stand.settled()
        await asyncio.sleep(0)
        assert stand.upstreams.asked == []
        await stand.prefetcher.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "short", "x" * 300_000])
def test_what_is_too_short_or_too_long_is_not_learnt(text: str) -> None:
    stand = Stand()
    for _ in range(5):
        stand.call(text or " ")
    assert stand.prefetcher.wanted("m") == []


def test_nothing_is_learnt_where_it_is_off() -> None:
    heads = Heads(0)
    for _ in range(5):
        heads.note(prefill_call("m", LONG), Model("m", "small"))
    assert heads.most("m") == []


@given(st.lists(st.integers(0, 30), max_size=300))
def test_a_prompt_of_more_than_its_share_is_always_among_them(asked: list[int]) -> None:
    """Space-saving: what comes more often than 1 / learn of all is kept."""
    heads, model = Heads(8), Model("m", "small")
    for number in asked:
        heads.note(prefill_call("m", f"{number} {LONG}"), model)
    kept = {head.text for head in heads._counts}
    assert len(kept) <= 8
    for number in set(asked):
        if asked.count(number) > len(asked) / 8:
            assert f"{number} {LONG}" in kept
