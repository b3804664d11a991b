"""Which turns stand on their own, in a conversation and alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from context_cases import LEANING_EN, LEANING_ZH, STANDING_EN, STANDING_ZH, missed, taken
from fakes import make_call

from tierway.policies.context import concerns, is_conversation, self_contained, stands_alone
from tierway.policies.types import CacheControl, Call, Controls


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
    ("leaning", "standing"), [(LEANING_EN, STANDING_EN), (LEANING_ZH, STANDING_ZH)]
)
def test_in_a_conversation_what_leans_is_hardly_ever_missed(
    leaning: tuple[str, ...], standing: tuple[str, ...]
) -> None:
    assert len(taken(self_contained, leaning)) <= 0.05 * len(leaning)
    assert len(missed(self_contained, standing)) <= 0.25 * len(standing)


@pytest.mark.parametrize(
    ("leaning", "standing"), [(LEANING_EN, STANDING_EN), (LEANING_ZH, STANDING_ZH)]
)
def test_alone_what_stands_is_hardly_ever_refused(
    leaning: tuple[str, ...], standing: tuple[str, ...]
) -> None:
    assert len(missed(stands_alone, standing)) <= 0.05 * len(standing)
    assert len(taken(stands_alone, leaning)) <= 0.15 * len(leaning)


def test_what_a_text_names_itself_its_pronouns_may_mean() -> None:
    assert not stands_alone("how old is he")
    assert stands_alone("how do birds find them")
    assert stands_alone("how does this app work")
    assert not stands_alone("how does this work")
    assert not stands_alone("这是什么意思")
    assert stands_alone("鲸鱼睡觉吗，它怎么呼吸")


def talk(*turns: str, **control: str) -> Call:
    """A conversation whose turns are the user's and the assistant's by turns."""
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(turns)
    ]
    controls = Controls(cache=CacheControl(**control))  # type: ignore[arg-type] - texts only
    return replace(make_call(turns[-1], messages=messages), controls=controls)


def of_bread(text: str) -> bool:
    return "bread" in text


def test_the_last_turn_or_the_query_decides_what_is_asked() -> None:
    assert concerns(talk("How do I bake bread?"), of_bread)
    assert not concerns(
        talk("How do I bake bread?", "So.", "What is the capital of Peru?"), of_bread
    )
    assert concerns(talk("Documents.", query="How do I bake bread?"), of_bread)
    assert not concerns(talk("All about bread.", query="What is the capital of Peru?"), of_bread)
    assert not concerns(replace(talk("Bake bread!"), wire="embeddings"), of_bread)


@pytest.mark.parametrize("leaning", ["And how long does it take?", "why?", "那要多久呢"])
def test_a_turn_that_leans_asks_about_the_same(leaning: str) -> None:
    call = talk("How do I bake bread?", "So.", leaning)
    assert is_conversation(call)
    assert concerns(call, of_bread)
    assert not concerns(talk(leaning), of_bread)
