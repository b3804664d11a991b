"""Work on a store from the command line: counting, export, import, purge.

All of it goes through the store's own door, so gateways that run on the same store follow.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tierway.cache.int8_rows import pack
from tierway.cache.sealed_store import MARK as SEALED
from tierway.cache.store import Selection, is_reset
from tierway.cache.upkeep import Faults
from tierway.middleware import build_cache
from tierway.middleware.cache_lines import LineFile, entry_of, line_of, read_lines
from tierway.middleware.config import Settings
from tierway.policies.errors import CacheError
from tierway.policies.protocols import CacheStore, Embedder, Entry
from tierway.router.transport import Transport

_PAGE = 200
_BATCH = 64
Step = Callable[[int], None]


@asynccontextmanager
async def opened(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[CacheStore]:
    """The configured store, without memory for the case that it cannot be used: CacheError."""
    store = build_cache.make_store(settings, environ, Faults())
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def encoding(settings: Settings, environ: Mapping[str, str]) -> AsyncIterator[Embedder]:
    """The configured encoder, started. Raises CacheError."""
    transport = Transport(connect_timeout_s=settings.resilience.connect_timeout_s)
    embedder = build_cache.new_embedder(settings.cache.embedder, environ, transport)
    try:
        await embedder.start()
        yield embedder
    finally:
        await embedder.aclose()
        await transport.aclose()


async def listed(store: CacheStore) -> AsyncIterator[Entry]:
    """Every entry that the store can give, without its answer."""
    since = 0
    while page := await store.changes(since, _PAGE):
        for change in page:
            since = change.sequence
            if change.entry is not None and not is_reset(change):
                yield change.entry


async def count(store: CacheStore) -> dict[str, Any]:
    """The figures of `tierway cache stats`."""
    now_at, size = time.time(), await store.size()
    by_model, by_tenant, by_encoder = Counter[str](), Counter[str](), Counter[str]()
    expired, readable, times = 0, 0, (float("inf"), float("-inf"))
    async for entry in listed(store):
        readable += 1
        expired += entry.expires_at <= now_at
        by_model[entry.model] += 1
        by_tenant[entry.tenant] += 1
        by_encoder[entry.encoder if entry.vector else ""] += 1
        times = min(times[0], entry.created_at), max(times[1], entry.created_at)
    return {
        "entries": size.entries,
        "bytes": size.bytes,
        "expired": expired,
        "unreadable": max(0, size.entries - readable),
        "oldest_s": round(now_at - times[0], 3) if readable else None,
        "newest_s": round(now_at - times[1], 3) if readable else None,
        "by_model": dict(by_model.most_common()),
        "by_tenant": dict(by_tenant.most_common()),
        "by_encoder": dict(by_encoder.most_common()),
    }


async def export(store: CacheStore, file: LineFile, *, vectors: bool, step: Step) -> dict[str, int]:
    """Writes every living entry; how many, and how many were left out."""
    now_at, written, skipped = time.time(), 0, 0
    page: list[Entry] = []

    async def flush() -> None:
        nonlocal written, skipped
        for entry in await asyncio.gather(*(store.get(entry.id) for entry in page)):
            try:
                # One that went meanwhile is no loss; one that cannot be told is counted.
                if entry is not None:
                    file.write(line_of(entry, vectors=vectors))
                    written += 1
            except ValueError:
                skipped += 1
        step(len(page))
        page.clear()

    async for entry in listed(store):
        if entry.question.startswith(SEALED):
            raise CacheError("The store is sealed: name its key in cache.store.key_env.")
        if entry.expires_at <= now_at:
            skipped += 1
            step(1)
            continue
        page.append(entry)
        if len(page) == _BATCH:
            await flush()
    await flush()
    return {"exported": written, "skipped": skipped}


def checked(path: Path, now_at: float) -> tuple[int, int, set[str]]:
    """Reads the whole file before anything of it is stored: lines, those that have expired, and
    the encoders of the rest. Raises OSError and BadLine."""
    lines, expired, encoders = 0, 0, set()
    for entry in read_lines(path, entry_of):
        lines += 1
        if entry.expires_at <= now_at:
            expired += 1
        elif entry.encoder:
            encoders.add(entry.encoder)
    return lines, expired, encoders


async def import_(
    store: CacheStore, path: Path, embedder: Embedder | None, *, now_at: float, step: Step
) -> dict[str, int]:
    """Stores the entries of a file that was `checked`. An answer in the store that is younger
    than the file's stays. Entries that had a vector get one of `embedder`, unless it came along.
    """
    younger = {entry.exact: entry.created_at async for entry in listed(store)}
    stored, skipped = 0, 0
    for batch in _batches(read_lines(path, entry_of)):
        wanted = [
            entry
            for entry in batch
            if entry.expires_at > now_at and younger.get(entry.exact, 0.0) <= entry.created_at
        ]
        with_vectors = await _with_vectors(wanted, embedder)
        await asyncio.gather(*(store.put(entry) for entry in with_vectors))
        stored, skipped = stored + len(wanted), skipped + len(batch) - len(wanted)
        step(len(batch))
    return {"imported": stored, "skipped": skipped}


async def _with_vectors(entries: list[Entry], embedder: Embedder | None) -> list[Entry]:
    if embedder is None:
        return [replace(entry, vector=None, encoder="") for entry in entries]
    asked = [at for at, entry in enumerate(entries) if _wants_vector(entry, embedder)]
    rows = await embedder.encode([entries[at].question for at in asked]) if asked else ()
    for at, row in zip(asked, rows, strict=True):
        whole = bool(np.isfinite(row).all())
        entries[at] = replace(
            entries[at],
            vector=pack(row) if whole else None,
            encoder=embedder.id if whole else "",
        )
    return entries


def _wants_vector(entry: Entry, embedder: Embedder) -> bool:
    has_it = entry.encoder == embedder.id and entry.vector is not None
    return bool(entry.encoder) and not has_it and embedder.fits(entry.question)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    running = iter(entries)
    while batch := list(islice(running, _BATCH)):
        yield batch


async def matching(store: CacheStore, chosen: Selection) -> int:
    """How many entries a purge would delete."""
    matches = chosen.matcher()
    return sum([matches(entry) async for entry in listed(store)])
