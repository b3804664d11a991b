"""What marks teach, on populations whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from tierway.policies.feedback import KEEP_S, MARKS_KEPT, Learning, Mark

BOUND, CUT = 0.02, 0.98
NOW_AT = 1_700_000_000.0
EN = ("acme", "en")

Truth = Callable[[float], float]


def taught(marks: list[tuple[float, bool]], bound: float = BOUND) -> Learning:
    learning = Learning(bound)
    for at, (probability, correct) in enumerate(marks):
        learning.add(*EN, f"r{at}", Mark(probability, correct, NOW_AT))
    return learning


def adjusted(learning: Learning, probability: float, now_at: float = NOW_AT) -> float:
    return learning.adjust(probability, *EN, now_at)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def logit(p: float) -> float:
    return math.log(p / (1 - p))


# Probability that a hit is right, given what the verifier said. Each makes 20 % of all hits wrong.
DRIFTS: dict[str, Truth] = {
    "all of them too sure": lambda p: sigmoid(logit(p) - 3.6),
    "surer than sure": lambda p: sigmoid(0.9 + 0.35 * (logit(p) - logit(CUT))),
    "nothing but chance": lambda p: 0.8,
}


def hits(truth: Truth, count: int, draw: random.Random) -> list[tuple[float, bool]]:
    """Served pairs: the logits lie above the cut with an exponential tail."""
    found = []
    for _ in range(count):
        p = sigmoid(logit(CUT) + draw.expovariate(1 / 1.5))
        found.append((p, draw.random() < truth(p)))
    return found


def served(learning: Learning, pairs: list[tuple[float, bool]]) -> list[bool]:
    return [right for p, right in pairs if adjusted(learning, p) >= CUT]


def test_without_marks_nothing_changes() -> None:
    learning = Learning(BOUND)
    for p in (0.0, 0.5, CUT, 0.999, 1.0):
        assert adjusted(learning, p) == p


@pytest.mark.parametrize("drift", DRIFTS)
def test_thirty_marks_bring_the_wrong_hits_back_under_the_bound(drift: str) -> None:
    draw = random.Random(7)
    before, after, chance = [], [], drift == "nothing but chance"
    for _ in range(60):
        learning = taught(hits(DRIFTS[drift], 30, draw))
        population = hits(DRIFTS[drift], 400, draw)
        left = served(learning, population)
        before.append(1 - fmean(right for _, right in population))
        after.append(left.count(False) / len(left) if left else 0.0)
    assert 0.17 < fmean(before) < 0.23
    # A verifier that knows nothing cannot be scaled, only stopped.
    assert fmean(after) <= (2 * BOUND if chance else BOUND)


def test_a_calibration_that_holds_keeps_most_of_its_hits() -> None:
    draw = random.Random(7)
    kept = []
    for _ in range(30):
        population = hits(lambda p: p, 400, draw)
        learning = taught(hits(lambda p: p, 100, draw))
        kept.append(len(served(learning, population)) / len(population))
    assert fmean(kept) > 0.75


def test_right_marks_give_back_what_wrong_ones_took_and_no_more() -> None:
    wrong = [(0.99, False)]
    with_right = [*wrong, *[(0.99, True)] * 100]
    first, second = adjusted(taught(wrong), 0.999), adjusted(taught(with_right), 0.999)
    assert first < second <= 0.999
    assert adjusted(taught([(0.99, True)] * 100), 0.97) == 0.97


def test_one_wrong_mark_does_not_end_all_hits() -> None:
    learning = taught([(0.985, False)])
    assert adjusted(learning, 0.985) < CUT
    assert adjusted(learning, 0.999) > CUT


def test_order_is_kept_and_nothing_is_raised() -> None:
    draw = random.Random(3)
    for _ in range(20):
        learning = taught(hits(lambda p: draw.random(), 40, draw))
        grid = [at / 1000 for at in range(1001)]
        found = [adjusted(learning, p) for p in grid]
        assert all(0 <= new <= p for new, p in zip(found, grid, strict=True))
        above = [new for new, p in zip(found, grid, strict=True) if p >= CUT]
        assert adjusted(learning, CUT) <= max(above)


def test_a_tenant_and_a_language_learn_for_themselves() -> None:
    learning = taught([(0.99, False)] * 20)
    assert adjusted(learning, 0.99) < 0.5
    assert learning.adjust(0.99, "other", "en", NOW_AT) == 0.99
    assert learning.adjust(0.99, "acme", "zh", NOW_AT) == 0.99
    assert learning.counts() == {EN: (0, 20)}


def test_marking_again_replaces_the_mark() -> None:
    learning = taught([(0.99, False)])
    learning.add(*EN, "r0", Mark(0.99, True, NOW_AT))
    assert adjusted(learning, 0.99) == 0.99
    assert learning.counts() == {EN: (1, 0)}


def test_marks_age_out_and_only_the_newest_count() -> None:
    learning = taught([(0.99, False)])
    assert adjusted(learning, 0.99, NOW_AT + KEEP_S - 1) < CUT
    assert adjusted(learning, 0.99, NOW_AT + KEEP_S + 1) == 0.99
    many = taught([(0.99, False)] + [(0.99, True)] * MARKS_KEPT)
    assert adjusted(many, 0.99) == 0.99


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certainties_are_taken(p: float) -> None:
    learning = taught([(p, False), (p, True)])
    assert 0 <= adjusted(learning, p) <= p
