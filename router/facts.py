"""What is known of a replica beside its own requests: what its engine and its GPUs last said.

A fact keeps its last value and the time of it; how old is too old is for whoever reads it to say
(`FRESH_S`, `GPU_FRESH_S` in policies.types). What was not told, or made no sense, is None: neither
zero nor full. Times are of the clock, those of the moment a page was asked for, so that a slow
answer never looks younger than it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tierway.policies.types import FRESH_S


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine tells of itself in the head of an answer."""

    waiting: int | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Of the engine. `read_s` is when the newest of them was told, None for never; `page_s` when
    the last whole page was asked for. `ranks` are the data-parallel copies behind the replica.
    `preemptions` counts since the engine's start, which was at `process_start_s` (wall clock);
    `kv_free_tokens` are those that its KV cache could still take; `asleep` where it has put its
    weights away."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    ranks: int = 1
    preemptions: int | None = None
    kv_free_tokens: int | None = None
    process_start_s: float | None = None
    asleep: bool = False
    read_s: float | None = None
    page_s: float | None = None

    @property
    def empty(self) -> bool:
        """True where nothing was told, whatever was read."""
        return self.waiting is None and self.running is None and self.kv_usage is None

    def reported(self, report: LoadReport, now_s: float) -> Facts:
        """With what came in an answer. Of several ranks an answer tells only one; and what is not
        in it goes once the last page is too old."""
        if self.ranks > 1 or (report.waiting is None and report.kv_usage is None):
            return self
        paged = self.page_s is not None and now_s - self.page_s <= FRESH_S
        return replace(
            self,
            waiting=report.waiting if report.waiting is not None or not paged else self.waiting,
            running=self.running if paged else None,
            kv_usage=report.kv_usage if report.kv_usage is not None or not paged else self.kv_usage,
            read_s=now_s,
        )

    def after(self, known: Facts) -> Facts:
        """This page, with what answers told while it was on its way."""
        if known.read_s is None or self.read_s is None or known.read_s <= self.read_s:
            return self
        return replace(
            self,
            waiting=self.waiting if known.waiting is None else known.waiting,
            kv_usage=self.kv_usage if known.kv_usage is None else known.kv_usage,
            read_s=known.read_s,
        )


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Of the GPUs of a replica, which is judged by the worst of them: the hottest, the fullest,
    any that throttles; utilisation is their mean, power their sum, the clock the slowest."""

    model: str = ""
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_celsius: float | None = None
    throttled: bool = False
    power_watts: float | None = None
    clock_mhz: float | None = None
    read_s: float | None = None
