"""What speaks for and against two questions being one: the numbers that the verifier weighs.

`compare` lines the words of two questions up against each other and counts what is left over,
by what a leftover of its kind tends to mean: a name in the place of another name asks about
something else, a lost "really" asks the same. CLOSENESS and SAME_WORDS speak for, all other
columns against; what each is worth is learnt (bench/calibrate.py), only its sign is fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from tierway.policies import lexicon_en as en
from tierway.policies import lexicon_zh as zh
from tierway.policies.lexicon import entries
from tierway.policies.questions import Features

COLUMNS = (
    "closeness", "same-words", "replaced", "added", "light", "kin", "function", "overlap",
    "names-replaced", "names-added", "numbers-added", "negation", "yes-no", "why", "asks",
    "what-how", "past", "person", "somebody", "moved", "swapped", "roles", "modal", "degree",
    "clauses", "length", "article", "case", "capital", "few-words", "no-question",
)  # fmt: skip
FOR = ("closeness", "same-words")
_NEAREST = 0.01  # no cosine is worth more: other words weigh nothing in a long text


def closeness(cosine: float) -> float:
    """0 for unrelated, 2.3 at 0.9, 3 at 0.95, 4.6 at 0.99: what a hundredth is worth grows."""
    return -math.log(max(_NEAREST, 1.0 - cosine))


def compare(a: Features, b: Features, cosine: float) -> tuple[float, ...]:
    """One number per column of COLUMNS, the same with the sides exchanged."""
    key_a, key_b = Counter(a.key), Counter(b.key)
    article, asks, case = _other_article(a, b), _asks(a, b), _case(a, b)
    order = _order(a, b, key_a, key_b)
    return (
        closeness(cosine),
        a.key == b.key and not (article or any(asks) or case[0] or order[1]),
        *_leftovers(a, b),
        len(_function(key_a, a) ^ _function(key_b, b)) + 2 * (key_a["的"] != key_b["的"]),
        1.0 - len(a.content & b.content) / max(1, len(a.content | b.content)),
        *_names(a, b),
        abs(len(a.numbers) - len(b.numbers)) + abs(len(a.dates) - len(b.dates)),
        (a.negations + b.negations) % 2,
        *asks,
        *_persons(a, b),
        *order,
        _roles_clash(a, b),
        _MODALS & a.surface != _MODALS & b.surface,
        len((_DEGREES & a.surface) ^ (_DEGREES & b.surface)),
        abs(_clauses(a) - _clauses(b)),
        abs(math.log(max(1, len(a.key)) / max(1, len(b.key)))),
        article,
        *case,
        1.0 / max(1, min(len(a.content), len(b.content))),
        not (_asks_something(a) or _asks_something(b)),
    )


def _asks_something(side: Features) -> bool:
    return bool(side.asks) or (side.language == "zh" and side.text.endswith(zh.ASKED_NOUNS))


def _leftovers(a: Features, b: Features) -> tuple[float, float, float, float]:
    """Words put in the place of others, words of one side alone, both but for words that
    decide little; those; and the share of words that stand in another form."""
    only_a = [word for word in a.content - b.content if word not in b.surface]
    only_b = [word for word in b.content - a.content if word not in a.surface]
    if not (only_a or only_b):
        return 0.0, 0.0, 0.0, 0.0
    other_unit = _unit_against_word(a, b, only_a, only_b)
    kin = 0
    if "zh" not in (a.language, b.language):
        for word in list(only_a):
            other = next((known for known in only_b if _kin(word, known)), None)
            if other is not None:
                only_a.remove(word)
                only_b.remove(other)
                kin += 1
    light = zh.LIGHT if "zh" in (a.language, b.language) else en.LIGHT
    heavy_a = len([word for word in only_a if word not in light])
    heavy_b = len([word for word in only_b if word not in light])
    light_a, light_b = len(only_a) - heavy_a, len(only_b) - heavy_b
    replaced = min(heavy_a, heavy_b) + other_unit
    return (
        replaced + 0.5 * (min(len(only_a), len(only_b)) - replaced),
        abs(heavy_a - heavy_b),
        light_a + light_b,
        kin / max(1, min(len(a.content), len(b.content))),
    )


def _unit_against_word(a: Features, b: Features, only_a: list[str], only_b: list[str]) -> bool:
    """3 cups of sugar, 3 spoons of sugar: the one word is known as a unit, the other is not."""
    units_a, units_b = dict(a.numbers), dict(b.numbers)
    return any(
        units_a[value] != units_b[value] and (only_b if units_a[value] else only_a)
        for value in units_a.keys() & units_b.keys()
    )


def _function(key: Counter[str], side: Features) -> frozenset[tuple[str, int]]:
    """Words that are no content, with their number."""
    return frozenset([item for item in key.items() if item[0] not in side.content])


def _kin(a: str, b: str) -> bool:
    """Two forms of one word: travel and traveling, effective and effectiveness."""
    shared = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        shared += 1
    return shared >= 4 and a[shared:] in en.ENDINGS and b[shared:] in en.ENDINGS


def _names(a: Features, b: Features) -> tuple[float, float]:
    """Names in the place of others, and names of one side alone."""
    names_a = len([name for name in a.names if name not in b.surface])
    names_b = len([name for name in b.names if name not in a.surface])
    return min(names_a, names_b), abs(names_a - names_b)


_NO_ASKS = (0.0, 0.0, 0.0, 0.0)


def _asks(a: Features, b: Features) -> tuple[float, ...]:
    """A yes-no question against another, why, other question words, what against how; past."""
    past = float(("past" in a.asks) != ("past" in b.asks))
    differ = (a.asks ^ b.asks) - {"past", "what"}
    asks_a, asks_b = a.asks - {"past"}, b.asks - {"past"}
    if asks_a == asks_b:
        return (*_NO_ASKS, past)
    closed = [any(ask.startswith("yn") for ask in asks) for asks in (asks_a, asks_b)]
    if closed[0] != closed[1]:
        return 1.0, 0.0, 0.0, 0.0, past
    if closed[0]:
        return 0.0, 0.0, 0.0, 1.0, past
    if "why" in differ:
        return 0.0, 1.0, 0.0, 0.0, past
    if not differ:
        # "Capital of France" asks what; "I need to verify my identity" tells.
        return float(not (asks_a and asks_b) and bool(a.persons | b.persons)), 0.0, 0.0, 0.0, past
    if differ == {"how"}:
        return 0.0, 0.0, 0.0, 1.0, past
    return 0.0, 0.0, 1.0, 0.0, past


def _persons(a: Features, b: Features) -> tuple[float, float]:
    """Somebody else (he, she, they), and I or you in the place of one another or of nobody."""
    differ = a.persons ^ b.persons
    if not differ:
        return 0.0, 0.0
    nobody = a.language == "en" and "how" in a.asks & b.asks and a.persons | b.persons <= {1, 2}
    exchanged = bool(a.persons - b.persons) and bool(b.persons - a.persons) and not nobody
    return float(bool(differ - {1, 2}) or exchanged), 1.0


def _order(
    a: Features, b: Features, key_a: Counter[str], key_b: Counter[str]
) -> tuple[float, float]:
    """Words that moved with the little words around them (a course for marketing, a marketing
    course), and words that changed places with nothing else changed."""
    moved = _inversions(a.words, b.words)
    values_a, values_b = [[value for value, _ in side.numbers] for side in (a, b)]
    if values_a and values_b and values_a != values_b:
        return 0.0, 1.0  # 3 cups for 5 spoons
    if a.language == "zh":
        # 主题怎么删除, 怎么删除主题: what is asked how may stand before or behind.
        if moved == 1 and "how" in a.asks & b.asks:
            return 1.0, 0.0
        if "who" in a.asks & b.asks and _opens_asking(a) != _opens_asking(b) and a.key != b.key:
            return 0.0, 1.0  # 谁是鲁迅的老师, 鲁迅是谁的老师
        return 0.0, float(moved or (key_a == key_b and a.key != b.key))
    if _DANGLING & {*a.key[-1:], *b.key[-1:]} and (
        a.key[-1:] != b.key[-1:] or _AUXILIARIES & {*a.key} != _AUXILIARIES & {*b.key}
    ):
        # Who is Tom the father of, who is the father of Tom; what is a tank used for, what
        # tank is used for.
        return 0.0, 1.0
    plain_a, plain_b = _without_verbs(a.key), _without_verbs(b.key)
    if not moved and (key_a != key_b or plain_a == plain_b):
        return 0.0, 0.0
    if Counter(plain_a) == Counter(plain_b):
        return 0.0, 1.0
    return float(moved), 0.0


def _opens_asking(side: Features) -> bool:
    return side.key[:1] == ("〈who〉",)


def _without_verbs(key: tuple[str, ...]) -> list[str]:
    return [word for word in key if word not in _AUXILIARIES]


_DANGLING = frozenset(["of", "for", "to", "from", "with", "by"])
_AUXILIARIES = frozenset(["is", "do", "does", "did", "was", "were", "will", "can", "has", "have"])


def _inversions(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How often the words of `a` step back in `b`: 1 where one block moved."""
    if a == b:
        return 0
    place = {word: at for at, word in enumerate(_numbered(b))}
    shared = [place[word] for word in _numbered(a) if word in place]
    return sum([before > after for before, after in pairwise(shared)])


def _numbered(words: tuple[str, ...]) -> list[tuple[str, int]]:
    """Each word with how often it stood before."""
    seen: Counter[str] = Counter()
    found = []
    for word in words:
        found.append((word, seen[word]))
        seen[word] += 1
    return found


def _roles_clash(a: Features, b: Features) -> bool:
    """The same object after another direction word, or the other way round."""
    if not (a.roles and b.roles):
        return False
    marks, objects = {word: mark for mark, word in b.roles}, dict(b.roles)
    both = a.surface & b.surface
    return any(
        marks.get(word, mark) != mark
        or (objects.get(mark, word) != word and {word, objects[mark]} <= both)
        for mark, word in a.roles
        if word
    )


_MODALS = frozenset(["should", "must", "would", "will", "might", "may"])
_DEGREES = frozenset(
    entries("""
    best worst most least more less only first last biggest largest highest lowest easiest
    fastest cheapest top better free cheap
    """)
)
_CLAUSE_MARKS = frozenset("?.!,;？。！，；")


def _clauses(side: Features) -> int:
    return len([sign for sign in side.text.rstrip("?.!？。！ ") if sign in _CLAUSE_MARKS])


def _other_article(a: Features, b: Features) -> bool:
    """The king, a king; one of them without any is as good: the black hole, black holes."""
    if a.articles == b.articles:
        return False
    known = {word: article[0] for article, word in b.articles}
    return any(known.get(word, article[0]) != article[0] for article, word in a.articles)


def _case(a: Features, b: Features) -> tuple[float, float]:
    """Polish and polish, two words; and any other word with a capital on one side."""
    differ = a.capitals ^ b.capitals
    if not differ:
        return 0.0, 0.0
    shared = [word for word in differ if word in a.surface and word in b.surface]
    return float(any(word in en.CASED for word in shared)), float(bool(shared))
