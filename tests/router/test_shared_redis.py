"""Counts and placements over a real Redis, and what happens when it hangs, dies or comes back."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from datastores import Server, redis_cluster, redis_server
from gateways import WORK, Member, offer, over_redis, total, until
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.sharing import Offer, cheapest, plus, with_work
from tierway.policies.types import Cost, Counts, Work
from tierway.router import shared_redis
from tierway.router.shared import HURRY_S
from tierway.router.shared_scripts import (
    SYNC,
    Keys,
    pack_ask,
    pack_counts,
    pack_placements,
    unpack_counts,
    unpack_placements,
)

ALL = [f"m@h{n}:1" for n in range(4)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One of the test's own, to be stopped."""
    with redis_server(tmp_path) as own:
        yield own


@asynccontextmanager
async def started(*members: Member) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for member in members:
            await member.state.start()
            stack.push_async_callback(member.state.aclose)
        yield


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited())


def client(server: Server) -> Any:
    from redis.asyncio import Redis

    return Redis(port=server.port, protocol=2)


# ---- counts ----------------------------------------------------------------------------------


def test_gateways_know_what_the_others_have_in_flight(shared: Server) -> None:
    async def main() -> None:
        one, two = (over_redis(shared.url, n, name="known") for n in range(2))
        async with started(one, two):
            await one.place(ALL)
            assert await two.place(ALL) != one.leases[0].replica  # at once, not with a refresh
            assert await until(lambda: one.state.status().gateways == 2)
            assert await until(lambda: all(total(one.fleet, r) == total(two.fleet, r) for r in ALL))
            busy = one.leases[0].replica
            assert total(two.fleet, busy) == Counts(1, 100, 80, 50, 150)
            one.leases[0].first_token()
            assert await until(lambda: total(two.fleet, busy).prefill_tokens == 0)
            one.finish()
            assert await until(lambda: total(two.fleet, busy).requests == 0)

    run(main)


def test_balancer_fault_16_a_burst_over_sixteen_gateways_is_spread(shared: Server) -> None:
    """Known fault 16: routers that choose the same best replica at one moment."""

    async def main() -> None:
        replicas = [f"m@h{n}:1" for n in range(16)]
        members = [over_redis(shared.url, n, replicas=16, name="burst") for n in range(16)]
        draw = random.Random(5)
        async with started(*members):
            for many in (4, 16):
                four = [draw.sample(replicas[:many], 4) for _ in members]
                placed = await asyncio.gather(
                    *(one.place(names) for one, names in zip(members, four, strict=True))
                )
                assert max(Counter(placed).values()) <= (4 if many == 4 else 2)
                for member in members:
                    member.finish()
                    await member.refresh()
            same = await asyncio.gather(*(one.place(replicas) for one in members))
            assert sorted(same) == sorted(replicas)

    run(main)


def test_a_burst_in_one_gateway_is_spread(shared: Server) -> None:
    """All rank before any of them has a slot: the prices are of an idle fleet."""

    async def main() -> None:
        member = over_redis(shared.url, name="own-burst")
        async with started(member):
            placed = await asyncio.gather(*(member.place(ALL) for _ in range(200)))
            assert set(Counter(placed).values()) == {50}
            assert sum(member.fleet.inflight().values()) == 200

    run(main)


def test_balancer_fault_15_one_or_four_gateways_decide_alike(shared: Server) -> None:
    """Known fault 15: a few long prompts weigh as much whoever took them."""

    async def shares(gateways: int) -> Counter[str]:
        members = [over_redis(shared.url, n, name=f"alike-{gateways}") for n in range(gateways)]
        found: Counter[str] = Counter()
        async with started(*members):
            for number in range(64):
                member = members[number % gateways]
                work = Work(100_000, 100_000, 100) if number % 8 == 0 else Work(500, 500, 100)
                offers = [
                    offer(member.fleet, replica, Cost(0, 0.01, 1e-4), work) for replica in ALL
                ]
                costs = [
                    Offer(o.replica, o.work, Cost(o.known.prefill_tokens * 1e-4 + o.known.requests
                                                  * 0.01, 0.01, 1e-4), o.known)
                    for o in offers
                ]  # fmt: skip
                replica = costs[await member.state.pick(costs, 0.0)].replica
                member.leases.append(member.fleet.lease(replica, work))
                found[replica] += 1
        return found

    async def main() -> None:
        alone = await shares(1)
        for gateways in (2, 4):
            assert await shares(gateways) == alone

    run(main)


def test_a_gateway_that_was_killed_is_gone_within_seconds(shared: Server) -> None:
    async def main() -> None:
        ttl = {"row_ttl_s": 1.0}
        dead, left = (over_redis(shared.url, n, name="killed", **ttl) for n in range(2))
        async with started(left):
            await dead.state.start()
            busy = await dead.place(ALL)
            assert await until(lambda: total(left.fleet, busy).requests == 1)
            await dead.die()
            began_s = time.monotonic()
            assert await until(lambda: total(left.fleet, busy).requests == 0)
            assert time.monotonic() - began_s > 0.5
            assert await until(lambda: left.state.status().gateways == 1)
            await left.refresh()
            keys = client(shared)
            assert not await keys.hgetall(Keys("killed").counts(busy))
            await keys.aclose()

    run(main)


def test_a_gateway_that_ends_is_gone_at_once_and_leaves_nothing(shared: Server) -> None:
    async def main() -> None:
        one, two = (over_redis(shared.url, n, name="ended") for n in range(2))
        async with started(two):
            async with started(one):
                busy = await one.place(ALL)
                await two.refresh()
                assert total(two.fleet, busy).requests == 1
            await two.refresh()
            assert total(two.fleet, busy).requests == 0
            assert two.state.status().gateways == 1
        keys = client(shared)
        assert [key async for key in keys.scan_iter("tierway:{ended}:*")] == []
        await keys.aclose()

    run(main)


def test_names_keep_gateways_apart_and_every_key_expires(shared: Server) -> None:
    async def main() -> None:
        one, two = (over_redis(shared.url, name=f"apart-{n}") for n in range(2))
        async with started(one, two):
            await one.place(ALL)
            one.state.placed(ALL[0], [1])
            await one.state.exchange()  # type: ignore[attr-defined]
            await two.refresh()
            assert all(two.fleet.others(replica) == Counts() for replica in ALL)
            assert two.state.status().gateways == 1
            keys = client(shared)
            found = [key async for key in keys.scan_iter("tierway:{apart-0}:*")]
            assert len(found) == 3  # counts of one replica, gateways, placements
            for key in found:
                assert 0 < await keys.pttl(key) <= 3_600_000
            await keys.aclose()

    run(main)


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["place", "place", "end", "token", "refresh"])),
    max_size=40,
)


@settings(max_examples=15, deadline=None)
@given(steps=steps, seed=st.integers(0, 2**32))
def test_sums_are_those_of_the_leases_under_any_interleaving(
    shared: Server, steps: list[tuple[int, str]], seed: int
) -> None:
    draw = random.Random(seed)

    async def main() -> None:
        members = [over_redis(shared.url, n, name=f"sums-{seed}") for n in range(3)]
        async with started(*members):
            running: list[asyncio.Task[str]] = []
            for number, action in steps:
                member = members[number]
                if action == "place":
                    names = draw.sample(ALL, 4)
                    running.append(asyncio.ensure_future(member.place(names, draw.random())))
                    if draw.random() < 0.3:
                        await asyncio.sleep(0)
                    if draw.random() < 0.2:
                        running[-1].cancel()
                elif action == "end" and member.leases:
                    member.leases.pop(draw.randrange(len(member.leases))).finish()
                elif action == "token" and member.leases:
                    draw.choice(member.leases).first_token()
                elif action == "refresh":
                    await member.refresh()
            await asyncio.gather(*running, return_exceptions=True)
            for _ in range(2):  # the first round says, the second hears
                for member in members:
                    await member.refresh()
            for replica in ALL:
                truth = Counts()
                for member in members:
                    truth = plus(truth, member.fleet.own(replica))
                assert all(total(member.fleet, replica) == truth for member in members)
                held = sum(lease.replica == replica for one in members for lease in one.leases)
                assert truth.requests == held

    run(main)


counts = st.builds(Counts, *(st.integers(0, most) for most in (300, 10**6, 10**6, 10**6, 10**6)))
costs = st.builds(Cost, *(st.floats(0, most) for most in (1e4, 1.0, 1e-2, 1e-2)))
asks = st.lists(
    st.tuples(st.lists(st.tuples(costs, counts), min_size=1, max_size=4), st.floats(0, 0.999)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(asks=asks, own=st.lists(counts, min_size=4, max_size=4))
def test_the_script_chooses_as_the_formula_does(
    shared: Server, asks: list[Any], own: list[Counts]
) -> None:
    async def main() -> None:
        redis = client(shared)
        offers = [
            [Offer(ALL[at], WORK, cost, known) for at, (cost, known) in enumerate(one)]
            for one, _ in asks
        ]
        packed = [
            pack_ask(some, draw, range(1, len(some) + 1))
            for some, (_, draw) in zip(offers, asks, strict=True)
        ]
        keys = [Keys("formula").gateways, *map(Keys("formula").counts, ALL)]
        told = await redis.eval(SYNC, 5, *keys, "one", 5000, pack_counts(own), *packed)
        now, expected = list(own), []
        for some, (_, draw) in zip(offers, asks, strict=True):
            expected.append(cheapest(some, now[: len(some)], draw))
            now[expected[-1]] = with_work(now[expected[-1]], WORK)
        assert told[0] == expected
        heard = await redis.eval(SYNC, 5, *keys, "two", 5000, pack_counts([Counts()] * 4))
        assert unpack_counts(heard[1]) == now
        await redis.aclose()

    run(main)


# ---- placements ------------------------------------------------------------------------------


def test_what_was_placed_reaches_the_others_and_those_who_come_later(shared: Server) -> None:
    async def main() -> None:
        one, two, late = (over_redis(shared.url, n, name="placed") for n in range(3))
        sent = [(ALL[0], (1, 2**64 - 1)), (ALL[1], (7,)), (ALL[0], (3,))]
        async with started(one, two):
            for replica, blocks in sent:
                one.state.placed(replica, blocks)
            assert await until(lambda: two.heard == sent)
            two.state.placed(ALL[2], [9])
            assert await until(lambda: one.heard == [(ALL[2], (9,))])
            async with started(late):
                assert await until(lambda: late.heard == [*sent, (ALL[2], (9,))])

    run(main)


def test_a_long_prompt_and_a_long_absence_stay_bounded(shared: Server) -> None:
    async def main() -> None:
        one, two = (over_redis(shared.url, n, name="long") for n in range(2))
        for start in range(0, 200_000, 10_000):
            one.state.placed(ALL[0], range(start, start + 10_000))
        async with started(one, two):
            assert await until(lambda: bool(two.heard) and two.heard[-1][1][-1] == 199_999)
            blocks = [block for _, some in two.heard for block in some]
            assert blocks == list(range(blocks[0], 200_000))
            assert 32_768 <= len(blocks) <= 65_536
            assert max(len(some) for _, some in two.heard) <= 4096

    run(main)


@given(st.lists(st.tuples(st.text(max_size=20), st.lists(st.integers(0, 2**64 - 1), max_size=9))))
def test_placements_survive_packing(placed: list[tuple[str, list[int]]]) -> None:
    found = list(unpack_placements(pack_placements(placed)))
    assert found == [(replica, tuple(blocks)) for replica, blocks in placed]


def test_a_placement_that_cannot_be_read_is_passed_over(
    shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        one, two = (over_redis(shared.url, n, name="broken") for n in range(2))
        redis = client(shared)
        await redis.xadd(Keys("broken").placed, {"from": "x", "of": b"\0\x01\xff"})
        await redis.xadd(Keys("broken").placed, {"else": "x"})
        await redis.aclose()
        async with started(one, two):
            one.state.placed(ALL[0], [5])
            assert await until(lambda: two.heard == [(ALL[0], (5,))])

    run(main)
    assert "cannot be read" in caplog.text


# ---- trouble ---------------------------------------------------------------------------------


def test_a_redis_that_hangs_costs_one_short_wait(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        member = over_redis(server.url, hurry_s=HURRY_S)
        async with started(member):
            await member.place(ALL)
            server.pause()
            began_s = time.monotonic()
            await asyncio.gather(*(member.place(ALL) for _ in range(8)))
            waited_s = time.monotonic() - began_s
            assert HURRY_S * 0.5 < waited_s < 1.0  # a busy machine; the state tells the deadline
            spread = Counter(lease.replica for lease in member.leases)
            assert max(spread.values()) - min(spread.values()) <= 1  # by our own counts
            began_s = time.monotonic()
            for _ in range(100):
                await member.place(ALL)
            assert time.monotonic() - began_s < 10 * HURRY_S  # of a hundred calls
            status = member.state.status()
            assert not status.ok
            assert "no answer within 0.05 s" in status.error
            server.resume()
            assert await until(lambda: member.state.status().ok, 15)
            assert member.state.status().error == ""

    with caplog.at_level(logging.INFO, logger=shared_redis.__name__):
        run(main)
    told = [record.levelname for record in caplog.records if "shared state" in record.message]
    assert told == ["WARNING", "INFO"]


def test_a_redis_that_dies_and_comes_back_empty_knows_everything_again(server: Server) -> None:
    async def main() -> None:
        one, two = (over_redis(server.url, n, row_ttl_s=1.0) for n in range(2))
        async with started(one, two):
            busy = await one.place(ALL)
            assert await until(lambda: total(two.fleet, busy).requests == 1)
            server.stop()
            await asyncio.gather(*(one.place(ALL[:2]) for _ in range(4)))
            assert await until(lambda: not two.state.status().ok)
            assert await until(lambda: total(two.fleet, busy).requests == 0)
            one.leases.pop().finish()
            server.start()
            assert await until(
                lambda: all(total(two.fleet, r) == total(one.fleet, r) for r in ALL), 15
            )
            assert sum(total(two.fleet, r).requests for r in ALL) == 4

    run(main)


def test_a_gateway_starts_without_redis_and_finds_it_later(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server.stop()
        member = over_redis(server.url)
        async with started(member):
            assert not member.state.status().ok
            await member.place(ALL)
            server.start()
            assert await until(lambda: member.state.status().ok, 15)

    run(main)
    assert "counts alone" in caplog.text


def test_a_redis_that_refuses_is_told_as_it_said(server: Server) -> None:
    async def main() -> None:
        redis = client(server)
        await redis.set(Keys("test").gateways, "not a set")
        member = over_redis(server.url)
        async with started(member):
            assert "WRONGTYPE" in member.state.status().error
            await member.place(ALL)
            await redis.delete(Keys("test").gateways)
            assert await until(lambda: member.state.status().ok, 15)
        await redis.aclose()

    run(main)


def test_a_cluster_does_as_one_server(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = (over_redis(servers[0].url, n) for n in range(2))
        async with started(one, two):
            assert one.state.status().ok
            await one.place(ALL)
            one.state.placed(ALL[0], [5])
            assert await until(lambda: two.heard == [(ALL[0], (5,))])
            placed = await asyncio.gather(*(m.place(ALL) for m in (one, two) for _ in range(10)))
            assert await until(lambda: all(total(one.fleet, r) == total(two.fleet, r) for r in ALL))
            assert sum(total(one.fleet, r).requests for r in ALL) == 21
            assert max(Counter(placed).values()) <= 6

    with redis_cluster(tmp_path) as servers:
        run(main)
