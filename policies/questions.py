"""What a question says, taken apart once: the evidence that equivalence.py compares.

`features` runs on the event loop for every look-up: a pattern is only tried where a sign or word
that all its matches hold is there. Those of stored questions are kept, so that a candidate
costs comparisons only.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache, partial

from tierway.policies import lexicon as lex
from tierway.policies import lexicon_en as en
from tierway.policies import lexicon_phrases as phrases
from tierway.policies import lexicon_zh as zh
from tierway.policies.quantities import PLACE, quantities
from tierway.policies.units import EN_DATES, ZH_DATE

_EN_TOKEN = re.compile(rf"[a-zß-ɏ][a-zß-ɏ'+#.]*[a-zß-ɏ+#]|[a-zß-ɏ]|{PLACE}")
_ZH_LATIN = re.compile(r"[a-z0-9ß-ɏ+#.]+")
_LITERAL = re.compile(
    r"`[^`]+`|\"[^\"]{1,80}\"|“[^”]{1,80}”|「[^」]{1,80}」|《[^》]{1,80}》|'(?<!\w')[^']{2,80}'(?!\w)|"
    r"https?://\S+|\S+@\S+\.\w+|-(?<!\w-)-?[A-Za-z][\w-]*|(?=[.~/])(?<!\w)[.~]{0,2}/[\w./-]+|"
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
_SIGNS = re.compile(r"[^\w\s.,?!']")
_MIXED = re.compile(r"[A-Z\d](?<=[a-z][A-Z]|[A-Za-z]\d)")
_LATIN_WORD = re.compile(r"[A-Za-z][\w'-]*")
_CAPITALISED = re.compile(r"\s(?<![.!?:]\s)[(\"“]?([A-Z][\w&+#.-]*\w|[A-Z])(?:'s)?\b")
_CODE = re.compile(
    r"```|[;{}]\s*(?:\n|$)|^\s*(?:def|class|import|select|function|const|#include)\b", re.M
)
# Order means nothing between two alternatives of one word each.
_OPERANDS = re.compile(r"\b(between [\w+#.]+ and|[\w+#.]+ or) ([\w+#]+)(?=[\s?.!]*$)")
_OPERATOR = re.compile(r" or |between ")
_ZH_OPERANDS = re.compile(
    r"^ ?([a-z0-9]+|[\u4e00-\u9fff]{2,4})(?:和|与|跟|还是)([a-z0-9]+|[\u4e00-\u9fff]{2,4}?)"
    r"(?=之间|的?(?:区别|差别|差异|不同)|哪| ?〈|有〈)"
)
_ZH_OPERATOR = re.compile("[和与跟还]")
# Latin words whole, Chinese by character: no segmenter agrees with itself on paraphrases.
_ZH_WORD = re.compile(rf"[a-z0-9ß-ɏ+#.]+|[\u3400-\u9fff]|{PLACE}")
_ZH_PIECE = re.compile(rf"[a-z0-9ß-ɏ+#.]+|[\u3400-\u9fff]|{PLACE}|〈\w+〉")
LONGEST = 500
"""Characters; the patterns above take up to quadratic time."""


@dataclass(frozen=True, slots=True)
class Features:
    """`words` are the content words in order (characters in Chinese), after synonyms, plurals,
    question words and fillers are taken out; `content` the same as a set; `key` is every word
    in order but those that change nothing: equal keys ask the same. `articles` are
    (article, word behind it). `capitals` are the words
    that do not open the text and are written with one. `places` are polarity
    axes touched: word -> its (axis, side) pairs. `roles` are (direction word, its object)."""

    language: str
    text: str
    words: tuple[str, ...]
    content: frozenset[str]
    key: tuple[str, ...]
    articles: tuple[tuple[str, str], ...]
    surface: frozenset[str]
    numbers: tuple[tuple[float, str], ...]
    units: frozenset[str]
    dates: frozenset[str]
    literals: frozenset[str]
    names: frozenset[str]
    capitals: frozenset[str]
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


def _literals(text: str) -> frozenset[str]:
    """Small letters and capitals are two things where signs stand among them: -x and -X."""
    if not (_LITERAL_SIGN.search(text) or _MIXED.search(text)):
        return frozenset()
    found = (match.strip("`\"“”'「」《》 ") for match in _LITERAL.findall(text))
    return frozenset([word if _SIGNS.search(word) else word.lower() for word in found if word])


def _english(text: str, common: partial[Features]) -> Features:
    names, capitals, cased = _names(text)
    lowered = phrases.rewrite(phrases.polite(text.lower()), phrases.ENGLISH)
    amounts = quantities(lowered, "en")
    rest = amounts.rest
    if _OPERATOR.search(rest):
        rest = _OPERANDS.sub(_sorted_operands, rest)
    tokens = [token.strip(".'") for token in _EN_TOKEN.findall(rest)]
    read = [_read(token) for token in tokens]
    words = tuple(
        [
            word or (stem if token in names else "")
            for token, (stem, word, _) in zip(tokens, read, strict=True)
        ]
    )
    words = tuple([word for word in words if word])
    stems = [stem for stem, _, _ in read]
    return common(
        words=words,
        content=frozenset(words),
        key=_english_key([token for token in tokens if token not in en.ARTICLES])
        + (_dates_in_order(lowered) if len(amounts.dates) > 1 else ()),
        articles=tuple(
            [
                (token, after)
                for token, after in itertools.pairwise(stems)
                if token in en.ARTICLES and after not in en.ARTICLES
            ]
        ),
        surface=frozenset(tokens + stems),
        numbers=amounts.numbers,
        units=amounts.units,
        dates=amounts.dates,
        names=names,
        capitals=capitals,
        cased=cased,
        places=_NOWHERE.union(*[places for _, _, places in read]),
        negations=len([token for token in tokens if token in en.NEGATIONS]),
        asks=_english_asks(tokens),
        persons=frozenset([en.PERSONS[t] for t in tokens if t in en.PERSONS]),
        roles=_roles(tokens),
    )


def _english_key(tokens: list[str]) -> tuple[str, ...]:
    key: list[str] = []
    before = ""
    for token in tokens:
        if token in en.FILLERS:
            continue
        opens = token in en.OPENING and (not key or before in en.QUESTION_WORDS)
        if not opens:
            key.append(en.QUESTION_WORDS.get(token) or _folded(token))
        before = token
    # Why does it not work, why doesn't it work: within one clause the place of "not" is free.
    if key.count("not") == 1 and en.CLAUSES.isdisjoint(tokens[1:]):
        key.remove("not")
        key.append("not")
    # "What" may be left out: capital of France.
    return tuple(
        [("is" if word == "are" else word) for word in (key[1:] if key[:1] == ["what"] else key)]
    )


def _dates_in_order(text: str) -> tuple[str, ...]:
    return tuple([EN_DATES[word] for word in re.findall("[a-z]+", text) if word in EN_DATES])


def _names(text: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """Capitalised words within the sentence, all words with capitals that grammar does not ask
    for, and whether capitals mean anything here."""
    words = _LATIN_WORD.findall(text)
    if not words or text.islower():
        return frozenset(), frozenset(), False
    capital = {word.rstrip(".'").lower() for word in words[1:] if word[0].isupper()}
    capital -= {word.lower() for word in _OPENS_SENTENCE.findall(text)}
    if len(words[0]) > 1 and words[0].isupper():
        capital.add(words[0].lower())
    capitals = frozenset([word.removesuffix("'s") for word in capital if word not in _FIRST_PERSON])
    count = len([word for word in words[1:] if word[0].isupper()])
    if not words[0][0].isupper() or count > 0.6 * len(words[1:]):
        return frozenset(), capitals, False
    if not count and text.startswith(words[0]):
        return frozenset(), capitals, True
    found = (name.lower().rstrip(".") for name in _CAPITALISED.findall(text))
    return frozenset(name for name in found if name not in _FIRST_PERSON), capitals, True


_OPENS_SENTENCE = re.compile(r"[.!?:]\s+[\"(“]?([A-Z][a-z]*)\b")
_FIRST_PERSON = frozenset(["i", "i'm", "i've", "i'd", "i'll"])


def _stem(word: str) -> str:
    """Regular plurals and third persons without their s; nothing that makes another word."""
    if word in en.IRREGULAR:
        return en.IRREGULAR[word]
    if len(word) < 4 or word in en.NO_PLURALS:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")) or (len(word) > 5 and word.endswith("oes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "ics", "ings")):
        return word[:-1]
    return word


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


@lru_cache(maxsize=8192)
def _folded(token: str) -> str:
    stem = _stem(token)
    return _SYNONYMS.get(stem, stem)


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
    *before, first, joint = match[1].split(" ")
    first, second = sorted((first, match[2]))
    return " ".join([*before, first, joint, second])


def _chinese(text: str, common: partial[Features]) -> Features:
    lowered = phrases.rewrite(phrases.polite(text.lower()), phrases.CHINESE)
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
    for word, to in zh.SYNONYMS:
        if word in rest:
            rest = rest.replace(word, to)
    key = _chinese_key(rest, bool(persons))
    rest = zh.MARK.sub("", rest)
    drop = zh.STOP if len(persons) > 1 else _ZH_NO_CONTENT
    words = tuple([piece for piece in _ZH_WORD.findall(rest) if piece not in drop])
    return common(
        words=words,
        content=frozenset(words),
        key=key + (tuple(ZH_DATE.findall(text)) if len(amounts.dates) > 1 else ()),
        surface=frozenset(words),
        numbers=amounts.numbers,
        units=amounts.units,
        dates=amounts.dates,
        names=frozenset(_ZH_LATIN.findall(rest)),
        articles=(),
        capitals=frozenset(),
        cased=True,
        places=places,
        negations=negations,
        asks=asks,
        persons=persons,
        roles=directions,
    )


def _chinese_key(text: str, personal: bool) -> tuple[str, ...]:
    """Every character but 是 before what is asked, and 的 between nouns; somebody's verb before
    的 is no noun."""
    if not personal and zh.ASKED_FOR.search(text):
        text = zh.OF.sub("", text)
    pieces = _ZH_PIECE.findall(zh.IS.sub("", text))
    if not zh.REPORTS.search(text):
        pieces = [piece for piece in pieces if piece not in ("〈why〉", "〈yn〉")]
    return tuple(pieces)


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
