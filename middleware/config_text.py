"""The configuration and its faults as text, with whatever may be a secret masked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from tierway.middleware.settings import SettingsTree

Key = str | int
UNKNOWN = "unknown key"  # how the text of a fault begins that blames the key itself


class Fault(NamedTuple):
    """`value` is shown (masked) where it is a scalar."""

    path: tuple[Key, ...]
    text: str
    value: object = None


def render(settings: SettingsTree) -> str:
    """The effective configuration as YAML that loads again, with secrets masked."""
    tree = _masked("", settings.model_dump(mode="json", by_alias=True))
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)


_SECRET_KEY = re.compile(
    r"(?i)(^|[_-])((api)?key|token|secret|password|passwd|credentials?|authorization)$"
)
_SECRET_VALUE = re.compile(
    r"\b((sk|pk|rk|hf|gsk|ghp|xai|xox[a-z])[-_]\S{8,}|(AKIA|AIza|eyJ)\S{12,}|[Bb]earer \S+)"
)
# Parts longer than a word are no name: hexadecimal keys may be of capitals and digits too.
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9]{0,19}(_[A-Z0-9]{1,19})*")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def _masked(key: str, value: Any) -> Any:
    """`value` without what may be a secret, by the name of its key and by its looks."""
    if isinstance(value, dict):
        return {inner: _masked(str(inner), value[inner]) for inner in value}
    if isinstance(value, list):
        return [_masked(key, inner) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    secret = _SECRET_KEY.search(key) or _SECRET_VALUE.search(value)
    return "***" if secret else _CREDENTIALS.sub("***", value)


def _shown(path: tuple[Key, ...], value: object) -> str:
    """` = value` for a message; nothing for values that have parts."""
    if value is None or not isinstance(value, str | int | float):
        return ""
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    masked = _masked(key, value)
    if key.endswith("_env") and not _ENV_NAME.fullmatch(str(value)):
        masked = "***"  # people put the secret itself where its variable's name belongs
    text = repr(masked) if len(str(masked)) <= 80 else repr(str(masked)[:80]) + "…"
    return f" = {text}"


def dotted(path: Iterable[Key]) -> str:
    return ".".join(str(part) for part in path)


def fault_line(fault: Fault | str, origins: Mapping[tuple[Key, ...], str]) -> str:
    """One printable line: key, value, what is allowed, and the variable it came from."""
    if isinstance(fault, str):
        line = fault
    else:
        unknown = fault.text.startswith(UNKNOWN)
        key = "" if unknown else f"{dotted(fault.path)}{_shown(fault.path, fault.value)}: "
        blamed = [
            name
            for path, name in origins.items()
            if fault.path[: len(path)] == path
            or (unknown and path[: len(fault.path)] == fault.path)
        ]
        line = key + fault.text + "".join(f" (from {name})" for name in blamed[-1:])
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
