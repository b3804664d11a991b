"""Candidates in doubt: who is asked, what an opinion decides, and what its failures cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import Band, FakeClock, completion, make_call, until

from tierway.cache.consult import OpinionRules
from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.index import Arena
from tierway.cache.keys import fingerprint
from tierway.cache.lessons import pair_of
from tierway.cache.lookup import CANDIDATES, Found
from tierway.cache.memory_store import MemoryStore
from tierway.cache.opinion import ScriptedOpinion
from tierway.cache.semantic import SemanticCache
from tierway.policies.cacheability import CacheRules, Plan, lookup
from tierway.policies.equivalence import Verdict
from tierway.policies.errors import CacheError
from tierway.policies.types import Call, Controls, Source

STORED, ALIKE, OTHER = "How do tides work?", "What makes tides work?", "How do clocks work?"
TIDES = ((STORED, ALIKE), (OTHER, ALIKE))
SOURCE = Source("small", "m", "m@a:1", {"small": 0.8})
Opinions = Mapping[tuple[str, str], bool]


class Rig:
    """Questions stand at the cosines that `near` says from everything that is asked."""

    def __init__(
        self,
        opinion: Any = None,
        near: Mapping[str, float] | None = None,
        *,
        rules: OpinionRules | None = None,
        equivalence: Any = None,
        **options: Any,
    ) -> None:
        cosines = {STORED: 0.9} if near is None else near
        vectors = {text: [cosine, (1 - cosine**2) ** 0.5] for text, cosine in cosines.items()}
        self.wall, self.clock = FakeClock(1_700_000_000.0), FakeClock()
        self.opinion = ScriptedOpinion({(ALIKE, STORED): True}) if opinion is None else opinion
        self.store = MemoryStore()
        self.cache = SemanticCache(
            self.store,
            embedder=ScriptedEmbedder(vectors, otherwise=lambda _: [1.0, 0.0]),
            index=Arena(2),
            equivalence=equivalence or Band(),
            wall=self.wall,
            opinion=self.opinion,
            opinion_rules=rules,
            clock=self.clock,
            **options,
        )
        self.serves: Callable[[str, Mapping[str, float]], bool] = lambda tier, shares: True

    async def keep(self, *questions: str, ttl_s: float = 86_400) -> None:
        for question in questions:
            call = make_call(question)
            plan = replace(lookup(call, CacheRules()), ttl_s=ttl_s)
            self.cache.keep(call, mark_of(call), plan, SOURCE, completion(question), None)
        await self.cache.settled()

    async def find(self, call: Call | str = ALIKE, **options: Any) -> Found:
        call = make_call(call) if isinstance(call, str) else call
        return await self.cache.find(call, mark_of(call), PLAN, self.serves, **options)

    @property
    def asked(self) -> list[tuple[tuple[str, str], ...]]:
        return self.opinion.asked


PLAN = Plan(True, True, True, ttl_s=86_400)


def mark_of(call: Call) -> Any:
    return fingerprint(call, names=call.model)


def run(rig: Rig, test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await rig.store.start()
        await rig.cache.start()
        try:
            await asyncio.wait_for(test(rig), 10)
        finally:
            await rig.cache.aclose()

    asyncio.run(main())


def test_a_doubtful_candidate_is_served_when_the_judge_says_so() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        found = await rig.find()
        assert found.hit is not None
        assert (found.reason, found.hit.similarity) == (
            "second-opinion",
            pytest.approx(0.9, abs=5e-3),
        )
        assert found.advice is not None
        assert found.advice.outcome == "accepted"
        refused = await rig.find(OTHER)
        assert (refused.hit, refused.reason) == (None, "second-opinion-refused")
        assert rig.asked == [((ALIKE, STORED),), ((OTHER, STORED),)]
        assert rig.cache.counts == {}

    run(Rig(), main)


@pytest.mark.parametrize(("cosine", "reason"), [(1.0, "equal"), (0.75, "below"), (0.6, "")])
def test_who_is_sure_asks_nobody(cosine: float, reason: str) -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        found = await rig.find()
        assert found.reason == (reason or "nothing-near")
        assert found.advice is None
        assert rig.asked == []

    run(Rig(near={STORED: cosine}), main)


def test_a_veto_is_never_put_before_the_judge() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep("Do tides not work?")
        assert (await rig.find()).reason == "negation"
        assert rig.asked == []

    run(Rig(near={"Do tides not work?": 0.9}), main)


def test_a_sure_candidate_further_down_goes_before_a_doubtful_one() -> None:
    class Nearest(Band):
        def judge(self, asked: Any, stored: Any, cosine: float, *_: Any, **__: Any) -> Verdict:
            sure = "clocks" in stored.text
            return Verdict(
                sure, "equal" if sure else "below", 0.999 if sure else 0.9, uncertain=not sure
            )

    async def main(rig: Rig) -> None:
        await rig.keep(STORED, OTHER)
        assert (await rig.find()).reason == "equal"
        assert rig.asked == []

    run(Rig(near={STORED: 0.95, OTHER: 0.9}, equivalence=Nearest()), main)


def test_of_several_the_likeliest_are_asked_for_and_the_best_is_served() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED, OTHER, "How do engines work?")
        found = await rig.find()
        assert found.hit is not None
        assert found.hit.similarity == pytest.approx(0.9, abs=5e-3)
        assert rig.asked == [((ALIKE, OTHER), (ALIKE, STORED))]

    near = {OTHER: 0.95, STORED: 0.9, "How do engines work?": 0.85}
    run(Rig(near=near, rules=OpinionRules(at_most=2)), main)


def test_an_opinion_is_asked_for_once_and_told_once() -> None:
    told: list[tuple[float, float, str, str]] = []

    async def main(rig: Rig) -> None:
        assert rig.cache.consultation is not None
        rig.cache.consultation.listener = lambda *heard: told.append(heard)
        await rig.keep(STORED)
        for _ in range(3):
            assert (await rig.find()).reason == "second-opinion"
        assert len(rig.asked) == 1
        assert told == [(pytest.approx(0.9, abs=5e-3), 0.95, "en", "")]

    run(Rig(), main)


def test_opinions_are_kept_without_the_texts() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        await rig.find()
        assert rig.cache.consultation is not None
        kept = repr(vars(rig.cache.consultation)["_known"])
        assert "tides" not in kept
        assert "0.95" in kept

    run(Rig(), main)


@pytest.mark.parametrize("given", [[], [float("nan")], [1.5]], ids=str)
def test_an_opinion_that_is_none_is_a_miss(given: Sequence[float]) -> None:
    class Odd(ScriptedOpinion):
        async def judge(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            return given

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        found = await rig.find()
        assert (found.hit, found.reason) == (None, "second-opinion-failed")
        assert rig.cache.counts == {"second-opinion": 1}

    run(Rig(Odd({})), main)


def test_a_judge_that_fails_is_a_miss_each_time_and_is_asked_anew() -> None:
    async def fail() -> None:
        raise CacheError("no judge today")

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        for _ in range(2):
            found = await rig.find()
            assert (found.hit, found.reason) == (None, "second-opinion-failed")
        assert len(rig.asked) == 2
        assert rig.cache.counts == {"second-opinion": 2}

    run(Rig(ScriptedOpinion({}, before=fail)), main)


def test_a_slow_judge_is_left_at_the_deadline() -> None:
    left = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            left.append(True)
            raise

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        found = await rig.find()
        assert (found.hit, found.reason) == (None, "second-opinion-slow")
        assert left == [True]
        assert rig.cache.counts == {"second-opinion-slow": 1}

    run(Rig(ScriptedOpinion({}, before=hang), rules=OpinionRules(timeout_s=0.02)), main)


def test_nobody_is_waited_for_past_the_end_of_the_call() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        call = replace(make_call(ALIKE), deadline_s=rig.clock.now - 1)
        assert (await rig.find(call)).reason == "second-opinion-slow"

    run(Rig(ScriptedOpinion({}, before=hang), rules=OpinionRules(timeout_s=60)), main)


def test_more_than_so_many_at_once_do_not_wait() -> None:
    gate = asyncio.Event()

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        first = asyncio.ensure_future(rig.find())
        await until(lambda: bool(rig.asked))
        assert (await rig.find()).reason == "second-opinion-busy"
        gate.set()
        assert (await first).hit is not None
        assert (await rig.find()).hit is not None
        assert rig.cache.counts == {"second-opinion-busy": 1}

    opinion = ScriptedOpinion({(ALIKE, STORED): True}, before=gate.wait)
    run(Rig(opinion, rules=OpinionRules(at_once=1)), main)


def test_who_wants_fewer_errors_needs_a_surer_judge() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        for rate, reason in ((0.1, "second-opinion"), (0.01, "second-opinion-refused")):
            call = replace(make_call(ALIKE), controls=Controls(max_error_rate=rate))
            assert (await rig.find(call)).reason == reason

    run(Rig(), main)


def test_the_dial_holds_for_doubtful_candidates_too() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        rig.serves = lambda tier, shares: False
        assert (await rig.find()).reason == "below"
        assert rig.asked == []

    run(Rig(), main)


def test_what_is_personal_is_told_nobody() -> None:
    mine = "What is the balance of my account?"

    async def main(rig: Rig) -> None:
        await rig.keep(mine)
        asked = replace(make_call("What is my account balance?"), user="ann")
        plan = lookup(asked, CacheRules())
        found = await rig.cache.find(asked, mark_of(asked), plan, rig.serves)
        assert found.reason == "below"
        assert rig.asked == []

    run(Rig(near={mine: 0.9}), main)


def mark(n: int, pair: str = "") -> dict[str, Any]:
    """A mark: an answer that the verifier was sure of was wrong."""
    return {
        "key": f"k{n}",
        "probability": 0.999,
        "language": "en",
        "judged": True,
        "correct": False,
        "pair": pair or f"p{n}",
    }


def test_what_marks_made_doubtful_is_put_before_the_judge() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        assert (await rig.find()).reason == "equal"
        for n in range(8):
            await rig.cache.journal.write("mark", mark(n), ttl_s=1e6)
        assert (await rig.find(opinions=False)).reason == "learned"
        assert (await rig.find()).reason == "second-opinion"
        assert rig.asked == [((ALIKE, STORED),)]

    run(Rig(near={STORED: 1.0}), main)


def test_a_pair_that_was_marked_wrong_is_put_before_nobody() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        pair = pair_of(mark_of(make_call(ALIKE)).partition, ALIKE, STORED)
        await rig.cache.journal.write("mark", mark(0, pair), ttl_s=1e6)
        assert (await rig.find()).reason == "blocked"
        assert rig.asked == []

    run(Rig(), main)


def test_nobody_is_asked_where_it_was_not_wished() -> None:
    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        assert (await rig.find(opinions=False)).reason == "below"
        assert rig.asked == []

    run(Rig(), main)


def test_dead_entries_take_nobodys_place() -> None:
    dead = [f"How do tides work in bay {letter}?" for letter in "abcdefghijklmnopqrst"]

    async def main(rig: Rig) -> None:
        assert len(dead) > 2 * CANDIDATES
        await rig.keep(*dead, ttl_s=30)
        await rig.keep(STORED)
        rig.wall.advance(31)
        found = await rig.find()
        assert found.hit is not None
        assert found.hit.similarity == pytest.approx(0.995, abs=3e-3)

    near = {**dict.fromkeys(dead, 0.999), STORED: 0.995}
    run(Rig(near=near), main)


def test_answers_too_old_for_the_asker_take_nobodys_place() -> None:
    old = [f"How do tides work in bay {letter}?" for letter in "abcdefghij"]

    async def main(rig: Rig) -> None:
        await rig.keep(*old)
        rig.wall.advance(60)
        await rig.keep(STORED)
        call = make_call(ALIKE)
        young = replace(PLAN, max_age_s=30)
        found = await rig.cache.find(call, mark_of(call), young, rig.serves)
        assert found.hit is not None
        assert found.hit.created_at == rig.wall()

    near = {**dict.fromkeys(old, 0.999), STORED: 0.995}
    run(Rig(near=near), main)


class Hesitant(Band):
    """Serves, but not so surely that a judge would not be heard."""

    def judge(self, asked: Any, stored: Any, cosine: float, *_: Any, **__: Any) -> Verdict:
        return Verdict(True, "equivalent", 0.985)


def test_what_is_served_but_not_surely_is_put_before_the_judge() -> None:
    async def heard(rig: Rig) -> None:
        await rig.keep(STORED)
        assert (await rig.find()).reason == "second-opinion"
        assert (await rig.find(opinions=False)).reason == "equivalent"
        assert rig.asked == [((ALIKE, STORED),)]

    run(Rig(equivalence=Hesitant()), heard)


def test_without_a_judges_word_the_verifiers_counts() -> None:
    async def broken() -> None:
        raise CacheError("the judge is away")

    async def main(rig: Rig) -> None:
        await rig.keep(STORED)
        found = await rig.find()
        assert found.hit is not None
        assert found.reason == "equivalent"
        assert rig.cache.counts["second-opinion"] == 1

    opinion = ScriptedOpinion({}, before=broken)
    run(Rig(opinion, equivalence=Hesitant()), main)
