"""How an entry looks in Redis, and what the ledger keeps of it.

An entry is a hash of three fields: `head` (JSON: all but the other two), `vector` and `answer`,
so that a follower of the log reads entries without their answers. Its *row* in the ledger tells
whose it is: digest (16 bytes), partition (16), bytes (4, big-endian), then JSON. Readers leave
out fields that they do not know and take defaults for those that are missing, so releases of
one layout may differ by optional fields.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import orjson

from tierway.cache.store import Selection, bytes_of
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Entry

_APART = ("vector", "answer")
_DIGESTS = ("exact", "partition")
_FIELDS = {field.name: field for field in fields(Entry)}
_ROW = struct.Struct(">16s16sI")


def packed(entry: Entry) -> tuple[bytes, bytes, bytes]:
    """The fields head, vector and answer. CacheError for what has no JSON."""
    head: dict[str, Any] = {
        name: getattr(entry, name) for name in _FIELDS if name not in (*_APART, "id")
    }
    for name in _DIGESTS:
        head[name] = head[name].hex()
    head["probabilities"] = dict(entry.probabilities)
    if head["expires_at"] == float("inf"):
        head["expires_at"] = None
    try:
        return orjson.dumps(head), entry.vector or b"", entry.answer
    except TypeError as error:
        raise CacheError(f"The entry {entry.id} has no JSON: {error}") from error


def unpacked(entry_id: str, head: bytes, vector: bytes | None, answer: bytes) -> Entry:
    """The entry. ValueError for a head that is none."""
    given = orjson.loads(head)
    if not isinstance(given, dict):
        raise ValueError("the head is no object")
    for name in _DIGESTS:
        given[name] = bytes.fromhex(given.get(name, ""))
    if given.get("expires_at", 0) is None:
        given["expires_at"] = float("inf")
    known = {name: value for name, value in given.items() if name in _FIELDS}
    known.update(id=entry_id, vector=vector or None, answer=answer)
    missing = [name for name in _FIELDS if name not in known and not _optional(name)]
    if missing:
        raise ValueError(f"the head has no {missing[0]}")
    return Entry(**known)


def _optional(name: str) -> bool:
    field = _FIELDS[name]
    return field.default is not MISSING or field.default_factory is not MISSING


@dataclass(frozen=True, slots=True)
class Gone:
    """An entry that was deleted: where its vector is."""

    entry_id: str
    partition: bytes
    encoder: str


def row_of(entry: Entry) -> bytes:
    owner = {
        "tenant": entry.tenant,
        "user": entry.user,
        "namespace": entry.namespace,
        "model": entry.model,
        "context_id": entry.context_id,
        "created_at": entry.created_at,
        "encoder": entry.encoder,
    }
    return _ROW.pack(entry.exact, entry.partition, bytes_of(entry)) + orjson.dumps(owner)


def gone_of(entry_id: str, row: bytes) -> Gone:
    return Gone(entry_id, row[16:32], str(_owner(row).get("encoder", "")))


def selects(chosen: Selection, row: bytes) -> bool:
    """Whether the row's entry meets all conditions."""
    owner = _owner(row)
    limit_at = chosen.older_than_at
    return all(owner.get(name) == value for name, value in chosen.equals().items()) and (
        limit_at is None or owner["created_at"] < limit_at
    )


def _owner(row: bytes) -> Mapping[str, Any]:
    owner: Mapping[str, Any] = orjson.loads(row[_ROW.size :])
    return owner


def space_of(encoder: str) -> str:
    """An encoder's name, as short as a key wants it."""
    return hashlib.sha256(encoder.encode()).hexdigest()[:12]
