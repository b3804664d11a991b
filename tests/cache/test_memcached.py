"""The exact tier in memcached: what it shares, what it tells followers, and what it survives."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datastores import Server, memcached_server
from fakes import FakeClock

from tierway.cache.memcached_link import MemcachedLink, Stored, parse_address
from tierway.cache.memcached_store import PURGES_KEPT, MemcachedStore
from tierway.cache.sealed_store import SealedPartialStore
from tierway.cache.sealing import Key, Sealer
from tierway.cache.store import is_reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry, Note

names = (f"cache{number}" for number in itertools.count())
NOTE = Note("mark", "acme", "u1", {"问": [1, 2.5]}, 1000.0, 2000.0)


def entry(number: int, **fields: Any) -> Entry:
    made = Entry(
        id=f"e {number}",
        exact=number.to_bytes(16, "big"),
        partition=b"p" * 16,
        wire="chat",
        question=f"第 {number} 个问题?",
        answer=b'{"n":\n%d}' % number,
        tier="small",
        model="m",
        probabilities={"7b": 0.5},
        tenant="acme",
        user="",
        namespace="",
        created_at=900.0,
        expires_at=2000.0,
    )
    return replace(made, **fields)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with memcached_server() as running:
        yield running


class Rig:
    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url, self.stack, self.name = url, stack, next(names)
        self.wall = FakeClock(1000.0)

    async def store(self, **options: Any) -> MemcachedStore:
        made = MemcachedStore(self.link(**options), wall=self.wall, name=self.name)
        await made.start()
        self.stack.push_async_callback(made.aclose)
        return made

    def link(self, **options: Any) -> MemcachedLink:
        given = {"patience_s": 20.0, **options}
        return MemcachedLink(self.url, clock=time.monotonic, draw=random.random, **given)


def run(server: Server, body: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(30):
            await body(Rig(server.url, stack))

    asyncio.run(main())


def test_an_entry_comes_back_without_its_vector(server: Server) -> None:
    async def body(rig: Rig) -> None:
        one, two = await rig.store(), await rig.store()
        await one.put(entry(1, vector=b"v" * 16, encoder="enc"))
        await one.put(entry(2, expires_at=float("inf"), answer=b""))
        assert await two.by_exact(entry(1).exact) == entry(1, encoder="enc")
        assert await two.get_many(["e 2", "nobody", "e 1"]) == [
            entry(2, expires_at=float("inf"), answer=b""),
            None,
            entry(1, encoder="enc"),
        ]
        assert await two.by_exact(b"\xff" * 16) is None
        assert await two.get_many([]) == []

    run(server, body)


def test_a_deleted_entry_is_gone_and_every_follower_hears_of_it(server: Server) -> None:
    async def body(rig: Rig) -> None:
        one, two = await rig.store(), await rig.store()
        assert await two.changes(0) == []
        await one.put(entry(1))
        await one.put(entry(2))
        assert await one.delete(["e 1", "nobody"]) == 1
        assert await two.by_exact(entry(1).exact) is None
        (first,) = await two.changes(0)
        assert is_reset(first)  # who holds nothing needs no list
        await one.delete(["e 2"])
        await one.delete([f"x{number}" for number in range(120)])
        seen, since = [], first.sequence
        while page := await two.changes(since, 100):
            seen += [change.entry_id for change in page]
            assert all(change.entry is None for change in page)
            since = page[-1].sequence
        assert seen == ["e 2", *(f"x{number}" for number in range(120))]

    run(server, body)


def test_a_replaced_entry_takes_nothing_along_when_it_is_deleted(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await store.put(entry(2, exact=entry(1).exact))
        assert await store.get("e 1") is None
        assert await store.delete(["e 1"]) == 0
        assert await store.by_exact(entry(1).exact) == entry(2, exact=entry(1).exact)

    run(server, body)


@pytest.mark.parametrize("lost", ["gone", "line"])
def test_a_follower_that_may_have_missed_something_gets_a_reset(server: Server, lost: str) -> None:
    async def body(rig: Rig) -> None:
        store, link = await rig.store(), rig.link()
        link.open()
        rig.stack.push_async_callback(link.aclose)
        await store.delete(["a"])
        since = (await store.changes(0))[-1].sequence
        await store.delete(["b"])
        name = "gone" if lost == "gone" else f"gone:{since + 1}"
        await link.delete([f"tierway:cache:v1:{rig.name}:{name}"])
        (change,) = await store.changes(since)
        assert is_reset(change)
        if lost == "gone":
            rig.wall.advance(1.0)
            await store.delete(["c"])
            assert [is_reset(c) for c in await store.changes(change.sequence)] == [True]
        else:
            assert await store.changes(change.sequence) == []

    run(server, body)


def test_a_purge_passes_over_what_was_stored_before_it(server: Server) -> None:
    async def body(rig: Rig) -> None:
        one, two = await rig.store(), await rig.store()
        await two.changes(0)
        await one.put(entry(1))
        await one.put(entry(2, tenant="other"))
        assert await one.delete_where(tenant="acme") == 0
        assert [is_reset(change) for change in await two.changes(0)] == [True]
        assert await two.changes(0) == []
        assert await two.by_exact(entry(1).exact) is None
        assert await two.get("e 1") is None
        assert await two.by_exact(entry(2).exact) is not None
        await one.put(entry(3, created_at=1000.5))
        assert await two.by_exact(entry(3).exact) is not None
        later = await rig.store()
        await later.changes(0)
        assert await later.get("e 1") is None
        await asyncio.gather(*(one.delete_where(user=f"u{n}") for n in range(5)))
        await two.changes(0)
        assert len(two._purges) == 6

    run(server, body)


def test_many_purges_become_a_stricter_one(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        for number in range(PURGES_KEPT + 1):
            await store.delete_where(user=f"u{number}", older_than_at=950.0 + number / 10)
        await store.changes(0)
        assert len(store._purges) <= PURGES_KEPT
        assert await store.get("e 1") is None

    run(server, body)


def test_notes_come_in_order_until_they_expire(server: Server) -> None:
    async def body(rig: Rig) -> None:
        one, two = await rig.store(), await rig.store()
        assert await two.notes(0) == []
        numbers = [await one.note(replace(NOTE, user=f"u{n}")) for n in range(5)]
        first = await two.notes(0, limit=2)
        rest = await two.notes(first[-1].sequence) if first else await two.notes(0)
        found = [*first, *rest]
        assert [note.user for note in found] == ["u0", "u1", "u2", "u3", "u4"]
        assert [note.sequence for note in found] == numbers
        assert found[0] == replace(NOTE, user="u0", sequence=numbers[0])
        assert await two.notes(numbers[-1]) == []
        assert len(await two.notes(numbers[-1] + 9)) == 5
        rig.wall.now = 2000.0
        for _ in range(3):
            assert await two.notes(0) == []
        number = await one.note(replace(NOTE, expires_at=3000.0))
        assert [note.sequence for note in await two.notes(0)] == [number]

    run(server, body)


def test_a_sealed_store_shows_memcached_nothing(server: Server) -> None:
    async def body(rig: Rig) -> None:
        faults: list[str] = []
        inner = await rig.store()
        sealed = SealedPartialStore(
            inner, Sealer([Key.derive("0" * 64)]), lambda part, error: faults.append(part)
        )
        await sealed.put(entry(1))
        assert await sealed.by_exact(entry(1).exact) == entry(1)
        assert await sealed.get_many(["e 1", "e 9"]) == [entry(1), None]
        assert await inner.by_exact(entry(1).exact) is None
        bare = await inner.get("e 1")
        assert bare is not None
        assert "问题" not in bare.question
        other = SealedPartialStore(
            inner, Sealer([Key.derive("1" * 64)]), lambda part, error: faults.append(part)
        )
        assert await other.get_many(["e 1"]) == [None]
        assert faults == ["sealed"]

    run(server, body)


def test_what_needs_no_doing_is_not_done(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await store.touch(["e 1"], 5.0)
        assert await store.reap(9e9) == 0
        assert await store.shrink(0) == 0
        size = await store.size()
        assert size.entries >= 1
        assert size.bytes > 100
        assert await store.get("e 1") == entry(1)

    run(server, body)


def test_a_closed_store_says_so() -> None:
    async def main() -> None:
        link = MemcachedLink("memcached://127.0.0.1:1", clock=time.monotonic, draw=random.random)
        store = MemcachedStore(link, wall=time.time)
        with pytest.raises(CacheError, match="not started"):
            await store.put(entry(1))
        await store.start()
        await store.aclose()
        for use in (
            lambda: store.get("e"),
            lambda: store.by_exact(b"x"),
            lambda: store.delete(["e"]),
            lambda: store.delete_where(),
            lambda: store.changes(0),
            lambda: store.note(NOTE),
            lambda: store.notes(0),
            lambda: store.size(),
            lambda: store.start(),
        ):
            with pytest.raises(CacheError, match="closed"):
                await use()

    asyncio.run(main())


def test_a_value_that_is_too_large_is_refused_and_harms_no_other(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        with pytest.raises(CacheError, match="too large"):
            await store.put(entry(1, answer=b"x" * (2 << 20)))
        await asyncio.gather(*(store.put(entry(n, answer=b"y" * 200_000)) for n in range(40)))
        found = await store.get_many([f"e {n}" for n in range(40)])
        assert sum(one is not None and len(one.answer) == 200_000 for one in found) > 30

    run(server, body)


def test_a_text_of_another_release_is_a_miss(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store, link = await rig.store(), rig.link()
        link.open()
        rig.stack.push_async_callback(link.aclose)
        for value in (b"", b"{}", b'"e"\nno json\nanswer', b'"e"\n{}\nanswer'):
            await link.set(Stored(store._text(entry(1).exact), value, 60.0))
            assert await store.by_exact(entry(1).exact) is None

    run(server, body)


def test_a_server_that_hangs_costs_one_deadline_and_comes_back() -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store(timeout_s=0.2, patience_s=0.3)
        await store.put(entry(1))
        server.pause()
        began = time.monotonic()
        with pytest.raises(CacheError, match=r"no answer within 0\.2 s"):
            await store.by_exact(entry(1).exact)
        for _ in range(200):
            with pytest.raises(CacheError, match="away"):
                await store.by_exact(entry(1).exact)
        assert time.monotonic() - began < 2.0
        server.resume()
        assert await eventually(store) == entry(1)
        await asyncio.to_thread(server.stop)
        with pytest.raises(CacheError, match="away"):
            await store.by_exact(entry(1).exact)
        await asyncio.to_thread(server.start)
        assert await eventually(store) is None

    with memcached_server() as server:
        run(server, body)


async def eventually(store: MemcachedStore) -> Entry | None:
    while True:  # bounded by the rig
        try:
            return await store.by_exact(entry(1).exact)
        except CacheError:
            await asyncio.sleep(0.02)


def test_a_cancelled_use_is_cancelled_and_leaves_no_half_read_connection(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await store.put(entry(2))
        for rounds in list(range(8)) * 8:
            task = asyncio.ensure_future(store.get("e 1"))
            for _ in range(rounds):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait([task])
                assert task.cancelled()
            assert await store.get("e 2") == entry(2)

    run(server, body)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis://h", "must begin with memcached://"),
        ("memcached://", "must name a host"),
        ("memcached://h:0", "a port"),
        ("memcached://h/1", "nothing else"),
        ("memcached://u:p@h", "nothing else"),
    ],
)
def test_addresses_that_are_none(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_address(url)


def test_an_address_says_what_is_used(tmp_path: Path) -> None:
    assert parse_address("memcached://h") == ("h", 11211)
    with pytest.raises(ValueError, match="no passwords"):
        MemcachedLink("memcached://h", clock=time.monotonic, draw=random.random, password="secret")
