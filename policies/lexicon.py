"""Which language a question is in, and which questions no stored answer may serve.

The word lists of the two languages are in lexicon_en.py and lexicon_zh.py: plain tables, read by
questions.py. Extend one and run `python -m tierway.bench.calibrate` again: the shipped cuts hold
for these tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def entries(table: str) -> list[str]:
    """The entries of a table that is written as text, separated by white space."""
    return table.split()


def by_sign(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """First character -> the words that begin with it, in their order."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        found[word[0]] = (*found.get(word[0], ()), word)
    return found


def axes(rows: list[str]) -> dict[str, frozenset[tuple[int, int]]]:
    """Word -> the (axis, side) places it stands at."""
    places: dict[str, set[tuple[int, int]]] = {}
    for axis, row in enumerate(rows):
        for side, words in enumerate(row.split(":")):
            for word in words.split(","):
                places.setdefault(word, set()).add((axis, side))
    return {word: frozenset(found) for word, found in places.items()}


# --- language --------------------------------------------------------------------------------

_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\u31f0-\u31ff\uac00-\ud7af\uff66-\uff9d]")
_ASCII_WORD = re.compile(r"[a-z']+")
_LATIN_WORD = re.compile(r"[a-z\u00c0-\u024f']+", re.IGNORECASE)
_TRADITIONAL = frozenset(
    "麼嗎們個這裡樣為麽國學會說時間電腦網買賣錢開關從後來過還沒東車門問題話對點"
)
_ENGLISH = frozenset(
    entries("""
    a the of to and in is it you that was for on are with as at be this have from or had by but
    what all were when we there can an your which their said if do will each about how up out
    them then she many some so these would other into has more her two him see time could no
    make than first been its who now my did get i me does why where should not he they our us am
    any please define describe meaning tell give show name explain between without was list need
    want like what's who's where's when's how's that's it's i'm can't don't doesn't isn't
    """)
)
_FOREIGN = frozenset(
    entries("""
    le la les des une est dans pour avec sur qui que quel quelle quels comment où der das und
    ist ein eine nicht wie mit von zu wer wo warum el los las del por para como qué cómo cuál
    dónde cuando una il lo gli che di della sono perché come quanto dove o os um uma não em qual
    quem het een van wat hoe och att det som är hur yang apa di untuk dan adalah
    """)
)


def language_of(text: str) -> str:
    """`en`, `zh`, or "" for everything that the lists below know nothing about: other
    languages, mixtures, traditional characters (its answers are written differently)."""
    if text.isascii():
        return _latin(_ASCII_WORD.findall(text.lower()))
    if _OTHER_SCRIPT.search(text):
        return ""
    words = _LATIN_WORD.findall(text)
    if chinese := _CJK.findall(text):
        return "zh" if len(chinese) >= len(words) and _TRADITIONAL.isdisjoint(chinese) else ""
    return _latin([word.lower() for word in words])


def _latin(words: list[str]) -> str:
    english = len([word for word in words if word in _ENGLISH])
    foreign = len([word for word in words if word in _FOREIGN or not word.isascii()])
    if not words or foreign > english or (not english and len(words) > 3):
        return ""
    return "en"


# --- what must not be answered from another question at all ------------------------------------

_SUM = re.compile(
    r"\d\s*(?:[+*×÷^=]|/(?!\d+/)|\s-\s|\bx\b|plus|minus|times|divided by|multiplied by|mod|加|"
    r"减|乘|除以|乘以|的平方|的立方)\s*(?:\d|$|[(（])|"
    r"\b(?:square|cube)d? (?:root )?of \d|\d+ ?% of \d",
    re.IGNORECASE,
)
_SUM_IN_WORDS = re.compile(
    r"[零一二三四五六七八九十百千万]\s*(?:加|减|乘以?|除以)\s*[零一二三四五六七八九十百千万]|"
    r"\b(?:calculate|compute|solve|evaluate|factorial|derivative|integrate)\b|"
    r"计算(?=.{0,6}\d)|^计算|等于多少|等于几|求解|解方程|"
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty) (?:plus|minus|times|"
    r"divided by) \w+",
    re.IGNORECASE,
)
# Each match holds one of these, that of a sum a digit too.
_SUM_SIGNS = entries("""
    + * × ÷ ^ = / - % x plus minus times divided multiplied mod square cube 加 减 乘 除以 平方 立方
    """)
_SUM_WORDS = entries("""
    plus minus times divided calculate compute solve evaluate factorial derivative integrate
    加 减 乘 除以 计算 等于 求解 解方程
    """)
_DIGIT = re.compile(r"\d")


def arithmetic(text: str) -> bool:
    """True when the question is a sum to do, which no other sum's answer serves."""
    # The patterns, which ignore case, also take dotless and dotted capital I for i.
    lowered = text.lower().replace("\u0131", "i").replace("i\u0307", "i")
    if _DIGIT.search(text) and _any_in(_SUM_SIGNS, lowered) and _SUM.search(text):
        return True
    return _any_in(_SUM_WORDS, lowered) and _SUM_IN_WORDS.search(text) is not None


def _any_in(marks: Iterable[str], text: str) -> bool:
    for mark in marks:  # noqa: SIM110 - any() over a generator takes twice as long
        if mark in text:
            return True
    return False
