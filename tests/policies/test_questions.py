"""Taking a question apart: no shortcut hides a match, no input breaks it, it stays cheap."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierway.policies.equivalence import veto
from tierway.policies.lexicon_phrases import CHINESE, ENGLISH, rewrite
from tierway.policies.quantities import quantities
from tierway.policies.questions import features


@pytest.mark.parametrize(
    ("marks", "pattern"),
    [pytest.param(marks, pattern, id=pattern.pattern[:40]) for marks, pattern, _ in ENGLISH]
    + [pytest.param(marks, pattern, id=pattern.pattern[:40]) for marks, pattern, _ in CHINESE],
)
def test_every_match_of_a_phrase_holds_one_of_its_marks(
    marks: tuple[str, ...], pattern: re.Pattern[str]
) -> None:
    @settings(
        max_examples=30,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.from_regex(pattern))
    def check(text: str) -> None:
        assert any(mark in text for mark in marks)

    check()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("i'm sure you can't", "i am sure you can not"),
        ("what's the cheapest way to fly", "how cheapest fly"),
        ("how do you log into my a lot of cell phones", "how login my many cellphones"),
        ("could you tell me what osmosis means", "what osmosis means"),
        ("switch the light off", "turn off the light"),
    ],
)
def test_turns_of_phrase_come_out_as_one(text: str, read: str) -> None:
    assert " ".join(rewrite(text, ENGLISH).split()) == read


@pytest.mark.parametrize(
    "text",
    [
        "2+2",
        "What is 3 x 4?",
        "what is 7 minus 2",
        "12 MULTIPLIED BY 3",
        "12 mult\u0131pl\u0130ed by 3",
        "square root of 16",
        "20 % of 50",
        "Solve for y",
        "m\u0130nus: evaluate it",
        "what is three plus four",
        "3乘以4",
        "三加四",
        "5的平方",
        "计算圆的面积",
        "一加一等于几",
    ],
)
def test_sums_are_seen(text: str) -> None:
    assert features(text).arithmetic


@pytest.mark.parametrize(
    "text", ["How many times a day?", "The 1990s and jazz", "Is C-3PO a robot?", "加班费怎么算", ""]
)
def test_what_only_looks_like_a_sum_is_none(text: str) -> None:
    assert not features(text).arithmetic


@pytest.mark.parametrize(
    ("text", "literals"),
    [
        ("what does `ls` do", {"ls"}),
        ('who said "to be"', {"to be"}),
        ("who said 'to be'", {"to be"}),
        ("what's the dogs' food", set()),
        ("《红楼梦》的作者是谁", {"红楼梦"}),
        ("open http://x.org/a now", {"http://x.org/a"}),
        ("mail me@x.org now", {"me@x.org"}),
        ("what does --force do", {"--force"}),
        ("what does tar -xz do", {"-xz"}),
        ("a well-known state", set()),
        ("what is in ~/bin/run", {"~/bin/run"}),
        ("what is snake_case", {"snake_case"}),
        ("what is camelCase", {"camelcase"}),
        ("what is CamelCase", set()),
        ("what does len() do", {"len()"}),
        ("what does os.path.join do", {"os.path.join"}),
        ("what is H2O. Really", {"h2o"}),
        ("what is 3d2 for", {"3d2"}),
        ("Plain words, and a stop.", set()),
    ],
)
def test_literals_of_every_kind(text: str, literals: set[str]) -> None:
    assert features(text).literals == literals


@pytest.mark.parametrize(
    ("text", "places"),
    [("提前还款", "前"), ("最便宜的", "便宜")],
)
def test_a_longer_chinese_word_hides_the_shorter_in_it(text: str, places: str) -> None:
    assert features(text).places
    assert not features(text).places & features(f"我说{places}").places


def test_capitals_that_open_the_text_are_no_names() -> None:
    assert features("Where is it?").names == frozenset()
    assert features("Where is Oslo?").names == {"oslo"}
    assert features("7 Dwarfs and a girl").names == {"dwarfs"}


@given(st.text(alphabet="百分之第一二三十千万亿两点半年0123456789.,元% ", max_size=60))
def test_any_pile_of_numerals_is_read(text: str) -> None:
    for language in ("en", "zh"):
        assert all(isinstance(value, float) for value, _ in quantities(text, language).numbers)
    features(f"{text}是多少呢")


def test_numerals_without_a_bound_are_read() -> None:
    assert features("亿" * 60 + "是多少").numbers == ((float("inf"), ""),)
    assert features("百分之5十是多少").numbers[0] == (5.0, "percent")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("身份证110101199003070011是哪里的", "身份证110101199003070012是哪里的"),
        ("Where is parcel 9007199254740993 now", "Where is parcel 9007199254740992 now"),
        ("Is 1,000,000,000,000,000,001 prime or not", "Is 1,000,000,000,000,000,002 prime or not"),
        ("亿" * 60 + "是质数吗", "亿" * 61 + "是质数吗"),
    ],
)
def test_numbers_longer_than_a_float_are_told_apart(a: str, b: str) -> None:
    assert veto(features(a), features(b)) in ("literals", "numbers")
    assert veto(features(b), features(a)) in ("literals", "numbers")
    assert veto(features(a), features(a)) == ""


@pytest.mark.parametrize(
    "question",
    [
        "What is the best way to learn a new programming language at home for free?",
        "从北京到上海坐高铁需要多长时间？",
    ],
)
def test_taking_a_question_apart_costs_a_third_of_a_millisecond_at_most(question: str) -> None:
    features(question)
    began = time.process_time()
    for _ in range(200):
        features(question)
    assert (time.process_time() - began) / 200 < 0.00033
