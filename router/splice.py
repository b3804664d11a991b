"""What a replica gets: the client's bytes with a few top-level members set or removed.

A body is up to 16 MB and little more than `model` changes, so nothing is parsed and written
again. A key is found as text, and that it stands at the top is seen by counting the brackets
outside strings beside it, which `bytes` methods do at memory speed. Where text says too little
(an escaped spelling, many namesakes further down), the members are walked one by one; the
standard library's C scanner then finds the end of each value. The body must be a valid JSON
object, as every codec's parse has made sure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from tierway.policies.cache_salt import FIELD as CACHE_SALT
from tierway.policies.cache_salt import salt_to_send
from tierway.policies.types import Call, Model

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCALAR = rb'[^",\[\]{}\s]+'
_NAME = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_PLAIN_VALUE = re.compile(_STRING + rb"|" + _SCALAR, re.DOTALL)
_BRACKET_OR_STRING = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_TO_NEXT_MEMBER = re.compile(rb"\s*,\s*")
_EMPTY = re.compile(rb"\s*\}")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+")
_FEW = 16
_USAGE = "stream_options"
_scan_value = json.JSONDecoder().raw_decode

_Member = tuple[int, int, int]
"""Offsets of a member: its key's quote, its value's first byte, the end of the value."""

_Edit = tuple[int, int, bytes]
"""Start, end, and what stands there afterwards."""


class _Key(NamedTuple):
    """A key as it is written without escapes; `plain` when its only other spelling is \\u00XX."""

    name: str
    written: bytes
    plain: bool
    member: re.Pattern[bytes]


def splice(raw: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Sets (JSON bytes) or removes (None) top-level members; every other byte stays.

    A key that occurs twice is changed everywhere, one that is missing is put in front.
    """
    changes: list[_Edit] = []
    gone: list[_Member] = []
    added: list[bytes] = []
    for name, value in edits.items():
        key = _key(name)
        members = _members(raw, key)
        if value is None:
            gone += members
        elif members:
            changes += [(start, end, value) for _, start, end in members]
        else:
            added.append(key.written + b":" + value)
    if gone:
        changes += _removals(raw, gone)
    return _insert(_apply(raw, changes), added)


def upstream_body(call: Call, model: Model) -> bytes:
    """The request as `model` is to get it, in the OpenAI wire.

    `model` becomes the served name, our own `tierway` and `cache` objects go, the configured
    `set` fields replace the client's, a stream is asked for its usage, and the tenant's
    `cache_salt` goes along where the model is to have one.
    """
    fields: dict[str, Any] = {**model.set, "model": model.served_name or model.name}
    if call.stream and call.wire != "embeddings":
        options = fields.get(_USAGE, call.body.get(_USAGE)) or {}
        if not options.get("include_usage"):
            fields[_USAGE] = {**options, "include_usage": True}
    if (salt := salt_to_send(call, model)) is not None:
        fields[CACHE_SALT] = salt
    ours = [key for key in ("tierway", "cache") if key in call.body]
    if call.wire == "messages":
        kept = {key: value for key, value in call.body.items() if key not in ours}
        return orjson.dumps({**kept, **fields})
    edits: dict[str, bytes | None] = {key: orjson.dumps(value) for key, value in fields.items()}
    edits.update(dict.fromkeys(ours))
    return splice(call.raw, edits)


@lru_cache(maxsize=256)
def _key(name: str) -> _Key:
    written = orjson.dumps(name)
    # A quote behind a backslash opens nothing, and no backslash precedes an opening quote.
    member = re.compile(rb"(?<!\\)" + re.escape(written) + rb"\s*:\s*")
    return _Key(name, written, _PLAIN_KEY.fullmatch(name) is not None, member)


def _members(raw: bytes, key: _Key) -> list[_Member]:
    if not key.plain or (b"\\" in raw and rb"\u00" in raw):
        return list(_walk(raw, key))
    first = raw.find(key.written)
    if first < 0:
        return []
    if raw.find(key.written, first + 1) < 0:
        return _only_member(raw, key, first)
    if raw.count(key.written) <= _FEW:
        return list(_search(raw, key))
    return list(_walk(raw, key))


def _only_member(raw: bytes, key: _Key, at: int) -> list[_Member]:
    found = key.member.match(raw, at)
    if found is None:
        return []  # the text is somebody's value
    value = found.end()
    end = _value_end(raw, value)
    # The shorter side of the member tells its depth just as well.
    top = _nesting(raw[:at]) == 1 if at <= len(raw) // 2 else _nesting(raw[end:]) == -1
    return [(at, value, end)] if top else []


def _search(raw: bytes, key: _Key) -> Iterator[_Member]:
    """The top-level ones of the members that are called like this at any depth."""
    at = depth = 0
    while (found := key.member.search(raw, at)) is not None:
        depth += _nesting(raw[at : found.start()])
        at = found.end()
        if depth == 1:
            at = _value_end(raw, found.end())
            yield found.start(), found.end(), at


def _nesting(text: bytes) -> int:
    """Brackets opened minus brackets closed in a text that begins and ends outside strings."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    code = b"".join(text.split(b'"')[::2])
    return code.count(b"{") + code.count(b"[") - code.count(b"}") - code.count(b"]")


def _walk(raw: bytes, key: _Key) -> Iterator[_Member]:
    """The members of this name, by looking at all top-level members in turn."""
    text = raw.decode("latin-1")  # one character per byte, so that offsets are the same
    at = raw.index(b"{") + 1
    while (found := _NAME.match(raw, at)) is not None:
        name = found[1]
        end = _value_end(raw, found.end(), text)
        if name == key.written or (b"\\" in name and orjson.loads(name) == key.name):
            yield found.start(1), found.end(), end
        comma = _TO_NEXT_MEMBER.match(raw, end)
        at = comma.end() if comma else len(raw)


def _value_end(raw: bytes, at: int, text: str = "") -> int:
    """The end of the value at `at`; `text` is `raw` as latin-1, where there is one."""
    plain = _PLAIN_VALUE.match(raw, at)
    if plain is not None:
        return plain.end()
    if text:
        try:
            return _scan_value(text, at)[1]
        except RecursionError:
            pass  # it takes less depth than the parser that let the body in
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(raw, at):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError("the body is not valid JSON")


def _removals(raw: bytes, gone: list[_Member]) -> list[_Edit]:
    """One edit per run of neighbours. A run takes the comma behind it; at the end of the
    object, where there is none, the comma before it."""
    runs: list[tuple[int, int]] = []
    last = False
    for start, _, value_end in sorted(gone):
        comma = _TO_NEXT_MEMBER.match(raw, value_end)
        end = comma.end() if comma else value_end
        last = comma is None
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    if last:
        start, end = runs[-1]
        before = raw[:start].rstrip()
        runs[-1] = (len(before) - 1 if before.endswith(b",") else start, end)
    return [(start, end, b"") for start, end in runs]


def _apply(raw: bytes, edits: list[_Edit]) -> bytes:
    if not edits:
        return raw
    parts: list[bytes] = []
    at = 0
    for start, end, text in sorted(edits):
        parts += (raw[at:start], text)
        at = end
    parts.append(raw[at:])
    return b"".join(parts)


def _insert(raw: bytes, members: list[bytes]) -> bytes:
    if not members:
        return raw
    at = raw.index(b"{") + 1
    comma = b"" if _EMPTY.match(raw, at) else b","
    return raw[:at] + b",".join(members) + comma + raw[at:]
