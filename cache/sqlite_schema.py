"""The tables of the cache file, and the door where a file is accepted or refused.

Releases share a file during an upgrade. `SCHEMA_VERSION` is raised only by a change that an older
release would harm or be harmed by; it then refuses the file. What is merely added (a column with
a default, an index, a table of its own) goes into `ADDITIONS`: a newer release makes what it
misses, an older one reads and writes by column names and does not see it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tierway.cache.sqlite_lane import transact
from tierway.policies.errors import CacheError

SCHEMA_VERSION = 1

# The answer comes last: following the log then never reads its pages.
_SCHEMA = (
    """CREATE TABLE entries (
        id TEXT NOT NULL PRIMARY KEY, exact BLOB NOT NULL UNIQUE, "partition" BLOB NOT NULL,
        wire TEXT NOT NULL, question TEXT NOT NULL, tier TEXT NOT NULL, model TEXT NOT NULL,
        probabilities TEXT NOT NULL, tenant TEXT NOT NULL, user TEXT NOT NULL,
        namespace TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL,
        encoder TEXT NOT NULL, vector BLOB, language TEXT NOT NULL, context_id TEXT NOT NULL,
        answer BLOB NOT NULL)""",
    "CREATE INDEX entries_by_expiry ON entries (expires_at)",
    # One line per id, alive or not; REPLACE gives it a new, higher number.
    """CREATE TABLE log (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, entry_id TEXT NOT NULL UNIQUE)""",
    "CREATE TABLE horizon (sequence INTEGER NOT NULL)",
    "INSERT INTO horizon VALUES (0)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

ADDITIONS = {
    # What an older release stores counts as never used and of a usual size.
    "entries.used_at": "ALTER TABLE entries ADD COLUMN used_at REAL NOT NULL DEFAULT 0",
    "entries.bytes": "ALTER TABLE entries ADD COLUMN bytes INTEGER NOT NULL DEFAULT 4096",
    # Size and order of eviction come from this index alone.
    "entries_by_use": "CREATE INDEX entries_by_use ON entries (used_at, bytes)",
    "notes": """CREATE TABLE notes (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, tenant TEXT NOT NULL,
        user TEXT NOT NULL, body TEXT NOT NULL, at REAL NOT NULL, expires_at REAL NOT NULL)""",
}
"""Statement by the name of what it adds: a table, an index, or `table.column`."""


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Makes a new file a cache, or finds that it is one; raises CacheError when it is a file
    of a newer release or of something else, which is then left as it was."""
    _look(db, path)
    _use_write_ahead_log(db, path)
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA journal_size_limit = 67108864")
    # A write also where there is nothing to make: a file that cannot be written is found now.
    transact(db, [lambda db: _make_tables(db, path)])


def _look(db: sqlite3.Connection, path: Path) -> None:
    """Reads in one transaction: a process that makes the same file a cache meanwhile must not
    be seen half-way, with its tables and without its version."""
    db.execute("BEGIN")
    try:
        _version(db, path)
    finally:
        db.execute("ROLLBACK")


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    if _version(db, path) == 0:
        for statement in _SCHEMA:
            db.execute(statement)
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    columns = db.execute("SELECT name FROM pragma_table_xinfo('entries')")
    there |= {f"entries.{name}" for (name,) in columns}
    for name, statement in ADDITIONS.items():
        if name not in there:
            db.execute(statement)


def _version(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise CacheError(
            f"The cache file {path} has schema version {version}, this release knows"
            f" {SCHEMA_VERSION}: a newer one made it. Upgrade, or name another path."
        )
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables:
        raise CacheError(f"{path} is a SQLite file of something else, not a cache.")
    return int(version)


def _use_write_ahead_log(db: sqlite3.Connection, path: Path) -> None:
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise CacheError(f"The cache file {path} cannot have a write-ahead log (mode {mode}).")
