"""May this call be looked up, stored or joined, for how long, and may this answer be kept?

Request directives follow RFC 9111, section 5.2.1:

- `no-cache`: nothing stored may answer, what comes back is stored. Joining an identical call
  in flight is out too, since that call began before this one.
- `no-store`: "a cache MUST NOT store any part of either this request or any response to it";
  section 5.2.1.5 adds that answering it from what is stored already is allowed. So it is
  looked up, never stored, and shares no upstream call, whose answer others would store.
- `only-if-cached`: looked up; without a hit the caller answers 504. Nothing is sent upstream.
- `max-age=N`: only answers at most N seconds old. `max-age=0` is `no-cache`.

Directives of responses and unknown ones are ignored, as the RFC says. The strictest of header,
litellm's `cache` object and our `tierway.cache` wins. A client may shorten a time to live,
never lengthen it. What the key of an entry is made of stands in cache/keys.py.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tierway.policies.errors import BadCall
from tierway.policies.types import CacheControl, Call, WireName

Mode = Literal["serve", "observe", "off"]
Scope = Literal["tenant", "user", "shared"]

_TEXTS = ("content", "reasoning", "reasoning_content")
CACHED_WIRES: frozenset[str] = frozenset({"chat", "completions", "messages", "embeddings"})


@dataclass(frozen=True, slots=True)
class TtlRule:
    """Calls that `matches` live at most `ttl_s`, and accept no answer older than that."""

    ttl_s: float
    matches: Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class CacheRules:
    mode: Mode = "serve"
    scope: Scope = "tenant"
    ttl_s: float = 86400.0
    ttl_rules: tuple[TtlRule, ...] = ()
    max_temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cache may do for one call.

    `serve` is False in observe mode: a hit is counted, not served. `join` means sharing one
    upstream call with identical ones, in either role. `reason` is a short constant naming
    the first thing that was ruled out, "" when nothing was. `max_age_s` bounds the age of
    an answer that may be served, None where its own time to live is enough.
    """

    lookup: bool
    store: bool
    join: bool
    reason: str = ""
    ttl_s: float = 0.0
    max_age_s: float | None = None
    serve: bool = True
    only_if_cached: bool = False


def lookup(call: Call, rules: CacheRules) -> Plan:
    """Decides before anything is looked up; pure but for the rules' own `matches`."""
    control = call.controls.cache
    out = _ruled_out(call, rules)
    if out:
        return Plan(False, False, False, out, only_if_cached=control.only_if_cached)
    limits = [rule.ttl_s for rule in rules.ttl_rules if rule.matches(call)]
    ttl_s = min([rules.ttl_s, *limits, *_given(control.ttl_s)])
    max_age_s = min([*limits, *_given(control.max_age_s)], default=None)
    fresh = control.no_cache or control.max_age_s == 0
    quiet = control.no_store or control.only_if_cached
    return Plan(
        lookup=not fresh,
        store=not quiet and ttl_s > 0,
        join=not fresh and not quiet and rules.mode == "serve",
        reason=_reason(control, ttl_s),
        ttl_s=ttl_s,
        max_age_s=max_age_s,
        serve=rules.mode == "serve",
        only_if_cached=control.only_if_cached,
    )


def storable(answer: Mapping[str, Any], wire: WireName) -> str | None:
    """Why a complete OpenAI-shaped answer must not be stored, None when it may be.

    Kept are finished answers of plain text. Tool calls act in the world, a refusal or an
    answer cut short is worth asking again, several choices were asked for to differ.
    """
    if answer.get("error"):
        return "error"
    if wire == "embeddings":
        return None if answer.get("data") else "empty"
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        return "choices"
    choice: Mapping[str, Any] = choices[0]
    said: Any = {"content": choice.get("text")} if wire == "completions" else choice.get("message")
    return _unfit(said, choice.get("finish_reason"))


def _unfit(said: Any, finish: Any) -> str | None:
    if not isinstance(said, Mapping):
        return "shape"
    if said.get("tool_calls") or said.get("function_call"):
        return "tool-calls"
    if said.get("refusal") or finish == "content_filter":
        return "refusal"
    if said.get("audio"):
        return "audio"
    if finish != "stop":
        return "unfinished"
    if not all(isinstance(said.get(name) or "", str) for name in _TEXTS):
        return "shape"
    return None if (said.get("content") or "").strip() else "empty"


def _ruled_out(call: Call, rules: CacheRules) -> str:
    body = call.body
    if rules.mode == "off":
        return "off"
    if call.wire not in CACHED_WIRES:
        return "wire"
    if rules.scope == "user" and not call.user:
        # All who give no name would share one user's answers.
        return "no-user"
    if _number(body.get("n")) > 1:
        return "n"
    if _number(body.get("temperature")) > rules.max_temperature:
        return "temperature"
    modalities = body.get("modalities")
    if body.get("audio") or (isinstance(modalities, list) and "audio" in modalities):
        return "audio"
    return ""


def _reason(control: CacheControl, ttl_s: float) -> str:
    if control.no_cache:
        return "no-cache"
    if control.max_age_s == 0:
        return "max-age"
    if control.no_store:
        return "no-store"
    if control.only_if_cached:
        return "only-if-cached"
    return "" if ttl_s > 0 else "ttl"


def _number(value: Any) -> float:
    """A sampling setting as the engines read it: some take "2" for 2. Else 0."""
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0


def _given(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def parse_cache_control(header: str | None, litellm: Any, ours: Any) -> CacheControl:
    """Merges the `Cache-Control` header, litellm's body object `cache` and our `tierway.cache`.

    litellm's `use-cache: false` means neither looked up nor stored; its `namespace` is read
    by `cache_namespace`. Raises BadCall naming the field for a wrong value or unknown key.
    """
    given = [
        _header(header) if header else {},
        _object(litellm, "cache", _LITELLM_FIELDS),
        _object(ours, "tierway.cache", _OUR_FIELDS),
    ]
    merged: dict[str, Any] = {}
    for fields in given:
        for name, value in fields.items():
            before = merged.get(name)
            merged[name] = value if before is None else _stricter(before, value)
    merged.pop("namespace", None)
    if merged.pop("use_cache", None) is False:
        merged["no_cache"] = merged["no_store"] = True
    return CacheControl(**merged)


def cache_namespace(litellm: Any) -> str:
    """The namespace of litellm's `cache` object, "" when there is none."""
    return str(_object(litellm, "cache", _LITELLM_FIELDS).get("namespace", ""))


def _stricter(one: Any, other: Any) -> Any:
    if isinstance(one, bool):
        return one or other
    return other if isinstance(one, str) else min(one, other)


def _header(header: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for directive in header.split(","):
        name, _, argument = (part.strip() for part in directive.partition("="))
        name = name.lower()
        if name in ("no-cache", "no-store", "only-if-cached"):
            fields[name.replace("-", "_")] = True
        elif name == "max-age":
            digits = argument.strip('"')
            if not (digits.isascii() and digits.isdigit()):
                raise _bad("cache-control", directive.strip(), "max-age=<whole seconds>")
            age_s = float(digits)
            fields["max_age_s"] = min(age_s, fields.get("max_age_s", age_s))
    return fields


def _flag(value: Any, field: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _bad(field, value, "true or false")


def _seconds(value: Any, field: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise _bad(field, value, "a number of seconds, 0 or more")


def _text(value: Any, field: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise _bad(field, value, "a text that is not empty")


_Read = Callable[[Any, str], Any]

_LITELLM_FIELDS: Mapping[str, tuple[str, _Read]] = {
    "no-cache": ("no_cache", _flag),
    "no-store": ("no_store", _flag),
    "use-cache": ("use_cache", _flag),
    "ttl": ("ttl_s", _seconds),
    "s-maxage": ("max_age_s", _seconds),
    "s-max-age": ("max_age_s", _seconds),
    "namespace": ("namespace", _text),
}
_OUR_FIELDS: Mapping[str, tuple[str, _Read]] = {
    "no_cache": ("no_cache", _flag),
    "no_store": ("no_store", _flag),
    "only_if_cached": ("only_if_cached", _flag),
    "max_age_s": ("max_age_s", _seconds),
    "ttl_s": ("ttl_s", _seconds),
    "query": ("query", _text),
    "context_id": ("context_id", _text),
}


def _object(given: Any, where: str, known: Mapping[str, tuple[str, _Read]]) -> dict[str, Any]:
    """The known fields of a controls object; null counts as not given."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _bad(where, given, "an object")
    fields: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _bad(f"{where}.{key}", value, f"one of {', '.join(known)}{hint}", what="key")
        if value is not None:
            name, read = known[key]
            read_value = read(value, f"{where}.{key}")
            before = fields.get(name)
            fields[name] = read_value if before is None else _stricter(before, read_value)
    return fields


def _bad(field: str, value: Any, allowed: str, *, what: str = "value") -> BadCall:
    if what == "key":
        return BadCall(f"Unknown field {field}: allowed is {allowed}", param=field)
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return BadCall(f"{field} must be {allowed}, not {shown}.", param=field)
