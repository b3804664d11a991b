"""Counts for the report: what goes into a tally, and when it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes import FakeClock

from tierway.cache.journal import Journal
from tierway.cache.memory_store import MemoryStore
from tierway.middleware.tally import Tally, bounded
from tierway.policies.types import Trace, Usage


class Rig:
    def __init__(self, **options: Any) -> None:
        wall = FakeClock(1000.0)
        self.store = MemoryStore(wall=wall)
        journal = Journal(self.store, wall, lambda part, error: None)
        self.tally = Tally(journal, {"priced": (1.0, 10.0)}, **options)

    async def bodies(self) -> list[Any]:
        return [note.body for note in await self.store.notes(0) if note.kind == "tally"]


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        rig = Rig(**options)
        await rig.store.start()
        await asyncio.wait_for(test(rig), 10)

    asyncio.run(main())


def trace(cache: Any, **fields: Any) -> Trace:
    given = {"tier": "small", "model": "priced", "outcome": "ok", "usage": Usage(1000, 100)}
    return Trace("r", cache=cache, **{**given, **fields})  # type: ignore[arg-type]  # mixed values


def test_requests_are_counted_by_result_reason_tier_and_dollars() -> None:
    async def main(rig: Rig) -> None:
        for one in (
            trace("hit", cache_reason="exact"),
            trace("semantic-hit", cache_reason="equal"),
            trace("miss", cache_reason="nothing-near"),
            trace("miss", cache_reason="The body: 'x' is no JSON", model="bare", tier="large"),
            trace("bypass", cache_reason="temperature", outcome="upstream_error", usage=None),
            trace("miss", cache_reason="observed equal", observed="semantic-hit"),
        ):
            rig.tally(one)
        await rig.tally.write()
        (body,) = await rig.bodies()
        assert body == {
            "cache": {"hit": 1, "semantic-hit": 1, "miss": 3, "bypass": 1},
            "observed": {"semantic-hit": 1},
            "miss": {"nothing-near": 1, "other": 1},
            "bypass": {"temperature": 1},
            "tiers": {"small": 3, "large": 1},
            "outcomes": {"ok": 5, "upstream_error": 1},
            "tokens_saved": {"input": 2000, "output": 200},
            "tokens_spent": {"input": 3000, "output": 300},
            "tokens_would_save": {"input": 1000, "output": 100},
            "unpriced": {"bare": 1},
            "dollars": {
                "saved": pytest.approx(0.004),
                "spent": pytest.approx(0.004),
                "would_save": pytest.approx(0.002),
            },
        }

    run(main)


def test_a_note_holds_what_came_since_the_last_and_none_is_empty() -> None:
    async def main(rig: Rig) -> None:
        await rig.tally.write()
        for _ in range(2):
            rig.tally(trace("hit"))
            await rig.tally.write()
        await rig.tally.write()
        assert [body["cache"] for body in await rig.bodies()] == [{"hit": 1}, {"hit": 1}]

    run(main)


def test_it_writes_by_itself_and_at_the_end() -> None:
    async def main(rig: Rig) -> None:
        rig.tally.start()
        rig.tally(trace("hit"))
        async with asyncio.timeout(5):
            while not await rig.bodies():  # noqa: ASYNC110 - its own loop tells nobody
                await asyncio.sleep(0.005)
        rig.tally(trace("miss"))
        await rig.tally.aclose()
        assert len(await rig.bodies()) == 2

    run(main, every_s=0.01)


def test_reasons_are_bounded() -> None:
    known = dict.fromkeys(f"a-{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(100))
    assert bounded("numbers", {}) == "numbers"
    assert bounded("numbers", known) == "other"
    assert bounded("a-aa", known) == "a-aa"
    assert bounded("req 'x'", {}) == "other"
