"""Gauges of the replicas, read from the fleet at scrape time: who is gone has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tierway.policies.protocols import Clock
from tierway.policies.types import FRESH_S, GPU_FRESH_S, ReplicaView

_BREAKER = {"closed": 0, "half-open": 1, "open": 2}

_REPLICA_GAUGES: tuple[tuple[str, str, str, Callable[[ReplicaView], float | None]], ...] = (
    ("replica_inflight", "Requests in flight.", "all", lambda v: v.inflight),
    ("replica_waiting", "Requests in the engine's queue.", "engine", lambda v: v.waiting),
    ("replica_kv_usage", "KV cache in use, 0 to 1.", "engine", lambda v: v.kv_usage),
    ("replica_gpu_utilisation", "GPU in use, 0 to 1.", "gpu", lambda v: v.gpu_utilisation),
    ("replica_pressure", "Memory pressure, 0 to 1.", "engine", lambda v: v.pressure),
    (
        "replica_gpu_memory_used_bytes",
        "Memory in use of the fullest GPU.",
        "gpu",
        lambda v: v.gpu_memory_used_bytes,
    ),
    (
        "replica_gpu_temperature_celsius",
        "Temperature of the hottest GPU.",
        "gpu",
        lambda v: v.gpu_temperature_celsius,
    ),
    (
        "replica_gpu_throttled",
        "1 while heat or hardware slows a GPU down.",
        "gpu",
        lambda v: float(v.gpu_throttled),
    ),
)
"""Name, text, whose facts must be fresh for it, and value."""


class FleetCollector(Collector):
    """Series of the replicas there are. Facts too old to be known have none: a gap says so."""

    def __init__(
        self,
        views: Callable[[], Iterable[ReplicaView]],
        breakers: Callable[[], Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self._views, self._breakers, self._clock = views, breakers, clock

    def collect(self) -> Iterable[Metric]:
        now_s, views = self._clock(), list(self._views())
        told = [view for view in views if _fresh(view.facts_at_s, now_s, FRESH_S)]
        seen = [view for view in views if _fresh(view.gpu_facts_at_s, now_s, GPU_FRESH_S)]
        for name, text, among, value in _REPLICA_GAUGES:
            shown = {"all": views, "engine": told, "gpu": seen}[among]
            yield _gauge(name, text, shown, value)
        yield _gauge(
            "replica_facts_age_seconds",
            "Since the engine last told of itself.",
            views,
            lambda v: None if v.facts_at_s is None else max(0.0, now_s - v.facts_at_s),
        )
        breaker = GaugeMetricFamily(
            "tierway_breaker_state",
            "Circuit breaker: 0 closed, 1 half-open, 2 open.",
            labels=("replica",),
        )
        for replica, state in self._breakers().items():
            breaker.add_metric((replica,), _BREAKER[state])
        yield breaker


def _fresh(at_s: float | None, now_s: float, most_s: float) -> bool:
    return at_s is not None and now_s - at_s <= most_s


def _gauge(
    name: str,
    text: str,
    views: list[ReplicaView],
    value: Callable[[ReplicaView], float | None],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tierway_{name}", text, labels=("tier", "replica"))
    for view in views:
        found = value(view)
        if found is not None:
            family.add_metric((view.tier, view.id), found)
    return family


class CountCollector(Collector):
    """Counts that somebody else keeps, by their labels: read at scrape time."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...],
        counts: Callable[[], Mapping[tuple[str], int] | Mapping[tuple[str, str], int]],
    ) -> None:
        self._name, self._text, self._labels, self._counts = name, text, labels, counts

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(f"tierway_{self._name}", self._text, labels=self._labels)
        for labels, count in self._counts().items():
            family.add_metric(labels, count)
        yield family


def topology_collector(places: Callable[[], Mapping[str, int]]) -> CountCollector:
    return CountCollector(
        "topology_requests",
        "Calls by what became of zone and group.",
        ("kind",),
        lambda: _single(places()),
    )


def maintenance_collector(
    outcomes: Callable[[], Mapping[tuple[str, str], int]],
) -> CountCollector:
    text = "Replicas mended, by outcome."
    return CountCollector("maintenance", text, ("replica", "outcome"), outcomes)


def prefetch_collector(outcomes: Callable[[], Mapping[str, int]]) -> CountCollector:
    text = "Prompts prefilled on replicas, by outcome."
    return CountCollector("prefetch", text, ("outcome",), lambda: _single(outcomes()))


def _single(counts: Mapping[str, int]) -> dict[tuple[str], int]:
    return {(name,): count for name, count in counts.items()}
