"""Why two requests with the same question are not compared: what of their keys differs, and how.

A semantic lookup stays among requests that are equal in everything but the last question
(cache/keys.py). A clock in a system prompt is enough to make every request one of a kind; this
finds such things and says which `cache.ignore` rule would take them out.

It looks at the first difference of two texts and at what a few patterns recognise there. It does
not know whether an answer depends on it: that is the operator's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

AROUND = 24  # characters of a prompt shown before what differs
SHOWN = 60


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a partition is made of but for the question. `system` may be cut short, `history`
    is a digest of the turns between, `fields` are body fields by name as short texts."""

    partition: bytes
    system: str = ""
    history: bytes = b""
    turns: int = 0
    namespace: str = ""
    names: str = ""
    context_id: str = ""
    user: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """`what` is a short constant (system, history, field, ...), `detail` for a reader; `kind`
    is what a pattern recognised, `ignore` the rule that would make the two texts one."""

    what: str
    detail: str
    kind: str = ""
    ignore: str = ""


_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
# The first that covers the difference in both texts is taken: the longest come first.
_KINDS: tuple[tuple[str, str], ...] = (
    ("a uuid", r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    (
        "a timestamp",
        r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?",
    ),
    ("a date", r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}/\d{1,2}/\d{4}"),
    ("a date", rf"(?:{_DAY},? )?{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"),
    ("a date", rf"(?:{_DAY},? )?\d{{1,2}} {_MONTH} \d{{4}}"),
    ("a date", r"\d{4} ?年 ?\d{1,2} ?月 ?\d{1,2} ?[日号](?: ?星期[一二三四五六日天])?"),
    ("a time", r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?"),
    ("a timestamp", r"\b1\d{9}(?:\d{3})?\b"),
    ("an e-mail address", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    ("an identifier", r"\b(?=[\w-]*\d)[A-Za-z0-9][\w-]{7,}\b"),
    ("a weekday", rf"{_DAY}"),
    ("a number", r"\d+(?:\.\d+)?"),
)
_NAME = re.compile(r"[A-Z][\w'-]+(?: [A-Z][\w'-]+){0,2}")
_PATTERNS = tuple((kind, text, re.compile(text)) for kind, text in _KINDS)


def differences(one: Ingredients, other: Ingredients) -> list[Difference]:
    """What differs from `one` to `other`, the most telling first; empty for equal ones."""
    found = []
    if one.system != other.system:
        found.append(_of_texts("system", one.system, other.system))
    if (one.turns, one.history) != (other.turns, other.history):
        turns = f"{one.turns} and {other.turns} earlier turns"
        found.append(Difference("history", f"the conversations before it differ ({turns})"))
    for name in sorted({*one.fields, *other.fields}):
        before, now = one.fields.get(name, "absent"), other.fields.get(name, "absent")
        if before != now:
            detail = f"{name} is {_short(before)}, then {_short(now)}"
            found.append(Difference("field", detail, kind=name))
    for what in ("namespace", "context_id", "user", "names"):
        if getattr(one, what) != getattr(other, what):
            found.append(Difference(what, _PLAIN[what]))
    return found


_PLAIN = {
    "namespace": "the namespaces differ",
    "context_id": "the documents' context_id differs",
    "user": "the users differ, and cache.scope or a personal question keeps them apart",
    "names": "the requested model, or a model's revision, differs",
}


def _of_texts(what: str, one: str, other: str) -> Difference:
    at = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    if not one or not other:
        return Difference(what, "one of them has no system prompt")
    for kind, text, pattern in _PATTERNS:
        mine, theirs = _covering(pattern, one, at), _covering(pattern, other, at)
        if mine and theirs:
            place = f"the system prompt differs at character {mine.start() + 1}"
            shown = f"{_before(one, mine.start())}{mine[0]!r} and {theirs[0]!r}: {kind}"
            return Difference(what, f"{place}: {shown}", kind, _rule(one, other, mine, text))
    mine, theirs = _covering(_NAME, one, at), _covering(_NAME, other, at)
    if mine and theirs:
        shown = f"{mine[0]!r} and {theirs[0]!r}: perhaps a name"
        detail = f"the system prompt differs at character {mine.start() + 1}: {shown}"
        return Difference(what, detail, "a name")
    shown = f"{_short(one[at:])!r} and {_short(other[at:])!r}"
    return Difference(what, f"the system prompt differs at character {at + 1}: {shown}")


def _covering(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """The match of the pattern in which the difference lies."""
    near = max(0, at - 2 * SHOWN)
    for found in pattern.finditer(text, near, at + 2 * SHOWN):
        if found.start() <= at <= found.end():
            return found
    return None


def _rule(one: str, other: str, mine: re.Match[str], pattern: str) -> str:
    """A regular expression that cuts the difference out; "" where more would remain."""
    line = one[: mine.start()].rsplit("\n", 1)[-1][-AROUND:]
    # From a word's beginning, so that the rule reads as one.
    lead = re.escape(line.split(" ", 1)[-1] if len(line) == AROUND else line)
    rule = f"{lead}(?:{pattern})".replace("\\ ", " ")
    cut = re.compile(rule)
    return rule if cut.sub("", one) == cut.sub("", other) else ""


def _before(text: str, at: int) -> str:
    lead = text[max(0, at - AROUND) : at].rsplit("\n", 1)[-1]
    return f"after {lead.strip()!r}: " if lead.strip() else ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
