"""Shadow samples: some semantic hits are also asked upstream, after they were served.

The answers are compared (policies/agreement.py) and counted; the client has its answer and
neither waits nor pays. The comparison is too coarse to be a mark: a difference is noted for the
report, where somebody reads the pair, and that mark teaches the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from tierway.cache.journal import Journal
from tierway.cache.lessons import Near, pair_of
from tierway.cache.lookup import Hit
from tierway.cache.observer import NOTE_TTL_S
from tierway.cache.report import SHADOW
from tierway.middleware.pipeline import complete_answer
from tierway.policies.agreement import agreement
from tierway.policies.errors import CacheError, GatewayError
from tierway.policies.protocols import Answer, Clock
from tierway.policies.types import Call, Trace

logger = logging.getLogger(__name__)

Open = Callable[[Call, Trace], Awaitable[Answer]]
RESULTS = ("same", "different", "unsure", "failed", "skipped")
AT_MOST = 4  # at a time; more are skipped, counted
WITHIN_S = 120.0
_MAX_BYTES = 1 << 20


class Shadow:
    """`share` of the semantic hits is sampled; `draw` is uniform in [0, 1). `open` asks the
    fleet, as for any request, and what it costs is no client's."""

    def __init__(
        self,
        share: float,
        open: Open,
        journal: Journal,
        *,
        draw: Callable[[], float],
        clock: Clock,
        at_most: int = AT_MOST,
    ) -> None:
        self._share, self._open, self._journal = share, open, journal
        self._draw, self._clock, self._at_most = draw, clock, at_most
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def consider(self, call: Call, partition: bytes, asked: str, near: Near, hit: Hit) -> None:
        """Samples a hit that is being served, or not."""
        if self._draw() >= self._share:
            return
        if len(self._tasks) >= self._at_most:
            self.counts["skipped"] += 1
            return
        pair = pair_of(partition, asked, near.question)
        task = asyncio.get_running_loop().create_task(self._sample(call, pair, hit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sample(self, call: Call, pair: str, hit: Hit) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                fresh = await self._ask(call)
        except (GatewayError, TimeoutError):
            fresh = None
        except Exception:  # border: a background task ends with a word
            logger.exception("a shadow sample failed")
            fresh = None
        stored = _text(orjson.loads(hit.answer))
        if fresh is None or stored is None:
            self.counts["failed"] += 1
            return
        result = agreement(stored, fresh)
        self.counts[result] += 1
        body = {"request": call.id, "pair": pair, "result": result}
        with contextlib.suppress(CacheError):  # counted by the journal
            await self._journal.write(
                SHADOW, body, ttl_s=NOTE_TTL_S, tenant=call.tenant, user=call.user
            )

    async def _ask(self, call: Call) -> str | None:
        """The text of a fresh answer; None for one that is no whole text."""
        late = replace(
            call,
            controls=replace(call.controls, priority="batch"),
            arrived_s=self._clock(),
            deadline_s=self._clock() + WITHIN_S,
        )
        answer = await self._open(late, Trace(call.id))
        try:
            body = bytearray()
            while chunk := await answer.read():
                body += chunk
                if len(body) > _MAX_BYTES:
                    return None
            complete = complete_answer(answer, bytes(body)) if answer.head.status == 200 else None
        finally:
            await answer.aclose()
        return _text(complete) if complete is not None else None


def _text(answer: Any) -> str | None:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (LookupError, TypeError):
        return None
    return text if isinstance(text, str) else None
