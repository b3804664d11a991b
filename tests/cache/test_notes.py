"""The journal of notes: one contract over the stores, then its way to every gateway."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datastores import Server, redis_server
from fakes import FakeClock

from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.journal import Journal
from tierway.cache.memory_store import MemoryStore
from tierway.cache.redis_link import RedisLink
from tierway.cache.redis_store import RedisStore
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.upkeep import Faults, Upkeep
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Note

Store = SqliteStore | MemoryStore | RedisStore
Make = Callable[[FakeClock], Store]
FIRST = Note("mark", "acme", "u1", {"correct": True, "问": ["答", 0.5]}, 1000.0, 2000.0)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "memory", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return lambda wall: MemoryStore(wall=wall, notes_kept=3)
    if request.param == "redis":
        server = request.getfixturevalue("redis")

        def made(wall: FakeClock) -> Store:
            link = RedisLink(server.url, clock=time.monotonic, draw=random.random, patience_s=20.0)
            return RedisStore(link, wall=wall, name=tmp_path.name, notes_kept=3)

        return made
    return lambda wall: SqliteStore(tmp_path / "cache.db", wall=wall, notes_kept=3)


def run(make: Make, body: Callable[[Store, FakeClock], Awaitable[None]]) -> None:
    async def main() -> None:
        wall = FakeClock(1000.0)
        store = make(wall)
        await store.start()
        try:
            await asyncio.wait_for(body(store, wall), 10)
        finally:
            await store.aclose()

    asyncio.run(main())


def test_a_note_comes_back_as_it_was_written(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        number = await store.note(FIRST)
        assert await store.notes(0) == [replace(FIRST, sequence=number)]
        assert await store.notes(number) == []

    run(make, body)


def test_notes_come_in_order_page_by_page(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        numbers = [await store.note(replace(FIRST, user=f"u{at}")) for at in range(5)]
        assert numbers == sorted(set(numbers))
        first = await store.notes(0, limit=2)
        rest = await store.notes(first[-1].sequence)
        assert [note.user for note in (*first, *rest)] == ["u0", "u1", "u2", "u3", "u4"]

    run(make, body)


def test_an_expired_note_is_left_out_and_its_number_is_not_given_again(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        await store.note(replace(FIRST, expires_at=1500.0))
        later = await store.note(replace(FIRST, user="u2", expires_at=1800.0))
        wall.now = 1500.0
        assert [note.user for note in await store.notes(0)] == ["u2"]
        await store.reap(1900.0)
        assert await store.notes(0) == []
        assert await store.note(FIRST) > later

    run(make, body)


def test_reaping_keeps_the_newest_of_each_kind_and_tenant(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        await store.note(replace(FIRST, tenant="other", user="kept"))
        await store.note(replace(FIRST, kind="seen", user="kept"))
        for at in range(5):
            await store.note(replace(FIRST, user=f"u{at}"))
        await store.reap(1000.0)
        assert [note.user for note in await store.notes(0)] == ["kept", "kept", "u2", "u3", "u4"]

    run(make, body)


def test_a_follower_ahead_of_a_store_that_was_set_back_starts_again(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        number = await store.note(FIRST)
        assert await store.notes(number + 7) == await store.notes(0) != []

    run(make, body)


def test_a_store_that_is_closed_says_so(make: Make) -> None:
    async def body(store: Store, wall: FakeClock) -> None:
        await store.aclose()
        with pytest.raises(CacheError, match="closed"):
            await store.note(FIRST)
        with pytest.raises(CacheError, match="closed"):
            await store.notes(0)

    run(make, body)


def test_notes_and_entries_survive_a_restart_and_a_file_from_before_notes(tmp_path: Path) -> None:
    async def main() -> None:
        path, wall = tmp_path / "cache.db", FakeClock(1000.0)
        first = SqliteStore(path, wall=wall)
        await first.start()
        await first._write.run(lambda db: db.execute("DROP TABLE notes"))
        await first.aclose()
        for _ in range(2):
            store = SqliteStore(path, wall=wall)
            await store.start()
            await store.note(FIRST)
            await store.aclose()
        store = SqliteStore(path, wall=wall)
        await store.start()
        assert len(await store.notes(0)) == 2
        await store.aclose()

    asyncio.run(main())


class Gateway:
    """One process's upkeep on a store that others share, with what its listener heard."""

    def __init__(self, store: MemoryStore, wall: FakeClock) -> None:
        self.faults, self.heard = Faults(), list[Note]()
        holding = Holding(Arena(2), entries=10, answers_bytes=10)
        self.upkeep = Upkeep(store, holding, None, self.faults, wall)
        self.journal.listen("mark", self.heard.append)

    @property
    def journal(self) -> Journal:
        return self.upkeep.journal


def gateways(test: Callable[[MemoryStore, list[Gateway]], Awaitable[None]], count: int = 2) -> None:
    async def main() -> None:
        wall = FakeClock(1000.0)
        store = MemoryStore(wall=wall)
        await store.start()
        made = [Gateway(store, wall) for _ in range(count)]
        try:
            await asyncio.wait_for(test(store, made), 10)
        finally:
            for one in made:
                await one.upkeep.aclose()

    asyncio.run(main())


def test_a_note_reaches_every_gateway_once() -> None:
    async def main(store: MemoryStore, made: list[Gateway]) -> None:
        one, two = made
        written = await one.journal.write("mark", {"n": 1}, ttl_s=60, tenant="acme", user="u")
        assert one.heard == [written]
        assert (written.at, written.expires_at, written.tenant) == (1000.0, 1060.0, "acme")
        await one.journal.write("other", {}, ttl_s=60)
        for _ in range(2):
            await one.upkeep.follow()
            await two.upkeep.follow()
        assert one.heard == two.heard == [written]

    gateways(main)


def test_a_gateway_that_starts_hears_what_was_noted_before() -> None:
    async def main(store: MemoryStore, made: list[Gateway]) -> None:
        one, two = made
        written = await one.journal.write("mark", {"n": 1}, ttl_s=60)
        await two.upkeep.start()
        assert two.heard == [written]

    gateways(main)


def test_a_note_acts_here_though_the_store_is_down() -> None:
    async def main(store: MemoryStore, made: list[Gateway]) -> None:
        await store.aclose()
        with pytest.raises(CacheError):
            await made[0].journal.write("mark", {"n": 1}, ttl_s=60)
        assert [note.body for note in made[0].heard] == [{"n": 1}]
        assert made[0].faults.counts == {"store": 1}

    gateways(main, 1)


def test_a_listener_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(note: Note) -> None:
        raise KeyError(note.body["missing"])

    async def main(store: MemoryStore, made: list[Gateway]) -> None:
        upkeep = Upkeep(
            store, Holding(Arena(2), entries=1, answers_bytes=1), None, Faults(), FakeClock()
        )
        heard: list[Any] = []
        upkeep.journal.listen("mark", broken)
        upkeep.journal.listen("mark", heard.append)
        await made[0].journal.write("mark", {}, ttl_s=60)
        await upkeep.follow()
        assert len(heard) == 1

    gateways(main, 1)
    assert "kind mark was not understood" in caplog.text
