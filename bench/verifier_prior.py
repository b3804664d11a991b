"""What the evidence is worth, in logits: the shipped verifiers, and the priors of calibrate.py.

No pair trained these: they were set by reading what the streams of the development set serve and
refuse, English with MiniLM, Chinese with USE. The bias puts the default budget where those streams
kept it as read by eye. A fit moves from here as far as its pairs carry it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tierway.policies.evidence import COLUMNS
from tierway.policies.verifier import Scale

_ENGLISH: Mapping[str, float] = {
    "closeness": 1.5, "same-words": 3.75, "replaced": -3, "added": -0.75, "light": -0.225,
    "kin": -2.25, "function": -0.225, "overlap": -0.9, "names-replaced": -3.75,
    "names-added": -1.5, "numbers-added": -1.8, "negation": -6, "yes-no": -2.4, "why": -2.55,
    "asks": -3.6, "what-how": -0.6, "past": -2.25, "person": -1.8, "somebody": -0.3,
    "moved": -0.9, "swapped": -4.5, "roles": -2.25, "modal": -0.45, "degree": -0.75,
    "clauses": -0.15, "length": -0.6, "article": -1.5, "case": -4.5, "capital": -0.15,
    "few-words": -0.9, "no-question": -0.45,
}  # fmt: skip
_CHINESE: Mapping[str, float] = {
    "closeness": 1.5, "same-words": 3, "replaced": -2.25, "added": -1.2, "light": -0.9,
    "kin": 0, "function": -0.75, "overlap": -1.5, "names-replaced": -3.75, "names-added": -1.5,
    "numbers-added": -2.25, "negation": -6, "yes-no": -1.5, "why": -2.25, "asks": -3,
    "what-how": -1.5, "past": -0.75, "person": -3, "somebody": -0.6, "moved": -0.6,
    "swapped": -4.5, "roles": -1.5, "modal": 0, "degree": 0, "clauses": -0.15, "length": -0.6,
    "article": 0, "case": 0, "capital": 0, "few-words": -0.75, "no-question": -2.25,
}  # fmt: skip

PRIORS: Mapping[str, Scale] = {
    "en": Scale(tuple(_ENGLISH[name] for name in COLUMNS), 1.34),
    "zh": Scale(tuple(_CHINESE[name] for name in COLUMNS), -0.235),
}
