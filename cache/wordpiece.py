"""WordPiece: texts to the token ids of BERT's uncased English models.

Words are cut into the longest pieces that the vocabulary knows, from the left, as in BERT's own
tokenizer (Devlin et al., 2018; tokenization.py of google-research/bert). The vocabulary lies in
data/, one piece a line, the line number being its id. Marks such as [SEP] written in a text are
punctuation and letters like any other: nobody's question ends another's.
"""

from __future__ import annotations

import gzip
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

WORD_CHARS = 100
"""A longer word is one unknown piece."""


@lru_cache(maxsize=1)
def vocabulary() -> Mapping[str, int]:
    """Piece -> id, read once (20 ms)."""
    packed = resources.files("tierway.cache") / "data" / "bert_uncased_vocab.txt.gz"
    pieces = gzip.decompress(packed.read_bytes()).decode().split("\n")[:-1]
    return {piece: number for number, piece in enumerate(pieces)}


def token_ids(text: str) -> list[int]:
    """The ids of a text between [CLS] and [SEP]; never cut."""
    known = vocabulary()
    ids = [known["[CLS]"]]
    for word in words(text):
        ids += _pieces(word, known)
    ids.append(known["[SEP]"])
    return ids


def words(text: str) -> list[str]:
    """The words before they are cut: lower-cased, without accents and control characters;
    each sign of punctuation and each Chinese character stands alone."""
    if not text.isascii():
        text = unicodedata.normalize("NFD", text)
    return "".join(map(_spaced, text)).split()


@lru_cache(maxsize=8192)
def _spaced(sign: str) -> str:
    """What a character of decomposed text becomes, with blanks around what stands alone."""
    category = unicodedata.category(sign)
    if category[0] == "Z" or sign in "\t\n\r":
        return " "
    if category in ("Mn", "Cc", "Cf", "Co") or sign == "\ufffd":
        return ""
    if category[0] == "P" or (sign.isascii() and not sign.isalnum()) or _chinese(ord(sign)):
        return f" {sign} "
    return sign.lower()


def _chinese(point: int) -> bool:
    return (
        0x4E00 <= point <= 0x9FFF
        or 0x3400 <= point <= 0x4DBF
        or 0xF900 <= point <= 0xFAFF
        or 0x20000 <= point <= 0x2CEAF
        or 0x2F800 <= point <= 0x2FA1F
    )


def _pieces(word: str, known: Mapping[str, int]) -> list[int]:
    """The ids of a word's pieces; one [UNK] where some part of it is in no piece."""
    if len(word) > WORD_CHARS:
        return [known["[UNK]"]]
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in known:
                found.append(known[piece])
                start = end
                break
        else:
            return [known["[UNK]"]]
    return found
