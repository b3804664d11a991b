"""Answers that answer nothing, in English and Chinese."""

from __future__ import annotations

import pytest

from tierway.policies.cacheability import storable
from tierway.policies.refusals import LONGEST, refuses


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I cannot assist with that request.",
        "Sorry, I am unable to open links.",
        "I cannot provide medical advice.",
        "I can't access real-time information.",
        "I don't have access to your account.",
        "As an AI language model, I cannot browse the internet.",
        "Unfortunately, I don't have information about that.",
        "Apologies, but I can't continue.",
        "抱歉，我无法回答这个问题。",
        "很抱歉，这个问题我不能回答。",
        "对不起，我没有办法访问互联网。",
        "作为一个人工智能语言模型，我无法提供医疗建议。",
        "我无法访问您的账户。",
    ],
)
def test_a_refusal_is_not_stored(text: str) -> None:
    assert refuses(text)
    message = {"role": "assistant", "content": text}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert storable(answer, "chat") == "refusal"


@pytest.mark.parametrize(
    "text",
    [
        "Paris.",
        "I cannot recommend this book highly enough.",
        "Sorry is a card game for four players.",
        "An AI language model cannot feel pain.",
        "Say: 'I'm sorry, but I can't help with that.'",
        "I'm sorry, but I can't help with that. " + "However, here is how it is done. " * LONGEST,
        "抱歉在英语里是 sorry。",
        "企鹅无法飞行。",
        "",
    ],
)
def test_an_answer_is_one(text: str) -> None:
    assert not refuses(text)
