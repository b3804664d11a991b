"""WordPiece against the tokenizer that BERT's models are used with."""

from __future__ import annotations

import random
import string
from typing import Any

import pytest

from tierway.bench.made_pairs import made_pairs
from tierway.cache.wordpiece import token_ids, vocabulary, words

ODD = [
    "",
    " \t\n\r\x0b\x00",
    "don't STOP—now…",
    "Crème brûlée, naïve façade, Ångström, ß, İstanbul, ΣΊΣΥΦΟΣ",
    "价格是 $3.50（含税）吗？混合text文字",
    "https://example.com/a_b-c?d=e&f=%20 foo@bar.org #tag `code` <b>",
    "zero\u200bwidth\u00adsoft\ufeff\ufffdmarks\u00a0and\u3000blanks\u2028lines",
    "emoji 😀👩‍👩‍👧 and flags 🇫🇷",
    "한국어 日本語 カタカナ العربية ไทย हिन्दी",
    "e\u0301 combining; \ufb01 ligature; \u00bd \u00b2 \u2164 １２３ ｆｕｌｌ",
    "a" * 100 + " " + "b" * 101,
    "unaffable supercalifragilisticexpialidocious pneumonoultramicroscopic",
]


@pytest.fixture(scope="module")
def reference() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="the reference comes with litellm")
    return tokenizers.BertWordPieceTokenizer(dict(vocabulary()), lowercase=True)


def test_the_vocabulary_is_that_of_the_uncased_models() -> None:
    known = vocabulary()
    assert len(known) == 30522
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s")
    assert [known[mark] for mark in marks] == [0, 100, 101, 102, 103, 1996, 2015]


def test_a_text_stands_between_its_marks() -> None:
    assert token_ids("Hello, world!") == [101, 7592, 1010, 2088, 999, 102]
    assert token_ids("") == [101, 102]


def test_thousands_of_questions_are_cut_as_by_the_reference(reference: Any) -> None:
    texts = sorted({side for pair in made_pairs() for side in (pair["a"], pair["b"])})
    assert len(texts) > 2000
    for text in [*texts, *ODD]:
        assert token_ids(text) == reference.encode(text).ids, text


def test_noise_is_cut_as_by_the_reference(reference: Any) -> None:
    rng = random.Random(7)
    signs = (
        string.printable
        + "éÜßñçøœ¿¡«»–—“”‘’…€£°µ×÷是的吗？，。、《》かなカナ"
        + "\u0301\u200d\ufeff"
    )
    for _ in range(2000):
        text = "".join(rng.choices(signs, k=rng.randrange(60)))
        assert token_ids(text) == reference.encode(text).ids, ascii(text)


def test_marks_in_a_text_are_no_marks() -> None:
    """A question cannot end itself and begin another."""
    assert words("a [SEP] b") == ["a", "[", "sep", "]", "b"]
    assert token_ids("[CLS] [MASK]")[1:-1].count(101) == 0


@pytest.mark.parametrize("text", ODD)
def test_never_more_pieces_than_visible_characters(text: str) -> None:
    visible = sum(len(word) for word in words(text))
    assert len(token_ids(text)) - 2 <= visible
