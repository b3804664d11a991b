"""What a client asks of the cache, read from its three places.

The `Cache-Control` header (RFC 9111), litellm's body object `cache` and our `tierway.cache`; the
strictest of the three wins. Directives of responses and unknown ones in the header are ignored, as
the RFC says; unknown keys of the objects are refused by name. What the directives then mean
stands in cacheability.py.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

from tierway.policies.errors import BadCall
from tierway.policies.types import CacheControl


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
