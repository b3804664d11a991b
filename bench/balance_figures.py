"""The figures of a balancing benchmark: of one run, and of several seeds together.

    work     uncached prompt tokens that a replica computed, as its engine counted them
    requests max:mean of how many a replica was given
    busy     share of the run in which a replica had a request running
    goodput  share of requests with a first token in time and tokens in time after it; what no
             engine could hold counts as late

Percentiles are nearest-rank. Over seeds each figure is a mean with a 95 % interval (Student's t).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierway.bench.balance_rig import Run, Sample
from tierway.policies.physics import pace

Figures = dict[str, Any]

_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True, slots=True)
class Slo:
    ttft_s: float
    tpot_s: float


def figures(run: Run, slo: Slo) -> Figures:
    ttfts = [sample.ttft_s for sample in run.samples]
    tpots = [sample.tpot_s for sample in run.samples if sample.tpot_s is not None]
    totals = [engine.totals for engine in run.engines]
    in_time = sum(
        sample.ttft_s <= slo.ttft_s and (sample.tpot_s or 0.0) <= slo.tpot_s
        for sample in run.samples
    )
    tokens = sum(sample.asked.output_tokens for sample in run.samples)
    queries = sum(total.prefix_queries for total in totals)
    return {
        "ttft_s": spread(ttfts),
        "tpot_s": spread(tpots),
        "output_tokens_per_s": tokens / run.seconds if run.seconds else 0.0,
        "kv_hit_ratio": sum(total.prefix_hits for total in totals) / queries if queries else 0.0,
        "work_max_over_mean": max_over_mean([total.computed_prompt_tokens for total in totals]),
        "busy_max_over_mean": max_over_mean([total.busy_s for total in totals]),
        "goodput": in_time / max(1, len(run.samples) + run.lost),
        "decision_us": {
            share: 1e6 * value
            for share, value in spread([sample.decision_s for sample in run.samples]).items()
            if share != "mean"
        },
        "requests_max_over_mean": max_over_mean(_requests(run)),
        **({"share_to_fastest": _to_fastest(run)} if _is_mixed(run) else {}),
        "lost": run.lost,
        "seconds": run.seconds,
    }


def _requests(run: Run) -> list[int]:
    counts = [0] * len(run.engines)
    for sample in run.samples:
        counts[sample.replica] += 1
    return counts


def _is_mixed(run: Run) -> bool:
    return len({engine.profile.gpu.name for engine in run.engines}) > 1


def _to_fastest(run: Run) -> dict[str, float]:
    """Shares that went to the engines with the shortest step: of the tenth of requests with the
    most work (prompt and answer, at the mean pace), of all requests, and of the fleet's speed."""
    paces = [pace(made.model, made.gpu, made.gpus) for made in (e.profile for e in run.engines)]
    speeds = [1.0 / one.step_s for one in paces]
    fastest = {number for number, speed in enumerate(speeds) if speed == max(speeds)}
    prefill_s = math.fsum(one.prefill_s for one in paces)
    step_s = math.fsum(one.step_s for one in paces)

    def work(sample: Sample) -> float:
        return prefill_s * sample.asked.prompt_tokens + step_s * sample.asked.output_tokens

    heaviest = sorted(run.samples, key=work, reverse=True)[: max(1, len(run.samples) // 10)]
    return {
        "top_tenth": _share(heaviest, fastest),
        "all": _share(run.samples, fastest),
        "speed": math.fsum(speeds[number] for number in fastest) / math.fsum(speeds),
    }


def _share(samples: Sequence[Sample], replicas: set[int]) -> float:
    return sum(sample.replica in replicas for sample in samples) / max(1, len(samples))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile; zeros of nothing."""
    if not values:
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    ordered = sorted(values)
    return {
        "mean": math.fsum(ordered) / len(ordered),
        **{f"p{share}": ordered[math.ceil(share / 100 * len(ordered)) - 1] for share in (50, 99)},
    }


def max_over_mean(values: Sequence[float]) -> float:
    """1 where all are equal, and where there is nothing at all."""
    total = math.fsum(values)
    return max(values) * len(values) / total if total else 1.0


def over_seeds(runs: Sequence[Figures]) -> Figures:
    """The mean of every figure; with more than one run also `ci95`, half the interval's width,
    in the same shape."""
    found = _merged(runs, statistics.fmean)
    if len(runs) > 1:
        found["ci95"] = _merged([_virtual(run) for run in runs], _half_width)
        found["by_seed"] = {
            "ttft_s": [run["ttft_s"]["mean"] for run in runs],
            "output_tokens_per_s": [run["output_tokens_per_s"] for run in runs],
        }
    return found


def _virtual(run: Figures) -> Figures:
    """What the seed alone decides."""
    return {key: value for key, value in run.items() if key != "decision_us"}


def _merged(runs: Sequence[Mapping[str, Any]], merge: Any) -> Figures:
    return {
        key: _merged([run[key] for run in runs], merge)
        if isinstance(value, Mapping)
        else merge([run[key] for run in runs])
        for key, value in runs[0].items()
    }


def _half_width(values: Sequence[float]) -> float:
    factor = _T95.get(len(values) - 1, 1.96)
    return factor * statistics.stdev(values) / math.sqrt(len(values))
