"""What a question says, taken apart once: the evidence that equivalence.py compares.

`features` runs on the event loop for every look-up: a pattern is only tried where a sign or word
that all its matches hold is there. Those of stored questions are kept, so that a candidate
costs comparisons only.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache, partial

from tierway.policies import lexicon as lex
from tierway.policies import lexicon_en as en
from tierway.policies import lexicon_phrases as phrases
from tierway.policies import lexicon_zh as zh
from tierway.policies.quantities import quantities

_EN_TOKEN = re.compile(r"[a-z][a-z'+#.]*[a-z+#]|[a-z]")
_ZH_LATIN = re.compile(r"[a-z0-9+#.]+")
_LITERAL = re.compile(
    r"`[^`]+`|\"[^\"]{1,80}\"|“[^”]{1,80}”|「[^」]{1,80}」|《[^》]{1,80}》|'(?<!\w')[^']{2,80}'(?!\w)|"
    r"https?://\S+|\S+@\S+\.\w+|-(?<!\w-)-?[a-z][\w-]+|(?=[.~/])(?<!\w)[.~]{0,2}/[\w./-]+|"
    # Words with more than small letters in them; the first look spares all others.
    r"\b(?=[a-z]*[^a-z\s])(?:\w+(?:_\w+)+\b|[a-z]+[A-Z]\w*\b|\w+\(\)|\w+(?:\.\w+)+\(?|"
    r"[A-Za-z]+\d+\w*\b|\d+[A-Za-z]+\d\w*\b)|"
    # Numbers that a float does not tell from their neighbours.
    r"\d[\d,]{15,}|[零一二三四五六七八九十百千万亿两]{16,}"
)
# In every literal stands one of these.
_LITERAL_SIGN = re.compile(
    r"[`\"“「《/@_]|\.\w|\(\)|(?<!\w)['-]|\d[\d,]{15}|[零一二三四五六七八九十百千万亿两]{16}"
)
_MIXED = re.compile(r"[A-Z\d](?<=[a-z][A-Z]|[A-Za-z]\d)")
_LATIN_WORD = re.compile(r"[A-Za-z][\w'-]*")
_CAPITALISED = re.compile(r"\s(?<![.!?:]\s)[(\"“]?([A-Z][\w&+#.-]*\w|[A-Z])(?:'s)?\b")
_CODE = re.compile(
    r"```|[;{}]\s*(?:\n|$)|^\s*(?:def|class|import|select|function|const|#include)\b", re.M
)
_OPERANDS = re.compile(r"\b([\w+#.]+) (and|or|vs\.?|versus) ([\w+#.]+)\b")
_OPERATOR = re.compile(r" (?:and|or|vs)")
_ZH_OPERANDS = re.compile(
    r"([a-z0-9]+|[\u4e00-\u9fff]{2,4}?)(?:和|与|跟|还是)([a-z0-9]+|[\u4e00-\u9fff]{2,4}?)(?=的|哪|有|"
    r"谁|之|比| |〈)"
)
_ZH_OPERATOR = re.compile("[和与跟还]")
# Latin words whole, Chinese by character: no segmenter agrees with itself on paraphrases.
_ZH_WORD = re.compile(r"[a-z0-9+#.]+|[\u3400-\u9fff]")
LONGEST = 500
"""Characters; the patterns above take up to quadratic time."""


@dataclass(frozen=True, slots=True)
class Features:
    """`words` are the content words in order (characters in Chinese), after synonyms, plurals,
    question words and fillers are taken out; `content` the same as a set; `grammar` the words
    without content that still change the meaning. `places` are polarity
    axes touched: word -> its (axis, side) pairs. `roles` are (direction word, its object)."""

    language: str
    text: str
    words: tuple[str, ...]
    content: frozenset[str]
    grammar: frozenset[str]
    surface: frozenset[str]
    numbers: tuple[tuple[float, str], ...]
    units: frozenset[str]
    dates: frozenset[str]
    literals: frozenset[str]
    names: frozenset[str]
    cased: bool
    places: frozenset[tuple[int, int]]
    negations: int
    asks: frozenset[str]
    persons: frozenset[int]
    roles: frozenset[tuple[str, str]]
    arithmetic: bool
    code: bool


def features(question: str) -> Features:
    """Of a question beyond LONGEST only its beginning is looked at, and nothing serves it."""
    text = unicodedata.normalize("NFKC", question[: LONGEST + 1]).strip()
    language = lex.language_of(text)
    common = partial(
        Features,
        language=language,
        text=text.lower(),
        literals=_literals(text),
        arithmetic=lex.arithmetic(text),
        code=_CODE.search(text) is not None,
    )
    return _chinese(text, common) if language == "zh" else _english(text, common)


def self_contained(question: str) -> bool:
    """False when the question leans on earlier turns: pronouns, `continue`, a word or two."""
    text = unicodedata.normalize("NFKC", _ends(question)).strip()
    if lex.ANAPHORA.search(lex.NOT_ANAPHORA.sub(" ", text)):
        return False
    if lex.language_of(text) == "zh":
        return len(re.findall(r"[\u4e00-\u9fff]|[A-Za-z0-9]+", text)) >= 5
    return len(text.split()) >= 4


def personal(question: str) -> bool:
    """True when the answer depends on who asks: my order, 我的余额."""
    return lex.PERSONAL.search(_ends(question)) is not None


def time_sensitive(question: str) -> bool:
    """True when the answer changes within days: today, latest, 天气, price."""
    return _ages(_ends(question))


@lru_cache(maxsize=4096)
def _ages(text: str) -> bool:
    # Asked of every request, and many requests are the same: the search costs a tenth of a hit.
    return lex.TIME_SENSITIVE.search(text) is not None


def _ends(text: str) -> str:
    """What a long text asks stands at its beginning or its end."""
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}\n{text[-LONGEST:]}"


def _literals(text: str) -> frozenset[str]:
    if not (_LITERAL_SIGN.search(text) or _MIXED.search(text)):
        return frozenset()
    found = (match.strip("`\"“”'「」《》 ").lower() for match in _LITERAL.findall(text))
    return frozenset(literal for literal in found if literal)


def _english(text: str, common: partial[Features]) -> Features:
    names, cased = _names(text)
    lowered = phrases.rewrite(text.lower(), phrases.ENGLISH)
    amounts = quantities(lowered, "en")
    rest = amounts.rest
    if _OPERATOR.search(rest):
        rest = _OPERANDS.sub(_sorted_operands, rest)
    tokens = [token.strip(".'") for token in _EN_TOKEN.findall(rest)]
    read = [_read(token) for token in tokens]
    words = tuple([word for _, word, _ in read if word])
    stems = [stem for stem, _, _ in read]
    return common(
        words=words,
        content=frozenset(words),
        grammar=en.GRAMMAR.intersection(tokens) | ({"do"} if tokens.count("do") > 1 else set()),
        surface=frozenset(tokens + stems),
        numbers=amounts.numbers,
        units=amounts.units,
        dates=amounts.dates,
        names=names,
        cased=cased,
        places=_NOWHERE.union(*[places for _, _, places in read]),
        negations=len([token for token in tokens if token in en.NEGATIONS]),
        asks=_english_asks(tokens),
        persons=frozenset([en.PERSONS[t] for t in tokens if t in en.PERSONS]),
        roles=_roles(tokens),
    )


def _names(text: str) -> tuple[frozenset[str], bool]:
    """Capitalised words within the sentence, and whether capitals mean anything here."""
    words = _LATIN_WORD.findall(text)
    if not words or not words[0][0].isupper():
        return frozenset(), False
    capital = len([word for word in words[1:] if word[0].isupper()])
    if capital > 0.6 * len(words[1:]):
        return frozenset(), False
    if not capital and text.startswith(words[0]):
        return frozenset(), True
    found = (name.lower().rstrip(".") for name in _CAPITALISED.findall(text))
    return frozenset(name for name in found if name not in en.STOP), True


def _stem(word: str) -> str:
    """Plural, -ing and -ed off; not a linguist: it only has to do the same on both sides."""
    if word in en.IRREGULAR:
        return en.IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    for ending in ("ment", "ness"):
        if len(word) > 7 and word.endswith(ending):
            word = word[:-4]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word[: -len(ending)]
        if word.endswith(ending) and len(base) >= 3 and re.search("[aeiouy]", base):
            word = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


# The tables hold whole words; texts are compared by stem.
_SYNONYMS = {_stem(word): _stem(to) for word, to in en.SYNONYMS.items()}
_STEM_AXES = {_stem(word): places for word, places in en.AXES.items()}


_NOWHERE: frozenset[tuple[int, int]] = frozenset()
_NO_CONTENT = en.STOP | en.NEGATIONS | en.QUESTION_WORDS.keys()


@lru_cache(maxsize=8192)
def _read(token: str) -> tuple[str, str, frozenset[tuple[int, int]]]:
    """Its stem, the content word it stands for ("" if none) and the polarity axes it touches."""
    stem = _stem(token)
    word = "" if token in _NO_CONTENT else _SYNONYMS.get(stem, stem)
    return stem, word, en.AXES.get(token) or _STEM_AXES.get(stem) or _NOWHERE


def _english_asks(tokens: list[str]) -> frozenset[str]:
    """The first question word (later ones mostly open relative clauses), else the kind of verb
    that a yes-or-no question opens with; and whether it asks about the past."""
    past = {"past"} if en.PAST.intersection(tokens) else set()
    if tokens and tokens[0] in en.OPENERS:
        return frozenset({"yn-" + en.OPENERS[tokens[0]]} | past)
    asked = next((en.QUESTION_WORDS[t] for t in tokens if t in en.QUESTION_WORDS), "")
    return frozenset(({asked} if asked else set()) | past)


def _roles(tokens: list[str]) -> frozenset[tuple[str, str]]:
    if en.DIRECTIONS.isdisjoint(tokens):
        return frozenset()
    roles: set[tuple[str, str]] = set()
    for at, token in enumerate(tokens):
        if token in en.DIRECTIONS:
            follow = (t for t in tokens[at + 1 : at + 4] if t not in en.STOP)
            roles.add((token, _stem(next(follow, ""))))
    return frozenset(roles)


def _sorted_operands(match: re.Match[str]) -> str:
    first, second = sorted((match[1], match[3]))
    return f"{first} {match[2]} {second}"


def _chinese(text: str, common: partial[Features]) -> Features:
    lowered = phrases.rewrite(text.lower(), phrases.CHINESE)
    asks = frozenset(zh.MARK.findall(lowered))
    amounts = quantities(lowered, "zh")
    rest = amounts.rest
    if _ZH_OPERATOR.search(rest):
        rest = _ZH_OPERANDS.sub(_sorted_zh_operands, rest)
    places = _zh_places(rest)
    persons = frozenset([who for sign, who in zh.PERSONS.items() if sign in rest])
    negations = 0
    if zh.NEGATION.search(rest):
        negations = len(zh.NEGATION.findall(zh.NO_NEGATION.sub("", rest)))
    directions = frozenset([(mark, "") for mark in zh.DIRECTION.findall(rest)])
    rest = zh.MARK.sub("", rest)
    for word, to in zh.SYNONYMS:
        if word in rest:
            rest = rest.replace(word, to)
    drop = zh.STOP if len(persons) > 1 else _ZH_NO_CONTENT
    words = tuple([piece for piece in _ZH_WORD.findall(rest) if piece not in drop])
    return common(
        words=words,
        content=frozenset(words),
        grammar=frozenset(
            word[0] + "?" * (len(word) > 1)
            for word in zh.GRAMMAR.findall(zh.NO_GRAMMAR.sub("", text))
        ),
        surface=frozenset(words),
        numbers=amounts.numbers,
        units=amounts.units,
        dates=amounts.dates,
        names=frozenset(_ZH_LATIN.findall(rest)),
        cased=True,
        places=places,
        negations=negations,
        asks=asks,
        persons=persons,
        roles=directions,
    )


_ZH_NO_CONTENT = zh.STOP | zh.PERSONS.keys()


def _zh_places(text: str) -> frozenset[tuple[int, int]]:
    """Longest words first, each stretch of text counted once: 提前 is not 前."""
    ranks = [
        rank
        for sign in set(text)
        for rank in _ZH_AXIS_RANKS.get(sign, ())
        if _ZH_AXIS_WORDS[rank] in text
    ]
    found: set[tuple[int, int]] = set()
    for rank in sorted(ranks):
        word = _ZH_AXIS_WORDS[rank]
        if word in text:
            found |= zh.AXES[word]
            text = text.replace(word, " ")
    return frozenset(found)


_ZH_AXIS_WORDS = tuple(sorted(zh.AXES, key=lambda word: -len(word)))
_ZH_AXIS_RANKS = {
    sign: tuple(_ZH_AXIS_WORDS.index(word) for word in words)
    for sign, words in lex.by_sign(zh.AXES).items()
}


def _sorted_zh_operands(match: re.Match[str]) -> str:
    first, second = sorted((match[1], match[2]))
    return f"{first}和{second}"
