"""Do two answers say the same? A cheap comparison for shadow samples; it judges no request.

    same       equal after case, white space and punctuation are taken out, or at least SAME of
               their words are shared (Dice: 2 |A and B| / (|A| + |B|))
    different  one says yes and the other no, or both hold numbers and each some that the other
               lacks, or less than DIFFERENT of their words are shared
    unsure     anything else

Its limits: two right answers in other words, two poems, or two translations look different; a
wrong name in a long equal text looks the same. A share of "different" is therefore an upper hint,
to be compared with itself over time and read in the report, and never a mark.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Agreement = Literal["same", "different", "unsure"]

SAME, DIFFERENT = 0.6, 0.2
LONGEST = 20_000  # characters looked at
_WORD = re.compile(r"[a-z0-9ß-ɏ]+|[\u3400-\u9fff]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_OPENING = re.compile(r"\W*(yes|no|true|false|是|不是|对|不对|否|可以|不可以|能|不能)(?![a-z])")
_NEGATIVE = frozenset({"no", "false", "不是", "不对", "否", "不可以", "不能"})


def agreement(one: str, other: str) -> Agreement:
    a, b = _plain(one), _plain(other)
    words, others = _WORD.findall(a), _WORD.findall(b)
    if words == others:
        return "same" if words or a == b else "different"
    if _opposed(a, b) or _numbers_clash(a, b):
        return "different"
    mine, theirs = set(words), set(others)
    shared = 2 * len(mine & theirs) / (len(mine) + len(theirs))
    if shared >= SAME:
        return "same"
    return "different" if shared < DIFFERENT else "unsure"


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text[:LONGEST]).casefold()


def _opposed(a: str, b: str) -> bool:
    mine, theirs = _OPENING.match(a), _OPENING.match(b)
    if mine is None or theirs is None:
        return False
    return (mine[1] in _NEGATIVE) != (theirs[1] in _NEGATIVE)


def _numbers_clash(a: str, b: str) -> bool:
    mine, theirs = (
        {number.replace(",", "") for number in _NUMBER.findall(text)} for text in (a, b)
    )
    return bool(mine - theirs) and bool(theirs - mine)
