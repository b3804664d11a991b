"""`tierway cache calibrate`: fits the verifier (policies/verifier.py) to an encoder.

Per language a logistic regression on the evidence of the pairs that no veto refuses, its signs
fixed, drawn towards the weights of verifier_prior.py (a Gaussian prior, so the fit is the most
probable weights given prior and pairs). The size of a cosine belongs to an encoder: closeness and
bias are free to move, `--prior` says how far the others are.

Lines are {a, b, same, source, lang} (.jsonl or .jsonl.gz). Without any, the pairs of made_pairs.py
are taken: they are all near misses and frames, teach that a cosine proves nothing, and so serve
equal words only. The probability is calibrated for a mix of pairs like those given: half near
misses, as a rule, where traffic has few. `reached` tells, by folds that the fit did not see, what
share of those served would be wrong.

The shipped files are `--out policies/data/equivalence-ENCODER.npz` with `--plain en,zh` for the
built-in pair, `--plain zh --embedder use` for USE alone, and `--plain en --languages en` for
MiniLM through sentence-transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.bench.labelled import Outcome, Pair, pair_figures, read_pairs
from tierway.bench.made_pairs import made_pairs
from tierway.bench.vectors import Remembered, embedder_named
from tierway.bench.verifier_prior import PRIORS
from tierway.policies.equivalence import MAX_ERROR_RATE, veto
from tierway.policies.errors import CacheError
from tierway.policies.evidence import COLUMNS, FOR, compare
from tierway.policies.protocols import Embedder
from tierway.policies.questions import features
from tierway.policies.verifier import Scale, Verifier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FOLDS = 5
MIN_PAIRS = 50
FREE = 4.0  # standard deviation, in logits, of what belongs to the encoder
STEPS = 400
_SIGNS = np.array([1.0 if name in FOR else -1.0 for name in COLUMNS])
_CLOSENESS = COLUMNS.index("closeness")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The pairs of one language that no veto refuses: values [n, columns], labels [n]."""

    pairs: tuple[Pair, ...]
    values: Floats
    same: Floats


async def gather(pairs: Sequence[Pair], embedder: Embedder) -> dict[str, Evidence]:
    """By language. `embedder` is started."""
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b) if embedder.fits(text)})
    rows = await embedder.encode(texts)
    vectors = dict(zip(texts, rows, strict=True))
    known = {text: features(text) for text in texts}
    groups: dict[str, list[tuple[Pair, tuple[float, ...]]]] = {}
    for pair in pairs:
        if pair.a not in vectors or pair.b not in vectors:
            continue
        a, b = known[pair.a], known[pair.b]
        if not veto(a, b):
            cosine = float(vectors[pair.a] @ vectors[pair.b])
            groups.setdefault(a.language, []).append((pair, compare(a, b, cosine)))
    return {
        language: Evidence(
            tuple(pair for pair, _ in found),
            np.array([values for _, values in found], np.float64),
            np.array([pair.same for pair, _ in found], np.float64),
        )
        for language, found in groups.items()
        if language in PRIORS
    }


def fit(values: Floats, same: Floats, prior: Scale, *, spread: float) -> Scale:
    """The most probable weights: logistic loss plus half the squared distance from the prior in
    standard deviations (`spread` times a weight's own size; FREE for closeness and bias)."""
    start = np.array([*prior.weights, prior.bias])
    deviation = np.maximum(0.3, np.abs(start)) * spread
    deviation[[_CLOSENESS, -1]] = FREE
    inputs = np.hstack([values, np.ones((len(values), 1))])
    weights = start.copy()
    lowest = _loss(inputs, same, weights, start, deviation)
    for _ in range(STEPS):
        # Along the slope, each weight by its own curvature, as far as the loss falls.
        chance = _chance(inputs @ weights)
        slope = inputs.T @ (chance - same) + (weights - start) / deviation**2
        curve = (inputs**2).T @ (chance * (1 - chance)) + deviation**-2
        length = 1.0
        while length > 1e-4:
            moved = weights - length * slope / curve
            moved[:-1] = np.where(moved[:-1] * _SIGNS < 0, 0.0, moved[:-1])
            loss = _loss(inputs, same, moved, start, deviation)
            if loss < lowest:
                break
            length /= 2
        else:
            break
        weights, lowest = moved, loss
    return Scale(tuple(weights[:-1].tolist()), float(weights[-1]))


def _chance(scores: Floats) -> Floats:
    made: Floats = 1.0 / (1.0 + np.exp(-np.clip(scores, -50, 50)))
    return made


def _loss(inputs: Floats, same: Floats, weights: Floats, start: Floats, deviation: Floats) -> float:
    scores = np.clip(inputs @ weights, -50, 50)
    likely = np.logaddexp(0.0, scores) - same * scores
    return float(likely.sum() + 0.5 * (((weights - start) / deviation) ** 2).sum())


def reached(found: Evidence, prior: Scale, *, spread: float, target: float) -> list[Outcome]:
    """What would be served of each fold by the fit to the others."""
    fold = np.array([hash_of(pair) % FOLDS for pair in found.pairs])
    outcomes = []
    for number in range(FOLDS):
        out = fold == number
        if out.all() or not out.any():
            continue
        scale = fit(found.values[~out], found.same[~out], prior, spread=spread)
        outcomes += [
            Outcome(scale.probability(values) >= 1 - target, bool(same))
            for values, same in zip(found.values[out], found.same[out], strict=True)
        ]
    return outcomes


def hash_of(pair: Pair) -> int:
    """The same for a pair in every run; pairs that share their first text share a fold."""
    return sum(pair.a.encode("utf-8", "surrogatepass"))


async def run(options: argparse.Namespace, embedder: Embedder) -> tuple[Verifier, dict[str, Any]]:
    sources = frozenset(filter(None, options.sources.split(",")))
    languages = frozenset(filter(None, options.languages.split(",")))
    by_rule = options.made or not options.pairs
    pairs = [Pair(**line) for line in made_pairs()] if by_rule else []
    for path in options.pairs:
        pairs += [pair for pair in read_pairs(path) if not sources or pair.source in sources]
    remembered = Remembered(embedder, options.vectors_cache)
    await remembered.start()
    try:
        found = await gather(pairs, remembered)
    finally:
        await remembered.aclose()
    scales, report = {}, {}
    plain = options.plain.split(",")
    for language, evidence in sorted(found.items()):
        if languages and language not in languages:
            continue
        if len(evidence.pairs) < MIN_PAIRS or evidence.same.min() == evidence.same.max():
            continue
        prior = PRIORS[language]
        if language in plain:
            scales[language] = prior
            continue
        scales[language] = fit(evidence.values, evidence.same, prior, spread=options.prior)
        report[language] = pair_figures(
            reached(evidence, prior, spread=options.prior, target=options.target)
        )
    sources_read = ", ".join(sorted({pair.source for pair in pairs}))
    about = "; ".join(
        f"{language}: {'prior' if language in plain else sources_read}" for language in scales
    )
    return Verifier(embedder.id, scales, about), report


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tierway cache calibrate", description=__doc__)
    made.add_argument("--pairs", type=Path, action="append", default=[], help="labelled pairs")
    made.add_argument("--sources", default="", help="use only these sources of the pairs: a,b")
    made.add_argument("--languages", default="", help="fit only these: en,zh")
    made.add_argument("--made", action="store_true", help="add the pairs made by rule")
    made.add_argument("--plain", default="", help="take these languages' prior as it is: en,zh")
    made.add_argument("--embedder", metavar="NAME", help="builtin (default), use, or a model")
    made.add_argument("--prior", type=float, default=0.3, help="spread of the prior: 0.3")
    made.add_argument(
        "--target", type=float, default=MAX_ERROR_RATE, help="wrong among served, for the report"
    )
    made.add_argument("--vectors-cache", type=Path, metavar="DIR", help="keep vectors there")
    made.add_argument("--out", type=Path, help="file (.npz) to write the verifier to")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def main(argv: Sequence[str] | None = None, embedder: Embedder | None = None) -> int:
    """0 done, 1 failed or too few pairs, 2 wrong use."""
    options = parser().parse_args(argv)
    if not 0 < options.target < 0.5:
        print(f"--target {options.target}: must be above 0 and below 0.5", file=sys.stderr)
        return 2
    if not 0 < options.prior < 100:
        print(f"--prior {options.prior}: must be above 0 and below 100", file=sys.stderr)
        return 2
    chosen = embedder or embedder_named(options.embedder)
    try:
        verifier, report = asyncio.run(run(options, chosen))
        if options.out and verifier.scales:
            verifier.write(options.out)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    except CacheError as fault:
        print(fault.public, file=sys.stderr)
        return 1
    result = {"encoder": verifier.encoder, "data": verifier.about, "reached": report}
    result["weights"] = {
        language: {**dict(zip(COLUMNS, scale.weights, strict=True)), "bias": scale.bias}
        for language, scale in verifier.scales.items()
    }
    print(json.dumps(result, ensure_ascii=False) if options.json else _table(result))
    return 0 if verifier.scales else 1


def _table(result: Mapping[str, Any]) -> str:
    lines = [f"encoder {result['encoder']}, pairs: {result['data']}"]
    for language, figures in result["reached"].items():
        lines.append(f"{language} on folds left out: {figures}")
        weights = result["weights"][language]
        lines += [f"  {name:16}{value:+8.3f}" for name, value in weights.items()]
    if not result["reached"]:
        lines.append(f"too few pairs: a language needs {MIN_PAIRS}, some the same, some not")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
