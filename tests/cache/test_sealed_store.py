"""Encryption at rest: nothing readable in the file, nothing served that the key did not seal."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datastores import Server, redis_server

pytest.importorskip("cryptography", reason="nothing can be sealed without it")

from tierway.cache.memory_store import MemoryStore
from tierway.cache.redis_link import RedisLink
from tierway.cache.redis_store import RedisStore
from tierway.cache.sealed_store import sealed_store
from tierway.cache.sealing import Key, Sealer
from tierway.cache.sqlite_store import SqliteStore
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Change, Entry, Note, Table

FIRST_KEY, SECOND_KEY = Key.derive("11" * 32), Key.derive("22" * 32)
QUESTION, ANSWER = "Wer ist die Chefin? 谁是老板？", b'{"answer": "Frau Schmidt-Sonnenschein"}'
VECTOR = np.linspace(-1, 1, 512, dtype="<f4").tobytes()


def entry(number: int = 1, **fields: Any) -> Entry:
    made = Entry(
        id=f"e{number}",
        exact=bytes([number]) * 16,
        partition=b"partition digest",
        wire="chat",
        question=QUESTION,
        answer=ANSWER,
        tier="small",
        model="m",
        probabilities={"small": 0.5},
        tenant="acme",
        user="u1",
        namespace="",
        created_at=1000.0 + number,
        expires_at=2000.0,
        encoder="some-encoder",
        vector=VECTOR,
    )
    return replace(made, **fields)


def note(number: int = 1) -> Note:
    return Note("mark", "acme", "u1", {"asked": QUESTION, "n": number}, 5.0 + number, 9e9)


class Sealed:
    """A sealed store with what it counted."""

    def __init__(self, inner: CacheStore, *keys: Key) -> None:
        self.faults: list[str] = []
        self.inner = inner
        self.store = sealed_store(
            inner, Sealer(keys or (FIRST_KEY,)), lambda part, error: self.faults.append(part)
        )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "memory", "redis"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> CacheStore:
    if request.param == "redis":
        server = request.getfixturevalue("redis")
        link = RedisLink(server.url, clock=time.monotonic, draw=random.random, patience_s=20.0)
        return RedisStore(link, wall=lambda: 0.0, name=tmp_path.name)
    return SqliteStore(tmp_path / "c.db") if request.param == "sqlite" else MemoryStore()


def run(inner: CacheStore, body: Callable[[Sealed], Awaitable[None]]) -> None:
    async def main() -> None:
        sealed = Sealed(inner)
        await sealed.store.start()
        try:
            await body(sealed)
        finally:
            await sealed.store.aclose()

    asyncio.run(main())


def test_an_entry_and_a_note_come_back_as_they_were_put(inner: CacheStore) -> None:
    async def body(sealed: Sealed) -> None:
        store = sealed.store
        bare = entry(2, vector=None, encoder="", answer=b"{}", question="")
        first = await store.put(entry())
        await store.put(bare)
        assert await store.get("e1") == entry()
        assert await store.get("e2") == bare
        assert await store.get("e3") is None
        assert (await store.changes(0))[0] == Change(first, "e1", entry(answer=b""))
        number = await store.note(note())
        assert await store.notes(0) == [replace(note(), sequence=number)]
        assert sealed.faults == []

    run(inner, body)


def test_the_rest_of_the_contract_is_the_inner_store_s(inner: CacheStore) -> None:
    async def body(sealed: Sealed) -> None:
        store = sealed.store
        for number in range(1, 7):
            await store.put(entry(number, user=f"u{number}"))
        await store.put(entry(9, exact=entry(1).exact))
        assert await store.get("e1") is None  # replaced, by the keyed digest
        assert (await store.size()).entries == 6
        assert await store.delete_where(tenant="acme", user="u2") == 1
        assert await store.delete(["e3"]) == 1
        await store.touch(["e4"], 5000.0)
        size = await store.size()
        assert await store.shrink(size.bytes // 4) == 3
        assert [c.entry_id for c in await store.changes(0) if c.entry] == ["e4"]
        assert await store.reap(3000.0) == 1
        assert sealed.faults == []

    run(inner, body)


def everything_in(folder: Path) -> bytes:
    """The bytes of the file and of its write-ahead log."""
    files = sorted(folder.iterdir())
    assert "c.db-wal" in [file.name for file in files]
    return b"".join(file.read_bytes() for file in files)


def test_nothing_readable_is_in_the_file_or_its_log(tmp_path: Path) -> None:
    path = tmp_path / "c.db"

    async def body(sealed: Sealed) -> None:
        for number in range(1, 30):
            await sealed.store.put(entry(number))
            await sealed.store.note(note(number))
        written = everything_in(tmp_path)
        assert len(written) > 30 * len(VECTOR)
        hidden = [
            *(word.encode() for word in ("Wer ist", "谁是老板", "Chefin")),
            b"Schmidt-Sonnenschein",
            b"some-encoder",
            VECTOR[:64],
            entry(7).exact,
            b"partition digest",
        ]
        for text in hidden:
            assert text not in written, text
        assert b"acme" in written  # a purge selects by it

    run(SqliteStore(path), body)


def test_fields_and_bodies_cannot_be_swapped(tmp_path: Path) -> None:
    path = tmp_path / "c.db"

    async def body(sealed: Sealed) -> None:
        store = sealed.store
        await store.put(entry(1))
        await store.put(entry(2, answer=b'{"answer": "another"}'))
        await store.put(entry(3))
        await store.note(note(1))
        await store.note(note(2))
        with closing(sqlite3.connect(path)) as db, db:
            swap = "UPDATE entries SET {0} = (SELECT {0} FROM entries WHERE id = 'e2')"
            db.execute(swap.format("answer") + " WHERE id = 'e1'")
            db.execute(swap.format("question") + " WHERE id = 'e3'")
            db.execute("UPDATE notes SET body = (SELECT body FROM notes WHERE sequence = 2)")
        assert await store.get("e1") is None
        assert await store.get("e2") is not None
        assert sealed.faults == ["sealed"]
        assert [c.entry_id for c in await store.changes(0) if c.entry] == ["e1", "e2"]
        forged, whole = await store.notes(0)
        assert (forged.kind, forged.body) == ("", {})
        assert whole.body == note(2).body

    run(SqliteStore(path), body)


def test_another_key_is_a_miss_and_an_old_one_still_opens(inner: CacheStore) -> None:
    async def body(sealed: Sealed) -> None:
        await sealed.store.put(entry())
        await sealed.store.note(note())
        other = Sealed(inner, SECOND_KEY)
        assert await other.store.get("e1") is None
        (change,) = await other.store.changes(0)
        assert (change.entry_id, change.entry) == ("e1", None)
        assert [found.kind for found in await other.store.notes(0)] == [""]
        assert other.faults == ["sealed"] * 3
        rotated = Sealed(inner, SECOND_KEY, FIRST_KEY)
        assert await rotated.store.get("e1") == entry()
        assert rotated.faults == []

    run(inner, body)


def test_what_stands_there_unsealed_is_deleted_when_it_is_met(inner: CacheStore) -> None:
    async def body(sealed: Sealed) -> None:
        await inner.put(entry(1))
        await sealed.store.put(entry(2))
        page = await sealed.store.changes(0)
        assert [(c.entry_id, c.entry is None) for c in page] == [("e1", True), ("e2", False)]
        assert await inner.get("e1") is None
        assert sealed.faults == ["unsealed"]

    run(inner, body)


def test_without_the_key_a_sealed_store_is_of_no_use_and_does_no_harm(inner: CacheStore) -> None:
    async def body(sealed: Sealed) -> None:
        await sealed.store.put(entry())
        found = await inner.get("e1")
        assert found is not None
        assert found.exact != entry().exact
        assert found.partition != entry().partition
        assert found.encoder == ""  # its vector is taken for none

    run(inner, body)


def test_a_long_page_is_opened_off_the_loop() -> None:
    async def body(sealed: Sealed) -> None:
        for number in range(600):
            made = entry(1, id=f"e{number}", exact=number.to_bytes(16, "big"), vector=None)
            await sealed.store.put(made)
        page = await sealed.store.changes(0, 1000)
        assert [c.entry.question for c in page if c.entry] == [QUESTION] * 600

    run(MemoryStore(), body)


@pytest.mark.parametrize("made", [entry(question="\ud800"), entry(encoder="\ud800")])
def test_what_no_text_can_hold_is_a_fault_of_the_cache(made: Entry) -> None:
    async def body(sealed: Sealed) -> None:
        with pytest.raises(CacheError):
            await sealed.store.put(made)

    run(MemoryStore(), body)


def test_the_blocks_of_a_table_come_opened_without_what_cannot_be(tmp_path: Path) -> None:
    inner = SqliteStore(tmp_path / "c.db")

    async def body(sealed: Sealed) -> None:
        table = sealed.store
        assert isinstance(table, Table)
        for number in (1, 2, 3):
            await sealed.store.put(entry(number))
        await Sealed(inner, SECOND_KEY).store.put(entry(4))
        await inner.put(entry(5))
        assert await table.newest() == 5
        first = await table.block(0, 2)
        assert first is not None
        assert (list(first.id), first.exact[1]) == (["e1", "e2"], entry(2).exact)
        assert list(first.question) == [QUESTION] * 2
        assert list(first.vector) == [VECTOR] * 2
        rest = await table.block(first.last, 10)
        assert rest is not None
        assert (list(rest.id), list(rest.encoder)) == (["e3"], ["some-encoder"])
        assert await inner.get("e5") is None
        assert sealed.faults == ["unsealed", "sealed"]
        assert await table.block(rest.last, 10) is None

    run(inner, body)


def test_only_what_is_a_table_becomes_one() -> None:
    assert not isinstance(Sealed(MemoryStore()).store, Table)
