"""Beliefs against what engines report."""

from __future__ import annotations

from tierway.router.trust import Trust


def test_an_engine_that_keeps_its_promises_is_trusted() -> None:
    trust = Trust()
    assert not any(trust.learn(1000, 1008) for _ in range(20))
    assert trust.factor(1000) == 1.0


def test_the_share_that_came_true_is_learnt() -> None:
    trust = Trust()
    for _ in range(40):
        trust.learn(1000, 600)
    assert abs(trust.factor(1000) - 0.6) < 0.01


def test_long_beliefs_do_not_suffer_for_short_ones() -> None:
    """An engine with blocks of 784 tokens."""
    trust = Trust()
    for _ in range(30):
        trust.learn(240, 0)
        trust.learn(2400, 2352)
    assert trust.factor(240) < 0.01
    assert trust.factor(2400) > 0.97


def test_an_engine_that_never_tells_is_believed_in() -> None:
    trust = Trust()
    assert not any(trust.learn(5000, None) for _ in range(20))
    assert trust.factor(5000) == 1.0


def test_one_that_leaves_a_zero_out_is_found_by_its_other_answers() -> None:
    trust = Trust()
    trust.learn(5000, 4000)
    before = trust.factor(5000)
    trust.learn(5000, None)
    assert trust.factor(5000) < before


def test_a_cache_is_lost_after_several_answers_in_a_row_without_it() -> None:
    trust = Trust()
    told = [trust.learn(5000, 0) for _ in range(4)]
    assert told == [False, False, False, True]
    assert not trust.learn(5000, 0)


def test_a_hit_between_breaks_the_row() -> None:
    trust = Trust()
    assert not any(trust.learn(5000, reported) for reported in (0, 0, 0, 5000) * 5)


def test_little_that_was_expected_tells_nothing_of_a_loss() -> None:
    trust = Trust()
    assert not any(trust.learn(64, 0) for _ in range(20))
    assert trust.factor(64) < 0.05


def test_an_engine_restarted_to_report_no_more_is_believed_in_again() -> None:
    trust = Trust()
    trust.learn(5000, 5000)
    assert any(trust.learn(5000, None) for _ in range(4))
    before = trust.factor(5000)
    assert not any(trust.learn(5000, None) for _ in range(20))
    assert trust.factor(5000) == before
    for _ in range(30):
        trust.learn(5000, 5000)
    assert trust.factor(5000) > 0.99


def test_what_was_not_believed_is_no_failure() -> None:
    trust = Trust()
    trust.learn(0, 300)
    assert trust.reports
    assert trust.factor(300) == 1.0
