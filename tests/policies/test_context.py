"""What a question rests on besides its words, in English and Chinese."""

from __future__ import annotations

import time

import pytest

from tierway.policies.context import personal, self_contained, time_sensitive


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", True),
        ("Is there a bridge over the Rhine in Basel?", True),
        ("法国的首都是哪里？", True),
        ("how old is he", False),
        ("What about that one?", False),
        ("continue", False),
        ("And its population?", False),
        ("Paris", False),
        ("它多少钱？", False),
        ("这个怎么用啊朋友", False),
        ("继续", False),
        ("那上海呢", False),
    ],
)
def test_self_contained(question: str, expected: bool) -> None:
    assert self_contained(question) is expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is my account balance?", True),
        ("Where is my order?", True),
        ("我的订单到哪了", True),
        ("我的余额是多少", True),
        ("How do I boil an egg?", False),
        ("怎么查询订单", False),
    ],
)
def test_personal(question: str, expected: bool) -> None:
    assert personal(question) is expected


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


def test_a_long_text_is_read_at_its_ends() -> None:
    huge = "what does a a a " * 60_000
    began = time.process_time()
    assert not personal(huge)
    assert not time_sensitive(huge)
    assert time.process_time() - began < 0.2
    assert personal(huge + "Where is my order?")
    assert time_sensitive("What is the weather in Oslo? " + huge)
