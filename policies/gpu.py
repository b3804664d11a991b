"""Deratings by the state of a GPU: what the `gpu` policy multiplies predicted work with.

The work of each replica is in seconds of its own pace (work.py), which begins with what its GPU
model promises: the larger a call, the more the speed of a GPU counts for it, and small ones fill
the slow GPUs. Deratings multiply the score 1 / (1 + work). Each is 1 up to a threshold and
falls smoothly from there, so that a replica near its limits gets less and not at once nothing:

    memory  to 0.05 at full memory, from `memory_threshold`. Memory is KV use where the engine
            takes all GPU memory at its start, or full memory would mean nothing; elsewhere it is
            the framebuffer in use
    heat    to 0.2 at `limit_celsius`, from `hot_celsius`; half of that while the GPU says that it
            throttles
    busy    to 0.5 at full utilisation, from `utilisation_threshold`, as far as a queue or full
            memory bears it out. Utilisation alone tells nothing: it is the share of time in which
            any kernel ran, near 1 with a single request in flight

    pressure  1 - 0.5 * memory pressure (pressure.py)

GPU facts older than `gpu_fresh_s` and engine facts older than `fresh_s` are unknown. What is
unknown counts as (1 + sum of the known) / (1 + number of the known): better than the worst, and
never better than a GPU that is known to be fine. A replica of several GPUs is its worst one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierway.policies.errors import ConfigError
from tierway.policies.readings import engine_fresh, gpu_fresh, kv_use
from tierway.policies.types import BalanceAsk, ReplicaView
from tierway.policies.work import PredictedWork

_FULL_MEMORY = 0.05
_AT_LIMIT = 0.2
_THROTTLED = 0.5
_BUSY = 0.5
_QUEUE = 4.0  # waiting requests that bear out half of a full utilisation


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """The options of `gpu`; raises ConfigError where the limit is not above the threshold."""

    memory_threshold: float = field(default=0.85, metadata={"most": 0.99})
    hot_celsius: float = field(default=80.0, metadata={"most": 150.0})
    limit_celsius: float = field(default=92.0, metadata={"most": 200.0})
    utilisation_threshold: float = field(default=0.9, metadata={"most": 0.99})
    batch: float = field(default=16.0, metadata={"least": 1.0})
    recent_weight: float = 0.02
    fresh_s: float = field(default=5.0, metadata={"above": 0.0})
    gpu_fresh_s: float = field(default=15.0, metadata={"above": 0.0})

    def __post_init__(self) -> None:
        if not self.limit_celsius > self.hot_celsius:
            raise ConfigError(
                [
                    f"options.limit_celsius = {self.limit_celsius:g}: "
                    f"must be above hot_celsius, {self.hot_celsius:g}"
                ]
            )

    def work(self) -> PredictedWork:
        return PredictedWork(self.batch, 0.0, self.recent_weight, self.fresh_s)


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """1 until memory is used to the threshold, falling to 0.05 where it is full."""

    name = "memory"

    options: GpuOptions

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        start = self.options.memory_threshold
        uses = [memory_use(ask, view, self.options) for view in views]
        return doubted([None if u is None else fall(u, start, 1.0, _FULL_MEMORY) for u in uses])


@dataclass(frozen=True, slots=True)
class Coolness:
    """1 until the GPU is hot, falling to 0.2 at its limit; half of it while it throttles."""

    name = "heat"

    options: GpuOptions

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        rules = self.options
        fresh = [gpu_fresh(ask, view, rules.gpu_fresh_s) for view in views]
        heat = doubted(
            [
                fall(
                    view.gpu_temperature_celsius, rules.hot_celsius, rules.limit_celsius, _AT_LIMIT
                )
                if known and view.gpu_temperature_celsius is not None
                else None
                for view, known in zip(views, fresh, strict=True)
            ]
        )
        return [
            value * _THROTTLED if known and view.gpu_throttled else value
            for value, view, known in zip(heat, views, fresh, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Idleness:
    """1 until utilisation is high and borne out by a queue or full memory, then down to 0.5."""

    name = "busy"

    options: GpuOptions

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return doubted([self._one(ask, view) for view in views])

    def _one(self, ask: BalanceAsk, view: ReplicaView) -> float | None:
        rules = self.options
        busy = view.gpu_utilisation
        if busy is None or not gpu_fresh(ask, view, rules.gpu_fresh_s):
            return None
        if busy <= rules.utilisation_threshold:
            return 1.0
        waiting = view.waiting if engine_fresh(ask, view, rules.fresh_s) else None
        queue = max(0, waiting or 0)
        use = memory_use(ask, view, rules)
        full = 0.0 if use is None else 1.0 - fall(use, rules.memory_threshold, 1.0, 0.0)
        evidence = max(queue / (queue + _QUEUE), full)
        return 1.0 - (1.0 - fall(busy, rules.utilisation_threshold, 1.0, _BUSY)) * evidence


@dataclass(frozen=True, slots=True)
class Relief:
    """1 without memory pressure, 0.5 at the full index; 1 too where it is not known."""

    name = "pressure"

    def score(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [1.0 - 0.5 * (view.pressure or 0.0) for view in views]


def memory_use(ask: BalanceAsk, view: ReplicaView, rules: GpuOptions) -> float | None:
    """The share of memory in use, 0 to 1, None where nothing fresh tells it."""
    if view.preallocates:
        use = kv_use(ask, view, rules.fresh_s)
        return None if use is None else min(1.0, use)
    used, total = view.gpu_memory_used_bytes, view.gpu_memory_bytes
    if used is None or not total or not gpu_fresh(ask, view, rules.gpu_fresh_s):
        return None
    return max(0.0, min(used / total, 1.0))


def fall(value: float, start: float, end: float, least: float) -> float:
    """1 up to `start`, `least` from `end` on, between them 1 - (1 - least) * t * t * (3 - 2 t)."""
    t = max(0.0, min((value - start) / (end - start), 1.0))
    return 1.0 - (1.0 - least) * t * t * (3.0 - 2.0 * t)


def doubted(found: Sequence[float | None]) -> list[float]:
    """The deratings, with the module's middle course for those not known."""
    known = [value for value in found if value is not None]
    middle = (1.0 + sum(known)) / (1.0 + len(known))
    return [middle if value is None else value for value in found]
