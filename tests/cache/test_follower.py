"""The start from a table and from a log come to the same, and what happens meanwhile counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeClock, until

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.follower import STALE_GRACE_S, Follower
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.int8_rows import pack
from tierway.cache.memory_store import MemoryStore
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.upkeep import Faults, Upkeep
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Block, Change, Entry, Table

P = b"p" * 16
NOW = 2000.0
FIRST = Entry(
    id="e_" + "0" * 20, exact=b"1" * 16, partition=P, wire="chat", question="Why?", answer=b"{}",
    tier="small", model="m", probabilities={"small": 0.9}, tenant="t", user="", namespace="",
    created_at=1000.0, expires_at=9000.0, encoder="scripted",
    vector=pack(np.array([1.0, 0.5], np.float32)),
)  # fmt: skip


def entry(number: int, **fields: object) -> Entry:
    made = replace(
        FIRST,
        id=f"e_{number:020x}",
        exact=number.to_bytes(16, "big"),
        partition=(number % 3).to_bytes(16, "big"),
        question=f"question {number}",
        probabilities={"small": number / 1000, "large": 0.5} if number % 2 else {},
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


class Process:
    """What a process holds, following one store."""

    def __init__(self, store: Any) -> None:
        self.index, self.faults = Arena(2), Faults()
        self.holding = Holding(self.index, entries=10_000, answers_bytes=1000)
        self.embedder = ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0])
        self.follower = Follower(
            store, self.holding, self.embedder, FakeClock(NOW), self.faults.add
        )

    def facts(self, entries: Sequence[Entry]) -> list[Any]:
        """Everything that a lookup could see of these entries, but their numbers."""
        seen = []
        for one in entries:
            held = self.holding.by_id(one.id)
            assert held == self.holding.exactly(one.exact)
            seen.append(held and replace(held, key=0))
            near = self.index.search(one.partition, np.array([1.0, 0.5], np.float32), 9999)
            seen.append(held is not None and held.key in dict(near))
        return seen


class ScriptedTable(MemoryStore):
    """A store in memory with a table of the blocks given; `before` is awaited for each one."""

    def __init__(self, *blocks: Sequence[Entry], before: Callable[[int], Any] = lambda _: None):
        super().__init__()
        self.blocks, self.before, self.asked = list(blocks), before, 0

    async def newest(self) -> int:
        found = await self.changes(0, 100_000)
        return found[-1].sequence if found else 0

    async def block(self, after: int, limit: int) -> Block | None:
        self.asked += 1
        waits = self.before(after)
        if waits is not None:
            await waits
        if after >= len(self.blocks):
            return None
        rows = self.blocks[after]
        names = [name for name in Block.__slots__ if name != "last"]
        return Block(after + 1, *([getattr(one, name) for one in rows] for name in names))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(main())


def test_a_start_from_the_table_is_as_one_from_the_log(tmp_path: Path) -> None:
    entries = [entry(number) for number in range(1, 700)]
    odd = [
        entry(1300, id="of another form"),
        entry(1301, vector=None, encoder=""),
        entry(1302, encoder="another"),
        entry(1303, vector=np.array([0.1, 0.2], "<f4").tobytes()),
        entry(1304, expires_at=NOW - STALE_GRACE_S - 1),
        entry(1305, probabilities={f"class {at}": at / 10 for at in range(7)}),
    ]
    gone = [entry(number) for number in (5, 300, 600)]

    async def main() -> None:
        file, memory = SqliteStore(tmp_path / "cache.sqlite3"), MemoryStore()
        assert isinstance(file, Table)
        assert not isinstance(memory, Table)
        for store in (file, memory):
            await store.start()
            await asyncio.gather(*(store.put(one) for one in [*entries, *odd]))
            await store.delete([one.id for one in gone])
        one, two = Process(file), Process(memory)
        await one.follower.follow()
        await two.follower.follow()
        assert one.facts([*entries, *odd]) == two.facts([*entries, *odd])
        assert len(one.holding) == len(two.holding) == len(entries) + len(odd) - 1 - len(gone)
        assert one.faults.counts == two.faults.counts == {}
        await file.put(entry(1400))
        await file.delete([entry(1).id])
        await one.follower.follow()
        assert entry(1400).id in one.holding
        assert entry(1).id not in one.holding
        await file.aclose()

    run(main)


@pytest.mark.parametrize(
    ("wrong", "fault", "held"),
    [
        ({"vector": b"12345"}, "vector", True),
        ({"vector": bytes(3)}, "vector", True),
        ({"exact": b"short"}, "entry", False),
    ],
)
def test_a_row_that_is_wrong_costs_nobody_else(
    wrong: dict[str, bytes], fault: str, held: bool
) -> None:
    rows = [entry(1), entry(2, **wrong), entry(3)]

    async def main() -> None:
        store = ScriptedTable(rows)
        await store.start()
        process = Process(store)
        await process.follower.follow()
        assert process.faults.counts == {fault: 1}
        assert [one.id in process.holding for one in rows] == [True, held, True]
        assert len(process.index) == 2

    run(main)


def test_what_is_held_or_deleted_here_is_not_overwritten_by_the_table() -> None:
    newer = entry(1, id="e_newer", created_at=1500.0)

    async def main() -> None:
        store = ScriptedTable([entry(1), entry(2), entry(3)])
        await store.start()
        process = Process(store)
        process.holding.hold(newer)
        process.holding.hold(entry(2))
        process.holding.delete([entry(3).id])
        await process.follower.follow()
        assert process.holding.exactly(newer.exact) == process.holding.by_id(newer.id)
        assert (len(process.holding), len(process.index)) == (2, 1)

    run(main)


def test_a_table_that_breaks_off_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def before(after: int) -> None:
        if after == 1 and broken:
            raise CacheError("the disk is gone")

    async def main() -> None:
        nonlocal broken
        store = ScriptedTable([entry(1)], [entry(2)], before=before)
        await store.start()
        process = Process(store)
        with pytest.raises(CacheError):
            await process.follower.follow()
        assert (entry(1).id in process.holding, entry(2).id in process.holding) == (True, False)
        broken = False
        await process.follower.follow()
        assert (len(process.holding), len(process.index)) == (2, 2)
        asked = store.asked
        await process.follower.follow()
        assert store.asked == asked

    run(main)


def test_a_reset_of_the_log_is_a_new_start_from_the_table() -> None:
    class Reset(ScriptedTable):
        lost = False

        async def changes(self, since: int, limit: int = 1000) -> list[Change]:
            if self.lost:
                self.lost = False
                return [Change(since, "", None)]
            return await super().changes(since, limit)

    async def main() -> None:
        store = Reset([entry(1), entry(2)])
        await store.start()
        process = Process(store)
        await process.follower.follow()
        store.blocks, store.lost = [[entry(2), entry(3)]], True
        await process.follower.follow()
        assert [entry(n).id in process.holding for n in (1, 2, 3)] == [False, True, True]
        assert len(process.index) == 2

    run(main)


def test_a_long_start_serves_what_is_in_and_deletions_act_meanwhile() -> None:
    gate = asyncio.Event()

    async def main() -> None:
        store = ScriptedTable(
            [entry(1), entry(2)], [entry(3)], before=lambda after: gate.wait() if after else None
        )
        await store.start()
        process = Process(store)
        upkeep = Upkeep(
            store,
            process.holding,
            process.embedder,
            process.faults,
            FakeClock(NOW),
            start_within_s=0.01,
        )
        await upkeep.start()
        try:
            assert entry(1).id in process.holding
            assert entry(3).id not in process.holding
            process.holding.delete([entry(3).id])
            gate.set()
            await until(lambda: store.asked == 3)
            assert (entry(1).id in process.holding, len(process.holding)) == (True, 2)
        finally:
            await upkeep.aclose()

    run(main)


def test_what_the_log_deletes_while_its_block_is_on_the_way_stays_away() -> None:
    gate = asyncio.Event()

    async def main() -> None:
        store = ScriptedTable([entry(1), entry(2)], before=lambda after: gate.wait())
        await store.start()
        process = Process(store)
        taking = asyncio.create_task(process.follower.follow())
        await until(lambda: store.asked == 1)
        await store.put(entry(1))
        await store.delete([entry(1).id])
        await process.follower.follow()  # as a purge does
        gate.set()
        await taking
        assert [entry(n).id in process.holding for n in (1, 2)] == [False, True]
        assert len(process.index) == 1

    run(main)


def test_a_reset_while_the_table_is_read_reads_it_again() -> None:
    class Reset(ScriptedTable):
        lost = True

        async def changes(self, since: int, limit: int = 1000) -> list[Change]:
            if self.lost and self.asked:
                self.lost = False
                return [Change(since, "", None)]
            return await super().changes(since, limit)

    gate = asyncio.Event()

    async def main() -> None:
        store = Reset([entry(1)], [entry(2)], before=lambda after: gate.wait() if after else None)
        await store.start()
        process = Process(store)
        taking = asyncio.create_task(process.follower.follow())
        await until(lambda: store.asked == 2)
        await process.follower.follow()
        assert len(process.holding) == 0
        gate.set()
        await taking
        assert (len(process.holding), len(process.index)) == (2, 2)

    run(main)
