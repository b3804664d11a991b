"""What is noted of lookups for the report, and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from fakes import FakeClock, make_call

from tierway.cache.journal import Journal
from tierway.cache.keys import fingerprint
from tierway.cache.lessons import Near, pair_of
from tierway.cache.lookup import Found, Hit
from tierway.cache.memory_store import MemoryStore
from tierway.cache.observer import MISS, NOTE_TTL_S, PAIR, Budget, Observer
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.protocols import Note
from tierway.policies.types import CacheControl, Call, Controls, Source

FRANCE = "What is the capital of France?"
NEAR = Near("e_1", "What's France's capital?", 0.98765, 0.991, "en")
HIT = Found(Hit("e_1", b"{}", Source("small", "m", "cache"), 1.0, 0.98765), "equal", near=NEAR)
MISSED = Found(None, "nothing-near")


class Rig:
    def __init__(self, **options: Any) -> None:
        self.wall = FakeClock(1000.0)
        self.store = MemoryStore(wall=self.wall)
        self.draw = 0.0
        journal = self.journal = Journal(self.store, self.wall, lambda part, error: None)
        self.observer = Observer(journal, wall=self.wall, draw=lambda: self.draw, **options)

    def saw(self, call: Call | str = FRANCE, found: Found = HIT, *, served: bool = False) -> None:
        call = make_call(call, tenant="acme") if isinstance(call, str) else call
        mark = fingerprint(call, names=call.model)
        plan = lookup(call, CacheRules(mode="serve" if served else "observe"))
        self.observer.saw(call, call.model, mark, plan, found)

    async def notes(self) -> list[Note]:
        await self.observer.settle()
        return await self.store.notes(0)


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        rig = Rig(**options)
        await rig.store.start()
        await asyncio.wait_for(test(rig), 10)

    asyncio.run(main())


def with_system(system: str, question: str = FRANCE, **fields: Any) -> Call:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    call = make_call(question, tenant="acme", messages=messages, **fields)
    return replace(call, ask=replace(call.ask, system=system))


def test_a_would_be_hit_is_noted_with_all_that_decided() -> None:
    async def main(rig: Rig) -> None:
        rig.saw()
        (note,) = await rig.notes()
        partition = fingerprint(make_call(FRANCE, tenant="acme"), names="auto").partition
        assert (note.kind, note.tenant, note.expires_at) == (PAIR, "acme", 1000.0 + NOTE_TTL_S)
        assert note.body == {
            "request": "req_test",
            "asked": FRANCE,
            "stored": NEAR.question,
            "cosine": 0.9877,
            "probability": 0.991,
            "judged": True,
            "language": "en",
            "entry": "e_1",
            "reason": "equal",
            "served": False,
            "pair": pair_of(partition, FRANCE, NEAR.question),
        }

    run(main)


def test_a_miss_is_noted_with_its_reason_and_what_came_nearest() -> None:
    async def main(rig: Rig) -> None:
        rig.saw(found=MISSED)
        rig.saw(found=replace(MISSED, reason="numbers", near=NEAR))
        first, second = await rig.notes()
        assert (first.kind, first.body["reason"], "stored" in first.body) == (
            MISS,
            "nothing-near",
            False,
        )
        assert (second.body["reason"], second.body["stored"]) == ("numbers", NEAR.question)

    run(main)


def test_while_serving_only_a_share_of_the_misses_is_looked_at() -> None:
    async def main(rig: Rig) -> None:
        rig.draw = 0.3
        rig.saw(found=MISSED, served=True)
        rig.saw(served=True)
        assert [note.kind for note in await rig.notes()] == [PAIR]
        rig.draw = 0.1
        rig.saw(found=MISSED, served=True)
        assert [note.kind for note in await rig.notes()] == [PAIR, MISS]

    run(main, share=0.2)


def test_the_same_question_under_another_key_says_what_differs() -> None:
    async def main(rig: Rig) -> None:
        rig.saw(with_system("Date: 2026-11-30. Be kind."), MISSED)
        rig.saw(with_system("Date: 2026-12-01. Be kind.", FRANCE.upper()), MISSED)
        rig.saw(with_system("Date: 2026-12-01. Be kind.", temperature=0.2), MISSED)
        first, second, third = [note.body["elsewhere"] for note in await rig.notes()]
        assert first == []
        (system,) = second
        assert (system["what"], system["kind"]) == ("system", "a date")
        assert system["ignore"].startswith("Date: ")
        (field,) = third
        assert (field["what"], field["kind"]) == ("field", "temperature")

    run(main)


def test_tenants_are_not_compared_unless_they_share() -> None:
    def both(rig: Rig) -> None:
        rig.saw(with_system("Be kind."), MISSED)
        rig.saw(replace(with_system("Be brief."), tenant="other"), MISSED)

    async def apart(rig: Rig) -> None:
        both(rig)
        assert [note.body["elsewhere"] for note in await rig.notes()] == [[], []]

    async def shared(rig: Rig) -> None:
        both(rig)
        assert [len(note.body["elsewhere"]) for note in await rig.notes()] == [0, 1]

    run(apart)
    run(shared, scope="shared")


def test_a_long_field_is_compared_whole_and_kept_short() -> None:
    async def main(rig: Rig) -> None:
        tools = [{"name": "t" * 500}]
        rig.saw(with_system("Be kind.", tools=tools), MISSED)
        rig.saw(with_system("Be kind.", tools=[*tools, *tools]), MISSED)
        (what,) = (await rig.notes())[1].body["elsewhere"]
        assert what["kind"] == "tools"
        assert len(what["detail"]) < 200

    run(main)


def test_what_must_not_be_kept_is_not_noted() -> None:
    async def main(rig: Rig) -> None:
        quiet = Controls(cache=CacheControl(no_store=True))
        rig.saw(make_call(FRANCE, controls=quiet))
        rig.saw(replace(make_call("What is my account balance?"), user="u1"))
        rig.saw(make_call("", messages=[{"role": "user", "content": [{"type": "image_url"}]}]))
        assert await rig.notes() == []

    run(main)


def test_the_budget_of_a_minute_holds_and_the_next_one_has_its_own() -> None:
    async def main(rig: Rig) -> None:
        for _ in range(5):
            rig.saw()
        rig.saw(found=MISSED)
        assert [note.kind for note in await rig.notes()] == [PAIR, PAIR, MISS]
        assert rig.observer.left_out == {PAIR: 3}
        rig.wall.advance(60)
        rig.saw()
        assert len(await rig.notes()) == 4

    run(main, budget=Budget(pairs=2, misses=1))


def test_long_questions_are_cut() -> None:
    async def main(rig: Rig) -> None:
        rig.saw("why " * 1000, MISSED)
        (note,) = await rig.notes()
        assert len(note.body["asked"]) == 400

    run(main)


def test_what_waits_is_written_at_the_end_and_a_dead_store_is_no_fault() -> None:
    async def main(rig: Rig) -> None:
        rig.observer.start()
        rig.saw()
        await rig.observer.aclose()
        assert len(await rig.store.notes(0)) == 1
        await rig.store.aclose()
        rig.saw()
        await rig.observer.aclose()

    run(main)


def test_a_purge_takes_what_waits_and_what_was_asked_lately() -> None:
    async def main(rig: Rig) -> None:
        rig.saw(with_system("Be kind."), MISSED)
        await rig.journal.write("purge", {}, ttl_s=60)
        rig.saw(with_system("Be brief."), MISSED)
        found = [note for note in await rig.notes() if note.kind == MISS]
        assert [note.body["elsewhere"] for note in found] == [[]]

    run(main)
