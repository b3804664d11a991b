from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.complexity import CLASSES, SHIPPED, LexicalClassifier, Weights
from tierway.policies.errors import ConfigError
from tierway.policies.features import NAMES, asked_text, features, is_go_ahead, text_features
from tierway.policies.types import Ask, Turn

CLASSIFIER = LexicalClassifier()

EASY = ["hi", "你好", "What is the capital of France?", "法国的首都是哪里？", "给我讲个笑话"]
HARD = [
    "Design a distributed rate limiter for several regions, compare token bucket and sliding"
    " window, analyse the trade-offs under clock skew and give a migration plan step by step.",
    "设计一个分布式限流系统，比较令牌桶和滑动窗口，分析时钟偏移下的权衡，并给出分步骤的迁移方案。",
    "Prove by induction that the sum of the first n odd integers is n^2, then derive the sum of"
    " cubes and explain each step.",
    "分析这个项目的架构并提出重构方案，必须保证线程安全，并证明算法的正确性。",
]


def ask(*texts: str) -> Ask:
    """A conversation in which human and assistant take turns, the human last."""
    roles = ["user", "assistant"] * len(texts)
    turns = tuple(Turn(role, text) for role, text in zip(roles, texts, strict=False))
    return Ask(turns=turns, question=texts[-1])


def lead(text: str) -> float:
    """What the 175B class has over the 7B class."""
    p = CLASSIFIER.classify(ask(text), None)
    return p["175b"] - p["7b"]


def test_hard_questions_leave_a_wider_gap_than_easy_ones_in_both_languages() -> None:
    assert max(map(lead, EASY)) < 0.06
    assert min(map(lead, HARD)) > 0.12


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_probabilities_are_monotone_and_features_in_range_whatever_the_text(text: str) -> None:
    question = ask(text)
    values = features(question)
    assert len(values) == len(NAMES)
    assert all(0.0 <= value <= 1.0 for value in values)
    p = CLASSIFIER.classify(question, None)
    assert list(p) == list(CLASSES)
    assert sorted(p.values()) == list(p.values())
    assert all(0.0 < value < 1.0 for value in p.values())


def test_the_same_question_scores_the_same_alone_and_in_any_order() -> None:
    together = [CLASSIFIER.classify(ask(text), None) for text in [*EASY, *HARD]]
    alone = [LexicalClassifier().classify(ask(text), None) for text in reversed([*EASY, *HARD])]
    assert together == alone[::-1]


def test_chinese_needs_no_word_boundaries() -> None:
    named = dict(zip(NAMES, text_features("请用python写一个函数来计算方程的根"), strict=True))
    assert named["code"] > 0
    assert named["maths"] > 0


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "OK, continue.",
        "yes please",
        "go on",
        "好的，继续",
        "继续吧",
        "嗯，可以",
        "thanks!",
        "下一步",
    ],
)
def test_a_go_ahead_is_known_as_one(text: str) -> None:
    assert is_go_ahead(text)


@pytest.mark.parametrize(
    "text",
    ["", "ok, now prove it", "继续优化这个算法", "next.js or remix?", "why", "好的代码是什么样的"],
)
def test_a_question_is_no_go_ahead(text: str) -> None:
    assert not is_go_ahead(text)


@pytest.mark.parametrize("reply", ["ok continue", "好的，继续"])
def test_a_go_ahead_is_judged_by_the_question_before_it(reply: str) -> None:
    hard = HARD[0]
    assert asked_text(ask("hi", "hello", hard, "First ...", reply)) == hard
    p = CLASSIFIER.classify(ask(hard, "First ...", reply), None)
    assert p["175b"] - p["7b"] >= lead(hard)
    assert asked_text(ask(reply)) == reply


def test_the_end_of_a_long_text_counts() -> None:
    filler = "lorem ipsum dolor sit amet " * 2000
    request = "Prove that the algorithm terminates, derive its complexity and justify each step."
    assert lead(filler + request) > lead(filler) + 0.05


def test_long_texts_cost_no_more_than_their_head_and_tail() -> None:
    def cost(text: str) -> float:
        question = ask(text)
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(40):
                CLASSIFIER.classify(question, None)
            best = min(best, time.process_time() - start)
        return best

    assert cost("def 世界 12 " * 30_000) < 8 * cost("def 世界 12 " * 200)


def test_weights_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(Weights.load().to_json(), encoding="utf-8")
    assert Weights.load(path) == Weights.load(SHIPPED)


@pytest.mark.parametrize("change", ["features", "negative", "missing", "text"])
def test_other_weights_are_refused(tmp_path: Path, change: str) -> None:
    data = json.loads(SHIPPED.read_text(encoding="utf-8"))
    if change == "features":
        data["classes"]["7b"]["weights"]["mood"] = 1.0
    elif change == "negative":
        data["classes"]["70b"]["weights"]["code"] = -0.1
    elif change == "missing":
        del data["classes"]["cloud"]
    path = tmp_path / "weights.json"
    path.write_text("no json" if change == "text" else json.dumps(data), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"weights\.json"):
        Weights.load(path)
