"""Purge and erasure: stored or not, here and on other gateways, and nothing comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fakes import FakeClock, completion, make_call

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.cache.keys import Fingerprint, fingerprint
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.cache.store import Selection
from tierway.cache.unsaved import Unsaved
from tierway.policies.cacheability import CacheRules, Plan, lookup
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry
from tierway.policies.types import CacheControl, Call, Controls, Source


class Fragile(MemoryStore):
    """Refuses the methods named in `broken`; a put waits for `gate` when there is one."""

    def __init__(self, wall: FakeClock) -> None:
        super().__init__(wall=wall)
        self.broken: set[str] = set()
        self.gate: asyncio.Event | None = None

    def _try(self, method: str) -> None:
        if method in self.broken:
            raise CacheError(f"no {method} today")

    async def put(self, entry: Entry) -> int:
        self._try("put")
        if self.gate is not None:
            await self.gate.wait()
        return await super().put(entry)

    async def delete_where(self, **chosen: Any) -> int:
        self._try("delete_where")
        return await super().delete_where(**chosen)


def asked(
    question: str, *, tenant: str = "", user: str = "", namespace: str = "", context: str = ""
) -> tuple[Call, Fingerprint, Plan]:
    query = question if context else None
    controls = Controls(
        namespace=namespace, cache=CacheControl(query=query, context_id=context or None)
    )
    call = replace(make_call(question, tenant=tenant, controls=controls), user=user)
    return call, fingerprint(call, names="auto"), lookup(call, CacheRules(ttl_s=9000.0))


async def soon(condition: Callable[[], bool]) -> None:
    """Polls until the condition holds, for the second that another gateway may take."""
    until_s = time.monotonic() + 1.0
    while not condition():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


def imported(question: str, **who: str) -> Entry:
    """An entry that is older than anything the tests do."""
    call, mark, _ = asked(question, **who)
    answer = orjson.dumps(completion())
    return Entry(
        f"e_{mark.exact.hex()[:20]}", mark.exact, mark.partition, "chat", mark.question, answer,
        "small", "m", {}, call.tenant, call.user, "", 1000.0, 90_000.0,
    )  # fmt: skip


class Gateway:
    def __init__(self, store: Fragile, wall: FakeClock) -> None:
        self.index = Arena(2)
        self.cache = SemanticCache(
            store,
            embedder=ScriptedEmbedder({}, otherwise=lambda _: [1.0, 0.0]),
            index=self.index,
            equivalence=Equivalence([]),
            wall=wall,
        )

    def keep(self, question: str, model: str = "m", **who: str) -> None:
        call, mark, plan = asked(question, **who)
        source = Source("small", model, "m@a:1")
        self.cache.keep(call, mark, plan, source, completion(), None)

    async def answers(self, question: str, **who: str) -> bool:
        call, mark, plan = asked(question, **who)
        found = await self.cache.find(call, mark, plan, lambda *_: True)
        return found.hit is not None

    async def empties(self) -> None:
        """Waits until nothing is held, as long as a second gateway may take."""
        await soon(lambda: not (len(self.cache) or len(self.index)))


def run(test: Callable[[Fragile, list[Gateway], FakeClock], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        wall = FakeClock(50_000.0)
        store = Fragile(wall)
        await store.start()
        gateways = [Gateway(store, wall), Gateway(store, wall)]
        for gateway in gateways:
            await gateway.cache.start()
        try:
            await asyncio.wait_for(test(store, gateways, wall), 20)
        finally:
            if store.gate is not None:
                store.gate.set()
            for gateway in gateways:
                await gateway.cache.aclose()

    asyncio.run(main())


CASES = [
    (Selection(tenant="acme"), {1, 2}),
    (Selection(user="u1"), {0, 2, 3}),
    (Selection(tenant="acme", user="u1"), {0, 1, 2, 3}),
    (Selection(namespace="docs"), {0, 1, 3}),
    (Selection(model="big"), {0, 1, 2}),
    (Selection(context_id="c7"), {0, 1, 2}),
    (Selection(older_than_at=50_005.0), {1, 2, 3}),
    (Selection(), set()),
]
KEPT: list[tuple[str, dict[str, str], str]] = [
    ("question a", {"tenant": "acme"}, "m"),
    ("question b", {"tenant": "other", "user": "u1"}, "m"),
    ("question c", {"namespace": "docs"}, "m"),
    ("question d", {"tenant": "acme", "context": "c7"}, "big"),
]


@pytest.mark.parametrize(("chosen", "left"), CASES)
@pytest.mark.parametrize("stored", [True, False])
def test_what_was_chosen_is_gone_stored_or_not(
    chosen: Selection, left: set[int], stored: bool
) -> None:
    async def main(store: Fragile, gateways: list[Gateway], wall: FakeClock) -> None:
        one, other = gateways
        store.broken = set() if stored else {"put"}
        for question, who, model in KEPT:
            one.keep(question, model, **who)
            wall.advance(11.0 if question.endswith("a") else 0.0)
        await one.cache.settled()
        assert await one.cache.purge(chosen) == len(KEPT) - len(left)
        found = {at for at, (text, who, _) in enumerate(KEPT) if await one.answers(text, **who)}
        assert found == left
        if stored:
            assert (await store.size()).entries == len(left)
            await soon(lambda: len(other.cache) == len(left))

    run(main)


def test_another_gateway_forgets_what_it_never_stored() -> None:
    async def main(store: Fragile, gateways: list[Gateway], wall: FakeClock) -> None:
        one, other = gateways
        store.broken = {"put"}
        other.keep("question", tenant="acme")
        await other.cache.settled()
        wall.advance(1)
        assert await other.answers("question", tenant="acme")
        assert await one.cache.purge(Selection(tenant="acme")) == 0
        await other.empties()

    run(main)


def test_what_is_on_its_way_to_the_store_does_not_arrive() -> None:
    async def main(store: Fragile, gateways: list[Gateway], wall: FakeClock) -> None:
        one, other = gateways
        store.gate = asyncio.Event()
        for number in range(3):
            other.keep(f"question {number}", tenant="acme")
        await asyncio.sleep(0.02)  # the first put is under way, the others wait behind it
        wall.advance(1)
        assert await one.cache.purge(Selection(tenant="acme")) == 0
        store.gate.set()
        await other.cache.settled()
        await other.empties()
        await one.empties()
        assert (await store.size()).entries == 0

    run(main)


def test_what_is_answered_after_the_purge_stays() -> None:
    async def main(store: Fragile, gateways: list[Gateway], wall: FakeClock) -> None:
        one, other = gateways
        await one.cache.purge(Selection(tenant="acme"))
        wall.advance(0.001)
        other.keep("question", tenant="acme")
        await other.cache.settled()
        await store.put(imported("an older answer, brought back", tenant="acme"))
        third = Gateway(store, wall)  # reads the note of the purge when it starts
        await third.cache.start()
        await asyncio.sleep(0.05)
        assert await third.answers("question", tenant="acme")
        assert await third.answers("an older answer, brought back", tenant="acme")
        assert (await store.size()).entries == 2
        await third.cache.aclose()

    run(main)


def test_a_store_that_cannot_purge_is_an_error_and_may_be_tried_again() -> None:
    async def main(store: Fragile, gateways: list[Gateway], wall: FakeClock) -> None:
        one, _ = gateways
        one.keep("question")
        await one.cache.settled()
        store.broken = {"delete_where"}
        with pytest.raises(CacheError):
            await one.cache.purge(Selection())
        assert one.cache.counts["store"] == 1
        store.broken = set()
        assert await one.cache.purge(Selection()) == 1

    run(main)


def test_what_is_too_much_to_remember_is_not_held() -> None:
    holding = Holding(Arena(2), entries=100, answers_bytes=1000)
    unsaved = Unsaved(holding, at_most=3)
    for number in range(5):
        call, mark, _ = asked(f"question {number}")
        entry = Entry(
            f"e{number}", mark.exact, mark.partition, "chat", mark.question, b"{}", "t", "m",
            {}, call.tenant, "", "", 1.0, 9e9,
        )  # fmt: skip
        holding.hold(entry)
        unsaved.add(entry)
    assert len(unsaved) == len(holding) == 3
    assert unsaved.forget(lambda entry: entry.id.endswith("4")) == 1
    unsaved.remove("e3")
    assert len(unsaved) == 1
    assert len(holding) == 2
