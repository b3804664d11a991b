"""How well the lengths of answers are foretold, read at scrape time; one label, the model."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tierway.router.predict import LengthPredictor

_GAUGES = (
    (
        "tierway_length_log_error",
        "Mean of |ln(foretold / real)| output tokens, of late, by who foretold.",
        ("log_error", "constant_log_error"),
    ),
    (
        "tierway_length_within_2",
        "Share of answers foretold within a factor of 2, of late, by who foretold.",
        ("within_2", "constant_within_2"),
    ),
)


class LengthCollector(Collector):
    """`by` is predictor, or mean: what the running mean of all answers would have reached."""

    def __init__(self, lengths: LengthPredictor) -> None:
        self._lengths = lengths

    def collect(self) -> Iterable[Metric]:
        errors = self._lengths.errors()
        for name, about, (own, constant) in _GAUGES:
            gauge = GaugeMetricFamily(name, about, labels=("model", "by"))
            for model, found in errors.items():
                gauge.add_metric((model, "predictor"), getattr(found, own))
                gauge.add_metric((model, "mean"), getattr(found, constant))
            yield gauge
