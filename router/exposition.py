"""Reads single families out of a page in Prometheus' text format (0.0.4).

Pages of engines are 50 kB and more, of which a dozen lines are wanted. So nothing is split into
lines: each wanted name is searched for, which is a scan in C, and only its own lines are parsed.
A last line without its end is not read: it may have been cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Sample = tuple[Mapping[str, str], float | None]
"""Labels and value; the value is None where it is no finite number."""


def samples(page: str, name: str) -> Iterator[Sample]:
    """The samples of one family, in the order of the page."""
    for start in _starts(page, name):
        after, end = start + len(name), page.find("\n", start)
        if end < 0:
            return
        if page[after] in "{ \t":
            yield _sample(page[after:end])


def _starts(page: str, name: str) -> Iterator[int]:
    """Where lines begin with the name."""
    if page.startswith(name):
        yield 0
    at = page.find("\n" + name)
    while at >= 0:
        yield at + 1
        at = page.find("\n" + name, at + 1)


def _sample(rest: str) -> Sample:
    """From what follows a name on its line: labels, value, and maybe a timestamp."""
    if not rest.startswith("{"):
        return {}, _value(rest)
    told, closed, value = rest.rpartition("}")
    return _labels(told), _value(value) if closed else None


def _labels(text: str) -> dict[str, str]:
    found = _LABEL.findall(text)
    if "\\" not in text:
        return dict(found)
    return {name: _ESCAPED.sub(_unescaped, value) for name, value in found}


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _value(text: str) -> float | None:
    words = text.split(None, 1)
    try:
        value = float(words[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None
