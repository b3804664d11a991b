"""What only a store in a file can suffer."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from contracts.stores import entry, fold, follow, opened

from tierway.cache.sqlite_schema import ADDITIONS
from tierway.cache.sqlite_store import SqliteStore
from tierway.policies.errors import CacheError


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
