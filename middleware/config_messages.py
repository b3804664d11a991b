"""pydantic's errors in the words of a configuration, with the key that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from tierway.middleware.config_text import UNKNOWN, Fault, Key, dotted
from tierway.middleware.gaps import not_served
from tierway.middleware.settings import SettingsTree

_WANTED = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "model_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of names",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "missing": "is required",
}
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


def told(detail: ErrorDetails) -> Fault | None:
    """One error of pydantic in the words of this file; None for a mere consequence of others."""
    kind, value = detail["type"], detail["input"]
    path = tuple(part for part in detail["loc"] if part != "[key]")
    if kind == "default_factory_not_called":
        return None
    if kind == "invalid_key" and not _keys_at(SettingsTree, path[:-1]):
        return Fault(path, "must have text as its key")
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(path, value)
    if kind == "literal_error":
        known = map("".join, re.findall(r"'([^']+)'|(-?\d+)", detail["ctx"]["expected"]))
        allowed = [each for each in known if each not in not_served(path)]
        close = difflib.get_close_matches(str(value), allowed, 1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        return Fault(path, f"must be one of {', '.join(allowed)}{nearest}", value)
    text = detail["msg"].removeprefix("Value error, ")
    for wordy, plain in _WORDS.items():
        text = text.replace(wordy, plain)
    return Fault(path, _WANTED.get(kind, text), None if kind == "missing" else value)


def _unknown_key(path: tuple[Key, ...], value: object) -> Fault:
    """Names the nearest key at the same place, else the nearest of the whole tree."""
    *place, wrong = path
    rest: tuple[Key, ...] = ()
    while isinstance(value, dict) and len(value) == 1:
        (inner, value), *_ = value.items()
        rest = (*rest, inner)
    known = _keys_at(SettingsTree, place)
    close = difflib.get_close_matches(str(wrong), known, 1)
    exact = {full.replace(".", "_"): full for full in _static_keys().values()}
    nearest = exact.get(str(wrong)) or (
        dotted((*place, close[0], *rest)) if close else _elsewhere(str((*path, *rest)[-1]))
    )
    hint = f"did you mean '{nearest}'?" if nearest else f"known here: {', '.join(known)}"
    return Fault(path, f"{UNKNOWN} '{dotted((*path, *rest))}': {hint}")


def _elsewhere(name: str) -> str:
    """The full name of a key of another section whose last part is nearest to `name`."""
    close = difflib.get_close_matches(name, _static_keys(), 1, 0.75)
    return _static_keys()[close[0]] if close else ""


@cache
def _static_keys() -> dict[str, str]:
    """Last part -> full name of the keys outside lists and named things."""
    found: dict[str, str] = {}
    todo: list[tuple[Key, ...]] = [(key,) for key in _keys_at(SettingsTree, ())]
    for path in todo:
        inner = [] if path == ("models",) else _keys_at(SettingsTree, path)
        todo += [(*path, key) for key in inner]
        if not inner:
            found.setdefault(str(path[-1]), dotted(path))
    return found


def _keys_at(annotation: Any, path: Sequence[Key]) -> list[str]:
    """The keys of the section at `path` below a field of this type; none where it is no section."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {item.alias or name: item for name, item in annotation.model_fields.items()}
        if not path:
            return list(fields)
        return _keys_at(fields[str(path[0])].annotation, path[1:]) if path[0] in fields else []
    if origin in (dict, tuple):
        return _keys_at(inner[-1 if origin is dict else 0], path[1:]) if path else []
    return _keys_at(inner[0], path) if inner and origin is not Literal else []
