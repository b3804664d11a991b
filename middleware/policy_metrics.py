"""Counters of policies: what shadows would have chosen, and policies that failed."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tierway.router.shadows import Shadows


class PolicyCollector(Collector):
    """Read at scrape time; labels are tiers, names of policies and three words."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    def collect(self) -> Iterable[Metric]:
        shadow = CounterMetricFamily(
            "tierway_balance_shadow",
            "Dispatches that a shadow policy saw, by whether it chose the same replica.",
            labels=("tier", "policy", "agrees"),
        )
        for labels, count in self._shadows.counts.items():
            shadow.add_metric(labels, count)
        yield shadow
        faults = CounterMetricFamily(
            "tierway_balance_policy_faults",
            "Choices that fell to the plain policy, as the policy in force failed.",
            labels=("tier", "policy"),
        )
        for where, count in self._shadows.faults.items():
            faults.add_metric(where, count)
        yield faults
