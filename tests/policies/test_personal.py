"""What is asked about oneself, in English and Chinese, and the words an operator adds."""

from __future__ import annotations

import pytest
from context_cases import (
    IMPERSONAL_EN,
    IMPERSONAL_ZH,
    PERSONAL_EN,
    PERSONAL_ZH,
    precision_and_recall,
)

from tierway.policies.personal import Personal

personal = Personal()


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
    ("own", "everybodys"), [(PERSONAL_EN, IMPERSONAL_EN), (PERSONAL_ZH, IMPERSONAL_ZH)]
)
def test_precision_and_recall(own: tuple[str, ...], everybodys: tuple[str, ...]) -> None:
    precision, recall = precision_and_recall(personal, own, everybodys)
    assert precision >= 0.95
    assert recall >= 0.95


@pytest.mark.parametrize(
    "thing",
    [
        "account",
        "order",
        "balance",
        "bill",
        "appointment",
        "prescription",
        "password",
        "salary",
        "booking",
        "invoice",
    ],
)
def test_what_everybody_has_an_own_one_of(thing: str) -> None:
    assert personal(f"What about my {thing}?")
    assert personal(f"OUR LAST {thing.upper()}")
    assert not personal(f"What is a {thing}?")


@pytest.mark.parametrize(
    "thing", ["账户", "订单", "余额", "账单", "预约", "处方", "密码", "工资", "快递", "病历"]
)
def test_the_same_in_chinese(thing: str) -> None:
    assert personal(f"我的{thing}怎么样了")
    assert personal(f"查一下我{thing}")
    assert not personal(f"{thing}是什么意思")


@pytest.mark.parametrize(
    ("procedure", "own"),
    [
        ("How do I reset my password?", "What is my password?"),
        ("How can I close my account?", "Is my account closed?"),
        ("How do I sort my list in Python?", "Which points are on my account?"),
        ("如何修改我的密码", "我的密码是什么"),
        ("我的账号怎么注销", "我的账号注销了吗"),
    ],
)
def test_a_procedure_is_the_same_for_everybody(procedure: str, own: str) -> None:
    assert not personal(procedure)
    assert personal(own)


@pytest.mark.parametrize("question", ["How do I pay my bill?", "How can I see my balance?"])
def test_what_is_owed_or_held_is_personal_even_in_a_procedure(question: str) -> None:
    assert personal(question)


def test_an_operators_words_count_wherever_they_stand() -> None:
    with_words = Personal(("employee id", "工号", "C++ quota"))
    assert with_words("Which Employee ID opens the door?")
    assert with_words("工号在哪里看")
    assert with_words("how high is a c++ quota?")
    assert not with_words("employee idea box")
    assert not personal("Which employee ID opens the door?")
    assert with_words("What is my account balance?")
