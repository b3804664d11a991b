"""What only a store on a server can suffer: crashes between two writes, eviction, silence."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datastores import Server, redis_cluster, redis_server

from tierway.cache.redis_link import RedisLink, parse_address
from tierway.cache.redis_scripts import Keys
from tierway.cache.redis_store import RedisStore
from tierway.cache.store import is_reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry, Note

names = (f"cache{number}" for number in itertools.count())


def entry(number: int, **fields: Any) -> Entry:
    made = Entry(
        id=f"e{number}",
        exact=number.to_bytes(16, "big"),
        partition=b"p" * 16,
        wire="chat",
        question=f"question {number}",
        answer=b'{"n": %d}' % number,
        tier="small",
        model="m",
        probabilities={"7b": 0.5},
        tenant="acme",
        user="",
        namespace="",
        created_at=1000.0,
        expires_at=2000.0,
    )
    return replace(made, **fields)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def link(url: str, **options: Any) -> RedisLink:
    return RedisLink(url, clock=time.monotonic, draw=random.random, **options)


class Rig:
    """Stores of one name on one server, as gateways have them, and a door to the server."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url, self.stack, self.name = url, stack, next(names)
        self.keys = Keys(self.name)

    async def store(self, **options: Any) -> RedisStore:
        links = {key: options.pop(key) for key in ("timeout_s", "patience_s") if key in options}
        made = RedisStore(link(self.url, **links), wall=lambda: 1000.0, name=self.name, **options)
        await made.start()
        self.stack.push_async_callback(made.aclose)
        return made

    async def raw(self, *command: Any) -> Any:
        made = link(self.url)
        made.open()
        try:
            return await made.command(*command)
        finally:
            await made.aclose()


@asynccontextmanager
async def rigged(url: str) -> Any:
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        yield Rig(url, stack)


def run(url: str, body: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with rigged(url) as rig:
            await body(rig)

    asyncio.run(main())


# What a crash between two writes leaves


def test_a_put_that_died_before_its_row_is_not_there_and_ends_by_itself(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await rig.raw("HDEL", rig.keys.part("live"), "e1")  # as if the row never came
        assert await store.get("e1") is None
        assert 0 < await rig.raw("TTL", rig.keys.entry("e1")) <= 4600

    run(server.url, body)


def test_a_delete_that_died_half_way_is_finished_by_the_next_reap(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await store.put(entry(2))
        await store._ledger.bury(["e1"])  # ... and the process dies here
        assert await store.get("e1") is None
        assert await rig.raw("EXISTS", rig.keys.entry("e1")) == 1
        other = await rig.store()
        assert await other.reap(0.0) == 0
        assert await rig.raw("EXISTS", rig.keys.entry("e1")) == 0
        assert await rig.raw("EXISTS", rig.keys.part("trash")) == 0
        assert await other.get("e2") == entry(2)

    run(server.url, body)


def test_a_reap_spares_what_was_put_again(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        await store._ledger.bury(["e1"])
        await store.put(entry(1, answer=b"again"))
        await store.reap(0.0)
        found = await store.get("e1")
        assert found is not None
        assert found.answer == b"again"

    run(server.url, body)


# Texts that Redis gave up


@pytest.mark.parametrize("finder", ["get", "listing", "reap"])
def test_a_text_that_was_evicted_becomes_a_deletion_for_all(server: Server, finder: str) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        since = await store.put(entry(2))
        await rig.raw("DEL", rig.keys.entry("e1"))
        if finder == "get":
            assert await store.get("e1") is None
        elif finder == "listing":
            assert [c.entry for c in await store.changes(0)] == [None, entry(2, answer=b"")]
        else:
            await store.reap(0.0)
        assert [(c.entry_id, c.entry) for c in await store.changes(since)] == [("e1", None)]
        assert await store.count() == 1
        assert await store.by_exact(entry(1).exact) is None

    run(server.url, body)


def test_a_text_of_an_unknown_kind_is_a_miss(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        for number, head in enumerate((b"no json", b"[]", b"{}", b'{"exact": "zz"}')):
            await store.put(entry(number))
            await rig.raw("HSET", rig.keys.entry(f"e{number}"), "head", head)
            assert await store.get(f"e{number}") is None
        assert await store.count() == 0

    run(server.url, body)
    assert "cannot be read" in caplog.text


def test_fields_of_another_release_do_no_harm(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1, language="en"))
        head = await rig.raw("HGET", rig.keys.entry("e1"), "head")
        changed = head.replace(b'"language":"en"', b'"mood":"good"')
        assert changed != head
        await rig.raw("HSET", rig.keys.entry("e1"), "head", changed)
        assert await store.get("e1") == entry(1)

    run(server.url, body)


def test_texts_end_after_their_grace(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store(grace_s=50.0)
        await store.put(entry(1, expires_at=1100.0))
        await store.put(entry(2, expires_at=10.0))
        await store.put(entry(3, expires_at=float("inf")))
        ends = [await rig.raw("PTTL", rig.keys.entry(f"e{number}")) for number in (1, 2, 3)]
        assert 149_000 < ends[0] <= 150_000
        assert 49_000 < ends[1] <= 50_000
        assert ends[2] > 300_000_000_000

    run(server.url, body)


# A server that loses its data


def test_followers_of_a_server_that_lost_everything_get_a_reset(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        since = await store.put(entry(1))
        noted = await store.note(Note("mark", "acme", "", {}, 1.0, 9e9))
        await rig.raw("DEL", *rig.keys.ledger, *rig.keys.journal)
        assert [is_reset(change) for change in await store.changes(since)] == [True]
        for number in range(2, 5):
            assert await store.put(entry(number)) > since
        page = await store.changes(since)
        assert is_reset(page[0])
        assert [change.entry_id for change in page[1:]] == ["e2", "e3", "e4"]
        assert await store.note(Note("mark", "acme", "", {}, 1.0, 9e9)) > noted
        assert len(await store.notes(noted)) == 1

    run(server.url, body)


def test_entries_outlive_server_and_gateways(tmp_path: Path) -> None:
    with redis_server(tmp_path, durable=True) as server:

        async def fill(rig: Rig) -> None:
            store = await rig.store()
            rig.stack.callback(kept.append, rig.name)
            await store.put(entry(1))
            await store.put(entry(2))
            await store.delete(["e1"])

        async def look(rig: Rig) -> None:
            rig.name = kept[0]
            store = await rig.store()
            assert await store.get("e2") == entry(2)
            assert [c.entry_id for c in await store.changes(0)] == ["e2", "e1"]

        kept: list[str] = []
        run(server.url, fill)
        server.stop(signal.SIGTERM)
        server.start()
        run(server.url, look)


# A server that is away


def test_a_server_that_hangs_costs_one_deadline_and_comes_back(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store(timeout_s=0.2, patience_s=0.3)
        await store.put(entry(1))
        server.pause()
        began = time.monotonic()
        with pytest.raises(CacheError, match=r"away: no answer within 0\.2 s"):
            await store.get("e1")
        assert 0.1 < time.monotonic() - began < 2.0
        began = time.monotonic()
        for _ in range(200):
            with pytest.raises(CacheError, match="away"):
                await store.get("e1")
        assert time.monotonic() - began < 0.2
        server.resume()
        assert await eventually(store, "e1") == entry(1)

    with redis_server(tmp_path) as server:
        run(server.url, body)


def test_a_server_that_is_not_there_yet_is_found_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        with pytest.raises(CacheError, match="away"):
            await store.put(entry(1))
        await asyncio.to_thread(server.start)
        assert await eventually(store, "e1") is None
        await store.put(entry(1))
        await asyncio.to_thread(server.stop, signal.SIGTERM)
        with pytest.raises(CacheError, match="away"):
            await store.get("e1")
        await asyncio.to_thread(server.start)
        assert await eventually(store, "e1") == entry(1)

    with redis_server(tmp_path, durable=True) as server:
        server.stop()
        run(server.url, body)
    assert "The cache goes on without it" in caplog.text


def test_a_cancelled_use_is_cancelled_wherever_it_was(server: Server) -> None:
    async def body(rig: Rig) -> None:
        store = await rig.store()
        await store.put(entry(1))
        for rounds in list(range(12)) * 8:
            task = asyncio.ensure_future(store.get("e1"))
            for _ in range(rounds):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait([task])
                assert task.cancelled()
        assert await store.get("e1") == entry(1)

    run(server.url, body)


async def eventually(store: RedisStore, entry_id: str) -> Entry | None:
    while True:  # bounded by the rig
        try:
            return await store.get(entry_id)
        except CacheError:
            await asyncio.sleep(0.02)


def test_a_wrong_password_and_a_full_server_are_named(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        await rig.raw("CONFIG", "SET", "maxmemory", "1")
        store = await rig.store()
        with pytest.raises(CacheError, match=r"refuses: .*maxmemory"):
            await store.put(entry(1))
        assert await store.count() == 0  # a refusal closes no gate
        await rig.raw("CONFIG", "SET", "requirepass", "secret")
        stranger = await rig.store()
        with pytest.raises(CacheError, match="uthentication required"):
            await stranger.count()
        friend = RedisStore(link(rig.url, password="secret"), wall=time.time)
        rig.stack.push_async_callback(friend.aclose)
        await friend.start()
        assert await friend.count() == 0

    with redis_server(tmp_path) as server:
        run(server.url, body)


def test_an_eviction_policy_that_may_take_the_ledger_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(rig: Rig) -> None:
        await rig.store()

    with redis_server(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        run(server.url, body)
    assert [r.levelno for r in caplog.records if "allkeys-lru" in r.message] == [logging.WARNING]


# A cluster


def test_a_cluster_keeps_entries_on_all_its_nodes(cluster: list[Server]) -> None:
    async def body(rig: Rig) -> None:
        store, other = await rig.store(), await rig.store()
        await asyncio.gather(*(store.put(entry(number)) for number in range(60)))
        assert [await other.get(f"e{number}") for number in range(60)] == [
            entry(number) for number in range(60)
        ]
        listed = await other.changes(0)
        assert len(listed) == 60
        since = listed[-1].sequence
        assert await store.delete([f"e{number}" for number in range(20)]) == 20
        assert {c.entry_id for c in await other.changes(since)} == {f"e{n}" for n in range(20)}
        assert await store.delete_where(tenant="acme") == 40
        assert await store.reap(0.0) == 0
        for one in cluster:
            rig.url = one.url.replace("redis+cluster", "redis")
            assert await rig.raw("DBSIZE") <= len(rig.keys.ledger)

    async def spread(rig: Rig) -> None:
        store = await rig.store()
        await asyncio.gather(*(store.put(entry(number)) for number in range(60)))
        sizes = []
        for one in cluster:
            rig.url = one.url.replace("redis+cluster", "redis")
            sizes.append(await rig.raw("DBSIZE"))
        assert min(sizes) >= 5

    run(cluster[0].url, body)
    run(cluster[1].url, spread)


# Addresses


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http://h", "must begin with one of redis://"),
        ("redis://", "must name a host"),
        ("redis://:secret@h", "password_env"),
        ("redis://h/cache", "number of a database"),
        ("redis+cluster://h/1", "none for a cluster"),
        ("redis://h:0", "a port"),
        ("redis://h?socket_timeout=9", "socket_timeout"),
    ],
)
def test_addresses_that_are_none(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_address(url)


def test_an_address_says_what_is_used() -> None:
    made = link("rediss://bob@h.example/3?ssl_ca_certs=/ca.pem")
    assert (made.name, made.clustered) == ("Redis at h.example:6379", False)
    options = made._options()
    assert (options["username"], options["db"], options["ssl"]) == ("bob", 3, True)
    assert options["ssl_ca_certs"] == "/ca.pem"
    assert link("redis+cluster://h:7000").clustered
