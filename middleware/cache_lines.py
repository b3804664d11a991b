"""The lines of files that carry cache entries: JSON objects, one a line, plain or gzipped.

Export and import: {"id", "exact", "partition" (hexadecimal), "wire", "question", "answer" (an
object), "tier", "model", "probabilities", "tenant", "user", "namespace", "context_id", "language",
"encoder", "created_at", "expires_at" (epoch seconds)}, and "vector" (base64, as the store keeps
it) where it was asked for. `encoder` names what the vector was made with, "" where there is none.
"""

from __future__ import annotations

import base64
import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

import orjson

from tierway.policies.protocols import Entry

T = TypeVar("T")

_TEXTS = ("id", "wire", "question", "tier", "model", "tenant", "user", "namespace", "context_id",
          "language", "encoder")  # fmt: skip
_DIGESTS = ("exact", "partition")
_TIMES = ("created_at", "expires_at")
_REQUIRED = {*_TEXTS, *_DIGESTS, *_TIMES, "answer", "probabilities"}
_WIRES = ("chat", "completions", "embeddings")


class BadLine(ValueError):
    """A line that is not what it should be; the message names file, number and field."""


def line_of(entry: Entry, *, vectors: bool) -> str:
    """Raises ValueError for an entry whose answer is no JSON."""
    found: dict[str, Any] = {name: getattr(entry, name) for name in (*_TEXTS, *_TIMES)}
    found |= {name: getattr(entry, name).hex() for name in _DIGESTS}
    found["answer"] = orjson.loads(entry.answer)
    found["probabilities"] = dict(entry.probabilities)
    if vectors and entry.vector:
        found["vector"] = base64.b64encode(entry.vector).decode()
    return orjson.dumps(found).decode()


def entry_of(line: Mapping[str, Any]) -> Entry:
    """Raises ValueError naming the field."""
    if missing := sorted(_REQUIRED - line.keys()):
        raise ValueError(f"{', '.join(missing)} missing")
    check_keys(line, (*_REQUIRED, "vector"))
    fields: dict[str, Any] = {name: text_of(line, name) for name in _TEXTS}
    if not fields["id"]:
        raise ValueError("id must not be empty")
    if fields["wire"] not in _WIRES:
        raise ValueError(f"wire must be one of {', '.join(_WIRES)}, not {fields['wire']!r}")
    if not isinstance(line["answer"], Mapping):
        raise ValueError("answer must be an object")
    fields |= {name: _digest(line, name) for name in _DIGESTS}
    fields |= {name: number_of(line, name) for name in _TIMES}
    return Entry(
        **fields,
        answer=orjson.dumps(line["answer"]),
        probabilities=_probabilities(line["probabilities"]),
        vector=_vector(line.get("vector")),
    )


def check_keys(line: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in line:
        if name not in known:
            raise ValueError(f"unknown key {name!r}; known are {', '.join(sorted(known))}")


def text_of(line: Mapping[str, Any], name: str) -> str:
    value = line[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")
    return value


def number_of(line: Mapping[str, Any], name: str) -> float:
    value = line[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number")
    return float(value)


def _digest(line: Mapping[str, Any], name: str) -> bytes:
    try:
        digest = bytes.fromhex(text_of(line, name))
    except ValueError:
        digest = b""
    if len(digest) != 16:
        raise ValueError(f"{name} must be 32 hexadecimal digits")
    return digest


def _probabilities(value: Any) -> Mapping[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError("probabilities must be an object")
    return {name: number_of(value, name) for name in value}


def _vector(value: Any) -> bytes | None:
    """As the store keeps it; one that is none is found out when it is to be searched."""
    if value is None:
        return None
    try:
        raw = base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raw = b""
    if not raw:
        raise ValueError("vector must be base64")
    return raw


def read_lines(path: Path, parse: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
    """What `parse` makes of each line that is not blank. Raises OSError, and BadLine, which
    names the line."""
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield _parsed(raw, parse, f"{path}, line {number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadLine(f"{path}, after line {number}: not whole: {error}") from error


def _parsed(raw: bytes, parse: Callable[[Mapping[str, Any]], T], where: str) -> T:
    try:
        line = orjson.loads(raw)
        if not isinstance(line, dict):
            raise ValueError("must be a JSON object")
        return parse(line)
    except ValueError as error:
        raise BadLine(f"{where}: {error}") from error


class LineFile:
    """Writes lines to a file that appears under its name once it is whole; `-` is `standard`."""

    def __init__(self, path: str, standard: TextIO) -> None:
        self._path = None if path == "-" else Path(path)
        if self._path is None:
            self._file: TextIO = standard
            return
        self._part = self._path.with_name(self._path.name + ".part")
        mask = os.umask(0o077)  # it holds questions and answers: for its owner's eyes only
        try:
            opened = gzip.open if self._path.suffix == ".gz" else open
            self._file = opened(self._part, "wt", encoding="utf-8")
        finally:
            os.umask(mask)

    def write(self, line: str) -> None:
        self._file.write(line + "\n")

    def finish(self) -> None:
        if self._path is None:
            self._file.flush()
        else:
            self._file.close()
            self._part.replace(self._path)

    def abandon(self) -> None:
        """Takes away what is half-written."""
        if self._path is not None:
            self._file.close()
            self._part.unlink(missing_ok=True)
