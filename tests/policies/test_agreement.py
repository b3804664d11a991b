"""The comparison of two answers: what it tells, and what it does not claim to."""

from __future__ import annotations

import pytest

from tierway.policies.agreement import agreement


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Paris.", "paris", "same"),
        ("The capital is Paris.", "The capital of France is Paris.", "same"),
        ("法国的首都是巴黎。", "法国的首都是巴黎", "same"),
        ("It costs 1,000 dollars.", "It costs 1000 dollars.", "same"),
        ("It is 17 metres tall.", "It is 18 metres tall.", "different"),
        ("Yes, you can return it.", "No, you can not return it.", "different"),
        ("可以退货。", "不可以退货。", "different"),
        ("Paris", "Berlin", "different"),
        ("No problem at all.", "Not now, nobody is in.", "different"),
        ("In 1789 the revolution began.", "The revolution began.", "same"),
        ("", "", "same"),
        ("Paris", "", "different"),
        ("!", "?", "different"),
        ("Turn it on in the settings.", "Open the settings, then switch the mode on.", "unsure"),
    ],
)
def test_two_answers(one: str, other: str, expected: str) -> None:
    assert agreement(one, other) == expected
    assert agreement(other, one) == expected
