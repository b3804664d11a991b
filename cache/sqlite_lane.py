"""One thread with one SQLite connection, and the border where SQLite's errors become ours.

A connection is used by its thread only, so the event loop never waits for a disk or a lock.
A `Lane` runs one piece of work at a time; a `Writer` joins what waits into one transaction.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tierway.policies.errors import CacheError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

FAULTS = (sqlite3.Error, OSError, OverflowError, UnicodeError)
"""What SQLite and its binding raise, for numbers past 64 bits and lone surrogates too."""

_REASONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_NOTADB: "is not a SQLite file; move it away or name another path",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away, the cache fills again by itself",
}

_JOBS_PER_COMMIT = 256


class Lane:
    """Raises CacheError for whatever goes wrong with the file. A caller that is cancelled
    before its work began takes it back; work that has begun is finished."""

    def __init__(self, path: Path, *, name: str, lock_timeout_s: float) -> None:
        self._path = path
        self._lock_timeout_s = lock_timeout_s
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"tierway-cache-{name}")
        self._connection: sqlite3.Connection | None = None

    async def open(self, prepare: Work[object]) -> None:
        """Connects and runs `prepare` on the new connection."""
        await self.result(self._post(lambda: self._connect(prepare)))

    async def run(self, work: Work[T]) -> T:
        return await self.result(self.post(work))

    async def aclose(self) -> None:
        """Finishes the work at hand, closes the connection and ends the thread."""
        with suppress(CacheError):  # closed before
            closing = self._post(self._disconnect)
            self._threads.shutdown(wait=False)
            await asyncio.shield(asyncio.wrap_future(closing))

    def post(self, work: Work[T]) -> Future[T]:
        """Queues the work; its result or exception, untranslated, comes in the future."""
        return self._post(lambda: work(self._connected()))

    async def result(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except FAULTS as error:
            raise self._fault(error) from error

    def _post(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._threads.submit(work)
        except RuntimeError as error:
            raise CacheError(f"The cache file {self._path} is closed.") from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise CacheError(f"The cache file {self._path} is not open.")
        return self._connection

    def _fault(self, error: Exception) -> CacheError:
        if isinstance(error, OSError):
            return CacheError(f"The cache file {self._path} cannot be opened: {error.strerror}.")
        reason = _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        return CacheError(f"The cache file {self._path} {reason or f'failed: {error}'}.")

    def _connect(self, prepare: Work[object]) -> None:
        _create(self._path)
        connection = sqlite3.connect(self._path, timeout=self._lock_timeout_s, isolation_level=None)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Writer:
    """Group commit on a lane: work that waits together is committed together.

    `run` returns once its work is committed. If one piece fails, the transaction is rolled
    back and every piece gets one of its own, so that only the faulty one fails.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._waiting: deque[tuple[Work[Any], Future[Any]]] = deque()

    async def run(self, work: Work[T]) -> T:
        done: Future[T] = Future()
        self._waiting.append((work, done))
        try:
            self._lane.post(self._commit_waiting)
        except CacheError:
            done.cancel()
            raise
        return await self._lane.result(done)

    def _commit_waiting(self, connection: sqlite3.Connection) -> None:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _JOBS_PER_COMMIT))]
        _commit(connection, [job for job in taken if job[1].set_running_or_notify_cancel()])


def transact(connection: sqlite3.Connection, works: list[Work[Any]]) -> list[Any]:
    """Runs the works in one transaction; on an exception none of them has happened."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = [work(connection) for work in works]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself when the disk is full
            connection.execute("ROLLBACK")
        raise
    return results


def _commit(connection: sqlite3.Connection, jobs: list[tuple[Work[Any], Future[Any]]]) -> None:
    try:
        results = transact(connection, [work for work, _ in jobs])
    # The border of a background loop: whatever happened belongs to those who wait.
    except Exception as error:
        if len(jobs) == 1 or _is_locked(error):
            for _, done in jobs:
                done.set_exception(error)
        else:
            for job in jobs:
                _commit(connection, [job])
        return
    for (_, done), result in zip(jobs, results, strict=True):
        done.set_result(result)


def _is_locked(error: Exception) -> bool:
    """True when trying again would only mean another full wait for somebody's lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _create(path: Path) -> None:
    """Makes the file for its owner's eyes only: it holds questions and answers of users.

    An existing file is not touched: closing any descriptor of it would take away the locks
    that other connections of this process hold on it (POSIX).
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
