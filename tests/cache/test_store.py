"""One contract over both stores, then what only a file can suffer."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from datastores import Server, redis_server

from tierway.cache.memory_store import MemoryStore
from tierway.cache.redis_link import RedisLink
from tierway.cache.redis_store import RedisStore
from tierway.cache.sqlite_schema import ADDITIONS
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.store import ENTRY_BYTES, is_reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Change, Entry, Note, StoreSize

Store = SqliteStore | MemoryStore | RedisStore
Make = Callable[[int], Store]


def entry(number: int, **fields: object) -> Entry:
    made = Entry(
        id=f"e{number}",
        exact=number.to_bytes(16, "big"),
        partition=b"p" * 16,
        wire="chat",
        question=f"第 {number} 个问题?",
        answer=b'{"n": %d}' % number,
        tier="small",
        model="qwen-7b",
        probabilities={"7b": 0.25, "cloud": 1.0},
        tenant="acme",
        user="u1",
        namespace="",
        created_at=1000.0 + number,
        expires_at=2000.0 + number,
        encoder="enc-1",
        vector=b"\x00\x01" * 8,
        language="zh",
        context_id="",
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


async def follow(store: CacheStore, since: int = 0, limit: int = 1000) -> list[Change]:
    """All there is after `since`, page by page, in the order a follower gets it."""
    seen: list[Change] = []
    while page := await store.changes(since, limit):
        assert len(page) <= limit
        seen += page
        since = page[-1].sequence
    return seen


def fold(changes: list[Change], held: dict[str, Entry] | None = None) -> dict[str, Entry]:
    held = dict(held or {})
    for change in changes:
        if is_reset(change):
            held.clear()
        elif change.entry is None:
            held.pop(change.entry_id, None)
        else:
            held[change.entry_id] = change.entry
    return held


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


def run(make: Make, body: Callable[[Store], Awaitable[None]], kept: int = 10_000) -> None:
    async def main() -> None:
        async with opened(make(kept)) as store:
            await body(store)

    asyncio.run(main())


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


# The contract


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


# The file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


def with_file(path: Path, body: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SqliteStore(path, lock_timeout_s=0.05)
        await store.start()
        try:
            await body(store)
        finally:
            await store.aclose()

    asyncio.run(main())


async def nothing(store: SqliteStore) -> None:
    pass


def refusal(path: Path) -> str:
    with pytest.raises(CacheError) as caught:
        with_file(path, nothing)
    return str(caught.value)


PRELUDE = """
import asyncio, sys
from tierway.cache.sqlite_store import SqliteStore
from tierway.policies.protocols import Entry

def entry(name):
    return Entry(name, name.encode().ljust(16), b"p" * 16, "chat", name, b"answer " * 500,
                 "small", "m", {}, "acme", "", "", 1.0, 2e9)
"""


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program next to this one; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(body), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def test_entries_outlive_the_store(path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await store.put(entry(1))
        await store.put(entry(2))
        await store.delete(["e1"])

    async def look(store: SqliteStore) -> None:
        assert await store.get("e2") == entry(2)
        assert [c.entry_id for c in await store.changes(0)] == ["e2", "e1"]
        assert await store.put(entry(3)) > (await store.changes(0))[1].sequence

    with_file(path, fill)
    with_file(path, look)
    assert sorted(os.listdir(path.parent)) == ["cache.db"]


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "cache.db"

    async def look(store: SqliteStore) -> None:
        await store.put(entry(1))
        for name in os.listdir(path.parent):
            assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600

    with_file(path, look)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_deleted_texts_are_not_left_in_the_file(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        await store.put(entry(1, question="a secret of mine", answer=b"s3cr3t" * 2000))
        await store.delete(["e1"])

    with_file(path, body)
    left = path.read_bytes()
    assert b"s3cr3t" not in left
    assert b"a secret of mine" not in left


def test_two_processes_follow_each_other(
    path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    other = spawn(
        """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.start()
            since = 0
            for line in sys.stdin:
                await store.put(entry(line.strip()))
                for change in await store.changes(since):
                    since = change.sequence
                    print(change.entry_id, change.entry is not None, flush=True)
                print("done", flush=True)
            await store.aclose()

        asyncio.run(main())
        """,
        path,
    )

    def ask(name: str) -> list[str]:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(name + "\n")
        other.stdin.flush()
        return [line.strip() for line in iter(other.stdout.readline, "done\n")]

    async def body(store: SqliteStore) -> None:
        await store.put(entry(1))
        assert ask("theirs") == ["e1 True", "theirs True"]
        seen = await store.changes(0)
        assert [change.entry_id for change in seen] == ["e1", "theirs"]
        found = await store.get("theirs")
        assert found is not None
        assert found.answer == b"answer " * 500
        await store.delete(["theirs"])
        assert ask("more") == ["theirs False", "more True"]
        assert [c.entry_id for c in await store.changes(seen[-1].sequence)] == ["theirs", "more"]

    with_file(path, body)


def test_processes_that_start_at_once_on_a_new_file(
    path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    body = """
        async def main():
            store = SqliteStore(sys.argv[1])
            sys.stdin.readline()
            await store.start()
            await asyncio.gather(*(store.put(entry(f"{sys.argv[2]}-{n}")) for n in range(20)))
            await store.aclose()

        asyncio.run(main())
    """
    several = [spawn(body, path, number) for number in range(4)]
    for process in several:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(timeout=30) for process in several] == [0, 0, 0, 0]

    async def look(store: SqliteStore) -> None:
        assert len(await follow(store)) == await store.count() == 80

    with_file(path, look)


def test_a_killed_writer_leaves_whole_entries(
    path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    writer = spawn(
        """
        async def one(store, name):
            await store.put(entry(name))
            print(name, flush=True)

        async def main():
            store = SqliteStore(sys.argv[1])
            await store.start()
            for turn in range(100_000):
                await asyncio.gather(*(one(store, f"{turn}-{n}") for n in range(8)))

        asyncio.run(main())
        """,
        path,
    )
    assert writer.stdout is not None
    promised = [writer.stdout.readline().strip() for _ in range(200)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()

    async def look(store: SqliteStore) -> None:
        changes = await follow(store)
        listed = fold(changes)
        assert set(promised) <= set(listed)
        assert len(listed) == await store.count()
        for name in (promised[0], promised[-1], changes[-1].entry_id):
            found = await store.get(name)
            assert found is not None
            assert found.answer == b"answer " * 500
        await store.put(entry(1))
        assert await store.count() == len(listed) + 1

    with_file(path, look)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_put_that_sqlite_refuses_fails_alone(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        results = await asyncio.gather(
            store.put(entry(1)),
            store.put(entry(2, question="\ud800")),
            store.put(entry(3, expires_at=float("nan"))),
            store.put(entry(4)),
            store.delete(["nobody"]),
            return_exceptions=True,
        )
        kinds = [type(result) for result in results]
        assert kinds == [int, CacheError, CacheError, int, int]
        assert set(fold(await follow(store))) == {"e1", "e4"}
        with pytest.raises(CacheError, match=r"cache\.db"):
            await store.changes(0, limit=2**70)

    with_file(path, body)


def test_a_file_locked_by_somebody_is_an_error_and_then_is_not(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        await store.put(entry(1))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(store.put(entry(number)) for number in range(2, 9)), return_exceptions=True
            )
            assert all("locked by another process" in str(result) for result in results)
            assert await store.get("e1") == entry(1)
            other.execute("ROLLBACK")
        await store.put(entry(2))
        assert await store.count() == 2

    with_file(path, body)


def test_start_waits_for_a_reader_that_keeps_the_file_from_its_write_ahead_log(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM sqlite_master")

        async def main() -> None:
            with pytest.raises(CacheError, match="locked by another process"):
                await SqliteStore(path, lock_timeout_s=0.02).start()
            asyncio.get_running_loop().call_later(0.05, other.execute, "ROLLBACK")
            async with opened(SqliteStore(path, lock_timeout_s=10)) as store:
                await store.put(entry(1))

        asyncio.run(main())


def test_a_full_disk_is_an_error_and_then_is_not(
    path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    process = spawn(
        """
        import resource
        from tierway.policies.errors import CacheError

        async def main():
            store = SqliteStore(sys.argv[1])
            await store.start()
            await store.put(entry("first"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            results = await asyncio.gather(
                *(store.put(entry(str(n))) for n in range(200)), return_exceptions=True
            )
            failed = [result for result in results if isinstance(result, CacheError)]
            assert failed, "the limit did not bite"
            assert len(failed) + sum(isinstance(result, int) for result in results) == 200
            assert await store.count() == 201 - len(failed)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            await store.put(entry("last"))
            assert (await store.get("first")).answer == (await store.get("last")).answer
            await store.aclose()

        asyncio.run(main())
        """,
        path,
    )
    assert process.wait(timeout=30) == 0


def test_a_read_only_file_is_refused(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "cache.db")
        with_file(path, nothing)
        Path(folder).chmod(0o755)
        path.chmod(0o444)
        process = spawn(
            """
            import os
            from tierway.policies.errors import CacheError

            if os.geteuid() == 0:  # root may write anything
                os.setuid(65534)
            try:
                asyncio.run(SqliteStore(sys.argv[1]).start())
            except CacheError as error:
                print(error)
            """,
            path,
        )
        assert process.communicate(timeout=30)[0] == f"The cache file {path} is read-only.\n"


def test_files_that_are_no_cache_are_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"not a database, but somebody's letter\n" * 100)
    assert "not a SQLite file" in refusal(path)
    assert path.read_bytes().startswith(b"not a database")

    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    assert "something else" in refusal(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    with_file(path, nothing)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    message = refusal(path)
    assert "schema version 2" in message
    assert str(path) in message
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)


OLD_PUT = """INSERT OR REPLACE INTO entries (id, exact, "partition", wire, question, tier, model,
    probabilities, tenant, user, namespace, created_at, expires_at, encoder, vector, language,
    context_id, answer) VALUES (?, ?, X'', 'chat', ?, 't', 'm', '{}', '', '', '', 1, 9e9, '', NULL,
    '', '', X'6F6C64')"""


def test_a_release_before_the_additions_shares_the_file(path: Path) -> None:
    """It writes by the names of the columns it knows, and never sees the others."""

    async def together(store: SqliteStore) -> None:
        await store.put(entry(1))
        with closing(sqlite3.connect(path)) as old, old:
            assert old.execute("PRAGMA user_version").fetchone() == (1,)
            old.execute(OLD_PUT, ("old", b"o" * 16, "wie?"))
            old.execute("INSERT OR REPLACE INTO log (entry_id) VALUES ('old')")
        assert set(fold(await follow(store))) == {"e1", "old"}
        found = await store.get("old")
        assert found is not None
        assert (found.question, found.answer) == ("wie?", b"old")
        assert (await store.size()).entries == 2
        assert await store.shrink((await store.size()).bytes - 1) == 1
        assert set(fold(await follow(store))) == {"e1"}

    with_file(path, together)


def test_a_file_of_a_release_before_the_additions_is_completed(path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await store.put(entry(1))

    async def use(store: SqliteStore) -> None:
        assert await store.get("e1") == entry(1)
        assert (await store.size()).entries == 1
        await store.touch(["e1"], 5.0)
        assert await store.shrink(0) == 1

    with_file(path, fill)
    with closing(sqlite3.connect(path)) as db:
        before = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        kinds = dict(db.execute("SELECT name, type FROM sqlite_master"))
        for name in reversed(ADDITIONS):
            table, _, column = name.partition(".")
            drop = f"ALTER TABLE {table} DROP COLUMN {column}"
            db.execute(drop if column else f"DROP {kinds[name]} {name}")
    with_file(path, use)
    with closing(sqlite3.connect(path)) as db:
        assert {name for (name,) in db.execute("SELECT name FROM sqlite_master")} == before


def test_a_damaged_file_is_an_error_of_ours(path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await asyncio.gather(*(store.put(entry(n, answer=b"x" * 3000)) for n in range(50)))

    with_file(path, fill)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)

    async def use(store: SqliteStore) -> None:
        await store.get("e1")

    with pytest.raises(CacheError, match="damaged"):
        with_file(path, use)


def test_paths_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path) in refusal(tmp_path)
    assert "cannot be opened" in refusal(tmp_path / "file" / "cache.db")


def test_a_failed_start_can_be_tried_again(path: Path) -> None:
    store = SqliteStore(path)
    path.write_bytes(b"x" * 5000)
    with pytest.raises(CacheError):
        asyncio.run(store.start())
    path.unlink()

    async def use() -> None:
        async with opened(store):
            await store.put(entry(1))
            assert await store.count() == 1

    asyncio.run(use())


def test_many_puts_share_a_commit(path: Path) -> None:
    """The reason for the group commit: what waits together is written together."""

    async def body(store: SqliteStore) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("PRAGMA busy_timeout = 2000")
            seen = {other.execute("SELECT count(*) FROM log").fetchone()[0]}
            puts = asyncio.gather(*(store.put(entry(number)) for number in range(200)))
            while not puts.done():
                seen.add(other.execute("SELECT count(*) FROM log").fetchone()[0])
                await asyncio.sleep(0)
            await puts
        assert len(seen) <= 20

    with_file(path, body)
