"""How well the lengths of answers are foretold, on recorded lengths: `--trace F [--json]`.

Every request of a trace is foretold and then learnt from, in its order, as if each answer ended
before the next request came. Traces have lengths and sessions only; shape, question and limit of
a call, which a gateway sees too, are not in them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tierway.bench.loads_traces import Recorded, read_trace
from tierway.router.predict import PRIOR_TOKENS, LengthHint, LengthPredictor


@dataclass(frozen=True, slots=True)
class Found:
    """Over a whole trace: `log_error` is the mean of |ln(median foretold / real)|, `within_2` the
    share within a factor of 2, `constant_...` the same of the running (geometric) mean;
    `tokens_ratio` is all that was expected over all that came."""

    n: int
    log_error: float
    within_2: float
    constant_log_error: float
    constant_within_2: float
    tokens_ratio: float


def measure(rows: Sequence[Recorded]) -> Found:
    """Foretells and learns row by row, of which there is one at least."""
    predictor = LengthPredictor()
    medians, logs, expected = [], [], 0
    for row in rows:
        hint = LengthHint("trace", row.session, row.prompt_tokens)
        medians.append(predictor.median(hint))
        expected += predictor.expect(hint)
        predictor.learn(hint, row.output_tokens)
        logs.append(math.log(row.output_tokens))
    count = len(rows)
    off = [abs(math.log(guess) - log) for guess, log in zip(medians, logs, strict=True)]
    plain = [abs(guess - log) for guess, log in zip(_running_means(logs), logs, strict=True)]
    return Found(
        n=count,
        log_error=sum(off) / count,
        within_2=_within_2(off),
        constant_log_error=sum(plain) / count,
        constant_within_2=_within_2(plain),
        tokens_ratio=expected / sum(row.output_tokens for row in rows),
    )


def _running_means(logs: Sequence[float]) -> list[float]:
    """Before each value the mean of those before it."""
    means, total = [math.log(PRIOR_TOKENS)], 0.0
    for count, log in enumerate(logs[:-1], 1):
        total += log
        means.append(total / count)
    return means


def _within_2(off: Sequence[float]) -> float:
    return sum(error <= math.log(2.0) for error in off) / len(off)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 2 wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m tierway.bench.lengths", description="Foretells lengths of answers."
    )
    parser.add_argument("--trace", required=True, metavar="F", help=".jsonl or .jsonl.gz")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    try:
        found = measure(read_trace(Path(options.trace)))
    except (OSError, ValueError) as error:
        print(f"{options.trace}: {error}", file=sys.stderr)
        return 2
    figures = asdict(found)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:10.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
