"""The tables of docs/benchmarks.md about the cache's decisions, in Markdown.

    python -m tierway.bench.cache_report --pairs F [--vectors-cache DIR] [--embedder NAME]

runs `tierway bench cache` on the pairs, on the streams made of them (bench/streams.py) alone and
with a scripted second opinion, and on the near misses made by rule.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tierway.bench import cache_bench, streams
from tierway.bench.labelled import read_pairs, share, write_lines
from tierway.bench.made_misses import DIFFERENT
from tierway.policies.protocols import Embedder

RULES = ("cosine 0.80", "cosine 0.90", "cosine 0.95", "cosine 0.95 with vetoes")
OPINION = "scripted:0.9"

Found = Mapping[str, Any]


def run(options: argparse.Namespace, embedder: Embedder | None = None) -> str:
    """The Markdown. Raises ValueError when one of the runs fails."""
    common = ["--embedder", options.embedder] if options.embedder else []
    if options.vectors_cache:
        common += ["--vectors-cache", str(options.vectors_cache)]

    def bench(*argv: str) -> Found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = cache_bench.main([*argv, *common, "--json"], embedder=embedder)
        if code:
            raise ValueError(f"tierway bench cache {' '.join(argv)} failed ({code})")
        found: Found = json.loads(printed.getvalue())
        return found

    pairs = bench("--pairs", str(options.pairs), "--reliability")
    tables = [_pairs(pairs), _reliability(pairs), _lost(pairs)]
    with tempfile.TemporaryDirectory(prefix="tierway-streams-") as folder:
        for name, prompts in sorted(streams.streams(read_pairs(options.pairs)).items()):
            file = Path(folder, f"{name}.jsonl")
            write_lines(file, map(streams.line_of, prompts))
            alone = bench("--stream", str(file))
            helped = bench("--stream", str(file), "--second-opinion", OPINION)
            tables.append(_stream(name, alone, helped))
    return "\n\n".join([*tables, _made(bench("--made", str(options.made)))]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _pairs(found: Found) -> str:
    rows = [_pair_row(f"source {source}", row) for source, row in found["by_source"].items()]
    rows += [_pair_row(f"language {name}", row) for name, row in found["by_lang"].items()]
    rows.append(_pair_row("sources never trained on", found["left_out"]))
    rows.append(_pair_row("all", found))
    rows += [_pair_row(f"all, {rule}", found["baselines"][rule]) for rule in RULES]
    reached = ", ".join(
        f"{_percent(row['recall'])} at {_percent(float(limit))} wrong per hit"
        for limit, row in found["at_error_reached"].items()
    )
    head = ("pairs", "number", "recall", "served", "wrong", "wrong per hit (95 %)")
    return f"{table(head, rows)}\n\nBest recall over all error budgets: {reached}."


def _pair_row(name: str, row: Found) -> list[object]:
    recall = "" if row["recall"] is None else _percent(row["recall"])
    wrong = _rate(row["false_hit_rate"], row["false_hit_rate_ci95"], row["served"])
    return [name, row["n"], recall, row["served"], row["served_different"], wrong]


def _reliability(found: Found) -> str:
    rows = [
        [
            f"{row['from']} – {row['to']}",
            row["pairs"],
            _percent(row["mean_probability"]),
            _percent(row["share_same"]),
            row["hits"],
            row["wrong"],
        ]
        for row in found["reliability"]
    ]
    return table(
        ("probability", "pairs", "mean probability", "the same by label", "hits", "wrong"), rows
    )


def _lost(found: Found) -> str:
    rows = [
        [source, row["n"], row["lost"], _percent(row["share"]), ", ".join(row["vetoes"])]
        for source, row in found["lost_to_vetoes"].items()
    ]
    near = f"same, cosine {cache_bench.HIGH} or more"
    return table(("source", near, "lost to a veto", "share", "vetoes"), rows)


def _stream(name: str, alone: Found, helped: Found) -> str:
    rows = [[rule, *_stream_row(alone["baselines"][rule])] for rule in RULES]
    best = next(rule for rule in alone["baselines"] if rule.startswith("best cut"))
    rows.append([f"{best}, seen afterwards", *_stream_row(alone["baselines"][best])])
    rows.append(["**Tierway**", *_stream_row(alone)])
    rows.append([f"Tierway, second opinion {OPINION}", *_stream_row(helped)])
    head = (
        f"{name}: {alone['n']} prompts, {alone['repeats']} exact repeats beside",
        f"right of {alone['attainable']} attainable",
        "hits",
        "wrong per hit (95 %)",
        "wrong per request",
    )
    return table(head, rows)


def _stream_row(row: Found) -> list[object]:
    wrong = _rate(row["wrong_per_hit"], row["wrong_per_hit_ci95"], row["hits"])
    right = _percent(row["right_of_attainable"])
    return [right, row["hits"], wrong, _percent(row["wrong_per_request"])]


def _made(found: Found) -> str:
    rows = []
    for kind in found["by_kind"]:
        row: list[object] = [kind]
        for language in ("en", "zh"):
            each = found["by_lang_kind"][f"{language} {kind}"]
            should = each["recall"] is not None
            rate = each["recall"] if should else share(each["served_different"], each["n"])
            row += [each["n"], _percent(rate) + (" of what should be" if should else "")]
        rows.append(row)
    return table(("made by rule", "English", "served", "Chinese", "served"), rows)


def _rate(value: float, interval: Sequence[float], served: int) -> str:
    if not served:
        return ""
    return f"{_percent(value)} ({_percent(interval[0])} – {_percent(interval[1])})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def main(argv: Sequence[str] | None = None, embedder: Embedder | None = None) -> int:
    """0 done, 1 a run failed, 2 wrong use."""
    parser = argparse.ArgumentParser(
        prog="cache_report", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pairs", type=Path, required=True, help="labelled pairs")
    parser.add_argument("--vectors-cache", type=Path, help="keep vectors there for the next run")
    parser.add_argument("--embedder", help="as of tierway bench cache")
    parser.add_argument("--made", type=int, default=DIFFERENT, help="near misses of each kind")
    options = parser.parse_args(argv)
    try:
        print(run(options, embedder), end="")
    except OSError as fault:
        print(fault, file=sys.stderr)
        return 2
    except ValueError as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
