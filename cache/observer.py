"""What the cache did, or in observe mode would have done, noted for the report.

Three kinds of notes, written behind the requests: pairs of questions that were or would have
been served by meaning, with the nearest ones that were not; misses, each with its reason and,
where the same question was asked before under another key, what differed; and tallies (from
middleware/tally.py). They hold questions, as the store does, for NOTE_TTL_S at most; nothing is
noted of requests with `no-store` and of questions about the asker.

A budget a minute bounds what busy gateways write; what was not noted is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import orjson

from tierway.cache.journal import Journal
from tierway.cache.keys import FIELDS, Fingerprint
from tierway.cache.lessons import pair_of
from tierway.cache.lookup import Found
from tierway.cache.purge import KIND as PURGED
from tierway.policies.cacheability import Plan, Scope
from tierway.policies.differences import Ingredients, differences
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock, Note
from tierway.policies.types import Call

PAIR, MISS = "seen-pair", "seen-miss"
NOTE_TTL_S = 7 * 86400.0
QUESTION_CHARS = 400
_SYSTEM_CHARS = 8192
_FIELD_CHARS = 80
_WINDOW_S = 60.0
_WRITE_EVERY_S = 1.0
_ASKED_BEFORE = 2_000


@dataclass(frozen=True, slots=True)
class Budget:
    """Notes a minute, by kind."""

    pairs: int = 120
    misses: int = 60


class Observer:
    """`draw` is uniform in [0, 1); in serve mode only `share` of the misses is looked at."""

    def __init__(
        self,
        journal: Journal,
        *,
        wall: Clock,
        draw: Callable[[], float],
        scope: Scope = "tenant",
        budget: Budget | None = None,
        share: float = 0.1,
    ) -> None:
        self._journal, self._wall, self._draw, self._scope = journal, wall, draw, scope
        self._budget, self._share = budget or Budget(), share
        self._window_at, self._spent = 0.0, Counter[str]()
        self._waiting: deque[tuple[str, Mapping[str, Any], str, str]] = deque()
        self._asked: OrderedDict[tuple[str, str], Ingredients] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self.left_out: Counter[str] = Counter()
        journal.listen(PURGED, self._forget)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._write_forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.settle()

    async def settle(self) -> None:
        """Writes what waits."""
        while self._waiting:
            kind, body, tenant, user = self._waiting.popleft()
            with contextlib.suppress(CacheError):  # counted by the journal
                await self._journal.write(kind, body, ttl_s=NOTE_TTL_S, tenant=tenant, user=user)

    def _forget(self, _: Note) -> None:
        """A purge of anybody takes what is not written yet and what was asked lately."""
        self._waiting.clear()
        self._asked.clear()

    def saw(self, call: Call, names: str, mark: Fingerprint, plan: Plan, found: Found) -> None:
        """One lookup that was no exact hit."""
        if call.controls.cache.no_store or not mark.question or plan.personal:
            return
        if found.hit is not None:
            self._see_pair(call, mark, found, served=plan.serve)
        elif not plan.serve or self._draw() < self._share:
            self._see_miss(call, names, mark, found)

    def _see_pair(self, call: Call, mark: Fingerprint, found: Found, *, served: bool) -> None:
        near = found.near
        if near is None or not self._may(PAIR, self._budget.pairs):
            return
        body = {
            "request": call.id,
            "asked": mark.question[:QUESTION_CHARS],
            "reason": found.reason,
            "served": served,
            "pair": pair_of(mark.partition, mark.question, near.question),
            **_stored(found),
        }
        self._waiting.append((PAIR, body, call.tenant, call.user))

    def _see_miss(self, call: Call, names: str, mark: Fingerprint, found: Found) -> None:
        elsewhere = self._elsewhere(call, names, mark) if found.near is None else []
        if not self._may(MISS, self._budget.misses):
            return
        body = {
            "request": call.id,
            "asked": mark.question[:QUESTION_CHARS],
            "reason": found.reason,
            "elsewhere": elsewhere,
            **_stored(found),
        }
        self._waiting.append((MISS, body, call.tenant, call.user))

    def _may(self, kind: str, limit: int) -> bool:
        now_at = self._wall()
        if now_at - self._window_at >= _WINDOW_S:
            self._window_at = now_at
            self._spent.clear()
        self._spent[kind] += 1
        if self._spent[kind] <= limit:
            return True
        self.left_out[kind] += 1
        return False

    def _elsewhere(self, call: Call, names: str, mark: Fingerprint) -> list[dict[str, Any]]:
        """What differs from the last request with this question under another key."""
        owner = "" if self._scope == "shared" else call.tenant
        key = (owner, " ".join(mark.question.casefold().split()))
        before = self._asked.pop(key, None)
        now = self._asked[key] = _ingredients(call, names, mark, self._scope)
        while len(self._asked) > _ASKED_BEFORE:
            self._asked.popitem(last=False)
        if before is None or before.partition == now.partition:
            return []
        return [asdict(difference) for difference in differences(before, now)]

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            await self.settle()


def _stored(found: Found) -> dict[str, Any]:
    near = found.near
    if near is None:
        return {}
    return {
        "stored": near.question[:QUESTION_CHARS],
        "cosine": round(near.cosine, 4),
        "probability": near.probability,
        "judged": near.judged,
        "language": near.language,
        "entry": near.entry_id,
    }


def _ingredients(call: Call, names: str, mark: Fingerprint, scope: Scope) -> Ingredients:
    turns = [turn for turn in call.ask.turns if turn.role not in ("system", "developer")][:-1]
    history = blake2b(digest_size=16)
    for turn in turns:
        history.update(repr((turn.role, turn.text)).encode("utf-8", "surrogatepass"))
    return Ingredients(
        partition=mark.partition,
        system=call.ask.system[:_SYSTEM_CHARS],
        history=history.digest(),
        turns=len(turns),
        namespace=call.controls.namespace,
        names=names,
        context_id=call.controls.cache.context_id or "",
        user=call.user if scope == "user" else "",
        fields={
            name: _brief(value)
            for name, value in call.body.items()
            if name not in FIELDS and name not in ("messages", "prompt", "system")
        },
    )


def _brief(value: Any) -> str:
    """A field's value; of a long one its beginning and a digest, to be compared by."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str)
    text = raw.decode("utf-8", "replace")
    if len(text) <= _FIELD_CHARS:
        return text
    return f"{text[:_FIELD_CHARS]}… ({blake2b(raw, digest_size=4).hexdigest()})"
