"""May one stored answer serve this question? Evidence beyond the cosine.

Cosine does not tell a paraphrase from its opposite ("turn on dark mode" and "turn off dark
mode" stand at 0.97), so it only proposes. Two questions are first held against each other word by
word: any veto (numbers, units, dates, negation, antonyms, names, literals, question word, persons,
direction, order) refuses. What is left falls into a relation by its content words,

    equal   the same words in the same order, after synonyms, plurals, fillers and question frames
    loose   the same, but other function words between them
    extra   one side says more
    other   both sides have words of their own

and each relation has its own cut on the cosine, chosen by bench/calibrate.py per encoder and
language for a target share of wrong answers among those served. No calibration for an encoder,
language or relation: nothing is served there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from tierway.policies import lexicon_en as en
from tierway.policies.questions import Features, features

Relation = Literal["equal", "loose", "extra", "other"]
MAX_ERROR_RATE = 0.02
MAX_CHARS = {"en": 400, "zh": 160}
"""Beyond it one differing clause hardly moves a vector, and the word rules were not made for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is a short constant: the relation when served, else the veto or `cosine`,
    `uncalibrated`. `probability` is 1 minus the calibrated error rate of what is served at
    this cosine, 0 where nothing would be. `uncertain`: not served, yet so near that a second
    opinion may decide; never after a veto."""

    serve: bool
    reason: str
    probability: float = 0.0
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """Pairs at or above `cosine` were served with at most `error_rate` wrong in calibration."""

    error_rate: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The cuts of one encoder: language -> relation -> levels."""

    encoder: str
    levels: Mapping[str, Mapping[str, tuple[Level, ...]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Calibration:
        """From the JSON that bench/calibrate.py writes; KeyError or TypeError if it is not."""
        levels = {
            language: {
                relation: tuple(
                    Level(float(row["max_error_rate"]), float(row["cosine"])) for row in rows
                )
                for relation, rows in relations.items()
            }
            for language, relations in data["languages"].items()
        }
        return cls(str(data["encoder"]), levels)


class Equivalence:
    """Judges pairs of questions by the calibrations it was given; one per encoder."""

    def __init__(
        self, calibrations: Iterable[Calibration], *, max_error_rate: float = MAX_ERROR_RATE
    ) -> None:
        self._calibrations = {made.encoder: made for made in calibrations}
        self._max_error_rate = max_error_rate

    @classmethod
    def shipped(cls, *, max_error_rate: float = MAX_ERROR_RATE) -> Equivalence:
        """With every calibration that comes with the package (policies/data)."""
        folder = resources.files("tierway.policies") / "data"
        made = [
            Calibration.parse(json.loads(file.read_text(encoding="utf-8")))
            for file in folder.iterdir()
            if file.name.startswith("equivalence-") and file.name.endswith(".json")
        ]
        return cls(made, max_error_rate=max_error_rate)

    def calibrated(self, encoder: str, language: str) -> bool:
        made = self._calibrations.get(encoder)
        return made is not None and bool(made.levels.get(language))

    def floor(self, encoder: str, language: str) -> float:
        """The cosine below which nothing is served whatever the words say; infinite where
        nothing is calibrated."""
        made = self._calibrations.get(encoder)
        levels = made.levels.get(language, {}) if made else {}
        return min(
            (
                level.cosine
                for relation in levels.values()
                for level in relation
                if level.error_rate <= self._max_error_rate
            ),
            default=math.inf,
        )

    def judge(
        self,
        question: str | Features,
        stored: str | Features,
        cosine: float,
        encoder: str,
        *,
        max_error_rate: float | None = None,
    ) -> Verdict:
        """`max_error_rate` can only be stricter than the one given at construction."""
        asked = features(question) if isinstance(question, str) else question
        known = features(stored) if isinstance(stored, str) else stored
        if reason := veto(asked, known):
            return Verdict(False, reason)
        made = self._calibrations.get(encoder)
        relations = made.levels.get(asked.language) if made else None
        if not relations:
            return Verdict(False, "uncalibrated")
        relation = relation_of(asked, known)
        allowed = min(self._max_error_rate, max_error_rate or self._max_error_rate)
        reached = [level for level in relations.get(relation, ()) if cosine >= level.cosine]
        error_rate = min((level.error_rate for level in reached), default=1.0)
        if error_rate > allowed:
            reason = "cosine" if relations.get(relation) else relation
            near = cosine >= self.floor(encoder, asked.language)
            return Verdict(False, reason, 1 - error_rate, uncertain=near)
        return Verdict(True, relation, 1 - error_rate)


def relation_of(a: Features, b: Features) -> Relation:
    only_a, only_b = a.content - b.content, b.content - a.content
    if only_a and only_b:
        return "other"
    if only_a or only_b:
        return "extra"
    # Chinese content is characters: one more of them is another word (可爱的可, 可爱).
    if a.language == "zh" and Counter(a.words) != Counter(b.words):
        return "extra"
    return "equal" if a.key == b.key and not _other_article(a, b) else "loose"


def _other_article(a: Features, b: Features) -> bool:
    """The king, a king; one of them without any is as good: the black hole, black holes."""
    if a.articles == b.articles:
        return False
    known = {word: article[0] for article, word in b.articles}
    return any(known.get(word, article[0]) != article[0] for article, word in a.articles)


def veto(a: Features, b: Features) -> str:
    """Why the one question cannot stand for the other whatever the cosine; "" if nothing."""
    if any(len(side.text) > MAX_CHARS.get(side.language, MAX_CHARS["en"]) for side in (a, b)):
        return "too-long"
    if a.arithmetic or b.arithmetic:
        return "arithmetic"
    if not a.language or a.language != b.language:
        return "language"
    if a.code or b.code:
        return "code"
    if not a.content or not b.content:
        return "no-content"
    for reason, differs in _VETOES:
        if differs(a, b):
            return reason
    return ""


def _numbers_differ(a: Features, b: Features) -> bool:
    """A missing unit fits any: "age 16" and "16 years old"."""
    if a.numbers == b.numbers:
        return False
    if len(a.numbers) != len(b.numbers):
        return True
    return any(
        value != other or (unit and other_unit and unit != other_unit)
        for (value, unit), (other, other_unit) in zip(
            sorted(a.numbers), sorted(b.numbers), strict=True
        )
    )


def _units_differ(a: Features, b: Features) -> bool:
    return bool(a.units - b.units and b.units - a.units)


def _dates_differ(a: Features, b: Features) -> bool:
    return a.dates != b.dates


def _literals_differ(a: Features, b: Features) -> bool:
    return any(literal not in b.text for literal in a.literals) or any(
        literal not in a.text for literal in b.literals
    )


def _negation_differs(a: Features, b: Features) -> bool:
    return a.negations % 2 != b.negations % 2


def _opposite(a: Features, b: Features) -> bool:
    sides: dict[int, set[int]] = {}
    for axis, side in a.places - b.places:
        sides.setdefault(axis, set()).add(side)
    if any(axis in sides and side not in sides[axis] for axis, side in b.places - a.places):
        return True
    return a.language == "en" and (_prefixed(a, b) or _prefixed(b, a))


def _prefixed(a: Features, b: Features) -> bool:
    """A word of `a` that is a word of `b` with un-, dis-, non- ... before it."""
    return any(
        word.startswith(prefix) and word[len(prefix) :] in b.content
        for word in a.content - b.content
        for prefix in en.NEGATING_PREFIXES
    )


def _names_differ(a: Features, b: Features) -> bool:
    if not (a.cased and b.cased):
        return False
    return bool(a.names - b.surface) and bool(b.names - a.surface)


def _asks_differ(a: Features, b: Features) -> bool:
    """No question word counts as "what" ("capital of France"), unless it tells of somebody
    ("I need to verify my identity")."""
    if a.asks == b.asks:
        return False
    bare = (not a.asks or not b.asks) and not a.persons | b.persons
    return not (bare and a.asks | b.asks <= {"what"})


def _persons_differ(a: Features, b: Features) -> bool:
    if a.persons == b.persons or not a.persons or not b.persons:
        return False
    return not _anybody(a, b)


def _anybody(a: Features, b: Features) -> bool:
    """I and you are nobody in particular in English how-questions."""
    return a.language == "en" and "how" in a.asks & b.asks and a.persons | b.persons <= {1, 2}


def _swapped(a: Features, b: Features) -> bool:
    """Paris to London and back; what eats snakes and what snakes eat."""
    if [value for value, _ in a.numbers] != [value for value, _ in b.numbers]:
        return True
    if a.language == "en" and _roles_clash(a, b):
        return True
    if a.content != b.content or a.words == b.words:
        return False
    return tuple(dict.fromkeys(a.words)) != tuple(dict.fromkeys(b.words))


def _case_differs(a: Features, b: Features) -> bool:
    """Polish and polish: where both texts use capitals, or the two are known to be two words."""
    both = a.cased and b.cased
    return any(
        (both or word in en.CASED) and word in (b.surface if word in a.capitals else a.surface)
        for word in a.capitals ^ b.capitals
    )


def _roles_clash(a: Features, b: Features) -> bool:
    """The same object after another direction word, or the other way round."""
    marks, objects = {word: mark for mark, word in b.roles}, dict(b.roles)
    both = a.surface & b.surface
    return any(
        marks.get(word, mark) != mark
        or (objects.get(mark, word) != word and {word, objects[mark]} <= both)
        for mark, word in a.roles
        if word
    )


_VETOES = (
    ("numbers", _numbers_differ),
    ("units", _units_differ),
    ("dates", _dates_differ),
    ("literals", _literals_differ),
    ("negation", _negation_differs),
    ("antonym", _opposite),
    ("question-word", _asks_differ),
    ("names", _names_differ),
    ("case", _case_differs),
    ("person", _persons_differ),
    ("order", _swapped),
)
