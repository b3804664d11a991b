"""The verifier: a calibrated probability, from the evidence, that one answer serves two questions.

    p = 1 / (1 + exp(-(weights . evidence + bias)))

with one set of weights per encoder and language (logistic regression; bench/calibrate.py fits
it). Because p is calibrated pair by pair, serving what reaches 1 - max_error_rate keeps the share
of wrong answers among hits below max_error_rate, whatever the mix of questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

from tierway.policies.evidence import COLUMNS, FOR

_FOR = tuple(COLUMNS.index(name) for name in FOR)


@dataclass(frozen=True, slots=True)
class Scale:
    """The weights of one language, in the order of COLUMNS."""

    weights: tuple[float, ...]
    bias: float

    def __post_init__(self) -> None:
        if len(self.weights) != len(COLUMNS):
            raise ValueError(f"{len(self.weights)} weights: must be {len(COLUMNS)}")
        for name, weight in zip(COLUMNS, self.weights, strict=True):
            if (weight < 0) if name in FOR else (weight > 0):
                raise ValueError(f"the weight of {name} is {weight}: has the wrong sign")

    def probability(self, evidence: Sequence[float]) -> float:
        score = self.bias
        for weight, value in zip(self.weights, evidence, strict=True):
            if value:
                score += weight * value
        return 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, score))))

    def lowest_cosine(self, probability: float) -> float:
        """The cosine below which no pair of questions reaches the probability; 1.01 where no
        cosine is enough."""
        logit = math.log(probability / (1.0 - probability))
        closeness, same_words = (self.weights[at] for at in _FOR)
        needed = logit - self.bias - same_words
        if needed <= 0:
            return 0.0
        return 1.0 - math.exp(-needed / closeness) if closeness else 1.01

    def against(self, evidence: Sequence[float]) -> str:
        """The column that spoke loudest against; "cosine" where none did."""
        worst, name = 0.0, "cosine"
        for weight, value, column in zip(self.weights, evidence, COLUMNS, strict=True):
            if weight * value < worst and column not in _ALWAYS:
                worst, name = weight * value, column
        return name


# Present in nearly every pair: no reason by themselves.
_ALWAYS = frozenset(["few-words", "overlap", "length", "function"])


@dataclass(frozen=True, slots=True)
class Verifier:
    """What was learnt for one encoder, by language. `about` tells where from."""

    encoder: str
    scales: Mapping[str, Scale] = field(default_factory=dict)
    about: str = ""

    @classmethod
    def read(cls, file: str | Path | IO[bytes]) -> Verifier:
        """From an .npz that `write` made. Raises ValueError for any other file or for one
        that was made for other columns, OSError for none."""
        import numpy as np

        try:
            with np.load(file, allow_pickle=False) as held:
                arrays: dict[str, Any] = dict(held)
        except (ValueError, EOFError, BadZipFile) as fault:
            raise ValueError(f"no calibration: {fault}") from fault
        try:
            if tuple(arrays["columns"].tolist()) != COLUMNS:
                raise ValueError("it was made by another version; calibrate again")
            scales = {
                name.removesuffix(".weights"): Scale(
                    tuple(map(float, values)),
                    float(arrays[name.removesuffix(".weights") + ".bias"]),
                )
                for name, values in arrays.items()
                if name.endswith(".weights")
            }
            return cls(str(arrays["encoder"]), scales, str(arrays["about"]))
        except (KeyError, TypeError) as fault:
            raise ValueError(f"no calibration: {fault}") from fault

    def write(self, file: Path) -> None:
        import numpy as np

        arrays: dict[str, Any] = {
            "encoder": np.array(self.encoder),
            "columns": np.array(COLUMNS),
            "about": np.array(self.about),
        }
        for language, scale in self.scales.items():
            arrays[f"{language}.weights"] = np.array(scale.weights, np.float64)
            arrays[f"{language}.bias"] = np.array(scale.bias, np.float64)
        with file.open("wb") as out:
            np.savez(out, **arrays)
