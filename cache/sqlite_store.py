"""A CacheStore in one SQLite file, shared by the processes of a host.

Write-ahead log, one writing thread per process with group commits, one thread for reading
answers and one for following the log, so that neither waits for the other. A commit survives
the death of the process; when the machine loses power the last moments may be missing, the
file is whole (synchronous = NORMAL). Deleted texts are overwritten with zeros.

Not for network file systems: SQLite's shared memory needs all processes on one host.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tierway.cache import sqlite_notes
from tierway.cache.sqlite_lane import Lane, Writer
from tierway.cache.sqlite_schema import prepare
from tierway.cache.store import (
    LINES_PER_CUT,
    NOTES_KEPT,
    TOMBSTONES_KEPT,
    Selection,
    bytes_of,
    dead_limit,
    reset,
    start_of,
)
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Block, Change, Clock, Entry, Note, StoreSize

_FIELDS = tuple(field.name for field in fields(Entry))
_PROBABILITIES = _FIELDS.index("probabilities")
_COLUMNS = ", ".join(f'"{name}"' for name in _FIELDS)
_COLUMNS_FOLLOWED = ", ".join("X''" if name == "answer" else f'e."{name}"' for name in _FIELDS)

_GET = f"SELECT {_COLUMNS} FROM entries WHERE id = ?"
_PUT = f"""INSERT OR REPLACE INTO entries ({_COLUMNS}, used_at, bytes)
    VALUES ({", ".join("?" * len(_FIELDS))}, ?, ?)"""
_TOUCH = "UPDATE entries SET used_at = ? WHERE id = ? AND used_at < ?"
_SIZE = "SELECT count(*), coalesce(sum(bytes), 0) FROM entries"
_LAST_ROW = "SELECT coalesce(max(rowid), -1) FROM entries"
_NO_MORE = 2**63  # beyond every row
_LEAST_USED = "SELECT id, bytes FROM entries ORDER BY used_at LIMIT ?"
_LOG = "INSERT OR REPLACE INTO log (entry_id) VALUES (?)"
_ENDS = """SELECT (SELECT sequence FROM horizon),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'log'), 0)"""
_LINES = f"""SELECT log.sequence, log.entry_id, e.id IS NOT NULL, {_COLUMNS_FOLLOWED}
    FROM log LEFT JOIN entries AS e ON e.id = log.entry_id
    WHERE log.sequence > ? ORDER BY log.sequence LIMIT ?"""
_BLOCK_FIELDS = tuple(field.name for field in fields(Block) if field.name != "last")
_BLOCK = f"""SELECT rowid, {", ".join(f'"{name}"' for name in _BLOCK_FIELDS)}
    FROM entries WHERE rowid > ? ORDER BY rowid LIMIT ?"""
_OLDEST = """SELECT log.sequence, log.entry_id, e.id IS NOT NULL
    FROM log LEFT JOIN entries AS e ON e.id = log.entry_id ORDER BY log.sequence LIMIT ?"""


class SqliteStore:
    """`lock_timeout_s` is how long a write waits for another process's transaction,
    `tombstones_kept` and `notes_kept` as in store.py, `wall` is seconds since the epoch. Belongs
    to one event loop.

    `start` raises CacheError for a file that cannot be opened, written or understood; it may
    be tried again. A put that is cancelled is stored whole or not at all.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lock_timeout_s: float = 5.0,
        tombstones_kept: int = TOMBSTONES_KEPT,
        notes_kept: int = NOTES_KEPT,
        wall: Clock = time.time,
    ) -> None:
        if lock_timeout_s < 0:
            raise ValueError(f"lock_timeout_s = {lock_timeout_s}: must not be negative")
        if tombstones_kept < 0:
            raise ValueError(f"tombstones_kept = {tombstones_kept}: must not be negative")
        self._path = Path(path)
        self._lock_timeout_s = lock_timeout_s
        self._kept, self._notes_kept, self._wall = tombstones_kept, notes_kept, wall
        self._state = "not started"
        self._lanes: list[Lane] = []

    async def start(self) -> None:
        if self._state == "open":
            return
        if self._state == "closed":
            self._refuse()
        self._lanes = [self._lane(name) for name in ("write", "read", "follow")]
        try:
            await self._lanes[0].open(partial(prepare, path=self._path))
            for lane in self._lanes[1:]:
                await lane.open(_only_read)
        except BaseException:
            await self._close_lanes()
            raise
        self._write, self._read, self._follow = Writer(self._lanes[0]), *self._lanes[1:]
        self._state = "open"

    async def put(self, entry: Entry) -> int:
        self._check()
        row = _row_of(entry)
        return await self._write.run(lambda db: _put(db, entry.id, entry.exact, row))

    async def get(self, entry_id: str) -> Entry | None:
        self._check()
        row = await self._read.run(lambda db: db.execute(_GET, (entry_id,)).fetchone())
        return None if row is None else _entry_of(row)

    async def delete(self, entry_ids: Sequence[str]) -> int:
        self._check()
        deleted = 0
        for start in range(0, len(entry_ids), LINES_PER_CUT):
            part = entry_ids[start : start + LINES_PER_CUT]
            deleted += await self._write.run(partial(_drop, entry_ids=part))
        return deleted

    async def delete_where(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        namespace: str | None = None,
        model: str | None = None,
        context_id: str | None = None,
        older_than_at: float | None = None,
    ) -> int:
        """Deletes what meets all conditions given; without any, everything."""
        chosen = Selection(tenant, user, namespace, model, context_id, older_than_at)
        conditions = [f'"{name}" = ?' for name in chosen.equals()]
        values: list[str | float] = list(chosen.equals().values())
        if older_than_at is not None:
            conditions.append("created_at < ?")
            values.append(older_than_at)
        dropped = await self._drop_rows(" AND ".join(conditions) or "TRUE", values)
        if chosen.notes_too:
            await self._write.run(lambda db: sqlite_notes.erase(db, chosen))
        return dropped

    async def reap(self, now_at: float) -> int:
        """Deletes what has expired at `now_at` and says how many entries that were.

        To be called every minute or so: it also keeps the log short.
        """
        self._check()
        await self._write.run(lambda db: sqlite_notes.reap(db, now_at, self._notes_kept))
        return await self._drop_where("expires_at <= ?", [now_at])

    async def size(self) -> StoreSize:
        self._check()
        return StoreSize(*await self._follow.run(lambda db: db.execute(_SIZE).fetchone()))

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        self._check()
        for start in range(0, len(entry_ids), LINES_PER_CUT):
            rows = [(now_at, one, now_at) for one in entry_ids[start : start + LINES_PER_CUT]]
            await self._write.run(partial(_touch, rows=rows))

    async def shrink(self, max_bytes: int) -> int:
        evicted, over = 0, (await self.size()).bytes - max_bytes
        while over > 0:
            dropped, freed = await self._write.run(partial(_drop_least_used, over=over))
            if not dropped:
                break
            evicted, over = evicted + dropped, over - freed
        await self._tidy()
        return evicted

    async def count(self) -> int:
        self._check()
        return await self._follow.run(lambda db: _number(db, "SELECT count(*) FROM entries"))

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        self._check()
        return await self._follow.run(lambda db: _changes(db, since, limit))

    async def note(self, note: Note) -> int:
        self._check()
        return await self._write.run(lambda db: sqlite_notes.write(db, note))

    async def notes(self, since: int, limit: int = 1000) -> list[Note]:
        self._check()
        now_at = self._wall()
        return await self._follow.run(lambda db: sqlite_notes.read(db, since, limit, now_at))

    async def newest(self) -> int:
        self._check()
        return await self._follow.run(lambda db: int(db.execute(_ENDS).fetchone()[1]))

    async def block(self, after: int, limit: int) -> Block | None:
        self._check()
        return await self._follow.run(lambda db: _block(db, after, limit))

    async def aclose(self) -> None:
        self._state = "closed"
        await self._close_lanes()

    def _check(self) -> None:
        if self._state != "open":
            self._refuse()

    def _refuse(self) -> None:
        raise CacheError(f"The cache file {self._path} is {self._state}.")

    def _lane(self, name: str) -> Lane:
        return Lane(self._path, name=name, lock_timeout_s=self._lock_timeout_s)

    async def _close_lanes(self) -> None:
        """The writer last: whoever closes last folds the write-ahead log into the file."""
        while self._lanes:
            await self._lanes.pop().aclose()

    async def _drop_where(self, condition: str, values: list[Any]) -> int:
        self._check()
        deleted = 0
        while part := await self._write.run(lambda db: _drop_where(db, condition, values)):
            deleted += part
        await self._tidy()
        return deleted

    async def _drop_rows(self, condition: str, values: list[Any]) -> int:
        """As `_drop_where`, for conditions that no index knows: the table is gone through once,
        beside the writer. What was put before is seen, as the writer is asked how far to go."""
        self._check()
        last = await self._write.run(lambda db: _number(db, _LAST_ROW))
        after, deleted = -1, 0
        while after < last:
            find = partial(_matching, condition=condition, values=values, after=after)
            chosen, after = await self._follow.run(find)
            if chosen:
                deleted += await self._write.run(partial(_drop, entry_ids=chosen))
        await self._tidy()
        return deleted

    async def _tidy(self) -> None:
        while await self._write.run(lambda db: _cut(db, self._kept)):
            pass


def _only_read(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA query_only = ON")


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _row_of(entry: Entry) -> tuple[Any, ...]:
    values = [getattr(entry, name) for name in _FIELDS]
    values[_PROBABILITIES] = json.dumps(dict(entry.probabilities))
    return (*values, entry.created_at, bytes_of(entry))


def _entry_of(row: Sequence[Any]) -> Entry:
    values = list(row)
    values[_PROBABILITIES] = json.loads(values[_PROBABILITIES])
    return Entry(*values)


def _block(db: sqlite3.Connection, after: int, limit: int) -> Block | None:
    rows = db.execute(_BLOCK, (after, limit)).fetchall()
    if not rows:
        return None
    numbers, *found = zip(*rows, strict=True)
    columns = dict(zip(_BLOCK_FIELDS, found, strict=True))
    columns["probabilities"] = tuple(map(_probabilities, columns["probabilities"]))
    return Block(last=numbers[-1], **columns)


@lru_cache(256)
def _probabilities(text: str) -> Mapping[str, float]:
    found: Mapping[str, float] = json.loads(text)
    return found


def _put(db: sqlite3.Connection, entry_id: str, exact: bytes, row: tuple[Any, ...]) -> int:
    others = db.execute("SELECT id FROM entries WHERE exact = ? AND id <> ?", (exact, entry_id))
    _drop(db, [other for (other,) in others.fetchall()])
    db.execute(_PUT, row)
    return _number_of_line(db.execute(_LOG, (entry_id,)))


def _number_of_line(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None, "an INSERT has a row number"
    return cursor.lastrowid


def _drop(db: sqlite3.Connection, entry_ids: Iterable[str]) -> int:
    deleted = 0
    for entry_id in entry_ids:
        if db.execute("DELETE FROM entries WHERE id = ?", (entry_id,)).rowcount:
            db.execute(_LOG, (entry_id,))
            deleted += 1
    return deleted


def _touch(db: sqlite3.Connection, rows: list[tuple[float, str, float]]) -> None:
    db.executemany(_TOUCH, rows)


def _drop_least_used(db: sqlite3.Connection, over: int) -> tuple[int, int]:
    """Drops some entries, until `over` bytes are freed; how many, and their bytes."""
    chosen, freed = [], 0
    for entry_id, size in db.execute(_LEAST_USED, (LINES_PER_CUT,)).fetchall():
        if freed >= over:
            break
        chosen.append(entry_id)
        freed += size
    return _drop(db, chosen), freed


def _drop_where(db: sqlite3.Connection, condition: str, values: list[Any]) -> int:
    query = f"SELECT id FROM entries WHERE {condition} LIMIT {LINES_PER_CUT}"
    return _drop(db, [entry_id for (entry_id,) in db.execute(query, values).fetchall()])


def _matching(
    db: sqlite3.Connection, condition: str, values: list[Any], after: int
) -> tuple[list[str], int]:
    """The ids that meet the condition among the next rows, and the last of these rows."""
    query = f"SELECT id, rowid, {condition} FROM entries WHERE rowid > ? ORDER BY rowid LIMIT ?"
    rows = db.execute(query, [*values, after, LINES_PER_CUT]).fetchall()
    last = rows[-1][1] if len(rows) == LINES_PER_CUT else _NO_MORE
    return [entry_id for entry_id, _, meets in rows if meets], last


def _cut(db: sqlite3.Connection, kept: int) -> bool:
    """Cuts some of the oldest lines when tombstones are too many; True if there were."""
    living = _number(db, "SELECT count(*) FROM entries")
    if _number(db, "SELECT count(*) FROM log") - living <= dead_limit(living, kept):
        return False
    lines = db.execute(_OLDEST, (LINES_PER_CUT,)).fetchall()
    horizon = lines[-1][0]
    db.execute("DELETE FROM log WHERE sequence <= ?", (horizon,))
    db.executemany(_LOG, [(entry_id,) for _, entry_id, living in lines if living])
    db.execute("UPDATE horizon SET sequence = ?", (horizon,))
    return True


def _changes(db: sqlite3.Connection, since: int, limit: int) -> list[Change]:
    db.execute("BEGIN")  # one state of the file for both queries
    try:
        horizon, newest = db.execute(_ENDS).fetchone()
        start, lost = start_of(since, horizon=horizon, newest=newest)
        page = [reset(start)] if lost else []
        for sequence, entry_id, living, *row in db.execute(
            _LINES, (start, max(0, limit - len(page)))
        ):
            page.append(Change(sequence, entry_id, _entry_of(row) if living else None))
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    return page
