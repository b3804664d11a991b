"""Request controls: `x-tierway-*` headers, or the same keys in the body's `tierway` object.

The header wins. A wrong value, and an unknown key of the object, is refused by name, since a
control that is silently ignored looks like one that works. Unknown headers are let be: what
stands between client and gateway may add its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tierway.policies.cache_control import cache_namespace, parse_cache_control
from tierway.policies.errors import BadCall
from tierway.policies.types import CacheControl, Controls

_LONGEST_NAME = 256
_LONGEST_TIMEOUT_MS = 86_400_000
_PRIORITIES = ("urgent", "normal", "batch")
_PLACEMENTS = ("prefer_on_prem", "prefer_cloud", "cheapest", "on_prem_only")
_NO_CACHE_CONTROL = CacheControl()


@dataclass(frozen=True, slots=True)
class _Control:
    """`read` takes the header's text or the JSON value and raises ValueError or TypeError."""

    field: str
    read: Callable[[Any], Any]
    allowed: str
    header: bytes


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_NAME:
        raise ValueError
    if not value.isprintable():
        raise ValueError
    return value.strip()


def _share(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if not 0.0 <= number <= 1.0:  # also refuses what is not a number
        raise ValueError
    return number


def _milliseconds(value: Any) -> float:
    if isinstance(value, bool | float):
        raise ValueError
    number = int(value)
    if not 1 <= number <= _LONGEST_TIMEOUT_MS:
        raise ValueError
    return number / 1000


def _flag(value: Any) -> bool:
    return {"1": True, "0": False, "true": True, "false": False}[str(value).lower()]


def _one_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        return names[names.index(value)]

    return read


def _control(key: str, read: Callable[[Any], Any], allowed: str, field: str = "") -> _Control:
    header = f"x-tierway-{key.replace('_', '-')}".encode()
    return _Control(field or key, read, allowed, header)


_TEXT = f"a text of 1 to {_LONGEST_NAME} printable characters"
_CONTROLS: Mapping[str, _Control] = {
    "tier": _control("tier", _name, _TEXT),
    "quality": _control("quality", _share, "a number from 0 to 1"),
    "session": _control("session", _name, _TEXT),
    "user": _control("user", _name, _TEXT),
    "priority": _control("priority", _one_of(_PRIORITIES), f"one of {', '.join(_PRIORITIES)}"),
    "namespace": _control("namespace", _name, _TEXT),
    "timeout_ms": _control(
        "timeout_ms", _milliseconds, f"a whole number from 1 to {_LONGEST_TIMEOUT_MS}", "timeout_s"
    ),
    "max_error_rate": _control("max_error_rate", _share, "a number from 0 to 1"),
    "placement": _control("placement", _one_of(_PLACEMENTS), f"one of {', '.join(_PLACEMENTS)}"),
    "debug": _control("debug", _flag, "1 or 0"),
}
_KEYS = (*_CONTROLS, "cache")


def parse_controls(headers: Mapping[bytes, bytes], document: Mapping[str, Any]) -> Controls:
    """Reads the controls of a request whose parsed body is `document`.

    Header names are lower-case. Raises BadCall naming the field, its value and what is allowed.
    """
    ours = document.get("tierway")
    if ours is not None:
        _check_keys(ours)
    fields: dict[str, Any] = {}
    for key, control in _CONTROLS.items():
        if (header := headers.get(control.header)) is not None:
            fields[control.field] = _read(control, _text(header), control.header.decode())
        elif ours is not None and (value := ours.get(key)) is not None:
            fields[control.field] = _read(control, value, f"tierway.{key}")
    litellm = document.get("cache")
    if litellm is not None and "namespace" not in fields:
        fields["namespace"] = cache_namespace(litellm)
    return Controls(**fields, cache=_cache(headers, litellm, ours))


def _cache(headers: Mapping[bytes, bytes], litellm: Any, ours: Any) -> CacheControl:
    header = headers.get(b"cache-control")
    inner = None if ours is None else ours.get("cache")
    if header is None and litellm is None and inner is None:
        return _NO_CACHE_CONTROL
    return parse_cache_control(None if header is None else _text(header), litellm, inner)


def _check_keys(ours: Any) -> None:
    if not isinstance(ours, Mapping):
        raise BadCall("tierway must be an object.", param="tierway", code="invalid_type")
    for key in ours:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.0)
            raise BadCall(
                f"tierway has no key {_shown(key)}: did you mean {near[0]}? "
                f"Known are {', '.join(_KEYS)}.",
                param="tierway",
                code="unknown_parameter",
            )


def _read(control: _Control, value: Any, where: str) -> Any:
    try:
        return control.read(value)
    except (ValueError, TypeError, KeyError, OverflowError) as fault:
        raise BadCall(
            f"{where} must be {control.allowed}, not {_shown(value)}.",
            param=where,
            code="invalid_value",
        ) from fault


def _text(header: bytes) -> str:
    return header.decode("utf-8", "replace").strip()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
