"""Evicted and expired entries are gone: from the store, from the maps, from the index."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, completion, make_call

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.eviction import ROOM, Eviction
from tierway.cache.index import Arena
from tierway.cache.keys import Fingerprint, fingerprint
from tierway.cache.lookup import Limits
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.store import ENTRY_BYTES
from tierway.cache.upkeep import STALE_GRACE_S
from tierway.policies.cacheability import CacheRules, Plan, lookup
from tierway.policies.equivalence import Equivalence
from tierway.policies.protocols import CacheStore, StoreSize
from tierway.policies.types import Call, Source

SOURCE = Source("small", "m", "m@a:1")


def marked(question: str) -> tuple[Call, Fingerprint, Plan]:
    call = make_call(question)
    return call, fingerprint(call, names="auto"), lookup(call, CacheRules(ttl_s=1000.0))


class Process:
    """A cache as one process has it; several may share a store."""

    def __init__(self, store: CacheStore, wall: FakeClock, max_bytes: int = 1 << 30) -> None:
        self.index = Arena(2)
        self.cache = SemanticCache(
            store,
            embedder=ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0]),
            index=self.index,
            equivalence=Equivalence([]),
            wall=wall,
            limits=Limits(store_bytes=max_bytes),
        )

    @property
    def upkeep(self) -> Any:
        return self.cache._upkeep

    def keep(self, question: str, text: str = "An answer.") -> str:
        call, mark, plan = marked(question)
        return self.cache.keep(call, mark, plan, SOURCE, completion(text), None)

    async def answers(self, question: str) -> bool:
        call, mark, plan = marked(question)
        found = await self.cache.find(call, mark, plan, lambda *_: True)
        return found.hit is not None

    def holds(self) -> tuple[int, int, int]:
        """Entries in the maps, vectors in the index, bytes of answers in memory."""
        return len(self.cache), len(self.index), self.cache._holding.answers._size


def run(
    store: CacheStore,
    test: Callable[[list[Process], FakeClock], Coroutine[Any, Any, None]],
    **o: Any,
) -> None:
    async def main() -> None:
        wall = FakeClock(2000.0)
        await store.start()
        both = [Process(store, wall, **o), Process(store, wall, **o)]
        for process in both:
            await process.cache.start()
        try:
            await asyncio.wait_for(test(both, wall), 20)
        finally:
            for process in both:
                await process.cache.aclose()
            await store.aclose()

    asyncio.run(main())


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CacheStore:
    return SqliteStore(tmp_path / "c.db") if request.param == "sqlite" else MemoryStore()


def test_what_was_used_last_stays_and_the_rest_is_gone_everywhere(store: CacheStore) -> None:
    cap = 6 * (ENTRY_BYTES + 600)

    async def main(both: list[Process], wall: FakeClock) -> None:
        one, other = both
        for number in range(10):
            one.keep(f"question {number}", "x" * 300)
            wall.advance(1)
        await one.cache.settled()
        await other.upkeep.follow()
        assert other.holds()[:2] == (10, 10)
        assert await one.answers("question 0")
        assert await one.answers("question 2")
        for process in both:
            await process.upkeep.eviction.run()
            await process.upkeep.follow()
        assert one.cache.size is not None
        assert one.cache.size.bytes <= cap
        left = {n for n in range(10) if await one.answers(f"question {n}")}
        for process in both:
            await process.upkeep.follow()
            assert process.holds()[:2] == (len(left), len(left))
        assert {0, 2, 9} <= left
        assert len(left) < 7
        assert not await other.answers("question 1")

    run(store, main, max_bytes=cap)


def test_a_store_below_its_cap_is_left_alone(store: CacheStore) -> None:
    async def main(both: list[Process], wall: FakeClock) -> None:
        one, _ = both
        one.keep("question")
        await one.cache.settled()
        await one.upkeep.eviction.run()
        assert one.cache.size is not None
        assert one.cache.size.entries == 1
        assert one.holds()[:2] == (1, 1)

    run(store, main)


def test_after_everything_has_expired_nothing_is_left_anywhere(store: CacheStore) -> None:
    async def main(both: list[Process], wall: FakeClock) -> None:
        one, other = both
        for number in range(25):
            one.keep(f"question {number}")
        await one.cache.settled()
        await other.upkeep.follow()
        assert await other.answers("question 3")
        wall.advance(1001.0 + STALE_GRACE_S)
        await one.upkeep.reap()
        await other.upkeep.follow()
        await one.upkeep.eviction.run()
        assert one.cache.size == StoreSize(0, 0)
        for process in both:
            assert process.holds() == (0, 0, 0)
        assert not await one.answers("question 3")

    run(store, main)


def test_hits_are_told_in_one_call_and_room_is_left() -> None:
    class Watched(MemoryStore):
        calls: list[tuple[str, Any]]

        async def touch(self, entry_ids: Any, now_at: float) -> None:
            self.calls.append(("touch", (list(entry_ids), now_at)))

        async def size(self) -> StoreSize:
            return StoreSize(3, 101)

        async def shrink(self, max_bytes: int) -> int:
            self.calls.append(("shrink", max_bytes))
            return 1

    async def main() -> None:
        store = Watched()
        store.calls = []
        eviction = Eviction(store, lambda: 7.0, max_bytes=100)
        for entry_id in ("e1", "e2", "e1"):
            eviction.used(entry_id)
        await eviction.run()
        await Eviction(store, lambda: 7.0, max_bytes=101).run()
        assert store.calls == [
            ("touch", (["e1", "e2"], 7.0)),
            ("shrink", int(100 * (1 - ROOM))),
        ]

    asyncio.run(main())
