"""What goes stale within days and what does not, in English and Chinese."""

from __future__ import annotations

import time

import pytest
from context_cases import (
    STABLE_EN,
    STABLE_ZH,
    UNSEEN_STABLE_EN,
    UNSEEN_STABLE_ZH,
    UNSEEN_VOLATILE_EN,
    UNSEEN_VOLATILE_ZH,
    VOLATILE_EN,
    VOLATILE_ZH,
    precision_and_recall,
)

from tierway.policies.personal import Personal
from tierway.policies.volatile import time_sensitive


@pytest.mark.parametrize(
    ("volatile", "stable"), [(VOLATILE_EN, STABLE_EN), (VOLATILE_ZH, STABLE_ZH)]
)
def test_precision_and_recall(volatile: tuple[str, ...], stable: tuple[str, ...]) -> None:
    assert len(volatile) + len(stable) >= 60
    precision, recall = precision_and_recall(time_sensitive, volatile, stable)
    assert precision >= 0.95
    assert recall >= 0.95


@pytest.mark.parametrize(
    ("volatile", "stable"),
    [(UNSEEN_VOLATILE_EN, UNSEEN_STABLE_EN), (UNSEEN_VOLATILE_ZH, UNSEEN_STABLE_ZH)],
)
def test_questions_that_no_rule_was_fitted_to(
    volatile: tuple[str, ...], stable: tuple[str, ...]
) -> None:
    precision, recall = precision_and_recall(time_sensitive, volatile, stable)
    assert precision >= 0.8
    assert recall >= 0.55  # what is missed lives as long as any other answer


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the weather in Paris?", True),
        ("Who is the president of France?", True),
        ("What is the latest iPhone?", True),
        ("今天北京天气怎么样", True),
        ("最新的手机是什么", True),
        ("What is photosynthesis?", False),
        ("什么是光合作用", False),
    ],
)
def test_time_sensitive(question: str, expected: bool) -> None:
    assert time_sensitive(question) is expected


@pytest.mark.parametrize(
    "question",
    [
        "What's the time?",
        "Is it raining?",
        "is GitHub down?",
        "Who won the game last night?",
        "AAPL stock",
        "how many days until Christmas?",
        "What is open this week?",
        "Who is the prime minister of Japan?",
        "Who is Japan's prime minister?",
        "Who is the current mayor of Rome?",
        "What is the weather in Oslo tonight?",
        "What's the score?",
        "昨晚谁赢了比赛",
        "现任美国总统是谁",
        "美国总统是谁",
        "现在几点",
        "今晚有什么电影",
        "本周放假吗",
        "离春节还有几天",
        "比分多少",
        "微信崩了吗",
        "外面下雨了吗",
    ],
)
def test_what_goes_stale_is_seen(question: str) -> None:
    assert time_sensitive(question)


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "How do I bake bread?", "什么是光合作用"]
)
def test_what_stays_true_is_not_called_stale(question: str) -> None:
    assert not time_sensitive(question)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How do I make tea?", "What is the weather in Oslo?"),
        ("怎么泡茶？", "今天几号？"),
    ],
)
def test_each_sentence_is_looked_at_for_itself(one: str, other: str) -> None:
    assert not time_sensitive(one)
    assert time_sensitive(f"{one} {other}")
    assert time_sensitive(f"{other} {one}")


def test_a_long_text_is_read_at_its_ends() -> None:
    huge = "what does a a a " * 60_000
    began = time.process_time()
    assert not Personal()(huge)
    assert not time_sensitive(huge)
    assert time.process_time() - began < 0.2
    assert Personal()(huge + "Where is my order?")
    assert time_sensitive("What is the weather in Oslo? " + huge)
