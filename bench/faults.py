"""Faults that a simulated engine shows on demand: by a directive in the prompt or by a switch.

    500 | 429 7 | 503 2    that status, with Retry-After when a second number is there
    refuse                 connection reset before any byte
    hang                   accepted, then nothing ever
    stall N                silence after N tokens
    cut N                  connection closed after N tokens
    broken-json N          a malformed event after N tokens; half a body when not streaming
    error-event N          an error object in the stream after N tokens; else status 500
    slow S                 S more seconds before the first token

Seconds here are real ones, whatever the engine's speed. In a prompt the same words stand in
double brackets after `fault:`, as in `[[fault:429 7]]`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

FaultKind = Literal[
    "status", "refuse", "hang", "stall", "cut", "broken-json", "error-event", "slow"
]

_DIRECTIVE = re.compile(r"\[\[fault:([^\]]*)\]\]")
_PLAIN = ("refuse", "hang")
_COUNTED = ("stall", "cut", "broken-json", "error-event", "slow")


@dataclass(frozen=True, slots=True)
class Fault:
    """`amount` counts tokens, or seconds for `slow` and for a status' Retry-After (0: none)."""

    kind: FaultKind
    amount: float = 0.0
    status: int = 0

    @property
    def tokens(self) -> int:
        return int(self.amount)


def parse_fault(text: str) -> Fault:
    """ValueError names the text and what is allowed."""
    match text.split():
        case [code] | [code, _] if re.fullmatch(r"[45]\d\d", code):
            return Fault("status", _amount(text, text.split()[1:]), int(code))
        case [word] if word in _PLAIN:
            return Fault(cast(FaultKind, word))
        case [word, *rest] if word in _COUNTED and len(rest) <= 1:
            return Fault(cast(FaultKind, word), _amount(text, rest))
        case _:
            raise ValueError(f"fault {text!r}: {_ALLOWED}")


_ALLOWED = (
    "allowed are a status from 400 to 599 with an optional Retry-After, "
    f"{', '.join(_PLAIN)}, and {', '.join(_COUNTED)} with a number that is not negative"
)


def _amount(text: str, rest: list[str]) -> float:
    try:
        amount = float(rest[0]) if rest else 0.0
    except ValueError:
        raise ValueError(f"fault {text!r}: {_ALLOWED}") from None
    if not 0 <= amount < float("inf"):
        raise ValueError(f"fault {text!r}: {_ALLOWED}")
    return amount


def directive(prompt: str) -> Fault | None:
    """The first fault that a prompt asks for; ValueError when it is none we know."""
    found = _DIRECTIVE.search(prompt)
    return parse_fault(found[1]) if found else None


class FaultSwitch:
    """A fault for whoever comes: `{"fault": "500", "share": 0.3, "count": 2, "scope": "all"}`.

    `share` of the requests are hit, drawn from the seed; after `count` hits the switch is off
    again. Scope `inference` (the default) leaves health, models and metrics alone; `all` hits
    them too, as a dead machine would.

    Beside it, or by themselves, stand troubles of the GPUs: `{"throttle": 0.5}` leaves them that
    share of their clock, so that steps take twice as long and the GPUs show as hot;
    `{"temperature": 95}` is what they show in degrees Celsius, whatever they do.
    `{"fragment": 0.01}` loses that share of the KV memory each second, until most is lost.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._fault: Fault | None = None
        self._state: dict[str, Any] = {"fault": None}
        self._gpus: dict[str, float] = {}

    @property
    def state(self) -> Mapping[str, Any]:
        """As it was set, `count` being what is left of it."""
        return {**self._state, **self._gpus}

    @property
    def throttle(self) -> float:
        """The share of its clock that each GPU keeps, in (0, 1]."""
        return self._gpus.get("throttle", 1.0)

    @property
    def temperature_celsius(self) -> float | None:
        return self._gpus.get("temperature")

    @property
    def fragment(self) -> float:
        """The share of its KV memory that the engine loses each second."""
        return self._gpus.get("fragment", 0.0)

    def set(self, wanted: Mapping[str, Any]) -> None:
        """Replaces the switch: what is not there, or null, is off. ValueError changes nothing."""
        unknown = set(wanted) - set(_KEYS)
        if unknown:
            raise ValueError(f"unknown key {min(unknown)!r}: allowed are {', '.join(_KEYS)}")
        gpus = _checked_gpus(wanted)
        if wanted.get("fault") is None:
            self._off()
        else:
            fault = parse_fault(str(wanted["fault"]))
            self._state = _checked(wanted)
            self._fault = fault
        self._gpus = gpus

    def draw(self, *, inference: bool) -> Fault | None:
        """The fault that hits the request at hand, if any."""
        if self._fault is None or not (inference or self._state["scope"] == "all"):
            return None
        if self._random.random() >= self._state["share"]:
            return None
        fault, left = self._fault, self._state["count"]
        if left is not None:
            self._state["count"] = left - 1
            if left == 1:
                self._off()
        return fault

    def _off(self) -> None:
        self._fault, self._state = None, {"fault": None}


_KEYS = ("fault", "share", "count", "scope", "throttle", "temperature", "fragment")


def _checked_gpus(wanted: Mapping[str, Any]) -> dict[str, float]:
    limits = {"throttle": (0.01, 1.0), "temperature": (0.0, 150.0), "fragment": (0.0, 1.0)}
    found = {}
    for key, (low, high) in limits.items():
        value = wanted.get(key)
        if value is None:
            continue
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise ValueError(f"{key} = {value!r}: allowed is a number from {low:g} to {high:g}")
        found[key] = float(value)
    return found


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    share, count = wanted.get("share", 1.0), wanted.get("count")
    scope = wanted.get("scope", "inference")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ValueError(f"share = {share!r}: allowed is a number from 0 to 1")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"count = {count!r}: allowed is a whole number from 1, or null")
    if scope not in ("inference", "all"):
        raise ValueError(f"scope = {scope!r}: allowed are inference, all")
    return {"fault": str(wanted["fault"]), "share": share, "count": count, "scope": scope}
