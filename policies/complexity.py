"""How hard is this question: lexical features to a probability per model class.

    z(7b)    = bias - weights . x
    z(70b)   = z(7b)   + bias' + weights' . x
    z(175b)  = z(70b)  + bias'' + weights'' . x
    z(cloud) = z(175b) + bias'''                       P(class answers well) = 1 / (1 + exp(-z))

All weights and all biases but the first are >= 0 and so are the features, which makes the
probabilities monotone over the classes for every question, and a harder-looking question widens
the gap between them. The weights are a logistic fit on published scores of models of these
classes (`bench/train_router.py` says which and how) and come as a small JSON file. No one has
scored the cloud class beside the 175B class, so its lead is taken to be a fixed part of the lead
of the 175B class, small enough to decide only in the upper half of the quality dial.

Lexical features see form, not meaning: they beat routing by length, and by far not a learned
encoder. The vector is accepted and not used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierway.policies.errors import ConfigError
from tierway.policies.features import NAMES, features
from tierway.policies.types import Ask

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

CLASSES = ("7b", "70b", "175b", "cloud")
SHIPPED = Path(__file__).parent / "data" / "tier_lexical.json"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the model: what a class adds to the log-odds of the class below."""

    bias: float
    weights: tuple[float, ...]

    def weighed(self, values: Sequence[float]) -> float:
        return sum(w * x for w, x in zip(self.weights, values, strict=True))


@dataclass(frozen=True, slots=True)
class Weights:
    """The fitted model; `steps` in the order of `CLASSES`, each over the features `NAMES`."""

    steps: tuple[Step, Step, Step, Step]

    def probabilities(self, values: Sequence[float]) -> dict[str, float]:
        """From features in [0, 1] to one probability per class."""
        first, *leads = self.steps
        z = first.bias - first.weighed(values)
        odds = [z]
        for lead in leads:
            z += lead.bias + lead.weighed(values)
            odds.append(z)
        return {name: _sigmoid(z) for name, z in zip(CLASSES, odds, strict=True)}

    def to_json(self) -> str:
        steps = {
            name: {
                "bias": round(step.bias, 4),
                "weights": {n: round(w, 4) for n, w in zip(NAMES, step.weights, strict=True)},
            }
            for name, step in zip(CLASSES, self.steps, strict=True)
        }
        return json.dumps({"kind": "lexical", "classes": steps}, indent=1) + "\n"

    @classmethod
    def load(cls, path: Path = SHIPPED) -> Weights:
        """Raises ConfigError for a file that is not of this form and these features."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            steps = [_step(data["classes"][name]) for name in CLASSES]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError([f"{path}: not the weights of a lexical classifier"]) from error
        if min(min(step.weights) for step in steps) < 0.0 or min(s.bias for s in steps[1:]) < 0.0:
            raise ConfigError([f"{path}: numbers below 0 would not be monotone"])
        return cls((steps[0], steps[1], steps[2], steps[3]))


class LexicalClassifier:
    """The `Classifier` that needs no model, no vector and no network."""

    def __init__(self, weights: Weights | None = None) -> None:
        self._weights = weights or Weights.load()

    def classify(self, ask: Ask, vector: Vectors | None) -> Mapping[str, float]:
        return self._weights.probabilities(features(ask))


def _step(data: Mapping[str, Any]) -> Step:
    weights = data["weights"]
    if set(weights) != set(NAMES):
        raise ValueError("weights for other features")
    return Step(float(data["bias"]), tuple(float(weights[name]) for name in NAMES))


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, z))))
