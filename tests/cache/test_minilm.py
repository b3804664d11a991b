"""The English encoder: its window, its batches, its vectors."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tierway.cache.encoder_models import missing_of_the_pair
from tierway.cache.minilm import CALL_TOKENS, WINDOW, MiniLM, _groups, fits
from tierway.cache.wordpiece import token_ids

complete = pytest.mark.skipif(
    bool(missing_of_the_pair()), reason="the English model is not installed"
)


@pytest.mark.parametrize(
    ("text", "is_within"),
    [
        ("", True),
        ("What is the capital of France?", True),
        ("!" * (WINDOW - 2), True),
        ("!" * (WINDOW - 1), False),
        ("word " * (WINDOW - 2), True),
        ("word " * (WINDOW - 1), False),
        ("internationalisation " * 100, False),
    ],
)
def test_what_fits_is_within_the_window_of_tokens(text: str, is_within: bool) -> None:
    assert fits(text) is is_within
    if is_within:
        assert len(token_ids(text)) <= WINDOW


def test_a_text_that_fits_is_never_beyond_the_window() -> None:
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choices("abcdefgh ,.!?'-\u0301éß½", k=rng.randrange(2 * WINDOW)))
        assert not fits(text) or len(token_ids(text)) <= WINDOW


def test_texts_of_one_length_go_together_and_long_ones_by_themselves() -> None:
    assert list(_groups([])) == []
    assert list(_groups([8, 8, 8, 8])) == [[0, 1, 2, 3]]
    assert list(_groups([100, 8, 9, 8])) == [[1, 3, 2], [0]]


def test_no_group_pads_more_than_a_call_costs() -> None:
    rng = random.Random(5)
    for _ in range(200):
        lengths = [rng.randrange(2, WINDOW) for _ in range(rng.randrange(1, 33))]
        groups = list(_groups(lengths))
        assert sorted(at for group in groups for at in group) == list(range(len(lengths)))
        for group in groups:
            for place, at in enumerate(group[1:], start=1):
                assert place * (lengths[at] - lengths[group[place - 1]]) <= CALL_TOKENS


@complete
def test_a_vector_does_not_depend_on_its_company() -> None:
    model = MiniLM()
    texts = [f"How do I {verb} {'very ' * n}well?" for n in range(4) for verb in ("cook", "run")]
    together = model.encode(texts)
    assert together.shape == (8, 384)
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    for text, row in zip(texts, together, strict=True):
        assert float(model.encode([text])[0] @ row) > 0.99999


@complete
def test_the_longest_text_is_encoded_whole() -> None:
    model = MiniLM()
    long = "word " * (WINDOW - 3)
    one, other = model.encode([long + "red", long + "blue"])
    assert float(one @ other) < 0.9999
