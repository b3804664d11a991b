"""What the marks taught this process: pairs that are blocked, and how far to trust the verifier.

A fold of the journal's marks (cache/feedback.py writes them), asked at every hit by meaning
before it is served.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from tierway.policies.feedback import Learning, Mark
from tierway.policies.protocols import Clock, Note

MARK = "mark"
PAIR_TTL_S = 365 * 86400.0
_BLOCKED_KEPT = 100_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Near:
    """The stored question that came nearest to an asked one, and what was thought of the pair.

    `probability` is the verifier's, before marks; `language` is the asked question's. The pair
    is not `judged` by the verifier where another opinion decided."""

    entry_id: str
    question: str
    cosine: float
    probability: float
    language: str
    judged: bool = True


class Lessons:
    """`bound` is the operator's max_error_rate, `wall` seconds since the epoch."""

    def __init__(self, bound: float, wall: Clock) -> None:
        self._bound, self._wall = bound, wall
        self._learning = Learning(bound)
        self._blocked: OrderedDict[str, float] = OrderedDict()

    def take(self, note: Note) -> None:
        """The listener for marks."""
        body = note.body
        mark = Mark(float(body["probability"]), bool(body["correct"]), note.at)
        if body["judged"]:
            self._learning.add(note.tenant, str(body["language"]), str(body["key"]), mark)
        pair = str(body["pair"])
        if mark.correct:
            self._blocked.pop(pair, None)
            return
        self._blocked[pair] = note.expires_at
        while len(self._blocked) > _BLOCKED_KEPT:
            self._blocked.popitem(last=False)

    def why_not(
        self,
        tenant: str,
        partition: bytes,
        asked: str,
        near: Near,
        max_error_rate: float | None = None,
    ) -> str:
        """Why a pair that the verifier serves is not served all the same, "" where it is."""
        now_at = self._wall()
        if (
            self._blocked
            and self._blocked.get(pair_of(partition, asked, near.question), 0) > now_at
        ):
            return "blocked"
        learnt = self._learning.adjust(near.probability, tenant, near.language, now_at)
        cut = 1 - min(self._bound, max_error_rate or self._bound)
        return "learned" if learnt < min(cut, near.probability) - _ROUNDING else ""

    def state(self) -> dict[str, object]:
        """For the operator: how much was taught by whom."""
        marks = [
            {"tenant": tenant, "language": language, "right": right, "wrong": wrong}
            for (tenant, language), (right, wrong) in sorted(self._learning.counts().items())
        ]
        return {"blocked_pairs": len(self._blocked), "marks": marks}


def mark_body(key: str, pair: str, near: Near, correct: bool) -> dict[str, object]:
    """The body of a mark's note. `key` names what was marked, `pair` is its `pair_of`."""
    return {
        "key": key,
        "pair": pair,
        "probability": near.probability,
        "language": near.language,
        "judged": near.judged,
        "correct": correct,
    }


def pair_of(partition: bytes, one: str, other: str) -> str:
    """The digest of two questions of a partition, whichever was asked; their case, white space
    and last marks do not count. Texts cannot be read back from it."""
    digest = blake2b(partition, digest_size=16)
    for text in sorted((_plain(one), _plain(other))):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).rstrip("?!.。… ")
