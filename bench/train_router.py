"""Fits the lexical tier classifier, and measures it beside routing by length alone.

    python -m tierway.bench.train_router --data TRAIN.jsonl.gz --out policies/data/tier_lexical.json
    python -m tierway.bench.train_router --eval DEV.jsonl.gz [--weights F]

Lines hold `prompt`, `source` and the mean scores `small`, `medium`, `large` in [0, 1] (null
where unknown) of models of the three classes. The shipped weights come from public results of
MMLU-Pro, ZeroEval, LLMRouter, LawBench and HalluQA. Left out are AlpacaEval, whose questions are
for non-commercial use, and RouterArena, which exists to judge routers.

The fit is three logistic regressions on soft labels, one after the other, each class starting
from the log-odds of the one below (see policies/complexity.py), every weight kept at or above
zero, lines weighted by 1 / sqrt(size of their source). Exam questions say little about
conversations, proofs or designs, so the weights are drawn towards a prior that does: ridge
towards `_PRIOR` instead of towards zero, worth `_STRENGTH` lines.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierway.policies.complexity import CLASSES, SHIPPED, Step, Weights
from tierway.policies.features import NAMES, text_features

Floats = NDArray[np.float64]

_LEFT_OUT = ("AlpacaEval", "RouterArena")
_STRENGTH = 30.0
_CLOUD_SHARE = 0.3  # of the 175B class's own lead: nobody has scored a cloud model beside it
_CLOUD_BIAS = 0.01  # so that a quality of 1 always means the cloud
_PRIOR: Mapping[str, tuple[float, float, float]] = {
    # what a full feature costs the 7B class, and gives 70B over 7B and 175B over 70B
    "length": (0.4, 0.6, 0.4),
    "turns": (0.1, 0.2, 0.1),
    "logic": (0.6, 0.8, 0.6),
    "analysis": (0.6, 1.0, 0.7),
    "code": (0.3, 0.5, 0.3),
    "code_marks": (0.2, 0.4, 0.3),
    "code_block": (0.0, 0.2, 0.1),
    "maths": (0.3, 0.5, 0.3),
    "latex": (0.3, 0.5, 0.3),
    "science": (0.0, 0.3, 0.2),
    "knowledge": (0.0, 0.3, 0.2),
    "constraints": (0.3, 0.4, 0.3),
    "steps": (0.3, 0.4, 0.3),
}


@dataclass(frozen=True, slots=True)
class Lines:
    """`x` float64 [n, features]; `scores` float64 [n, 3], NaN where unknown; `bytes` [n]."""

    sources: list[str]
    x: Floats
    scores: Floats
    bytes: Floats

    @property
    def groups(self) -> list[str]:
        return [source.split("/")[0] for source in self.sources]


def read(path: Path, *, leave_out: Sequence[str] = ()) -> Lines:
    rows = [row for row in _rows(path) if not str(row["source"]).startswith(tuple(leave_out))]
    scores = [[row.get(key) for key in ("small", "medium", "large")] for row in rows]
    return Lines(
        sources=[str(row["source"]) for row in rows],
        x=np.array([text_features(row["prompt"]) for row in rows]),
        scores=np.array(scores, dtype=np.float64),
        bytes=np.array([len(row["prompt"].encode()) for row in rows], dtype=np.float64),
    )


def train(lines: Lines) -> Weights:
    counts = Counter(lines.sources)
    weight = np.array([1.0 / np.sqrt(counts[source]) for source in lines.sources])
    odds = np.zeros(len(weight))
    steps: list[Step] = []
    for level in range(3):
        known = ~np.isnan(lines.scores[:, level])
        sign = -1.0 if level == 0 else 1.0
        prior = np.array([_PRIOR.get(name, (0.0, 0.0, 0.0))[level] for name in NAMES])
        solved = fit(
            sign * lines.x[known],
            lines.scores[known, level],
            weight[known],
            odds[known],
            prior=prior,
            least_bias=-np.inf if level == 0 else 0.0,
        )
        odds = odds + sign * lines.x @ solved[:-1] + solved[-1]
        steps.append(Step(float(solved[-1]), tuple(float(w) for w in solved[:-1])))
    cloud = Step(_CLOUD_BIAS, tuple(_CLOUD_SHARE * w for w in steps[2].weights))
    return Weights((steps[0], steps[1], steps[2], cloud))


def fit(
    x: Floats,
    y: Floats,
    weight: Floats,
    offset: Floats,
    *,
    prior: Floats,
    least_bias: float,
    rounds: int = 2000,
) -> Floats:
    """Weights and, last, the bias of a logistic regression with weights >= 0: accelerated
    projected gradient (Beck and Teboulle 2009), step 1 / Lipschitz constant."""
    a = np.hstack([x, np.ones((len(x), 1))])
    share = weight / weight.sum()
    ridge = np.append(np.full(x.shape[1], _STRENGTH / len(x)), 0.0)
    centre = np.append(prior, 0.0)
    least = np.append(np.zeros(x.shape[1]), least_bias)
    pace = 1.0 / (np.linalg.eigvalsh((a * share[:, None]).T @ a)[-1] / 4.0 + ridge[0])
    found = ahead = np.maximum(centre, least)
    momentum = 1.0
    for _ in range(rounds):
        slope = a.T @ (share * (_sigmoid(a @ ahead + offset) - y)) + ridge * (ahead - centre)
        step = np.maximum(ahead - pace * slope, least)
        grown = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = step + (momentum - 1.0) / grown * (step - found)
        found, momentum = step, grown
    return np.asarray(found)


def curve(order: Floats, weak: Floats, strong: Floats, bins: int = 10) -> Floats:
    """Mean score when the first 0, 1/bins, ... of the lines, by falling `order`, go strong."""
    ranked = np.argsort(-order, kind="stable")
    cuts = [round(len(order) * step / bins) for step in range(bins + 1)]
    totals = [strong[ranked[:cut]].sum() + weak[ranked[cut:]].sum() for cut in cuts]
    return np.array(totals) / len(order)


def apgr(scores: Floats) -> float:
    """RouteLLM's average performance gap recovered, from a curve."""
    gap = scores[-1] - scores[0]
    recovered = (scores - scores[0]) / gap if gap else np.full(len(scores), 0.5)
    return float(np.trapezoid(recovered, dx=1.0 / (len(scores) - 1)))


def evaluate(lines: Lines, weights: Weights) -> dict[str, Any]:
    """Per group of sources and over all: APGR and the mean score with half of the lines sent
    to the strong class, for this classifier and for length alone; calibration; tier shares."""
    p = np.array([list(weights.probabilities(list(row)).values()) for row in lines.x])
    weak = lines.scores[:, 0]
    strong = np.where(np.isnan(lines.scores[:, 2]), lines.scores[:, 1], lines.scores[:, 2])
    lead = p[:, 2] - p[:, 0]
    groups = np.array(lines.groups)
    masks = {name: groups == name for name in sorted(set(lines.groups))}
    masks["all"] = np.full(len(groups), True)
    sets = {
        name: _compare(lead[mask], lines.bytes[mask], weak[mask], strong[mask])
        for name, mask in masks.items()
    }
    return {"sets": sets, "calibration": _calibration(p, lines), "shares": _tier_shares(p)}


def _compare(lead: Floats, size: Floats, weak: Floats, strong: Floats) -> dict[str, float]:
    ours, length = curve(lead, weak, strong), curve(size, weak, strong)
    return {
        "n": len(lead),
        "apgr": apgr(ours),
        "apgr_length": apgr(length),
        "half": float(ours[5]),
        "half_length": float(length[5]),
        "all_weak": float(ours[0]),
        "all_strong": float(ours[-1]),
    }


def _calibration(p: Floats, lines: Lines) -> dict[str, dict[str, float]]:
    found = {}
    for level, name in enumerate(CLASSES[:3]):
        known = ~np.isnan(lines.scores[:, level])
        found[name] = {
            "predicted": float(p[known, level].mean()),
            "observed": float(lines.scores[known, level].mean()),
        }
    return found


def _tier_shares(p: Floats) -> dict[str, dict[str, float]]:
    """The share of lines per class at some places of the dial."""
    shares = {}
    for quality in (0.25, 0.5, 0.75, 0.9):
        enough = p >= p.max(axis=1, keepdims=True) - (1.0 - quality) ** 3
        chosen = np.bincount(enough.argmax(axis=1), minlength=len(CLASSES)) / len(p)
        shares[f"{quality:g}"] = dict(zip(CLASSES, map(float, chosen), strict=True))
    return shares


def table(report: Mapping[str, Any]) -> str:
    titles = ("APGR", "length", "half", "length", "weak", "strong")
    head = f"{'set':12}{'n':>6}" + "".join(f"{title:>8}" for title in titles)
    keys = ("apgr", "apgr_length", "half", "half_length", "all_weak", "all_strong")
    rows = [
        f"{name:12}{row['n']:6d}" + "".join(f"{row[key]:8.3f}" for key in keys)
        for name, row in report["sets"].items()
    ]
    calibration = [
        f"{name:6} predicted {row['predicted']:.3f} observed {row['observed']:.3f}"
        for name, row in report["calibration"].items()
    ]
    shares = [
        f"quality {quality:5}" + "".join(f"  {name} {share:.2f}" for name, share in row.items())
        for quality, row in report["shares"].items()
    ]
    return "\n".join([head, *rows, "", *calibration, "", *shares])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="train-router", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, help="labelled lines to fit to (.jsonl, .jsonl.gz)")
    parser.add_argument("--out", type=Path, help="where to write the weights")
    parser.add_argument("--eval", type=Path, help="labelled lines to measure on")
    parser.add_argument("--weights", type=Path, default=SHIPPED, help="weights to measure")
    options = parser.parse_args(arguments)
    if (options.data is None) != (options.out is None) or not (options.data or options.eval):
        parser.error("give --data with --out, or --eval, or all three")
    weights = train(read(options.data, leave_out=_LEFT_OUT)) if options.data else None
    if weights is not None:
        options.out.write_text(weights.to_json(), encoding="utf-8")
    if options.eval is not None:
        print(table(evaluate(read(options.eval), weights or Weights.load(options.weights))))
    return 0


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(z, -60.0, 60.0))))


if __name__ == "__main__":
    sys.exit(main())
