"""Many entries and many callers: the loop stays free, and nobody is lost when a store dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeClock, completion, make_call, until

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.keys import fingerprint
from tierway.cache.lookup import Found, Limits
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.upkeep import STALE_GRACE_S, Faults, Upkeep
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.equivalence import Equivalence
from tierway.policies.protocols import CacheStore, Entry
from tierway.policies.types import Source

SOURCE = Source("small", "m", "m@a:1")
CALLERS, TURNS, QUESTIONS = 16, 25, 40


def entry(number: int, expires_at: float) -> Entry:
    return Entry(
        id=f"e_{number:020x}", exact=number.to_bytes(16, "big"), partition=b"p" * 16, wire="chat",
        question="Why?", answer=b"{}", tier="small", model="m", probabilities={}, tenant="",
        user="", namespace="", created_at=100.0, expires_at=expires_at,
    )  # fmt: skip


class Turns:
    """How often others had their turn."""

    def __init__(self) -> None:
        self.taken = 0

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            self.taken += 1
            await asyncio.sleep(0)


def test_reaping_many_entries_lets_requests_in_between() -> None:
    number = 6_000

    async def main() -> None:
        store, index, wall = MemoryStore(), Arena(2), FakeClock(1000.0)
        await store.start()
        holding = Holding(index, entries=10_000, answers_bytes=0)
        for at in range(number + 10):
            made = entry(at, expires_at=500.0 if at < number else 9e9)
            await store.put(made)
            held = holding.hold(made)
            assert held is not None
            if at < 1000 or at >= number:
                holding.attach(held, np.array([1.0, at], np.float32))
        upkeep = Upkeep(store, holding, None, Faults(), wall)
        wall.now += STALE_GRACE_S
        async with Turns() as turns:
            await upkeep.reap()
        assert turns.taken >= number / 250
        assert (len(holding), len(index), await store.count()) == (10, 10, 10)
        assert (await store.size()).entries == 10

    asyncio.run(main())


def cache_of(store: CacheStore) -> SemanticCache:
    """Keeps no answer in memory: every hit asks the store."""
    return SemanticCache(
        store,
        embedder=ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0]),
        index=Arena(2),
        equivalence=Equivalence.shipped(),
        wall=FakeClock(1_700_000_000.0),
        limits=Limits(answers_bytes=0),
    )


async def ask(cache: SemanticCache, number: int) -> Found:
    call = make_call(f"What is the purpose of part {number}?")
    plan = lookup(call, CacheRules())
    mark = fingerprint(call, names="m")
    found = await cache.find(call, mark, plan, lambda tier, shares: True)
    if found.hit is None:
        cache.keep(call, mark, plan, SOURCE, completion(), found)
    return found


def deleted(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


@pytest.mark.parametrize("dies", [None, deleted, overwritten])
def test_sixteen_callers_lose_nothing_when_the_store_dies_under_them(
    dies: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    path = tmp_path / "cache.sqlite3"

    async def caller(cache: SemanticCache, first: int, results: list[Found]) -> None:
        for turn in range(TURNS):
            results.append(await ask(cache, (first + turn) % QUESTIONS))

    async def main() -> None:
        store = SqliteStore(path)
        await store.start()
        cache = cache_of(store)
        await cache.start()
        for number in range(QUESTIONS):
            await ask(cache, number)
        await cache.settled()
        results: list[Found] = []
        async with asyncio.timeout(30):
            callers = [asyncio.create_task(caller(cache, 3 * at, results)) for at in range(CALLERS)]
            await until(lambda: len(results) >= CALLERS * TURNS // 4)
            assert any(found.hit is not None for found in results)
            if dies is None:
                await store.aclose()
            else:
                dies(path)
            await asyncio.gather(*callers)
        assert len(results) == CALLERS * TURNS
        if dies is None:
            assert cache.counts["store"] > 0
            assert results[-1].hit is None
        await cache.aclose()
        await store.aclose()

    asyncio.run(main())
