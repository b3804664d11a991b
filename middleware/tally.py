"""Counts of what happened, noted every minute for the report: a hook over Traces.

A note holds the requests since the last one, of all tenants, by cache result, reason and tier,
with tokens and, for models that have a price, US dollars spent and saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from tierway.cache.journal import Journal
from tierway.cache.report import TALLY
from tierway.policies.errors import CacheError
from tierway.policies.types import Trace, Usage

TTL_S = 30 * 86400.0
EVERY_S = 60.0
SAVED = ("hit", "semantic-hit", "shared", "stale")
_REASON = re.compile(r"[a-z][a-z-]{0,30}")
_REASONS_KNOWN = 100

Prices = Mapping[str, tuple[float, float]]
"""US dollars per million input and output tokens, by model."""


class Tally:
    """`every_s` seconds pass between two notes; one without requests is not written."""

    def __init__(self, journal: Journal, prices: Prices, *, every_s: float = EVERY_S) -> None:
        self._journal, self._prices, self._every_s = journal, prices, every_s
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._dollars: defaultdict[str, float] = defaultdict(float)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._write_forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write()

    def __call__(self, trace: Trace) -> None:
        counts = self._counts
        counts["cache"][trace.cache] += 1
        if trace.observed:
            counts["observed"][trace.observed] += 1
        if trace.cache in ("miss", "bypass") and trace.cache_reason and not trace.observed:
            counts[trace.cache][bounded(trace.cache_reason, counts[trace.cache])] += 1
        if trace.tier and trace.cache not in SAVED:
            counts["tiers"][trace.tier] += 1
        if trace.outcome:
            counts["outcomes"][trace.outcome] += 1
        self._add_tokens(trace)

    async def write(self) -> None:
        """Notes what was counted since the last time."""
        if not self._counts:
            return
        counts, dollars = self._counts, self._dollars
        self._counts, self._dollars = defaultdict(Counter), defaultdict(float)
        body: dict[str, Any] = {name: dict(found) for name, found in counts.items()}
        body["dollars"] = {name: round(value, 9) for name, value in dollars.items()}
        with contextlib.suppress(CacheError):  # counted by the journal
            await self._journal.write(TALLY, body, ttl_s=TTL_S)

    def _add_tokens(self, trace: Trace) -> None:
        usage = trace.usage
        if usage is None or trace.outcome != "ok":
            return
        kinds = ["saved" if trace.cache in SAVED else "spent"]
        if trace.observed:
            kinds.append("would_save")
        for kind in kinds:
            tokens = self._counts[f"tokens_{kind}"]
            tokens["input"] += usage.input_tokens
            tokens["output"] += usage.output_tokens
            if trace.model in self._prices:
                self._dollars[kind] += dollars(self._prices, trace.model, usage)
        if trace.model not in self._prices and (usage.input_tokens or usage.output_tokens):
            self._counts["unpriced"][trace.model] += 1

    async def _write_forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()


def dollars(prices: Prices, model: str, usage: Usage) -> float:
    """What an answer cost; 0 for a model without a price."""
    into, out = prices.get(model, (0.0, 0.0))
    return (usage.input_tokens * into + usage.output_tokens * out) / 1e6


def bounded(reason: str, known: Collection[str]) -> str:
    """A reason as a label: constants as they are, anything else is `other`."""
    fits = _REASON.fullmatch(reason) and (reason in known or len(known) < _REASONS_KNOWN)
    return reason if fits else "other"
