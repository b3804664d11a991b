"""What the tests of stores share: entries, and a follower of a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tierway.cache.memory_store import MemoryStore
from tierway.cache.redis_store import RedisStore
from tierway.cache.sqlite_store import SqliteStore
from tierway.cache.store import is_reset
from tierway.policies.protocols import CacheStore, Change, Entry

Store = SqliteStore | MemoryStore | RedisStore
Make = Callable[[int], Store]


def entry(number: int, **fields: object) -> Entry:
    made = Entry(
        id=f"e{number}",
        exact=number.to_bytes(16, "big"),
        partition=b"p" * 16,
        wire="chat",
        question=f"第 {number} 个问题?",
        answer=b'{"n": %d}' % number,
        tier="small",
        model="qwen-7b",
        probabilities={"7b": 0.25, "cloud": 1.0},
        tenant="acme",
        user="u1",
        namespace="",
        created_at=1000.0 + number,
        expires_at=2000.0 + number,
        encoder="enc-1",
        vector=b"\x00\x01" * 8,
        language="zh",
        context_id="",
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


async def follow(store: CacheStore, since: int = 0, limit: int = 1000) -> list[Change]:
    """All there is after `since`, page by page, in the order a follower gets it."""
    seen: list[Change] = []
    while page := await store.changes(since, limit):
        assert len(page) <= limit
        seen += page
        since = page[-1].sequence
    return seen


def fold(changes: list[Change], held: dict[str, Entry] | None = None) -> dict[str, Entry]:
    held = dict(held or {})
    for change in changes:
        if is_reset(change):
            held.clear()
        elif change.entry is None:
            held.pop(change.entry_id, None)
        else:
            held[change.entry_id] = change.entry
    return held


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


def run(make: Make, body: Callable[[Store], Awaitable[None]], kept: int = 10_000) -> None:
    async def main() -> None:
        async with opened(make(kept)) as store:
            await body(store)

    asyncio.run(main())
