"""Marks on answers, over gateways of one store: what goes, what is blocked, what is learnt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeClock, completion, make_call, plain_verifier

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.feedback import Answered, Feedback, Outcome
from tierway.cache.index import Arena
from tierway.cache.keys import fingerprint
from tierway.cache.lessons import Lessons, Near, pair_of
from tierway.cache.memory_store import MemoryStore
from tierway.cache.semantic import SemanticCache
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.store import Selection
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Note
from tierway.policies.types import Source

FRANCE = "What is the capital of France?"
FRANCE_TOO = "What's France's capital?"
FRANCE_THREE = "what's the capital of France"
VECTORS = {FRANCE: [1.0, 0.0], FRANCE_TOO: [1.0, 0.05], FRANCE_THREE: [1.0, 0.03]}
VERIFIER = plain_verifier()
NOW_AT = 1_700_000_000.0


async def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Polls, for what the gateways' own loops bring about."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - of other tasks, which no event tells
            await asyncio.sleep(0.01)


class Gateway:
    """One process: a cache with its memory of answers."""

    def __init__(self, name: str, store: CacheStore, wall: FakeClock, **options: Any) -> None:
        self.wall = wall
        self.cache = SemanticCache(
            store,
            embedder=ScriptedEmbedder(VECTORS, otherwise=lambda _: [0.0, 1.0]),
            index=Arena(2),
            equivalence=Equivalence([VERIFIER]),
            wall=wall,
            lessons=Lessons(0.02, wall),
        )
        self.feedback = Feedback(self.cache, wall=wall, **options)
        self.name, self.requests = name, 0

    async def ask(self, question: str = FRANCE, *, tenant: str = "acme") -> tuple[str, str]:
        """(request id, why it hit or missed); a miss is answered and kept."""
        call = make_call(question, tenant=tenant)
        mark, plan = fingerprint(call, names=call.model), lookup(call, CacheRules())
        found = await self.cache.find(call, mark, plan, lambda tier, shares: True)
        self.requests += 1
        name = f"{self.name}{self.requests}"
        hit = found.hit
        near = found.near if hit is not None and hit.similarity is not None else None
        answered = Answered(
            tenant, "u1", mark.exact, mark.partition, question, self.wall(),
            hit.entry_id if hit else "", near,
        )  # fmt: skip
        self.feedback.remember(name, answered)
        if hit is None:
            self.cache.keep(call, mark, plan, Source("small", "m", "r"), completion(), found)
            await self.cache.settled()
        return name, found.reason if hit else f"miss: {found.reason}"


def run(
    test: Callable[..., Coroutine[Any, Any, None]],
    *,
    count: int = 1,
    store: CacheStore | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        wall, shared = FakeClock(NOW_AT), store or MemoryStore(wall=lambda: NOW_AT)
        await shared.start()
        made = [Gateway("rst"[at], shared, wall, **options) for at in range(count)]
        try:
            for one in made:
                await one.cache.start()
            await asyncio.wait_for(test(*made), 20)
        finally:
            for one in made:
                await one.feedback.aclose()
                await one.cache.aclose()
            await shared.aclose()

    asyncio.run(main())


def test_a_fresh_answer_marked_wrong_is_withdrawn() -> None:
    async def main(one: Gateway) -> None:
        name, _ = await one.ask()
        outcome = await one.feedback.mark(name, False, tenant="acme")
        assert outcome is not None
        assert (len(outcome.withdrawn), outcome.blocked, outcome.counted) == (1, False, False)
        assert (await one.ask())[1].startswith("miss")

    run(main)


def test_an_exact_hit_marked_wrong_is_withdrawn_and_one_marked_right_stays() -> None:
    async def main(one: Gateway) -> None:
        await one.ask()
        hit, why = await one.ask()
        assert why == "exact"
        assert await one.feedback.mark(hit, True, tenant="acme") == Outcome()
        assert (await one.ask())[1] == "exact"
        await one.feedback.mark(hit, False, tenant="acme")
        assert (await one.ask())[1].startswith("miss")

    run(main)


def test_an_answer_made_anew_meanwhile_is_not_the_one_that_was_marked() -> None:
    async def main(one: Gateway) -> None:
        await one.ask()
        one.wall.advance(10)
        call = make_call(FRANCE, tenant="acme")
        mark = fingerprint(call, names=call.model)
        late = Answered("acme", "", mark.exact, mark.partition, "", one.wall())
        one.feedback.remember("uncached", late)
        assert await one.feedback.mark("uncached", False, tenant="acme") == Outcome()
        assert (await one.ask())[1] == "exact"

    run(main)


def test_known_fault_14_a_wrong_pair_stays_blocked_though_it_is_answered_anew() -> None:
    async def main(one: Gateway) -> None:
        await one.ask(FRANCE)
        name, why = await one.ask(FRANCE_TOO)
        assert why == "equal"
        outcome = await one.feedback.mark(name, False, tenant="acme")
        assert outcome is not None
        assert (outcome.blocked, outcome.counted, len(outcome.withdrawn)) == (True, True, 1)
        assert (await one.ask(FRANCE))[1].startswith("miss")
        assert await one.ask(FRANCE) == ("r4", "exact")
        assert (await one.ask(FRANCE_TOO))[1] == "miss: blocked"

    run(main)


def test_a_block_holds_both_ways_and_another_pair_is_free_of_it() -> None:
    async def main(one: Gateway) -> None:
        near = Near("e", FRANCE, 0.99, 0.99, "en")
        lessons = one.cache.lessons
        name, _ = await one.ask(FRANCE)
        name, _ = await one.ask(FRANCE_TOO)
        await one.feedback.mark(name, False, tenant="acme")
        partition = fingerprint(make_call(FRANCE, tenant="acme"), names="auto").partition
        back = Near("e", FRANCE_TOO, 0.99, 0.999999, "en")
        assert lessons.why_not("acme", partition, FRANCE_TOO, near) == "blocked"
        assert lessons.why_not("acme", partition, FRANCE.lower() + "?", back) == "blocked"
        assert lessons.why_not("acme", b"q" * 16, FRANCE, back) != "blocked"
        assert lessons.why_not("other", partition, "Which is it?", back) == ""

    run(main)


def test_a_right_mark_frees_the_pair_again() -> None:
    async def main(one: Gateway) -> None:
        await one.ask(FRANCE)
        name, _ = await one.ask(FRANCE_TOO)
        await one.feedback.mark(name, False, tenant="acme")
        await one.ask(FRANCE)
        assert (await one.ask(FRANCE_TOO))[1] == "miss: blocked"
        await one.feedback.mark(name, True, tenant="acme")
        # Both were answered anew meanwhile; a third wording may be served by either.
        assert (await one.ask(FRANCE_THREE))[1] == "equal"
        assert one.cache.lessons.state() == {
            "blocked_pairs": 0,
            "marks": [{"tenant": "acme", "language": "en", "right": 1, "wrong": 0}],
        }

    run(main)


def test_wrong_marks_make_the_tenant_s_hits_rarer_and_nobody_else_s() -> None:
    async def main(one: Gateway) -> None:
        await one.ask(FRANCE)
        await one.ask(FRANCE, tenant="other")
        for at in range(8):
            body = {"key": f"k{at}", "probability": 0.99, "language": "en", "judged": True,
                    "correct": False, "pair": f"p{at}"}  # fmt: skip
            await one.cache.journal.write("mark", body, ttl_s=1e6, tenant="acme")
        assert (await one.ask(FRANCE_TOO))[1] == "miss: learned"
        assert (await one.ask(FRANCE_TOO, tenant="other"))[1] == "equal"

    run(main)


def test_a_mark_of_another_tenant_s_request_is_not_known() -> None:
    async def main(one: Gateway) -> None:
        name, _ = await one.ask()
        assert await one.feedback.mark(name, False, tenant="other") is None
        assert await one.feedback.mark("r99", False, tenant="acme") is None
        assert (await one.ask())[1] == "exact"
        operator = await one.feedback.mark(name, False)
        assert operator is not None
        assert len(operator.withdrawn) == 1

    run(main, shared=False)


def test_two_tenants_may_use_the_same_request_id() -> None:
    async def main(one: Gateway) -> None:
        await one.ask(tenant="acme")
        one.requests = 0
        await one.ask(tenant="other")
        await one.feedback.mark("r1", False, tenant="other")
        assert (await one.ask(tenant="acme"))[1] == "exact"
        assert (await one.ask(tenant="other"))[1].startswith("miss")

    run(main)


def test_the_memory_of_answers_is_bounded() -> None:
    async def main(one: Gateway) -> None:
        for _ in range(3):
            await one.ask()
        assert await one.feedback.mark("r1", True, tenant="acme") is None
        assert await one.feedback.mark("r2", True, tenant="acme") is not None

    run(main, remembered=2, shared=False)


def test_any_gateway_takes_the_mark_and_every_one_acts_on_it() -> None:
    async def main(one: Gateway, two: Gateway, three: Gateway) -> None:
        await one.ask(FRANCE)
        await eventually(lambda: len(two.cache) == len(three.cache) == 1)
        name, why = await two.ask(FRANCE_TOO)
        assert why == "equal"
        outcome = await three.feedback.mark(name, False, tenant="acme")
        assert outcome is not None
        assert (len(outcome.withdrawn), outcome.blocked) == (1, True)
        await eventually(lambda: not len(one.cache) + len(two.cache) + len(three.cache))
        await one.ask(FRANCE)
        await eventually(lambda: len(three.cache) == 1)
        assert (await three.ask(FRANCE_TOO))[1] == "miss: blocked"

    run(main, count=3)


def test_nobody_acts_for_another_tenant_when_a_mark_goes_round() -> None:
    async def main(one: Gateway, two: Gateway) -> None:
        name, _ = await one.ask()
        assert await two.feedback.mark(name, False, tenant="other") is None
        assert (await one.ask())[1] == "exact"

    run(main, count=2, wait_s=0.6)


def test_what_was_taught_survives_a_restart(tmp_path: Path) -> None:
    def store() -> SqliteStore:
        return SqliteStore(tmp_path / "cache.db", wall=lambda: NOW_AT)

    async def teach(one: Gateway) -> None:
        await one.ask(FRANCE)
        name, _ = await one.ask(FRANCE_TOO)
        await one.feedback.mark(name, False, tenant="acme")

    async def remembered(one: Gateway) -> None:
        await one.ask(FRANCE)
        assert (await one.ask(FRANCE_TOO))[1] == "miss: blocked"

    run(teach, store=store())
    run(remembered, store=store())


def test_an_entry_is_marked_by_its_id() -> None:
    async def main(one: Gateway) -> None:
        name, _ = await one.ask()
        made = await one.feedback.mark(name, True, tenant="acme")
        assert made == Outcome()
        call = make_call(FRANCE, tenant="acme")
        held = one.cache.exactly(fingerprint(call, names="auto").exact)
        assert held is not None
        assert await one.feedback.mark_entry(held.id, True) == Outcome()
        assert await one.feedback.mark_entry(held.id, False) == Outcome((held.id,))
        assert await one.feedback.mark_entry(held.id, False) is None
        assert (await one.ask())[1].startswith("miss")

    run(main)


class Deaf(MemoryStore):
    """Takes no notes."""

    async def note(self, note: Note) -> int:
        raise CacheError("no note today")


def test_a_store_that_is_down_does_not_keep_a_wrong_answer_here() -> None:
    async def main(one: Gateway) -> None:
        await one.ask(FRANCE)
        name, _ = await one.ask(FRANCE_TOO)
        with pytest.raises(CacheError):
            await one.feedback.mark(name, False, tenant="acme")
        assert len(one.cache) == 0
        assert one.cache.lessons.state()["blocked_pairs"] == 1

    run(main, store=Deaf(wall=lambda: NOW_AT))


@pytest.mark.parametrize(
    "texts", [("a", "b"), ("Is it so?", "is it SO ?"), ("价格?", "价格？"), ("\ud800", "x")]
)
def test_a_pair_s_digest_does_not_ask_who_came_first(texts: Sequence[str]) -> None:
    one, other = texts
    assert pair_of(b"p", one, other) == pair_of(b"p", other, one)
    assert pair_of(b"p", one, other) != pair_of(b"q", one, other)
    assert pair_of(b"p", one, other) != pair_of(b"p", one + other, "")


def test_a_purge_forgets_what_is_remembered_of_a_tenant_on_every_gateway() -> None:
    async def main(one: Gateway, two: Gateway) -> None:
        names = [(await gateway.ask(tenant="acme"))[0] for gateway in (one, two)]
        kept, _ = await two.ask(tenant="other")
        one.wall.now += 1
        await one.cache.purge(Selection(tenant="acme"))
        await eventually(lambda: len(two.cache) == 1)
        for name in names:
            assert await one.feedback.mark(name, True, tenant="acme") is None
            assert await two.feedback.mark(name, True, tenant="acme") is None
        assert await two.feedback.mark(kept, True, tenant="other") == Outcome()

    run(main, count=2, wait_s=0.3)
