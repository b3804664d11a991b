"""Encryption at rest: a CacheStore around any other that never sees a text.

Sealed are the question, the answer and the vector of an entry (a vector gives its text away),
its encoder, and the bodies of notes; each for its entry and field alone, so that nothing can be
swapped between entries. The digests are replaced by keyed ones: who has the file but not the key
cannot even check a guess. In the clear stay what a purge selects by (tenant, user, namespace,
model, context id), tier, probabilities and times.

What cannot be opened, for a rotated key or a changed file, is a miss and counted. What stands
there unsealed, from a time before the key, is neither served nor left: it is deleted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import orjson

from tierway.cache.sealing import Sealer
from tierway.policies.errors import CacheError
from tierway.policies.protocols import (
    Block,
    CacheStore,
    Change,
    Entry,
    Note,
    PartialStore,
    StoreSize,
    Table,
)

MARK = "sealed:"
_BLOCK_COLUMNS = tuple(field.name for field in fields(Block) if field.name != "last")
_ON_THE_LOOP = 64  # changes opened in one go: 3 ms


class SealedStore:
    """`fault` is called with the name of what went wrong, and the error."""

    def __init__(
        self, inner: CacheStore, sealer: Sealer, fault: Callable[[str, Exception], None]
    ) -> None:
        self._inner, self._sealer, self._fault = inner, sealer, fault

    async def start(self) -> None:
        await self._inner.start()

    async def put(self, entry: Entry) -> int:
        return await self._inner.put(self._sealed(entry))

    async def get(self, entry_id: str) -> Entry | None:
        found = await self._inner.get(entry_id)
        return None if found is None else self._opened(found)

    async def delete(self, entry_ids: Sequence[str]) -> int:
        return await self._inner.delete(entry_ids)

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
        return await self._inner.delete_where(
            tenant=tenant,
            user=user,
            namespace=namespace,
            model=model,
            context_id=context_id,
            older_than_at=older_than_at,
        )

    async def reap(self, now_at: float) -> int:
        return await self._inner.reap(now_at)

    async def size(self) -> StoreSize:
        return await self._inner.size()

    async def touch(self, entry_ids: Sequence[str], now_at: float) -> None:
        await self._inner.touch(entry_ids, now_at)

    async def shrink(self, max_bytes: int) -> int:
        return await self._inner.shrink(max_bytes)

    async def changes(self, since: int, limit: int = 1000) -> list[Change]:
        """As the inner store's; an entry that cannot be opened comes as deleted."""
        page = await self._inner.changes(since, limit)
        bare = await self._without_bare([c.entry for c in page if c.entry])
        if bare:
            page = [replace(c, entry=None) if c.entry_id in bare else c for c in page]
        if len(page) <= _ON_THE_LOOP:
            return self._opened_page(page)
        return await asyncio.to_thread(self._opened_page, page)

    async def note(self, note: Note) -> int:
        body = self._sealer.seal(_json(note.body), _place(note))
        return await self._inner.note(replace(note, body={"sealed": _text(body)}))

    async def notes(self, since: int, limit: int = 1000) -> list[Note]:
        """As the inner store's; a note that cannot be opened comes without kind and body."""
        return [self._opened_note(note) for note in await self._inner.notes(since, limit)]

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _without_bare(self, entries: Sequence[Entry]) -> set[str]:
        """Deletes what is not sealed; its ids."""
        bare = {entry.id for entry in entries if not entry.question.startswith(MARK)}
        if bare:
            self._fault("unsealed", CacheError(f"{len(bare)} unsealed entries are deleted"))
            await self._inner.delete(list(bare))
        return bare

    def _sealed(self, entry: Entry) -> Entry:
        seal, name = self._sealer.seal, entry.id
        head = [entry.exact.hex(), entry.partition.hex(), entry.encoder, entry.question]
        return replace(
            entry,
            exact=self._sealer.digest(entry.exact),
            partition=self._sealer.digest(entry.partition),
            question=MARK + _text(seal(_json(head), _field(name, "question"))),
            answer=seal(entry.answer, _field(name, "answer")),
            vector=entry.vector and seal(entry.vector, _field(name, "vector")),
            encoder="",
        )

    def _opened_page(self, page: list[Change]) -> list[Change]:
        return [
            change if change.entry is None else replace(change, entry=self._opened(change.entry))
            for change in page
        ]

    def _opened(self, entry: Entry) -> Entry | None:
        """The entry as it was put, None (counted) where it cannot be opened. The answer is
        left out where the store left it out."""
        open_, name = self._sealer.open, entry.id
        try:
            sealed = _bytes(entry.question.removeprefix(MARK))
            head = orjson.loads(open_(sealed, _field(name, "question")))
            exact, partition, encoder, question = head
            return replace(
                entry,
                exact=bytes.fromhex(exact),
                partition=bytes.fromhex(partition),
                question=question,
                answer=entry.answer and open_(entry.answer, _field(name, "answer")),
                vector=entry.vector and open_(entry.vector, _field(name, "vector")),
                encoder=encoder,
            )
        except ValueError as error:
            self._fault("sealed", error)
            return None

    def _opened_note(self, note: Note) -> Note:
        try:
            body = self._sealer.open(_bytes(str(note.body.get("sealed"))), _place(note))
            opened: Mapping[str, Any] = orjson.loads(body)
        except ValueError as error:
            self._fault("sealed", error)
            return replace(note, kind="", body={})
        return replace(note, body=opened)


class SealedTable(SealedStore):
    """Around a store that is a Table too."""

    def __init__(
        self, inner: CacheStore, sealer: Sealer, fault: Callable[[str, Exception], None]
    ) -> None:
        super().__init__(inner, sealer, fault)
        assert isinstance(inner, Table)
        self._table: Table = inner

    async def newest(self) -> int:
        return await self._table.newest()

    async def block(self, after: int, limit: int) -> Block | None:
        """As the inner store's, without the entries that cannot be opened."""
        found = await self._table.block(after, limit)
        if found is None:
            return None
        entries = [_entry_of(found, at) for at in range(len(found))]
        bare = await self._without_bare(entries)
        sealed = [entry for entry in entries if entry.id not in bare]
        opened = await asyncio.to_thread(lambda: [self._opened(entry) for entry in sealed])
        return _block_of([entry for entry in opened if entry is not None], found.last)


def sealed_store(
    inner: CacheStore, sealer: Sealer, fault: Callable[[str, Exception], None]
) -> SealedStore:
    """`fault` is called with the name of what went wrong, and the error."""
    kind = SealedTable if isinstance(inner, Table) else SealedStore
    return kind(inner, sealer, fault)


def _entry_of(block: Block, at: int) -> Entry:
    columns = {name: getattr(block, name)[at] for name in _BLOCK_COLUMNS}
    return Entry(**columns, answer=b"", wire="", tenant="", user="", namespace="")


def _block_of(entries: Sequence[Entry], last: int) -> Block:
    columns = {name: [getattr(entry, name) for entry in entries] for name in _BLOCK_COLUMNS}
    return Block(last=last, **columns)


class SealedPartialStore(SealedStore):
    """The same around a store that is asked for what a process does not hold."""

    def __init__(
        self, inner: PartialStore, sealer: Sealer, fault: Callable[[str, Exception], None]
    ) -> None:
        super().__init__(inner, sealer, fault)
        self._asked = inner

    async def by_exact(self, exact: bytes) -> Entry | None:
        found = await self._asked.by_exact(self._sealer.digest(exact))
        return None if found is None else self._opened(found)

    async def get_many(self, entry_ids: Sequence[str]) -> list[Entry | None]:
        found = await self._asked.get_many(entry_ids)
        return [None if entry is None else self._opened(entry) for entry in found]


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise CacheError(f"This cannot be stored: {error}") from error


def _field(entry_id: str, field: str) -> bytes:
    return f"{entry_id}\0{field}".encode()


def _place(note: Note) -> bytes:
    return "\0".join(("note", note.kind, note.tenant, note.user, repr(note.at))).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not a sealed text") from error
