"""Near misses made by rule, to judge by: `python -m tierway.bench.made_misses --out F`.

Pairs that differ by one number, date, unit, negation, opposite, name, order of roles, literal or
question word, labelled as different; pairs that differ by the writing of a value or by a sign,
labelled as the same (`format`); and plain rewordings (`reword`). Nothing decides by these pairs:
frames and words are others than those of made_pairs.py, which calibration is fitted on.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from tierway.bench import misses_en, misses_zh
from tierway.bench.labelled import Pair, write_lines

SEED = 11
DIFFERENT = 320
FORMATS = 140
REWORDS = 280
KINDS = (
    "number",
    "date",
    "unit",
    "negation",
    "antonym",
    "entity",
    "order",
    "literal",
    "question",
)
SOURCE = "made_misses"


def made_misses(seed: int = SEED, at_most: int = DIFFERENT) -> list[Pair]:
    """`at_most` pairs of each kind and language; of `format` and `reword` there are fewer."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    for language, words in (("en", misses_en), ("zh", misses_zh)):
        for kind in KINDS:
            pairs += _some(_different(kind, words), at_most, kind, language, rng)
        pairs += _some(_swapped(words.FORMATS), min(FORMATS, at_most), "format", language, rng)
        pairs += _some(_reworded(words.SAME), min(REWORDS, at_most), "reword", language, rng)
    return pairs


Texts = tuple[str, str]


def _different(kind: str, words: ModuleType) -> Iterator[Texts]:
    if kind == "order":
        return _ordered(words.ORDERS)
    if kind in words.TWINS:
        return _twins(words.TWINS[kind])
    return _swapped(words.SWAPS[kind])


def _swapped(rows: misses_en.Rows) -> Iterator[Texts]:
    for frames, values in rows:
        for frame, value in itertools.product(_phrases(frames), _phrases(values)):
            a, b = value.split("|")
            yield frame.replace("{}", a), frame.replace("{}", b)


def _twins(rows: misses_en.Rows) -> Iterator[Texts]:
    for frames, words in rows:
        for frame, word in itertools.product(_phrases(frames), _phrases(words)):
            a, b = frame.split("|")
            yield a.replace("{}", word), b.replace("{}", word)


def _ordered(rows: misses_en.Rows) -> Iterator[Texts]:
    for frames, values in rows:
        for frame, value in itertools.product(_phrases(frames), _phrases(values)):
            a, b = value.split("|")
            yield frame.format(a, b), frame.format(b, a)


def _reworded(rows: misses_en.Rows) -> Iterator[Texts]:
    for frames, words in rows:
        for word in _phrases(words):
            for a, b in itertools.combinations(_phrases(frames), 2):
                yield a.replace("{}", word), b.replace("{}", word)


def _phrases(table: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in table.split(";") if phrase.strip()]


def _some(
    texts: Iterator[Texts], number: int, kind: str, language: str, rng: random.Random
) -> list[Pair]:
    """The sentence's first letter is capital in English, whatever word stands there."""
    same = kind in ("format", "reword")
    made = [_sentence(a, b, language, kind) for a, b in texts]
    chosen = rng.sample(made, min(number, len(made)))
    return [Pair(a, b, same, SOURCE, language, kind) for a, b in chosen]


def _sentence(a: str, b: str, language: str, kind: str) -> Texts:
    if language == "zh" or kind == "format":
        return a, b
    return a[:1].upper() + a[1:], b[:1].upper() + b[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="made_misses", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl, .jsonl.gz)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"what is drawn ({SEED})")
    options = parser.parse_args(argv)
    pairs = made_misses(options.seed)
    try:
        write_lines(options.out, map(_line, pairs))
    except OSError as fault:
        print(fault, file=sys.stderr)
        return 2
    print(f"{len(pairs)} pairs")
    return 0


def _line(pair: Pair) -> dict[str, object]:
    return {
        "a": pair.a,
        "b": pair.b,
        "same": pair.same,
        "source": pair.source,
        "lang": pair.lang,
        "kind": pair.kind,
    }


if __name__ == "__main__":
    sys.exit(main())
