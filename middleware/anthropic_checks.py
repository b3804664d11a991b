"""What a Messages request may hold: refusals that name the field, in the wire's own spelling
(`messages.0.content.1`).

Dropped is only what cannot change an answer: `cache_control`, `service_tier`, switches at their
defaults. Every other field that is not carried is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from tierway.middleware.request import missing, wrong
from tierway.policies.errors import BadCall

_DROPPED = ("cache_control", "service_tier", "eager_input_streaming")
_DEFAULTS: Mapping[str, Any] = {
    "thinking": {"type": "disabled"},
    "speed": "standard",
    "defer_loading": False,
    "allowed_callers": ["direct"],
    "input_examples": [],
    "caller": {"type": "direct"},
    "citations": [],
    "transformations": {},
}


def only(given: Any, where: str, carried: Iterable[str]) -> Mapping[str, Any]:
    """`given` as an object that holds nothing but what is carried or makes no difference."""
    if not isinstance(given, Mapping):
        raise wrong(where, "an object")
    for key, value in given.items():
        harmless = key in _DROPPED or value is None or value == _DEFAULTS.get(key, ...)
        if key not in carried and not harmless:
            raise refused(f"{where}.{key}".lstrip("."), _near(key, carried))
    return given


def _near(key: str, carried: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(carried), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def refused(where: str, more: str = "") -> BadCall:
    return BadCall(
        f"{where}: this cannot be carried to an OpenAI-shaped model{more}",
        param=where,
        code="unsupported_parameter",
    )


def numbered(given: Any, where: str) -> Iterable[tuple[int, Any]]:
    if not isinstance(given, list):
        raise wrong(where, "a list")
    return enumerate(given)


def string_of(given: Mapping[str, Any], key: str, where: str) -> str:
    value = given.get(key)
    if value is None:
        raise missing(f"{where}.{key}")
    if not isinstance(value, str):
        raise wrong(f"{where}.{key}", "a string")
    return value
