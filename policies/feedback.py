"""What marks teach: by how much the verifier's probabilities are to be trusted.

Each marked hit is a pair (p, right): the probability the verifier gave and what somebody said of
the answer. Per tenant and language a Platt scaling (Platt, 1999) is fitted on the logits,

    logit p' = c + a + b (logit p - c)        c = logit(1 - bound), the cut

by maximum a posteriori with the priors a ~ N(0, SHIFT_SD^2) and b ~ N(1, SLOPE_SD^2), so that
without marks p' = p. What is served counts with the lower end of p', MARGIN standard deviations of
the fit (Laplace's approximation) below it, weighed by wrong / (wrong + 2): where marks say that the
calibration is off, it must be shown to hold before it is relied on again. p' is never above p:
marks lie above the cut and say nothing of what is below it, so right ones only give back what
wrong ones took.

People mark wrong answers sooner than right ones; a tenant that only ever marks wrong ones loses
more hits than it must. Marks age out after `keep_s`, and what they took comes back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

MARKS_KEPT = 300
"""The newest of a tenant and language; enough to tell 2 % from 5 %, fitted in about 5 ms."""
KEEP_S = 30 * 86400.0
# With these 30 random marks of hits of which 20 % are wrong bring the wrong ones among what is
# still served, 1 to 2 % of the hits, below 1 % over 200 seeds (the populations of
# tests/policies/test_feedback.py); where the calibration holds 87 % of the hits are kept. One
# wrong mark alone keeps a quarter.
SHIFT_SD, SLOPE_SD, MARGIN = 1.0, 0.5, 1.64
_LIMIT = 1e-6  # probabilities nearer to 0 or 1 than this are no better known
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Mark:
    """`probability` is what the verifier gave, before anything was learnt."""

    probability: float
    correct: bool
    at: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """The fit: shift and slope at `centre`, their covariance, and the share of `MARGIN`. Without
    caution, which is without a wrong mark, it changes nothing."""

    centre: float
    shift: float = 0.0
    slope: float = 1.0
    covariance: tuple[float, float, float] = (0.0, 0.0, 0.0)
    caution: float = 0.0

    def __call__(self, probability: float) -> float:
        if not self.caution:
            return probability
        z = _logit(probability) - self.centre
        aa, ab, bb = self.covariance
        deviation = math.sqrt(max(0.0, aa + 2 * ab * z + bb * z * z))
        scaled = self.centre + self.shift + self.slope * z - self.caution * MARGIN * deviation
        return min(probability, _sigmoid(scaled))


class Learning:
    """Marks by tenant and language, each under the key of what was marked: marking it again
    replaces the mark. `bound` is the share of wrong hits that the operator allows."""

    def __init__(self, bound: float, *, kept: int = MARKS_KEPT, keep_s: float = KEEP_S) -> None:
        self._bound, self._kept, self._keep_s = bound, kept, keep_s
        self._marks: dict[tuple[str, str], OrderedDict[str, Mark]] = {}
        self._scalings: dict[tuple[str, str], Scaling] = {}

    def add(self, tenant: str, language: str, key: str, mark: Mark) -> None:
        group = self._marks.setdefault((tenant, language), OrderedDict())
        group.pop(key, None)
        group[key] = mark
        while len(group) > self._kept:
            group.popitem(last=False)
        self._scalings.pop((tenant, language), None)

    def adjust(self, probability: float, tenant: str, language: str, now_at: float) -> float:
        """The probability as the marks leave it: the same without any, else at most that."""
        group = self._marks.get((tenant, language))
        if group is None:
            return probability
        if self._forget(group, now_at - self._keep_s):
            self._scalings.pop((tenant, language), None)
        scaling = self._scalings.get((tenant, language))
        if scaling is None:
            scaling = fit(list(group.values()), self._bound)
            self._scalings[tenant, language] = scaling
        return scaling(probability)

    def counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(right, wrong) marks by tenant and language."""
        found = {}
        for key, group in self._marks.items():
            right = sum(mark.correct for mark in group.values())
            found[key] = (right, len(group) - right)
        return found

    @staticmethod
    def _forget(group: OrderedDict[str, Mark], before_at: float) -> bool:
        old = [key for key, mark in group.items() if mark.at < before_at]
        for key in old:
            del group[key]
        return bool(old)


def fit(marks: Sequence[Mark], bound: float) -> Scaling:
    """Newton's method with step halving: the objective is convex."""
    centre = _logit(1 - bound)
    points = [(_logit(mark.probability) - centre, mark.correct) for mark in marks]
    wrong = sum(not right for _, right in points)
    if not wrong:
        return Scaling(centre)
    shift, slope = 0.0, 1.0
    best = _loss(points, centre, shift, slope)
    for _ in range(_STEPS):
        to_shift, to_slope = _step(points, centre, shift, slope)
        length = 1.0
        loss = _loss(points, centre, shift + to_shift, slope + to_slope)
        while loss > best and length > 1e-4:
            length /= 2
            loss = _loss(points, centre, shift + length * to_shift, slope + length * to_slope)
        if best - loss < 1e-9:
            break
        shift, slope, best = shift + length * to_shift, slope + length * to_slope, loss
    h = _curvature(points, centre, shift, slope)
    det = h[0] * h[2] - h[1] * h[1]
    covariance = (h[2] / det, -h[1] / det, h[0] / det)
    return Scaling(centre, shift, max(0.0, slope), covariance, wrong / (wrong + 2))


_Points = Sequence[tuple[float, bool]]


def _loss(points: _Points, centre: float, shift: float, slope: float) -> float:
    prior = (shift / SHIFT_SD) ** 2 / 2 + ((slope - 1) / SLOPE_SD) ** 2 / 2
    return prior + sum(
        _softplus(-x if right else x)
        for x, right in ((centre + shift + slope * z, right) for z, right in points)
    )


def _step(points: _Points, centre: float, shift: float, slope: float) -> tuple[float, float]:
    to_shift, to_slope = -shift / SHIFT_SD**2, -(slope - 1) / SLOPE_SD**2
    for z, right in points:
        off = right - _sigmoid(centre + shift + slope * z)
        to_shift += off
        to_slope += off * z
    aa, ab, bb = _curvature(points, centre, shift, slope)
    det = aa * bb - ab * ab
    return (bb * to_shift - ab * to_slope) / det, (aa * to_slope - ab * to_shift) / det


def _curvature(
    points: _Points, centre: float, shift: float, slope: float
) -> tuple[float, float, float]:
    """The Hessian's (shift shift, shift slope, slope slope)."""
    aa, ab, bb = 1 / SHIFT_SD**2, 0.0, 1 / SLOPE_SD**2
    for z, _ in points:
        p = _sigmoid(centre + shift + slope * z)
        spread = p * (1 - p)
        aa += spread
        ab += spread * z
        bb += spread * z * z
    return aa, ab, bb


def _logit(probability: float) -> float:
    p = min(max(probability, _LIMIT), 1 - _LIMIT)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
