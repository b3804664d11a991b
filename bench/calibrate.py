"""Chooses the cuts of policies/equivalence.py: `python -m tierway.bench.calibrate --out F`.

For each language and relation the pairs that no veto refuses are sorted by cosine, and the
lowest cut is taken at which the share of wrong pairs among those served is at most the target
and its 95 % Wilson interval ends below twice the target. Where no cut does that, none is written
and nothing is served. Lines are {a, b, same, source, lang} (.jsonl or .jsonl.gz); the pairs of
made_pairs.py are added unless --no-made is given.

The error rate belongs to a set of pairs, half of them near misses by design; traffic has fewer
near misses and more of what only looks alike, so measure on your own questions too.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierway.bench.made_pairs import made_pairs
from tierway.cache.embedders import BuiltinEmbedder, SentenceTransformersEmbedder
from tierway.policies.equivalence import Calibration, Equivalence, relation_of, veto
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Embedder
from tierway.policies.questions import features

TARGETS = (0.01, 0.02, 0.05)
DEFAULT_TARGET = 0.02
MIN_SERVED = 30
BATCH = 256

Pair = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scored:
    """A labelled pair with all that the cuts depend on; `veto` "" where none refuses it."""

    language: str
    relation: str
    veto: str
    cosine: float
    same: bool


def wilson(wrong: int, served: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927); (0, 1) without observations."""
    if not served:
        return 0.0, 1.0
    share, square = wrong / served, z * z / served
    centre = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / served + square / (4 * served)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def read_pairs(path: Path, sources: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Raises ValueError naming the line that is no pair."""
    opened = gzip.open if path.suffix == ".gz" else open
    pairs = []
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                pair = json.loads(line)
                if not (isinstance(pair["a"], str) and isinstance(pair["b"], str)):
                    raise TypeError("a and b are texts")
                pair["same"], pair["source"] = bool(pair["same"]), str(pair.get("source", ""))
            except (ValueError, KeyError, TypeError) as fault:
                raise ValueError(f"{path}:{number}: not a pair {{a, b, same, ...}}") from fault
            if not sources or pair["source"] in sources:
                pairs.append(pair)
    return pairs


async def cosines(pairs: Sequence[Pair], embedder: Embedder) -> list[float]:
    import numpy as np

    texts = sorted({pair[side] for pair in pairs for side in "ab"})
    place = {text: at for at, text in enumerate(texts)}
    rows = [await embedder.encode(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
    vectors = np.concatenate(rows) if rows else np.empty((0, embedder.dim), np.float32)
    return [float(vectors[place[pair["a"]]] @ vectors[place[pair["b"]]]) for pair in pairs]


def scored(pairs: Sequence[Pair], similarities: Sequence[float]) -> list[Scored]:
    found = []
    for pair, cosine in zip(pairs, similarities, strict=True):
        a, b = features(pair["a"]), features(pair["b"])
        found.append(Scored(a.language, relation_of(a, b), veto(a, b), cosine, pair["same"]))
    return found


def cut(pairs: Iterable[Scored], target: float) -> dict[str, Any] | None:
    """The lowest cosine that keeps the target, with what it reached; None where none does."""
    best = None
    served = wrong = 0
    ordered = sorted(pairs, key=lambda pair: -pair.cosine)
    for cosine, group in itertools.groupby(ordered, key=lambda pair: pair.cosine):
        right = [pair.same for pair in group]
        served, wrong = served + len(right), wrong + right.count(False)
        low, high = wilson(wrong, served)
        reached = wrong <= target * served and high <= 2 * target
        if any(right) and served >= MIN_SERVED and reached:
            best = {
                "max_error_rate": target,
                "cosine": math.floor(cosine * 1e4) / 1e4,
                "served": served,
                "wrong": wrong,
                "ci95": [round(low, 4), round(high, 4)],
            }
    return best


def calibrate(pairs: Sequence[Scored], encoder: str, targets: Sequence[float]) -> dict[str, Any]:
    """The JSON that Calibration.parse reads."""
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for pair in pairs:
        if pair.language and not pair.veto:
            groups[pair.language, pair.relation].append(pair)
    languages: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for (language, relation), group in sorted(groups.items()):
        if levels := [level for target in targets if (level := cut(group, target))]:
            languages[language][relation] = levels
    return {"encoder": encoder, "languages": languages}


def measure(
    pairs: Sequence[Pair], similarities: Sequence[float], judge: Equivalence, encoder: str
) -> dict[str, Any]:
    """Recall and wrong per hit, whole and by source, language and kind."""
    groups: dict[tuple[str, str], list[tuple[bool, bool]]] = defaultdict(list)
    for pair, cosine in zip(pairs, similarities, strict=True):
        serve = judge.judge(pair["b"], pair["a"], cosine, encoder).serve
        language = pair.get("lang", "")
        keys = [("", ""), ("by_source", pair["source"]), ("by_lang", language)]
        if "kind" in pair:
            keys.append(("by_kind", f"{language} {pair['kind']}"))
        for key in keys:
            groups[key].append((serve, pair["same"]))
    report: dict[str, Any] = _figures(groups.pop(("", ""), []))
    for (group, name), results in sorted(groups.items()):
        report.setdefault(group, {})[name] = _figures(results)
    return report


def _figures(results: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    same = sum(is_same for _, is_same in results)
    right = sum(serve and is_same for serve, is_same in results)
    wrong = sum(serve and not is_same for serve, is_same in results)
    low, high = wilson(wrong, right + wrong)
    return {
        "n": len(results),
        "recall": round(right / same, 4) if same else None,
        "served": right + wrong,
        "served_different": wrong,
        "false_hit_rate": round(wrong / (right + wrong), 4) if right + wrong else 0.0,
        "ci95": [round(low, 4), round(high, 4)],
    }


async def run(options: argparse.Namespace, embedder: Embedder) -> dict[str, Any]:
    pairs: list[dict[str, Any]] = [] if options.no_made else made_pairs()
    sources = frozenset(filter(None, options.sources.split(",")))
    for path in options.pairs:
        pairs += read_pairs(path, sources)
    await embedder.start()
    try:
        similarities = await cosines(pairs, embedder)
        targets = sorted({*TARGETS, options.target})
        made = calibrate(scored(pairs, similarities), embedder.id, targets)
        judge = Equivalence([Calibration.parse(made)], max_error_rate=options.target)
        made["data"] = sorted({pair["source"] for pair in pairs})
        made["reached"] = measure(pairs, similarities, judge, embedder.id)
        if options.measure:
            others = read_pairs(options.measure)
            found = await cosines(others, embedder)
            return {**made, "measured": measure(others, found, judge, embedder.id)}
        return made
    finally:
        await embedder.aclose()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tierway cache calibrate", description=__doc__)
    made.add_argument("--pairs", type=Path, action="append", default=[], help="labelled pairs")
    made.add_argument("--sources", default="", help="use only these sources of the pairs: a,b")
    made.add_argument("--no-made", action="store_true", help="leave out the pairs made by rule")
    made.add_argument("--model", help="a sentence-transformers model instead of the built-in one")
    made.add_argument("--target", type=float, default=DEFAULT_TARGET, help="wrong among served")
    made.add_argument("--measure", type=Path, help="pairs to measure on, not to fit")
    made.add_argument("--out", type=Path, help="file to write the calibration to")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def main(argv: Sequence[str] | None = None, embedder: Embedder | None = None) -> int:
    """0 done, 1 failed or nothing reached the target, 2 wrong use."""
    options = parser().parse_args(argv)
    if not 0 < options.target < 0.5:
        print("--target must be above 0 and below 0.5", file=sys.stderr)
        return 2
    chosen = embedder or (
        SentenceTransformersEmbedder(options.model) if options.model else BuiltinEmbedder()
    )
    try:
        result = asyncio.run(run(options, chosen))
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    except CacheError as fault:
        print(fault.public, file=sys.stderr)
        return 1
    if options.out:
        stored = {key: value for key, value in result.items() if key != "measured"}
        text = json.dumps(stored, ensure_ascii=False, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result, ensure_ascii=False) if options.json else _table(result))
    return 0 if result["languages"] else 1


def _table(result: Mapping[str, Any]) -> str:
    lines = [f"encoder {result['encoder']}, data {', '.join(result['data'])}"]
    for language, relations in result["languages"].items():
        for relation, levels in relations.items():
            for level in levels:
                lines.append(
                    f"{language} {relation:6} target {level['max_error_rate']:.3f}"
                    f" cosine {level['cosine']:.4f}"
                    f" wrong {level['wrong']}/{level['served']} {level['ci95']}"
                )
    for name in ("reached", "measured"):
        for group in ("by_lang", "by_source", "by_kind"):
            for key, row in result.get(name, {}).get(group, {}).items():
                lines.append(f"{name} {key}: {row}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
