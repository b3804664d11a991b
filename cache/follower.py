"""Follows the store: takes in what it holds at the start, then what its log tells.

A start takes a `Table`'s rows in blocks where the store has one (a million entries in some 17
seconds of CPU), else the log from its beginning. Blocks are read in the store's own thread and
taken in here in steps of a few milliseconds; between them requests are served, and what the log
tells meanwhile is applied within FOLLOW_EVERY_S, so that a deletion acts while the rest is
still coming.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.entry_table import Held
from tierway.cache.holding import Holding
from tierway.cache.int8_rows import unpack
from tierway.cache.store import is_reset
from tierway.policies.protocols import Block, CacheStore, Change, Clock, Embedder, Entry, Table

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

FOLLOW_EVERY_S = 0.25  # a deletion elsewhere acts here within a second, with room for a slow disk
STALE_GRACE_S = 3600.0  # expired answers stay so long for the case that nobody else can answer
_COLUMNS = tuple(field.name for field in fields(Block) if field.name != "last")
_PAGE = 200
_BLOCK = 1_000


class Follower:
    """`fault` counts a fault of a part. `follow` raises CacheError when the store cannot be
    read; the next call goes on where this one stopped, but for a table from its beginning. With
    `partial` this process does not hold everything: entries come here one by one, as asked for."""

    def __init__(
        self,
        store: CacheStore,
        holding: Holding,
        embedder: Embedder | None,
        wall: Clock,
        fault: Callable[[str, Exception], None],
        *,
        partial: bool = False,
    ) -> None:
        self._store, self._holding, self._embedder = store, holding, embedder
        self._partial = partial
        self._wall, self._fault = wall, fault
        self._table = store if isinstance(store, Table) else None
        self._wants_table = self._table is not None
        self._sequence = 0
        self._gone: set[str] | None = None
        """While a table is read: what the log deleted, which a block at hand may still hold."""

    async def follow(self) -> None:
        """Applies what was written to the store since the last time; while another call takes
        a table in, what the log tells since."""
        while True:
            taking = self._gone is not None
            if self._table is not None and self._wants_table and not taking:
                await self._take_table(self._table)
            await self._follow_log()
            if taking or not self._wants_table:
                return

    def attach(self, held: Held, vector: Vectors) -> None:
        """Makes an entry findable by meaning; a vector that is none is a fault, counted."""
        try:
            self._holding.attach(held, vector)
        except ValueError as error:
            self._fault("vector", error)

    async def _take_table(self, table: Table) -> None:
        self._gone, self._wants_table, whole = set(), False, False
        try:
            whole = await self._take_blocks(table)
        finally:
            self._gone = None
            self._wants_table |= not whole
        await asyncio.to_thread(self._holding.prepare)

    async def _take_blocks(self, table: Table) -> bool:
        """False when a reset of the log came between."""
        self._sequence = await table.newest()
        clock = asyncio.get_running_loop().time
        last, followed_s = 0, clock()
        while (block := await table.block(last, _BLOCK)) is not None:
            self._take_block(block)
            last = block.last
            if clock() - followed_s >= FOLLOW_EVERY_S:
                await self._follow_log()
                followed_s = clock()
            if self._wants_table:
                return False
        return True

    def _take_block(self, block: Block) -> None:
        after_at, gone = self._wall() - STALE_GRACE_S, self._gone or ()
        wanted = [
            at
            for at, (entry_id, expires_at) in enumerate(
                zip(block.id, block.expires_at, strict=True)
            )
            if expires_at > after_at
            and entry_id not in gone
            and not self._holding.was_deleted(entry_id)
        ]
        if len(wanted) < len(block):
            block = block.pick(wanted)
        keys = self._holding.hold_block(block)
        self._attach_block(block, keys)
        for at, key in enumerate(keys):
            if not key:
                self._take_in(_entry_of(block, at))

    def _attach_block(self, block: Block, keys: Sequence[int]) -> None:
        encoder, dim = self._encoder()
        columns = zip(keys, block.encoder, block.vector, block.partition, strict=True)
        found = [
            (key, packed, name)
            for key, made_by, packed, name in columns
            if key and packed and made_by == encoder
        ]
        if not found:
            return
        try:
            with_vector, vectors, names = zip(*found, strict=True)
            self._holding.attach_block(names, with_vector, unpack(vectors, dim))
        except ValueError:  # one of them is no vector: which?
            for at, key in enumerate(keys):
                if key:
                    self._take_in(_entry_of(block, at))

    async def _follow_log(self) -> None:
        """To the log's end, or to a reset where it is the table that tells what is left."""
        while changes := await self._store.changes(self._sequence, _PAGE):
            for change in changes:
                self._apply(change)
                self._sequence = change.sequence
                if is_reset(change) and self._table is not None:
                    self._wants_table = True
                    return
            await asyncio.sleep(0)  # requests go in between

    def _apply(self, change: Change) -> None:
        entry = change.entry
        if is_reset(change):
            self._holding.clear()
        elif entry is None and self._partial:
            # For good: it may be on its way here, as the answer to a question of ours.
            self._holding.delete([change.entry_id])
        elif entry is None:
            self._holding.drop(change.entry_id)
            if self._gone is not None:
                self._gone.add(change.entry_id)
        elif entry.expires_at + STALE_GRACE_S > self._wall():
            self._take_in(entry)

    def _take_in(self, entry: Entry) -> None:
        encoder, dim = self._encoder()
        try:
            held = self._holding.hold(entry)
            if held is None or held.indexed:
                return  # deleted or overtaken, or put by this process
            if entry.vector and entry.encoder == encoder:
                self._holding.attach(held, unpack([entry.vector], dim)[0].astype(np.float32))
        except ValueError as error:
            self._fault("vector" if entry.id in self._holding else "entry", error)

    def _encoder(self) -> tuple[str, int]:
        """Whose vectors may be searched; "" for nobody's."""
        return (self._embedder.id, self._embedder.dim) if self._embedder else ("", 0)


def _entry_of(block: Block, at: int) -> Entry:
    """As much of the entry as is held."""
    found = {name: getattr(block, name)[at] for name in _COLUMNS}
    return Entry(**found, answer=b"", wire="", tenant="", user="", namespace="")
