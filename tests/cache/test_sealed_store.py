"""Encryption at rest: nothing readable in the file, nothing served that the key did not seal."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="nothing can be sealed without it")

from tierway.cache.memory_store import MemoryStore
from tierway.cache.sealed_store import SealedStore
from tierway.cache.sealing import Key, Sealer
from tierway.cache.sqlite_store import SqliteStore
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Change, Entry, Note

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
        self.store = SealedStore(
            inner, Sealer(keys or (FIRST_KEY,)), lambda part, error: self.faults.append(part)
        )


@pytest.fixture(params=["sqlite", "memory"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> CacheStore:
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
