"""Marks on answers: what a wrong one takes out, and how a mark finds the gateway that answered.

Each gateway remembers the answers it gave last, by tenant and request id. A mark that comes to
another gateway of the same store goes round as a note; whoever gave the answer acts on it and
says so in a second note, within a second. Answers older than the memory, or given before a
restart, are not known any more.

    an answer marked wrong      its entry is deleted, on every gateway by the store's log
    a semantic hit marked wrong  besides, the pair of questions is blocked in its partition for
                                PAIR_TTL_S, though the stored question be answered anew, and the
                                verifier's probability counts as one that was wrong
    a semantic hit marked right  counts as one that was right, and frees a blocked pair

Where answers are shared between tenants, a mark acts for all who share them: the worst that a
malicious one does is a question answered anew.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tierway.cache.lessons import MARK, PAIR_TTL_S, Near, mark_body, pair_of
from tierway.cache.purge import KIND as PURGED
from tierway.cache.purge import selection_of
from tierway.cache.semantic import SemanticCache
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock, Note

ASKED, TOLD = "mark-asked", "mark-told"
WAIT_S = 1.5  # two rounds of the journal with room for a slow disk
_REMEMBERED = 50_000
_WAITING_AT_MOST = 100
_ROUND_TTL_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What is remembered of an answer. `entry_id` is the entry it came out of, "" for an answer
    made anew, whose entry, if it was kept, is that of the digest `exact`; `near` the pair of
    questions where it was a hit by meaning. `at` is when the request came."""

    tenant: str
    user: str
    exact: bytes
    partition: bytes
    asked: str
    at: float
    entry_id: str = ""
    near: Near | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a mark did: entries withdrawn, whether its pair is blocked, whether it counts."""

    withdrawn: tuple[str, ...] = ()
    blocked: bool = False
    counted: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "withdrawn": list(self.withdrawn),
            "blocked": self.blocked,
            "counted": self.counted,
        }


class Feedback:
    """`shared` says whether other gateways may use the same store. To be made before the cache
    starts, which reads the notes."""

    def __init__(
        self,
        cache: SemanticCache,
        *,
        wall: Clock,
        shared: bool = True,
        remembered: int = _REMEMBERED,
        wait_s: float = WAIT_S,
    ) -> None:
        self._cache, self._wall, self._shared = cache, wall, shared
        self._limit, self._wait_s = remembered, wait_s
        self._answers: OrderedDict[tuple[str, str], Answered] = OrderedDict()
        self._tenants: dict[str, None] = {}
        self._waiting: dict[str, asyncio.Future[Outcome]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        cache.journal.listen(ASKED, self._heard_question)
        cache.journal.listen(TOLD, self._heard_outcome)
        cache.journal.listen(PURGED, self._forget)

    def remember(self, request_id: str, answered: Answered) -> None:
        answers, tenant = self._answers, answered.tenant
        answers[tenant, request_id] = answered
        if len(answers) > self._limit:
            answers.popitem(last=False)
        if tenant not in self._tenants:
            self._tenants[tenant] = None

    def _forget(self, note: Note) -> None:
        """A purge takes what is remembered of a tenant or user too."""
        chosen = selection_of(note)
        for key, answered in list(self._answers.items()):
            if chosen.matches_owner(answered.tenant, answered.user, answered.at):
                del self._answers[key]

    async def mark(
        self, request_id: str, correct: bool, *, tenant: str | None = None
    ) -> Outcome | None:
        """Marks the answer of a request; None where no gateway knows of it. With a tenant given,
        only of a request of its own. Raises CacheError when the store could not be told."""
        answered = self._recall(request_id, tenant)
        if answered is not None:
            return await self._act(request_id, answered, correct)
        if not self._shared or len(self._waiting) >= _WAITING_AT_MOST:
            return None
        return await self._ask_around(request_id, correct, tenant)

    async def mark_entry(self, entry_id: str, correct: bool) -> Outcome | None:
        """Marks an entry as such: a wrong one is deleted; None where there is no such entry."""
        if not await self._cache.holds(entry_id):
            return None
        if not correct:
            await self._cache.delete([entry_id])
        return Outcome(() if correct else (entry_id,))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _recall(self, request_id: str, tenant: str | None) -> Answered | None:
        tenants = self._tenants if tenant is None else (tenant,)
        found = (self._answers.get((name, request_id)) for name in tenants)
        return max(filter(None, found), key=lambda answered: answered.at, default=None)

    async def _act(self, request_id: str, answered: Answered, correct: bool) -> Outcome:
        withdrawn = () if correct else self._entries_of(answered)
        near = answered.near
        try:
            if near is not None:
                await self._note_mark(request_id, answered, near, correct)
        finally:
            if withdrawn:
                await self._cache.delete(withdrawn)
        counted = near is not None and near.judged
        return Outcome(withdrawn, blocked=near is not None and not correct, counted=counted)

    def _entries_of(self, answered: Answered) -> tuple[str, ...]:
        if answered.entry_id:
            return (answered.entry_id,)
        made = self._cache.exactly(answered.exact) if answered.exact else None
        # One that was there before the request came is not what was answered.
        return (made.id,) if made is not None and made.created_at >= answered.at else ()

    async def _note_mark(
        self, request_id: str, answered: Answered, near: Near, correct: bool
    ) -> None:
        pair = pair_of(answered.partition, answered.asked, near.question)
        body = mark_body(request_id, pair, near, correct)
        await self._cache.journal.write(
            MARK, body, ttl_s=PAIR_TTL_S, tenant=answered.tenant, user=answered.user
        )

    async def _ask_around(
        self, request_id: str, correct: bool, tenant: str | None
    ) -> Outcome | None:
        ask = os.urandom(8).hex()
        body = {"ask": ask, "request": request_id, "correct": correct, "any": tenant is None}
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[ask] = told
        try:
            async with asyncio.timeout(self._wait_s):
                await self._cache.journal.write(
                    ASKED, body, ttl_s=_ROUND_TTL_S, tenant=tenant or ""
                )
                return await told
        except TimeoutError:
            return None
        finally:
            del self._waiting[ask]

    def _heard_question(self, note: Note) -> None:
        body = note.body
        if body["ask"] in self._waiting or note.expires_at <= self._wall():
            return
        request_id = str(body["request"])
        answered = self._recall(request_id, None if body["any"] else note.tenant)
        if answered is not None:
            task = asyncio.get_running_loop().create_task(
                self._answer_question(str(body["ask"]), request_id, answered, bool(body["correct"]))
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_question(
        self, ask: str, request_id: str, answered: Answered, correct: bool
    ) -> None:
        try:
            outcome = await self._act(request_id, answered, correct)
            body = {"ask": ask, **outcome.as_json()}
            await self._cache.journal.write(TOLD, body, ttl_s=_ROUND_TTL_S, tenant=answered.tenant)
        except CacheError:
            return  # counted where it was raised; whoever asked hears nothing in time

    def _heard_outcome(self, note: Note) -> None:
        body = note.body
        waiting = self._waiting.get(str(body["ask"]))
        if waiting is not None and not waiting.done():
            withdrawn = tuple(map(str, body["withdrawn"]))
            waiting.set_result(Outcome(withdrawn, bool(body["blocked"]), bool(body["counted"])))
