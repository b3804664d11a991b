"""Prometheus metrics: one hook over Traces, and gauges read from the fleet at scrape time.

Label values are bounded: tiers, replicas, outcomes and reasons come from the configuration and
from constants, never from a request's text. Buckets are vLLM's, so dashboards can overlay.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tierway.middleware.fleet_metrics import FleetCollector
from tierway.middleware.tally import Prices, bounded, dollars
from tierway.policies.protocols import Clock
from tierway.policies.types import ReplicaView, StateStatus, Trace

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
         40, 80, 160, 640, 2560)  # fmt: skip
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
_REQUEST = (0.005, 0.05, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240,
            480, 960)  # fmt: skip
_STAGE = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
          0.5, 1)  # fmt: skip
_COSINE = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 1)
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """`views` and `breakers` give the fleet's state, `entries` the size of the
    cache, `shared` how the state fares that gateways share."""

    content_type = _CONTENT_TYPE

    def __init__(
        self,
        *,
        views: Callable[[], Iterable[ReplicaView]],
        breakers: Callable[[], Mapping[str, str]],
        entries: Callable[[], int],
        policy_version: Callable[[], int],
        clock: Clock = time.monotonic,
        shadow: Callable[[], Mapping[str, int]] = dict,
        collectors: Iterable[Collector] = (),
        prices: Prices | None = None,
        shared: Callable[[], StateStatus] = lambda: StateStatus("memory"),
    ) -> None:
        self._prices = prices or {}
        registry = self._registry = CollectorRegistry()
        self.results: Tally[str] = Tally()
        """Requests by what the cache did, since the start."""
        self._reasons: set[str] = set()
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._make_counters(registry)
        self._make_histograms(registry)
        size = Gauge("tierway_cache_entries", "Entries in the cache.", registry=registry)
        size.set_function(entries)
        version = Gauge(
            "tierway_policy_version", "Version of the policies in force.", registry=registry
        )
        version.set_function(policy_version)
        state = Gauge(
            "tierway_state_ok", "1 while counts are those of all gateways.", registry=registry
        )
        state.set_function(lambda: float(shared().ok))
        gateways = Gauge("tierway_state_gateways", "Gateways that share.", registry=registry)
        gateways.set_function(lambda: shared().gateways)
        registry.register(FleetCollector(views, breakers, clock))
        for collector in (_ShadowCollector(shadow), *collectors):
            registry.register(collector)

    def _make_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tierway_{name}", text, labels, registry=registry)

        outcome = ("wire", "tier", "outcome")
        self._requests = counter("requests", "Requests by wire, tier and outcome.", *outcome)
        self._lookups = counter("cache_lookups", "Cache lookups by result.", "result")
        self._opinions = counter(
            "cache_second_opinions", "Second opinions by what they came to.", "result"
        )
        self._misses = counter("cache_misses", "Cache misses by reason.", "reason")
        self._scores = Histogram(
            "tierway_cache_similarity",
            "Cosine of the question served or, in observe mode, that would have been.",
            ("result",),
            buckets=_COSINE,
            registry=registry,
        )
        self._saved_tokens = counter("cache_saved_tokens", "Output tokens out of the cache.")
        self._saved_dollars = counter("saved_usd", "US dollars that cache hits had cost.")
        self._dollars = counter("cost_usd", "US dollars spent, of models with a price.", "tier")
        self._routes = counter("route", "Tier decisions by reason.", "tier", "reason")
        self._retries = counter("retries", "Attempts after the first, by reason.", "reason")
        self._tokens = counter("tenant_tokens", "Tokens by tenant.", "tenant", "direction")

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"tierway_{name}_seconds", text, labels, buckets=buckets, registry=registry
            )

        self._seconds = histogram("request", "From arrival to the last byte.", _REQUEST)
        self._ttft = histogram("ttft", "From arrival to the first token.", _TTFT, "tier")
        self._tpot = histogram("tpot", "Per output token after the first.", _TPOT, "tier")
        self._overhead = histogram("overhead", "The gateway's own stages.", _STAGE, "stage")

    def __call__(self, trace: Trace) -> None:
        """The hook: one finished request."""
        self._child(self._requests, trace.wire, trace.tier, trace.outcome).inc()
        self._child(self._lookups, trace.cache).inc()
        self.results[trace.cache] += 1
        if trace.cache == "miss" and not trace.observed:
            reason = bounded(trace.cache_reason, self._reasons)
            self._reasons.add(reason)
            self._child(self._misses, reason).inc()
        by_meaning = trace.cache == "semantic-hit" or trace.observed == "semantic-hit"
        if by_meaning and trace.similarity is not None:
            self._child(self._scores, "observed" if trace.observed else trace.cache).observe(
                trace.similarity
            )
        if trace.second_opinion:
            self._child(self._opinions, trace.second_opinion).inc()
        if trace.duration_s is not None:
            self._seconds.observe(trace.duration_s)
        if trace.route_reason:
            self._child(self._routes, trace.tier, trace.route_reason).inc()
        for reason in trace.retries:
            self._child(self._retries, reason).inc()
        for stage, seconds in trace.stages_s.items():
            self._child(self._overhead, stage).observe(seconds)
        self._count_tokens(trace)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _child(self, metric: Any, *labels: str) -> Any:
        """The metric's child for these labels; `labels()` itself costs more than counting."""
        key = (metric, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def _count_tokens(self, trace: Trace) -> None:
        if trace.outcome != "ok":
            return
        usage = trace.usage
        if trace.cache in ("hit", "semantic-hit", "stale"):
            if usage is not None:
                self._saved_tokens.inc(usage.output_tokens)
                self._saved_dollars.inc(dollars(self._prices, trace.model, usage))
            return
        if trace.stream and trace.first_token_s is not None:
            self._child(self._ttft, trace.tier).observe(trace.first_token_s)
        if usage is None:
            return
        if trace.cache != "shared" and trace.model in self._prices:
            spent = dollars(self._prices, trace.model, usage)
            self._child(self._dollars, trace.tier).inc(spent)
        self._child(self._tokens, trace.tenant, "input").inc(usage.input_tokens)
        self._child(self._tokens, trace.tenant, "output").inc(usage.output_tokens)
        if trace.stream and usage.output_tokens > 1 and trace.duration_s and trace.first_token_s:
            per_token = (trace.duration_s - trace.first_token_s) / (usage.output_tokens - 1)
            self._child(self._tpot, trace.tier).observe(per_token)


class _ShadowCollector(Collector):
    """How shadow samples compared, where they are taken."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "tierway_cache_shadow",
            "Semantic hits asked upstream besides, by how the answers compare.",
            labels=("result",),
        )
        for result, count in self._counts().items():
            family.add_metric((result,), count)
        yield family
