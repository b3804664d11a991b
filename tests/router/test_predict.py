"""Lengths of answers: what is foretold, how it is learnt, and that its memory is bounded."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeClock, make_call
from tierway.policies.errors import BrokenStream
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Ask, Call, Model, Tier, Usage
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.predict import PRIOR_TOKENS, LengthHint, LengthPredictor
from tierway.router.replica import ReplicaSpec

PLAIN = LengthHint("m", prompt_tokens=500)


def taught(hint: LengthHint, tokens: int, times: int = 50) -> LengthPredictor:
    predictor = LengthPredictor()
    for _ in range(times):
        predictor.learn(hint, tokens)
    return predictor


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, PRIOR_TOKENS), (10_000, PRIOR_TOKENS), (100, 50), (1, 1)]
)
def test_without_any_answer_the_limit_tells(limit: int | None, expected: int) -> None:
    assert LengthPredictor().expect(replace(PLAIN, max_tokens=limit)) == expected


def test_what_came_is_foretold_and_by_other_calls_of_the_model_less_surely() -> None:
    predictor = taught(PLAIN, 1000)
    assert predictor.expect(PLAIN) == pytest.approx(1000, rel=0.05)
    other = predictor.expect(replace(PLAIN, tools=True, prompt_tokens=20_000))
    assert other == pytest.approx(1000, rel=0.15)
    assert predictor.expect(replace(PLAIN, model="else")) == PRIOR_TOKENS


@pytest.mark.parametrize(
    "other",
    [
        {"tools": True},
        {"json": True},
        {"max_tokens": 4000},
        {"question_bytes": 9000},
        {"prompt_tokens": 30_000},
    ],
)
def test_each_feature_tells_long_answers_from_short_ones(other: dict[str, int]) -> None:
    predictor = LengthPredictor()
    long = replace(PLAIN, **other)  # type: ignore[arg-type]
    for _ in range(60):
        predictor.learn(PLAIN, 20)
        predictor.learn(long, 1500)
    assert predictor.median(PLAIN) < 60
    assert predictor.median(long) > 600


def test_a_session_of_long_answers_is_expected_to_go_on_so() -> None:
    predictor = taught(PLAIN, 100)
    session = replace(PLAIN, session="s")
    for _ in range(4):
        predictor.learn(session, 1600)
    assert predictor.median(session) > 5 * predictor.median(replace(PLAIN, session="other"))


def test_expect_is_the_mean_where_few_answers_are_very_long() -> None:
    predictor, draw = LengthPredictor(), random.Random(4)
    lengths = [round(draw.lognormvariate(5.0, 1.2)) + 1 for _ in range(2000)]
    for length in lengths:
        predictor.learn(PLAIN, length)
    mean = sum(lengths) / len(lengths)
    assert predictor.expect(PLAIN) == pytest.approx(mean, rel=0.25)
    assert predictor.median(PLAIN) == pytest.approx(sorted(lengths)[1000], rel=0.25)


def test_its_error_stands_beside_that_of_the_running_mean() -> None:
    predictor, draw = LengthPredictor(), random.Random(2)
    assert predictor.errors() == {}
    for _ in range(600):
        tokens = draw.choice([64, 8192])
        predictor.learn(LengthHint("m", prompt_tokens=tokens), tokens // 4)
    found = predictor.errors()["m"]
    assert found.answers == 600
    assert found.log_error < 0.1 < 2.0 < found.constant_log_error
    assert found.within_2 > 0.95 > 0.1 > found.constant_within_2


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    predictor = LengthPredictor(levels=200, sessions=100)
    for number in range(2000):
        predictor.learn(LengthHint("m", f"s{number}", number + 1, number % 7000), 50)
        predictor.learn(replace(PLAIN, session="kept"), 900)
    assert len(predictor) <= 300
    assert predictor.median(replace(PLAIN, session="kept")) > 500


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30),
    st.none() | st.integers(0, 10**6),
    st.integers(0, 10**7),
)
def test_what_is_expected_is_at_least_one_and_within_the_limit(
    answers: list[tuple[int, int]], limit: int | None, prompt: int
) -> None:
    predictor = LengthPredictor()
    for tokens, output in answers:
        predictor.learn(LengthHint("m", "s", tokens), output)
    found = predictor.expect(LengthHint("m", "s", prompt, max_tokens=limit))
    assert 1 <= found <= (10**6 if limit is None else max(1, limit))


MODEL = Model("m", "small")


def balancer() -> Balancer:
    clock = FakeClock()
    tier = Tier("small", 0, "7b", (MODEL,))
    fleet = Fleet([ReplicaSpec("a", "m", "small", "")], clock=clock)
    holder = PolicyHolder(PolicySet.build([tier]))
    return Balancer(fleet, holder, clock=clock, draw=lambda: 0.0)


def ended(made: Balancer, call: Call, usage: Usage | None, error: Exception | None = None) -> int:
    """What was expected of the call, which then ended so."""
    look = made.look(call, MODEL)
    lease = asyncio.run(made.take(made.rank("small", ["m"], look)))
    lease.finish(error, usage)
    return look.output_tokens


def test_the_balancer_expects_what_answers_taught_it() -> None:
    made, call = balancer(), make_call("Tell me more.")
    assert ended(made, call, None) == PRIOR_TOKENS
    assert ended(made, call, Usage(10, 40), BrokenStream("cut")) == PRIOR_TOKENS
    for _ in range(20):
        ended(made, call, Usage(10, 40))
    assert ended(made, call, None) == pytest.approx(40, abs=10)
    assert made.lengths.errors()["m"].answers == 20


def test_an_embedding_has_no_output() -> None:
    call = replace(make_call("x"), wire="embeddings")
    assert balancer().look(call, MODEL).output_tokens == 0


def test_what_a_hint_takes_from_a_call() -> None:
    ask = Ask((), "Why?", has_tools=True, wants_json=True, max_tokens=7)
    call = replace(make_call("x"), ask=ask, session="s", tenant="t")
    hint = LengthHint.of(call, "m", 12)
    assert (hint.prompt_tokens, hint.question_bytes, hint.max_tokens) == (12, 4, 7)
    assert hint.tools
    assert hint.json
    assert hint.session != LengthHint.of(replace(call, tenant="u"), "m", 12).session
    assert LengthHint.of(replace(call, session=""), "m", 12).session == ""
