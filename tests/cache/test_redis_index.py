"""Vectors searched in Redis: the same cosines and decisions as in this process."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datastores import Server, redis_cluster, redis_server
from fakes import FakeClock
from numpy.typing import NDArray

from tierway.cache.index import Arena
from tierway.cache.int8_rows import pack
from tierway.cache.redis_codec import Gone
from tierway.cache.redis_index import RedisIndex, cosine_of
from tierway.cache.redis_link import RedisLink
from tierway.cache.redis_scripts import Keys
from tierway.cache.redis_store import NOBODY, RedisStore
from tierway.cache.store import is_reset
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry

P, Q = b"p" * 16, b"q" * 16
FIRST = Entry(
    id="e0", exact=b"\x00" * 16, partition=P, wire="chat", question="q", answer=b"{}",
    tier="small", model="m", probabilities={}, tenant="", user="", namespace="",
    created_at=1000.0, expires_at=2000.0, encoder="enc",
)  # fmt: skip


def entry(number: int, vector: NDArray[np.float32], **fields: object) -> Entry:
    raw = vector.astype("<f4").tobytes()
    made = replace(FIRST, id=f"e{number}", exact=number.to_bytes(16, "big"), vector=raw)
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


def vectors(count: int, dim: int = 512) -> NDArray[np.float32]:
    """Some near each other, some not, as questions are."""
    draw = np.random.default_rng(7)
    rows = draw.normal(size=(count, dim)) + 1.5 * draw.normal(size=(1, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


class Rig:
    def __init__(self, url: str, name: str) -> None:
        self.wall, self.keys = FakeClock(1000.0), Keys(name)
        self.link = RedisLink(url, clock=time.monotonic, draw=random.random, patience_s=20.0)
        self.index = RedisIndex(self.link, encoder="enc", wall=self.wall, name=name)
        self.store = RedisStore(
            self.link, wall=self.wall, name=name, vectors=self.index, partial=True
        )


def run(url: str, name: str, body: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig(url, name)
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            await rig.store.start()
            stack.push_async_callback(rig.store.aclose)
            await body(rig)

    asyncio.run(main())


def test_a_similarity_of_redis_is_turned_into_a_cosine() -> None:
    assert [cosine_of(score) for score in (0.0, 0.5, 1.0, 1.00001, -0.1)] == [-1, 0, 1, 1, -1]


def test_both_searches_find_the_same_with_the_same_cosines(server: Server, tmp_path: Path) -> None:
    rows = vectors(300)

    async def body(rig: Rig) -> None:
        arena = Arena(512)
        for number, row in enumerate(rows[:250]):
            arena.add(P, number, row)
        await asyncio.gather(*(rig.store.put(entry(n, row)) for n, row in enumerate(rows[:250])))
        assert await rig.index.count(P) == 250
        for asked in rows[250:270]:
            remote = await rig.index.search(P, asked, 4)
            truth = rows[:250] @ asked
            for entry_id, cosine in remote:
                assert cosine == pytest.approx(truth[int(entry_id[1:])], abs=0.01)
            local = arena.search(P, asked, 4)
            assert remote[0][1] == pytest.approx(local[0][1], abs=0.01)
            near = {key for key, _ in arena.search(P, asked, 10)}
            assert {int(entry_id[1:]) for entry_id, _ in remote} <= near
        # The far ends of the scale, where a mistaken one would show.
        assert (await rig.index.search(P, rows[0], 1))[0] == ("e0", pytest.approx(1.0, abs=0.01))
        opposite = await rig.index.search(P, -rows[0], 250)
        assert min(cosine for _, cosine in opposite) < -0.97

    run(server.url, tmp_path.name, body)


def test_partitions_and_encoders_never_meet(server: Server, tmp_path: Path) -> None:
    one, two = vectors(2, 8)

    async def body(rig: Rig) -> None:
        await rig.store.put(entry(1, one))
        await rig.store.put(entry(2, two, partition=Q))
        await rig.store.put(entry(3, vectors(1, 4)[0], encoder="other"))
        await rig.store.put(replace(entry(4, two), vector=None))
        assert [found for found, _ in await rig.index.search(P, two, 9)] == ["e1"]
        assert [found for found, _ in await rig.index.search(Q, two, 9)] == ["e2"]
        assert await rig.index.search(b"none" * 4, two, 9) == []
        assert [await rig.index.count(name) for name in (P, Q, b"none" * 4)] == [1, 1, 0]

    run(server.url, tmp_path.name, body)


def test_packed_vectors_are_understood_and_odd_ones_refused(server: Server, tmp_path: Path) -> None:
    one, two = vectors(2, 8)

    async def body(rig: Rig) -> None:
        await rig.store.put(replace(entry(1, one), vector=pack(one)))
        (found,) = await rig.index.search(P, one, 9)
        assert found == ("e1", pytest.approx(1.0, abs=0.01))
        with pytest.raises(CacheError, match="is none"):
            await rig.store.put(entry(2, two * np.float32("nan")))
        assert await rig.store.count() == 1

    run(server.url, tmp_path.name, body)


def test_what_expired_or_was_deleted_is_not_found(server: Server, tmp_path: Path) -> None:
    row = vectors(1, 8)[0]

    async def body(rig: Rig) -> None:
        for number, expires_at in enumerate((1500.0, 3000.0, float("inf"))):
            await rig.store.put(entry(number, row, expires_at=expires_at))
        rig.wall.now = 1500.0
        assert {found for found, _ in await rig.index.search(P, row, 9)} == {"e1", "e2"}
        assert await rig.store.reap(1500.0) == 1
        assert await rig.index.count(P) == 2
        assert await rig.store.delete(["e1"]) == 1
        assert [found for found, _ in await rig.index.search(P, row, 9)] == ["e2"]
        await rig.store.put(entry(7, row, exact=(2).to_bytes(16, "big"), expires_at=9000.0))
        assert [found for found, _ in await rig.index.search(P, row, 9)] == ["e7"]
        assert await rig.store.delete_where() == 1
        assert await rig.index.count(P) == 0

    run(server.url, tmp_path.name, body)


def test_a_set_ends_with_its_longest_lived_entry(server: Server, tmp_path: Path) -> None:
    row = vectors(1, 8)[0]

    async def body(rig: Rig) -> None:
        key = rig.keys.vectors(rig.index._space, P)
        ends = []
        for number, expires_at in enumerate((2000.0, 5000.0, 1500.0)):
            await rig.store.put(entry(number, row, expires_at=expires_at))
            ends.append(await rig.link.command("TTL", key))
        assert [round(left, -1) for left in ends] == [4600, 7600, 7600]

    run(server.url, tmp_path.name, body)


def test_an_evicted_text_takes_its_vector_along(server: Server, tmp_path: Path) -> None:
    row = vectors(1, 8)[0]

    async def body(rig: Rig) -> None:
        await rig.store.put(entry(1, row))
        await rig.link.command("DEL", rig.keys.entry("e1"))
        assert await rig.store.get_many(["e1", "e2"]) == [None, None]
        assert await rig.index.count(P) == 0

    run(server.url, tmp_path.name, body)


def test_a_partial_follower_hears_of_deletions_only(server: Server, tmp_path: Path) -> None:
    row = vectors(1, 8)[0]

    async def body(rig: Rig) -> None:
        assert await rig.store.changes(0) == []
        for number in range(6):
            last = await rig.store.put(entry(number, row))
        (start,) = await rig.store.changes(0)
        assert is_reset(start)
        assert start.sequence == last
        assert await rig.store.changes(last) == []
        for number in range(6, 9):
            await rig.store.put(entry(number, row))
        await rig.store.delete(["e0", "e7"])
        seen, since = [], last
        while page := await rig.store.changes(since, 2):
            assert len(page) <= 2
            since = page[-1].sequence
            seen += [change.entry_id for change in page if change.entry_id != NOBODY]
            assert all(change.entry is None for change in page)
        assert seen == ["e0", "e7"]
        (lost,) = await rig.store.changes(17)
        assert is_reset(lost)
        assert lost.sequence == since

    run(server.url, tmp_path.name, body)


def test_on_a_cluster(tmp_path: Path) -> None:
    rows = vectors(30, 16)

    async def body(rig: Rig) -> None:
        places = [bytes([number]) * 16 for number in range(10)]
        for number, row in enumerate(rows):
            await rig.store.put(entry(number, row, partition=places[number % 10]))
        assert [await rig.index.count(place) for place in places] == [3] * 10
        assert (await rig.index.search(places[4], rows[14], 1))[0][0] == "e14"
        assert [one.id for one in await rig.store.get_many(["e3", "e4"]) if one] == ["e3", "e4"]
        await rig.index.remove([Gone("e14", places[4], "enc"), Gone("e15", places[5], "")])
        assert await rig.index.count(places[4]) == 2
        assert await rig.store.delete_where(older_than_at=9e9) == 30
        assert [await rig.index.count(place) for place in places] == [0] * 10

    with redis_cluster(tmp_path) as servers:
        run(servers[0].url, "main", body)


def test_a_redis_without_vector_sets_is_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Redis 7, as far as it is asked here."""
        while count := (await reader.readline())[1:]:
            words = []
            for _ in range(int(count)):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            known = words[0] in (b"CLIENT", b"INFO")
            reply = b"$0\r\n\r\n" if known else b"-ERR unknown command '%s'\r\n" % words[0]
            writer.write(reply)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as old:
            rig = Rig(f"redis://127.0.0.1:{old.sockets[0].getsockname()[1]}", "main")
            try:
                with pytest.raises(CacheError, match="no vector sets"):
                    await rig.store.start()
            finally:
                await rig.store.aclose()

    asyncio.run(main())
