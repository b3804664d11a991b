"""The work behind the requests: vectors, the store, its log, and what faults leave standing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeClock, until

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.int8_rows import pack
from tierway.cache.memory_store import MemoryStore
from tierway.cache.store import is_reset
from tierway.cache.upkeep import STALE_GRACE_S, Faults, Job, Upkeep
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Change, Entry

P = b"p" * 16
FIRST = Entry(
    id="e1", exact=b"\x01" * 16, partition=P, wire="chat", question="question 1", answer=b"{}",
    tier="small", model="m", probabilities={}, tenant="", user="", namespace="",
    created_at=1000.0, expires_at=90_000.0,
)  # fmt: skip


def entry(number: int, **fields: object) -> Entry:
    made = replace(
        FIRST, id=f"e{number}", exact=bytes([number]) * 16, question=f"question {number}"
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


class FaultyStore(MemoryStore):
    """Raises CacheError from the methods named in `broken`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.broken: set[str] = set()

    def _fault(self, method: str) -> None:
        if method in self.broken:
            raise CacheError(f"no {method} today")

    async def put(self, entry: Entry) -> int:
        self._fault("put")
        return await super().put(entry)

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        self._fault("changes")
        return await super().changes(since, limit)


class Worker:
    """One process's holding with its upkeep, on a store that others may share."""

    def __init__(
        self,
        store: FaultyStore,
        wall: FakeClock,
        *,
        embedder: ScriptedEmbedder | None = None,
        deadline_s: float = 5.0,
    ) -> None:
        self.index, self.faults = Arena(2), Faults()
        self.holding = Holding(self.index, entries=100, answers_bytes=1000)
        self.embedder = embedder
        self.upkeep = Upkeep(
            store, self.holding, embedder, self.faults, wall, encode_deadline_s=deadline_s
        )

    def keep(self, *entries: Entry, wants_vector: bool = True) -> None:
        for one in entries:
            self.holding.hold(one)
            self.upkeep.submit(Job(one, wants_vector))


class Rig:
    def __init__(self, store: FaultyStore, **options: Any) -> None:
        self.store, self.wall = store, FakeClock(2000.0)
        self.workers: list[Worker] = []
        self.options = options

    async def worker(self, **options: Any) -> Worker:
        given = {"embedder": embedder(), **self.options, **options}
        made = Worker(self.store, self.wall, **given)
        await made.upkeep.start()
        self.workers.append(made)
        return made

    async def stored(self, entry_id: str) -> Entry:
        found = await self.store.get(entry_id)
        assert found is not None
        return found


def embedder(before: Callable[[], Awaitable[None]] | None = None) -> ScriptedEmbedder:
    return ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0], before=before)


def run(
    test: Callable[[Rig], Coroutine[Any, Any, None]],
    store: FaultyStore | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        rig = Rig(store or FaultyStore(), **options)
        await rig.store.start()
        try:
            await asyncio.wait_for(test(rig), 10)
        finally:
            for worker in rig.workers:
                await worker.upkeep.aclose()

    asyncio.run(main())


def test_what_came_together_is_encoded_in_one_call_and_stored_with_its_vector() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.keep(*(entry(number) for number in range(1, 6)))
        await worker.upkeep.settled()
        assert worker.embedder is not None
        assert worker.embedder.texts == [tuple(f"question {number}" for number in range(1, 6))]
        assert worker.index.size(P) == 5
        found = await rig.stored("e3")
        assert found.encoder == "scripted"
        assert found.vector == pack(np.array([1.0, 0.0], np.float32))
        assert found.answer == b"{}"

    run(main)


def test_an_entry_without_a_wish_gets_no_vector() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.keep(FIRST, wants_vector=False)
        await worker.upkeep.settled()
        assert worker.embedder is not None
        assert worker.embedder.texts == []
        assert (await rig.stored("e1")).vector is None

    run(main)


def test_a_vector_that_came_along_is_not_made_again() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.holding.hold(FIRST)
        worker.upkeep.submit(Job(FIRST, True, np.array([0.0, 1.0], np.float32)))
        await worker.upkeep.settled()
        assert worker.embedder is not None
        assert worker.embedder.texts == []
        assert (await rig.stored("e1")).vector == pack(np.array([0.0, 1.0], np.float32))

    run(main)


def test_what_was_deleted_while_it_waited_is_not_stored() -> None:
    gate = asyncio.Event()

    async def main(rig: Rig) -> None:
        worker = await rig.worker(embedder=embedder(lambda: _waits(gate)))
        worker.keep(FIRST, entry(2))
        assert worker.embedder is not None
        encoder = worker.embedder
        await until(lambda: bool(encoder.texts))
        worker.holding.delete(["e1"])
        gate.set()
        await worker.upkeep.settled()
        assert await rig.store.get("e1") is None
        assert await rig.store.get("e2") is not None

    run(main)


async def _waits(event: asyncio.Event) -> None:
    await event.wait()


async def _raises() -> None:
    raise CacheError("no encoder")


class NotFinite(ScriptedEmbedder):
    async def encode(self, texts: Sequence[str]) -> Any:
        return np.full((len(texts), 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (embedder(_raises), "encoder"),
        (embedder(lambda: _waits(asyncio.Event())), "encoder-slow"),
        (NotFinite({}), "encoder-not-finite"),
    ],
)
def test_trouble_with_the_encoder_leaves_an_exact_entry(
    made: ScriptedEmbedder, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker(embedder=made)
        worker.keep(FIRST)
        await worker.upkeep.settled()
        assert worker.faults.counts == {fault: 1}
        assert (await rig.stored("e1")).vector is None
        assert worker.index.size(P) == 0

    run(main, deadline_s=0.05)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_store_that_fails_costs_only_what_it_missed() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        rig.store.broken = {"put"}
        worker.keep(FIRST)
        await worker.upkeep.settled()
        rig.store.broken = set()
        worker.keep(entry(2))
        await worker.upkeep.settled()
        assert worker.faults.counts == {"store": 1}
        assert await rig.store.get("e1") is None
        assert await rig.store.get("e2") is not None
        assert worker.index.size(P) == 2

    run(main)


def test_another_process_follows_puts_and_deletions() -> None:
    async def main(rig: Rig) -> None:
        one, two = await rig.worker(), await rig.worker()
        one.keep(FIRST, entry(2))
        await one.upkeep.settled()
        await two.upkeep.follow()
        assert (len(two.holding), two.index.size(P)) == (2, 2)
        assert two.embedder is not None
        assert two.embedder.texts == []
        await rig.store.delete(["e1"])
        for worker in (one, two):
            await worker.upkeep.follow()
            assert "e1" not in worker.holding
            assert "e2" in worker.holding
            assert worker.index.size(P) == 1

    run(main)


def test_a_start_takes_in_what_is_stored() -> None:
    async def main(rig: Rig) -> None:
        one = await rig.worker()
        one.keep(FIRST)
        await one.upkeep.settled()
        two = await rig.worker()
        assert (len(two.holding), two.index.size(P)) == (1, 1)
        other = await rig.worker(embedder=ScriptedEmbedder({}, id="another"))
        assert (len(other.holding), other.index.size(P)) == (1, 0)
        none = await rig.worker(embedder=None)
        assert (len(none.holding), none.index.size(P)) == (1, 0)

    run(main)


def test_a_start_without_a_store_is_counted_and_it_is_followed_once_it_is_back() -> None:
    async def main(rig: Rig) -> None:
        rig.store.broken = {"changes"}
        worker = await rig.worker()
        assert worker.faults.counts == {"store": 1}
        rig.store.broken = set()
        await rig.store.put(FIRST)
        await worker.upkeep.follow()
        assert "e1" in worker.holding

    run(main)


def test_a_reset_of_the_log_is_a_new_start() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.keep(*(entry(number) for number in range(1, 8)))
        await worker.upkeep.settled()
        await worker.upkeep.follow()
        await rig.store.delete([f"e{number}" for number in range(1, 7)])
        assert is_reset((await rig.store.changes(7))[0])
        await worker.upkeep.follow()
        assert [name for name in ("e1", "e6", "e7") if name in worker.holding] == ["e7"]
        assert worker.index.size(P) == 1

    run(main, FaultyStore(tombstones_kept=0))


def test_reaping_keeps_expired_answers_for_a_while() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.keep(entry(1, expires_at=3000.0), entry(2, expires_at=9000.0))
        await worker.upkeep.settled()
        rig.wall.now = 3000.0 + STALE_GRACE_S - 1
        await worker.upkeep.reap()
        assert "e1" in worker.holding
        rig.wall.advance(2)
        await worker.upkeep.reap()
        assert "e1" not in worker.holding
        assert "e2" in worker.holding
        assert await rig.store.get("e1") is None
        assert await rig.store.get("e2") is not None

    run(main)


def test_what_expired_long_ago_is_not_taken_in() -> None:
    async def main(rig: Rig) -> None:
        rig.wall.now = 3000.0 + STALE_GRACE_S + 1
        await rig.store.put(entry(1, expires_at=3000.0))
        await rig.store.put(entry(2, expires_at=9000.0))
        worker = await rig.worker()
        assert "e1" not in worker.holding
        assert "e2" in worker.holding

    run(main)


def test_closing_writes_what_is_queued() -> None:
    async def main(rig: Rig) -> None:
        worker = await rig.worker()
        worker.keep(*(entry(number) for number in range(1, 100)))
        await worker.upkeep.aclose()
        await worker.upkeep.aclose()
        assert await rig.store.count() == 99

    run(main)


def test_faults_are_counted_always_and_said_once_in_a_hundred(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = Faults()
    with caplog.at_level(logging.WARNING):
        for _ in range(101):
            faults.add("store", CacheError("the disk is full"))
        faults.add("encoder-slow")
    assert faults.counts == {"store": 101, "encoder-slow": 1}
    assert [record.message for record in caplog.records] == [
        "cache store: the disk is full",
        "cache store: the disk is full",
        "cache encoder-slow: trouble",
    ]
