"""All benchmarks of the project that need nothing but this machine, in one table.

Each runs in a process of its own, one after the other, so that none takes CPU from the next, and
tells its figures as JSON. Figures of CPU time hardly depend on the neighbours' load; compare by
the last column, not with another machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tierway.bench.gateway_process import environment


class Row(NamedTuple):
    name: str
    figure: str
    unit: str
    against: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module to run with `--json`, and its rows; `quick` in place of `full` makes it
    short and coarse."""

    module: str
    quick: tuple[str, ...]
    rows: Callable[[dict[str, Any]], list[Row]]
    full: tuple[str, ...] = ()


def _road(found: dict[str, Any]) -> list[Row]:
    rows = []
    for row in found["rows"]:
        against = f"{row['ratio']} x bare relay"
        if row.get("as_meant", 1.0) != 1.0:
            against += f", {100 * row['as_meant']:.0f} % were that"
        rows.append(Row(row["name"], f"{row['cpu_us']:.0f}", f"us CPU/{row['per']}", against))
    return rows


def _startup(found: dict[str, Any]) -> list[Row]:
    return [
        Row(name, f"{seconds:.2f}", "s CPU", "" if name.startswith("bare") else "0.5 at most")
        for name, seconds in found["cpu_s"].items()
    ]


def _cache_made(found: dict[str, Any]) -> list[Row]:
    kinds = found["by_lang_kind"]
    rows = []
    for language, name in (("en", "English"), ("zh", "Chinese")):
        told = {
            kind.split()[1]: figures for kind, figures in kinds.items() if kind.startswith(language)
        }
        same = {kind: told.pop(kind) for kind in ("format", "reword")}
        worst = max(told.values(), key=lambda row: row["served_different"] / row["n"])
        share = 100 * worst["served_different"] / worst["n"]
        rows += [
            Row(f"near misses served, {name}, worst kind", f"{share:.1f}", "%", "2 at most"),
            Row(
                f"other writings served, {name}",
                f"{100 * same['format']['recall']:.0f}",
                "%",
                "80 at least",
            ),
            Row(f"rewordings served, {name}", f"{100 * same['reword']['recall']:.0f}", "%", ""),
        ]
    return rows


def _cache_speed(found: dict[str, Any]) -> list[Row]:
    parts = [
        Row(f"lookup: {part}", f"{found['stages'][part]['cpu_ms']['p50']:.3f}", "ms CPU", "")
        for part in ("hash", "verify")
    ]
    return parts + [
        Row(
            f"lookup: search of {row['entries']:,} in {row['partitions']:,} partitions",
            f"{row['cpu_ms']['p50']:.3f}",
            "ms CPU",
            f"{row['index_bytes_per_entry'] + row['entry_bytes']:.0f} bytes an entry",
        )
        for row in found["search"]
        if row["callers"] == 1
    ]


def _decision(found: dict[str, Any]) -> list[Row]:
    names = {"decision": "choice of a replica", "whole": "the same with its prompt's hashes"}
    return [
        Row(
            f"{names[row['name']]}, {row['replicas']} replicas, {row['prompt_tokens']:,} tokens",
            f"{row['us']['p50']:.0f}",
            "us CPU",
            f"p99 {row['us']['p99']:.0f}; {row['ratio']:.1f} x a loop of 1000",
        )
        for row in found["rows"]
    ]


def _engine(found: dict[str, Any]) -> list[Row]:
    rows = [
        Row(
            f"simulated 70B on {row['gpu']}, {row['input_tokens']} in, {row['output_tokens']} out",
            f"{row['simulated']:.0f}",
            "tokens/s/GPU",
            f"{row['published']:.0f} published",
        )
        for row in found.get("throughput", [])
    ]
    for row in found.get("lone", []):
        known = dict.fromkeys(f"{row[end]:.0f}" for end in ("low", "high"))
        against = f"{' to '.join(known)} published"
        rows.append(Row(f"simulated {row['name']}", f"{row['simulated']:.1f}", "ms", against))
    return rows


def _balance(found: dict[str, Any]) -> list[Row]:
    return [
        Row(
            f"{check['case']}: {check['target']}",
            f"{check['value']:.3f}",
            "",
            f"{'at most' if check['at_most'] else 'at least'} {check['wanted']:g}"
            + ("" if check["met"] else ", missed"),
        )
        for check in found["targets"]
    ]


BENCHMARKS = (
    Benchmark("tierway.bench.startup", ("--runs", "1"), _startup),
    Benchmark(
        "tierway.bench.road",
        (
            *("--rounds", "1", "--requests", "200", "--hits", "200", "--misses", "30"),
            *("--streams", "4", "--tokens", "50"),
        ),
        _road,
    ),
    Benchmark("tierway.bench.engine_check", ("--only", "lone"), _engine),
    Benchmark("tierway.bench.cache_bench", ("--made", "25"), _cache_made, ("--made",)),
    Benchmark(
        "tierway.bench.cache_bench",
        ("--speed", "--entries", "10000", "--restart", "500"),
        _cache_speed,
        ("--speed", "--entries", "10000,100000"),
    ),
    Benchmark(
        "tierway.bench.balance_suite",
        ("--quick", "--only", "five-turn-3,mixed-h100,hot-prompt,trickle"),
        _balance,
        ("--quick",),
    ),
    Benchmark("tierway.bench.decision", ("--rounds", "500", "--long-rounds", "100"), _decision),
)


def run(benchmark: Benchmark, *, quick: bool) -> list[Row]:
    """One benchmark's rows; raises RuntimeError when it fails."""
    more = benchmark.quick if quick else benchmark.full
    done = subprocess.run(
        [sys.executable, "-P", "-m", benchmark.module, "--json", *more],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{benchmark.module} failed ({done.returncode})")
    return benchmark.rows(json.loads(done.stdout))


def layout(rows: Sequence[Row]) -> str:
    """The table: the figures right-aligned, everything else left."""
    lines = [Row("benchmark", "figure", "unit", "against"), *rows]
    name, figure, unit = (max(len(line[column]) for line in lines) for column in range(3))
    form = f"{{:<{name}}}  {{:>{figure}}}  {{:<{unit}}}  {{}}"
    return "\n".join(form.format(*line).rstrip() for line in lines)


def main(argv: Sequence[str], benchmarks: Sequence[Benchmark] = BENCHMARKS) -> int:
    """Exit status: 0 measured, 1 a benchmark failed (the others are shown), 2 wrong use."""
    parser = argparse.ArgumentParser(prog="table", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="coarse figures in half a minute")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    failed = False
    for benchmark in benchmarks:
        if sys.stderr.isatty():
            print(f"{benchmark.module} ...", file=sys.stderr)
        try:
            rows += run(benchmark, quick=options.quick)
        except RuntimeError as error:
            print(f"table: {error}", file=sys.stderr)
            failed = True
    print(layout(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
