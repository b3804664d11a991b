"""Bytes per token, learnt from usage."""

from __future__ import annotations

import pytest

from tierway.router.ratio import PRIOR, TokenRatios


def test_it_starts_at_what_english_has() -> None:
    assert TokenRatios().bytes_per_token("m", "latin") == PRIOR == 4.0


def test_a_tokenizer_is_learnt_within_a_dozen_prompts() -> None:
    ratios = TokenRatios()
    for _ in range(12):
        ratios.learn("m", "latin", 3000, 1000)
    assert ratios.bytes_per_token("m", "latin") == pytest.approx(3.0, rel=0.03)


def test_models_and_kinds_of_text_have_their_own() -> None:
    ratios = TokenRatios()
    for _ in range(50):
        ratios.learn("m", "other", 2000, 1000)
        ratios.learn("n", "latin", 5000, 1000)
    assert ratios.bytes_per_token("m", "latin") == PRIOR
    assert ratios.bytes_per_token("m", "other") == pytest.approx(2.0, rel=0.05)
    assert ratios.bytes_per_token("n", "latin") == pytest.approx(5.0, rel=0.05)


def test_long_prompts_weigh_more_than_short_ones() -> None:
    ratios = TokenRatios()
    for _ in range(30):
        ratios.learn("m", "latin", 60, 30)  # the template's tokens, mostly
        ratios.learn("m", "latin", 44_000, 10_000)
    assert ratios.bytes_per_token("m", "latin") == pytest.approx(4.4, rel=0.02)


def test_a_change_is_followed() -> None:
    ratios = TokenRatios()
    for _ in range(300):
        ratios.learn("m", "latin", 4000, 1000)
    for _ in range(150):
        ratios.learn("m", "latin", 3000, 1000)
    assert ratios.bytes_per_token("m", "latin") == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(("size", "tokens"), [(100, 1000), (100_000, 100), (0, 10)])
def test_counts_that_are_of_something_else_teach_nothing(size: int, tokens: int) -> None:
    ratios = TokenRatios()
    ratios.learn("m", "latin", size, tokens)
    assert ratios.bytes_per_token("m", "latin") == PRIOR


def test_token_ids_are_counted_as_they_are() -> None:
    ratios = TokenRatios()
    ratios.learn("m", "ids", 5000, 1000)
    assert ratios.bytes_per_token("m", "ids") == 1.0
