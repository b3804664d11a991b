"""May one stored answer serve this question? Evidence beyond the cosine.

Cosine does not tell a paraphrase from its opposite ("turn on dark mode" and "turn off dark
mode" stand at 0.97), so it only proposes. A veto refuses what differs in a number, unit, date,
antonym or literal; everything else is weighed (evidence.py) by a verifier that was calibrated for
the encoder and the language (verifier.py). No calibration: nothing is served there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from tierway.policies import lexicon_en as en
from tierway.policies.evidence import COLUMNS, compare
from tierway.policies.questions import Features, features
from tierway.policies.verifier import Verifier

MAX_ERROR_RATE = 0.02
DOUBTFUL = 0.6
"""From this probability on a second opinion is worth its price."""
LOWEST_COSINE = 0.6
"""Below it two texts are strangers to the encoder: equal words were read wrongly."""
_EQUAL = COLUMNS.index("same-words")
MAX_CHARS = {"en": 400, "zh": 160}
"""Beyond it one differing clause hardly moves a vector, and the word rules were not made for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is a short constant: `equal` (the same words) or `equivalent` when served, else
    the veto, the evidence that spoke loudest against, `cosine` or `uncalibrated`. `probability`
    is that of one answer serving both, 0 after a veto. `uncertain`: not served, but near enough
    for a second opinion to decide."""

    serve: bool
    reason: str
    probability: float = 0.0
    uncertain: bool = False


class Equivalence:
    """Judges pairs of questions by the verifiers it was given; one per encoder."""

    def __init__(
        self, verifiers: Iterable[Verifier], *, max_error_rate: float = MAX_ERROR_RATE
    ) -> None:
        self._verifiers = {made.encoder: made for made in verifiers}
        self._max_error_rate = max_error_rate

    @classmethod
    def shipped(
        cls, *, max_error_rate: float = MAX_ERROR_RATE, more: Iterable[Verifier] = ()
    ) -> Equivalence:
        """With every verifier that comes with the package (policies/data), and `more`, which
        take precedence."""
        folder = resources.files("tierway.policies") / "data"
        made = []
        for file in folder.iterdir():
            if file.name.startswith("equivalence-") and file.name.endswith(".npz"):
                with file.open("rb") as opened:
                    made.append(Verifier.read(opened))
        return cls([*made, *more], max_error_rate=max_error_rate)

    def calibrated(self, encoder: str, language: str) -> bool:
        made = self._verifiers.get(encoder)
        return made is not None and language in made.scales

    def floor(self, encoder: str, language: str) -> float:
        """The cosine below which nothing is served and no second opinion asked whatever the
        words say; infinite where nothing is calibrated."""
        made = self._verifiers.get(encoder)
        scale = made.scales.get(language) if made else None
        if scale is None:
            return math.inf
        wanted = min(DOUBTFUL, 1.0 - self._max_error_rate)
        return max(LOWEST_COSINE, scale.lowest_cosine(wanted))

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
        made = self._verifiers.get(encoder)
        scale = made.scales.get(asked.language) if made else None
        if scale is None:
            return Verdict(False, "uncalibrated")
        if cosine < LOWEST_COSINE:
            return Verdict(False, "cosine")
        evidence = compare(asked, known, cosine)
        probability = scale.probability(evidence)
        allowed = self._max_error_rate
        if max_error_rate is not None:
            allowed = min(allowed, max_error_rate)
        if probability >= 1.0 - allowed:
            return Verdict(True, "equal" if evidence[_EQUAL] else "equivalent", probability)
        return Verdict(False, scale.against(evidence), probability, probability >= DOUBTFUL)


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
    """Each side has a number that the other has not, or as many with other units; a missing
    unit fits any: "age 16" and "16 years old". A number of one side alone is evidence only."""
    if a.numbers == b.numbers or not (a.numbers and b.numbers):
        return False
    if len(a.numbers) != len(b.numbers):
        values_a, values_b = {value for value, _ in a.numbers}, {value for value, _ in b.numbers}
        return bool(values_a - values_b) and bool(values_b - values_a)
    return any(
        value != other or (unit and other_unit and unit != other_unit)
        for (value, unit), (other, other_unit) in zip(
            sorted(a.numbers), sorted(b.numbers), strict=True
        )
    )


def _units_differ(a: Features, b: Features) -> bool:
    return bool(a.units - b.units and b.units - a.units)


def _dates_differ(a: Features, b: Features) -> bool:
    return bool(a.dates and b.dates) and a.dates != b.dates


def _literals_differ(a: Features, b: Features) -> bool:
    return _says_otherwise(a, b) or _says_otherwise(b, a)


def _says_otherwise(a: Features, b: Features) -> bool:
    """A literal of `a` that `b` has not, or has in other capitals among its own."""
    if a.literals <= b.literals:
        return False
    written = {literal.lower(): literal for literal in b.literals}
    return any(
        literal.lower() not in b.text or written.get(literal.lower(), literal) != literal
        for literal in a.literals
    )


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


_VETOES = (
    ("numbers", _numbers_differ),
    ("units", _units_differ),
    ("dates", _dates_differ),
    ("literals", _literals_differ),
    ("antonym", _opposite),
)
