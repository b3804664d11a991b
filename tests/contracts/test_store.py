"""One contract over all stores that have a log."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.stores import Make, Store, entry, fold, follow, run
from datastores import Server, redis_server

from tierway.cache.memory_store import MemoryStore
from tierway.cache.redis_link import RedisLink
from tierway.cache.redis_store import RedisStore
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.store import ENTRY_BYTES, is_reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Change, Entry, Note, StoreSize


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "memory", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return lambda kept: MemoryStore(tombstones_kept=kept)
    if request.param == "redis":
        server = request.getfixturevalue("redis")
        return lambda kept: RedisStore(
            RedisLink(server.url, clock=time.monotonic, draw=random.random, patience_s=20.0),
            wall=lambda: 0.0,
            name=tmp_path.name,
            tombstones_kept=kept,
        )
    return lambda kept: SqliteStore(tmp_path / "deep" / "cache.db", tombstones_kept=kept)


def test_an_entry_comes_back_as_it_was_put(make: Make) -> None:
    async def body(store: Store) -> None:
        plain = entry(1)
        bare = entry(2, vector=None, expires_at=float("inf"), probabilities={}, answer=b"")
        assert await store.put(plain) < await store.put(bare)
        assert await store.get("e1") == plain
        assert await store.get("e2") == bare
        assert await store.get("e3") is None
        assert await store.count() == 2

    run(make, body)


def test_changes_carry_everything_but_the_answer(make: Make) -> None:
    async def body(store: Store) -> None:
        sequence = await store.put(entry(1))
        assert await store.changes(0) == [Change(sequence, "e1", entry(1, answer=b""))]
        assert await store.changes(sequence) == []

    run(make, body)


def test_a_put_of_the_same_digest_replaces(make: Make) -> None:
    async def body(store: Store) -> None:
        first = await store.put(entry(1))
        second = await store.put(entry(2, exact=entry(1).exact))
        assert await store.get("e1") is None
        assert await store.count() == 1
        gone, new = await store.changes(first)
        assert (gone.entry_id, gone.entry) == ("e1", None)
        assert (new.entry_id, new.sequence) == ("e2", second)
        assert first < gone.sequence < second

    run(make, body)


def test_a_put_of_the_same_id_replaces_whatever_its_digest(make: Make) -> None:
    async def body(store: Store) -> None:
        await store.put(entry(1))
        await store.put(entry(1, answer=b"new"))
        await store.put(entry(1, exact=entry(9).exact, answer=b"newer"))
        await store.put(entry(2))
        await store.put(entry(3, exact=entry(1).exact))
        found = await store.get("e1")
        assert found is not None
        assert (found.answer, found.exact) == (b"newer", entry(9).exact)
        assert await store.count() == 3
        assert set(fold(await follow(store))) == {"e1", "e2", "e3"}

    run(make, body)


def test_delete_counts_what_was_there(make: Make) -> None:
    async def body(store: Store) -> None:
        for number in range(3):
            last = await store.put(entry(number))
        assert await store.delete(["e0", "e2", "e2", "nobody"]) == 2
        assert await store.delete([]) == 0
        assert [(c.entry_id, c.entry) for c in await store.changes(last)] == [
            ("e0", None),
            ("e2", None),
        ]
        assert await store.get("e0") is None
        assert await store.count() == 1

    run(make, body)


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, set()),
        ({"tenant": "acme"}, {"e2"}),
        ({"user": "u2"}, {"e0", "e2", "e3"}),
        ({"namespace": "docs", "model": "qwen-7b"}, {"e0", "e1", "e2"}),
        ({"context_id": "c9"}, {"e0", "e1", "e3"}),
        ({"older_than_at": 1002.0}, {"e2", "e3"}),
        ({"tenant": "acme", "older_than_at": 1001.0}, {"e1", "e2", "e3"}),
        ({"tenant": "' OR 1=1 --"}, {"e0", "e1", "e2", "e3"}),
    ],
)
def test_delete_where(make: Make, chosen: dict[str, object], left: set[str]) -> None:
    async def body(store: Store) -> None:
        await store.put(entry(0))
        await store.put(entry(1, user="u2"))
        await store.put(entry(2, tenant="other", context_id="c9"))
        await store.put(entry(3, namespace="docs"))
        assert await store.delete_where(**chosen) == 4 - len(left)  # type: ignore[arg-type]  # mixed values
        assert set(fold(await follow(store))) == left

    run(make, body)


def marks(*owners: tuple[str, str, str]) -> list[Note]:
    return [
        Note(kind, tenant, user, {"n": at}, 1000.0 + at, 9e9)
        for at, (kind, tenant, user) in enumerate(owners)
    ]


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"tenant": "acme"}, [2, 3]),
        ({"user": "u1"}, [1, 2, 3]),
        ({"tenant": "acme", "user": "u2"}, [0, 2, 3]),
        ({"older_than_at": 1001.0}, [1, 2, 3]),
        ({}, [3]),
        ({"tenant": "acme", "namespace": ""}, [0, 1, 2, 3]),
        ({"model": "m"}, [0, 1, 2, 3]),
    ],
)
def test_delete_where_erases_the_notes_of_a_tenant_or_user(
    make: Make, chosen: dict[str, object], left: list[int]
) -> None:
    owners = (
        ("mark", "acme", "u1"),
        ("mark", "acme", "u2"),
        ("mark", "other", ""),
        ("switch", "", ""),
    )

    async def body(store: Store) -> None:
        for note in marks(*owners):
            await store.note(note)
        await store.delete_where(**chosen)  # type: ignore[arg-type]  # mixed values
        assert [note.body["n"] for note in await store.notes(0)] == left

    run(make, body)


def test_reap_takes_what_has_expired_and_tells_the_followers(make: Make) -> None:
    async def body(store: Store) -> None:
        for number in range(4):
            last = await store.put(entry(number))
        assert await store.reap(1999.0) == 0
        assert await store.reap(2001.0) == 2
        assert [c.entry_id for c in await store.changes(last)] == ["e0", "e1"]
        assert await store.get("e1") is None
        assert await store.get("e2") is not None

    run(make, body)


def test_the_size_follows_puts_replacements_and_deletions(make: Make) -> None:
    async def body(store: Store) -> None:
        assert await store.size() == StoreSize(0, 0)
        await store.put(entry(1, question="问", answer=b"x" * 100, vector=b"v" * 40))
        assert await store.size() == StoreSize(1, ENTRY_BYTES + 3 + 100 + 40)
        await store.put(entry(1, question="q", answer=b"x", vector=None))
        assert await store.size() == StoreSize(1, ENTRY_BYTES + 2)
        await store.put(entry(2, exact=entry(1).exact, question="q", answer=b"", vector=None))
        assert await store.size() == StoreSize(1, ENTRY_BYTES + 1)
        await store.delete(["e2"])
        assert await store.size() == StoreSize(0, 0)

    run(make, body)


def test_shrinking_evicts_what_was_used_longest_ago(make: Make) -> None:
    async def body(store: Store) -> None:
        for number in range(6):
            last = await store.put(entry(number))
        one = (await store.size()).bytes // 6
        await store.touch(["e1", "e0", "nobody"], 3000.0)
        await store.touch(["e3"], 2999.0)
        await store.touch(["e0"], 10.0)  # an older note takes nothing back
        assert await store.shrink(6 * one + 100) == 0
        assert await store.shrink(3 * one) == 3
        assert set(fold(await follow(store))) == {"e0", "e1", "e3"}
        assert [(c.entry_id, c.entry) for c in await store.changes(last)] == [
            ("e2", None),
            ("e4", None),
            ("e5", None),
        ]
        await store.put(entry(7, created_at=5000.0))
        assert await store.shrink(2 * one) == 2
        assert set(fold(await follow(store))) < {"e0", "e1", "e7"}
        assert await store.get("e7") is not None
        assert await store.shrink(0) == 2
        assert await store.shrink(0) == 0
        assert await store.size() == StoreSize(0, 0)

    run(make, body)


def test_shrinking_takes_thousands_in_steps(make: Make) -> None:
    async def body(store: Store) -> None:
        await asyncio.gather(*(store.put(entry(number)) for number in range(2500)))
        half = (await store.size()).bytes // 2
        assert 1240 <= await store.shrink(half) <= 1260
        size = await store.size()
        assert size.bytes <= half
        assert size.entries == len(fold(await follow(store)))
        assert await store.get("e0") is None
        assert await store.get("e2499") is not None

    run(make, body)


def test_a_page_has_at_most_limit_lines_and_nothing_is_lost_between(make: Make) -> None:
    async def body(store: Store) -> None:
        for number in range(23):
            await store.put(entry(number))
        await store.delete([f"e{number}" for number in range(0, 23, 3)])
        for limit in (1, 4, 1000):
            seen = await follow(store, limit=limit)
            numbers = [change.sequence for change in seen]
            assert numbers == sorted(set(numbers))
            assert set(fold(seen)) == {f"e{n}" for n in range(23) if n % 3}

    run(make, body)


def test_concurrent_puts_all_arrive_with_numbers_of_their_own(make: Make) -> None:
    async def body(store: Store) -> None:
        numbers = await asyncio.gather(*(store.put(entry(number)) for number in range(300)))
        assert len(set(numbers)) == 300
        logged = {change.entry_id: change.sequence for change in await follow(store)}
        assert logged == {f"e{index}": number for index, number in enumerate(numbers)}

    run(make, body)


def test_a_cancelled_put_is_whole_or_absent_and_harms_nobody(make: Make) -> None:
    async def body(store: Store) -> None:
        tasks = [asyncio.ensure_future(store.put(entry(number))) for number in range(60)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, int) for result in results[1::2])
        await store.put(entry(99))
        listed = fold(await follow(store))
        assert {f"e{number}" for number in range(1, 60, 2)} | {"e99"} <= set(listed)
        for number in range(60):
            found = await store.get(f"e{number}")
            assert found == (entry(number) if f"e{number}" in listed else None)

    run(make, body)


def test_a_follower_far_behind_gets_a_reset_and_a_full_listing(make: Make) -> None:
    async def body(store: Store) -> None:
        await store.put(entry(0, expires_at=9e9))
        await store.put(entry(1))
        early = await follow(store)
        position, held = early[-1].sequence, fold(early)
        for number in range(2, 60):
            await store.put(entry(number))
        await store.put(entry(60, expires_at=9e9))
        await store.reap(5000.0)
        for limit in (1, 7, 1000):
            seen = await follow(store, position, limit)
            assert [is_reset(change) for change in seen[:2]] == [True, False]
            assert not any(is_reset(change) for change in seen[1:])
            assert set(fold(seen, held)) == {"e0", "e60"}
        # Someone who holds nothing needs no reset, someone up to date even less.
        assert not any(is_reset(change) for change in await follow(store))
        assert await store.changes(seen[-1].sequence) == []

    run(make, body, kept=10)


def test_a_follower_at_any_place_ends_with_the_same_entries(make: Make) -> None:
    async def body(store: Store) -> None:
        places: list[tuple[int, dict[str, Entry]]] = [(0, {})]
        for number in range(120):
            newest = await store.put(entry(number % 40, exact=(number % 35).to_bytes(16, "big")))
            if number % 7 == 0:
                await store.delete([f"e{number % 11}"])
                await store.reap(2000.0 + number % 13)
            if number % 10 == 0:
                listing = await follow(store)
                places.append((listing[-1].sequence if listing else newest, fold(listing)))
        truth = fold(await follow(store))
        assert len(truth) == await store.count()
        for since, held in places:
            assert fold(await follow(store, since, limit=5), held) == truth

    run(make, body, kept=3)


def test_the_log_does_not_grow_without_bound(make: Make) -> None:
    async def body(store: Store) -> None:
        await store.put(entry(0, expires_at=9e9))
        for turn in range(20):
            for number in range(1, 50):
                await store.put(entry(1000 * turn + number, expires_at=10.0))
            await store.reap(20.0)
            assert len(await follow(store)) <= 1 + 20
        assert set(fold(await follow(store))) == {"e0"}

    run(make, body, kept=20)


def test_a_follower_ahead_of_a_store_set_back_gets_a_reset(make: Make) -> None:
    async def body(store: Store) -> None:
        await store.put(entry(1))
        seen = await follow(store, since=500)
        assert is_reset(seen[0])
        assert set(fold(seen, {"old": entry(7)})) == {"e1"}

    run(make, body)


@pytest.mark.parametrize("closed", [False, True])
def test_a_store_that_is_not_open_says_so(make: Make, closed: bool) -> None:
    async def main() -> None:
        store = make(10)
        if closed:
            await store.start()
            await store.start()
            await store.put(entry(1))
            await store.aclose()
            await store.aclose()
            with pytest.raises(CacheError, match="closed"):
                await store.start()
        wanted = "closed" if closed else "not started"
        for use in (
            lambda: store.put(entry(1)),
            lambda: store.get("e1"),
            lambda: store.delete(["e1"]),
            lambda: store.changes(0),
            lambda: store.reap(0.0),
            lambda: store.delete_where(),
            lambda: store.count(),
            lambda: store.size(),
            lambda: store.touch(["e1"], 0.0),
            lambda: store.shrink(0),
        ):
            with pytest.raises(CacheError, match=wanted):
                await use()
        await store.aclose()

    asyncio.run(main())


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tombstones_kept = -1"):
        MemoryStore(tombstones_kept=-1)
    with pytest.raises(ValueError, match="tombstones_kept = -1"):
        SqliteStore(tmp_path / "c.db", tombstones_kept=-1)
    with pytest.raises(ValueError, match="lock_timeout_s = -2"):
        SqliteStore(tmp_path / "c.db", lock_timeout_s=-2)
