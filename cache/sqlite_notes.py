"""The journal of notes in the cache file: a table of its own, numbered on its own."""

from __future__ import annotations

import json
import sqlite3

from tierway.cache.store import NOTES_OF_OPERATORS, Selection
from tierway.policies.protocols import Note

_COLUMNS = "kind, tenant, user, body, at, expires_at"
_WRITE = f"INSERT INTO notes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_READ = f"""SELECT {_COLUMNS}, sequence FROM notes
    WHERE sequence > ? AND expires_at > ? ORDER BY sequence LIMIT ?"""
_NEWEST = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'notes'), 0)"
_TOO_MANY = """DELETE FROM notes WHERE sequence IN (SELECT sequence FROM (
    SELECT sequence, row_number() OVER (PARTITION BY kind, tenant ORDER BY sequence DESC) AS place
    FROM notes) WHERE place > ?)"""


def write(db: sqlite3.Connection, note: Note) -> int:
    row = (note.kind, note.tenant, note.user, json.dumps(note.body), note.at, note.expires_at)
    number = db.execute(_WRITE, row).lastrowid
    assert number is not None, "an INSERT has a row number"
    return number


def read(db: sqlite3.Connection, since: int, limit: int, now_at: float) -> list[Note]:
    (newest,) = db.execute(_NEWEST).fetchone()
    start = since if since <= newest else 0
    return [
        Note(kind, tenant, user, json.loads(body), at, expires_at, sequence)
        for kind, tenant, user, body, at, expires_at, sequence in db.execute(
            _READ, (start, now_at, limit)
        )
    ]


def erase(db: sqlite3.Connection, chosen: Selection) -> None:
    """Deletes the notes of a tenant or a user, or all but the operators' own."""
    spared = ", ".join("?" * len(NOTES_OF_OPERATORS))
    conditions = [f"kind NOT IN ({spared})", *(f"{name} = ?" for name in chosen.equals())]
    values: list[str | float] = [*NOTES_OF_OPERATORS, *chosen.equals().values()]
    if chosen.older_than_at is not None:
        conditions.append("at < ?")
        values.append(chosen.older_than_at)
    db.execute(f"DELETE FROM notes WHERE {' AND '.join(conditions)}", values)


def reap(db: sqlite3.Connection, now_at: float, kept: int) -> None:
    """Deletes what has expired, and the oldest of each kind and tenant beyond `kept`."""
    db.execute("DELETE FROM notes WHERE expires_at <= ?", (now_at,))
    db.execute(_TOO_MANY, (kept,))
