"""All loads that the balancer is judged on, with every policy, rival and bound, and the targets.

    python -m tierway.bench.balance_suite [--only NAME,…] [--quick] [--jobs 2] [--json]

Prints Markdown: a table of policies for each load, then every target with what was reached. The
whole takes a quarter of an hour of two CPUs; `--only five-turn` takes the loads whose names begin
so. Loads from traces are left out, with the reason, where the files are not there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tierway.bench.balance_cases import Named, cases, missing, shortened
from tierway.bench.balance_runs import Contestant, measure
from tierway.bench.balance_targets import OURS, Rows, Verdict, verdicts
from tierway.bench.load import bar, positive
from tierway.bench.rivals import RIVALS
from tierway.bench.rivals_oracle import ORACLE, POOLED
from tierway.policies.registry import POLICIES

_FEW = (
    "round_robin",
    "least_request",
    "weighted_least_request",
    OURS,
    "session_hash",
    "cache_aware_least_load",
    "weighted_scorers",
    "xor_prefix",
    ORACLE,
)


def contestants(named: Named) -> list[Contestant]:
    names = _FEW if named.few else (*POLICIES, *RIVALS, ORACLE, POOLED)
    return [Contestant(name, name) for name in names]


def run(chosen: Sequence[Named], jobs: int) -> Iterator[tuple[Named, Rows]]:
    """The figures of one load after the other."""
    for named in chosen:
        players = contestants(named)
        progress = bar(named.seeds * len(players), sys.stderr, time.monotonic)
        if sys.stderr.isatty():
            print(named.name, file=sys.stderr)
        yield named, measure(named.case, players, named.seeds, jobs=jobs, progress=progress)


def markdown(named: Named, rows: Rows) -> str:
    """One load as a table; the least TTFT of what can be had is in bold."""
    seeds = f", {named.seeds} seeds" if named.seeds > 1 else ""
    best = min(
        (name for name in rows if name not in (ORACLE, POOLED)),
        key=lambda name: float(rows[name]["ttft_s"]["mean"]),
    )
    lines = [
        f"### {named.name}: {named.title}{seeds}",
        "",
        "| policy | TTFT ms | p99 | TPOT ms | tokens/s | KV hits | work | busy | goodput |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        shown = f"**{name}**" if name == best else name
        lines.append(f"| {shown} | {' | '.join(_cells(row))} |")
    return "\n".join(lines)


def _cells(row: Mapping[str, object]) -> Iterator[str]:
    ttft, tpot = _numbers(row["ttft_s"]), _numbers(row["tpot_s"])
    off = row.get("ci95")
    error = ""
    if isinstance(off, Mapping):
        error = f" ± {1e3 * _numbers(off['ttft_s'])['mean']:.1f}"
    yield f"{1e3 * ttft['mean']:.1f}{error}"
    yield f"{1e3 * ttft['p99']:.0f}"
    yield f"{1e3 * tpot['mean']:.1f}"
    yield f"{row['output_tokens_per_s']:.0f}"
    for key in ("kv_hit_ratio", "work_max_over_mean", "busy_max_over_mean", "goodput"):
        yield f"{row[key]:.2f}"


def _numbers(found: object) -> Mapping[str, float]:
    assert isinstance(found, Mapping)
    return found


def targets(checks: Sequence[Verdict]) -> str:
    met = sum(check.met for check in checks)
    lines = [
        f"### Targets: {met} of {len(checks)} met",
        "",
        f"| load | `{OURS}` | reached | wanted | met |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for check in checks:
        sign = "at most" if check.at_most else "at least"
        answer = "yes" if check.met else "**no**"
        lines.append(
            f"| {check.case} | {check.target} | {check.value:.3f} | {sign} {check.wanted:g}"
            f" | {answer} |"
        )
    return "\n".join(lines)


def _chosen(options: argparse.Namespace) -> list[Named]:
    known = cases(Path(options.traces))
    begins = tuple(options.only.split(",")) if options.only else ("",)
    chosen = [named for name, named in known.items() if name.startswith(begins)]
    if not chosen:
        raise ValueError(f"--only {options.only}: known are {', '.join(known)}")
    if options.quick:
        chosen = [shortened(named) for named in chosen if named.quick or options.only]
    return [
        replace(one, seeds=options.seeds or one.seeds, few=one.few or options.few) for one in chosen
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="balance_suite", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", metavar="NAME,…", help="loads whose names begin so")
    parser.add_argument("--quick", action="store_true", help="a few loads, short, one seed")
    parser.add_argument("--few", action="store_true", help="only what targets compare with")
    parser.add_argument("--seeds", type=positive, help="runs of each policy (2, or 5)")
    parser.add_argument("--jobs", type=positive, default=1, help="processes at once (1)")
    parser.add_argument(
        "--traces", default="../shared/data/traces", help="folder (../shared/data/traces)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, whether or not targets were met; 2 wrong use."""
    options = _parser().parse_args(argv)
    try:
        chosen = _chosen(options)
    except ValueError as error:
        print(f"balance_suite: {error}", file=sys.stderr)
        return 2
    left_out = {named.name: why for named in chosen if (why := missing(named))}
    found: dict[str, Rows] = {}
    for named, rows in run([one for one in chosen if one.name not in left_out], options.jobs):
        found[named.name] = rows
        if not options.json:
            print(markdown(named, rows), end="\n\n", flush=True)
    checks = verdicts(found)
    if options.json:
        told = [check.as_json() for check in checks]
        print(json.dumps({"cases": found, "targets": told, "left_out": left_out}))
        return 0
    for name, why in left_out.items():
        print(f"Left out: {name}, {why}.", end="\n\n")
    print(targets(checks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
