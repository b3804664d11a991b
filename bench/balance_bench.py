"""`tierway bench balance`: balancing policies on simulated engines, in virtual time.

    tierway bench balance --replicas 3 --policies round_robin,least_request,llm
    tierway bench balance --trace chat.jsonl.gz --scale 0.5 --fleet h100,h100,a100 --json

The product's own fleet, balancer and policies decide (balance_fleet.py) before engines whose
steps take as long as those of real ones (profiles.py, engine.py); all policies see the same
requests. Beside them rules of other balancers (rivals.py) and bounds that nobody reaches
(rivals_oracle.py) may be named. Without `--trace` the load is a closed loop of users in
conversations; with one it is an open loop of recorded arrivals. A policy may carry options:
`llm:surcharge=8:spread=2`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tierway.bench.balance_figures import Figures, Slo
from tierway.bench.balance_fleet import fleet_profile
from tierway.bench.balance_rig import Slowdown
from tierway.bench.balance_runs import Case, Contestant, TraceLoad, measure
from tierway.bench.load import bar, positive
from tierway.bench.loads import TurnPlan
from tierway.bench.loads_traces import read_trace
from tierway.bench.rivals import RIVALS
from tierway.bench.rivals_oracle import ORACLE, ORACLES, POOLED
from tierway.policies.errors import ConfigError
from tierway.policies.registry import POLICIES, build_policy

_OTHERS = (*RIVALS, *ORACLES, ORACLE, POOLED)
_LOOP = ("sessions", "turns", "input", "output", "concurrency", "spread", "think_s")
_OPEN = ("scale", "jitter_ms", "limit")
_REPLICAS = 8


class WrongUseError(Exception):
    """What was asked for cannot be had; the message is for the user."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tierway bench balance",
        description=(__doc__ or "").splitlines()[0],
        epilog="GPUs: a10, a40, l40s, a100, h100, h200, with a number (h100x4) or with as few as"
        " hold the model. Times are virtual; decision_us is CPU time of this machine.",
    )
    plan = TurnPlan()
    load = parser.add_argument_group("load: a trace, or a closed loop of users")
    load.add_argument("--trace", metavar="FILE", help="recorded arrivals, .jsonl or .jsonl.gz")
    load.add_argument("--scale", type=_above_0, help="a trace is so many times as fast (1)")
    load.add_argument("--jitter-ms", type=_not_below_0, help="moves arrivals by up to so much (0)")
    load.add_argument("--limit", type=positive, help="only the first so many requests of a trace")
    load.add_argument("--sessions", type=positive, help=f"conversations ({plan.sessions})")
    load.add_argument("--turns", type=positive, help=f"of each ({plan.turns})")
    load.add_argument("--input", type=positive, help=f"mean new tokens ({plan.prompt_tokens})")
    load.add_argument("--output", type=positive, help=f"mean tokens ({plan.output_tokens})")
    load.add_argument("--concurrency", type=positive, help=f"users at once ({plan.concurrency})")
    load.add_argument("--spread", type=_share, help=f"of lengths, relative ({plan.spread})")
    load.add_argument("--think-s", type=_not_below_0, help=f"between turns, mean ({plan.think_s})")
    load.add_argument(
        "--no-reuse", action="store_true", help="what was generated is never found in the KV cache"
    )
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--replicas", type=positive, help=f"engines ({_REPLICAS})")
    fleet.add_argument("--fleet", metavar="GPU,…", help="the GPU of each replica (all a100)")
    fleet.add_argument("--model", choices=("8b", "70b", "175b"), default="8b", help="(8b)")
    fleet.add_argument("--poll-s", type=_above_0, default=1.0, help="between looks at gauges (1)")
    fleet.add_argument("--gateways", type=positive, default=1, help="that share their state (1)")
    fleet.add_argument(
        "--perturb",
        type=_part,
        default=0.0,
        metavar="SHARE",
        help="0.3: engines are up to 30 %% off",
    )
    fleet.add_argument(
        "--slow",
        type=_slowdown,
        action="append",
        default=[],
        metavar="ID@S:FACTOR",
        help="replica ID (0, 1, …) takes FACTOR times as long from second S on",
    )
    parser.add_argument(
        "--policies",
        metavar="NAME,…",
        help=f"all unless told; also rivals: {', '.join(_OTHERS)}",
    )
    parser.add_argument("--seeds", type=positive, default=1, help="runs of each policy (1)")
    parser.add_argument("--jobs", type=positive, default=1, help="processes at once (1)")
    parser.add_argument("--slo-ttft", type=_above_0, default=2.0, metavar="S", help="(2)")
    parser.add_argument("--slo-tpot", type=_above_0, default=0.05, metavar="S", help="(0.05)")
    parser.add_argument(
        "--live", action="store_true", help="over sockets, in real time: see --live --help"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _number(text: str, wanted: str, least: float, *, beyond: bool, most: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    good = value > least if beyond else value >= least
    if not (good and value <= most and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r}: {wanted} is needed")
    return value


def _above_0(text: str) -> float:
    return _number(text, "a number above 0", 0.0, beyond=True)


def _not_below_0(text: str) -> float:
    return _number(text, "a number from 0 on", 0.0, beyond=False)


def _share(text: str) -> float:
    return _number(text, "a number from 0 to 1", 0.0, beyond=False, most=1.0)


def _part(text: str) -> float:
    value = _share(text)
    if value == 1.0:
        raise argparse.ArgumentTypeError("1: a number from 0 to below 1 is needed")
    return value


def _slowdown(text: str) -> Slowdown:
    match = re.fullmatch(r"(\d+)@([\d.]+):([\d.]+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: ID@S:FACTOR is needed, such as 0@60:3")
    return Slowdown(int(match[1]), _not_below_0(match[2]), _above_0(match[3]))


def _case(options: argparse.Namespace) -> Case:
    gpus = _gpus(options)
    for gpu in gpus:
        try:
            fleet_profile(options.model, gpu)
        except ValueError as error:
            raise WrongUseError(f"--fleet {gpu}: {error}") from error
    slo = Slo(options.slo_ttft, options.slo_tpot)
    for change in options.slow:
        if change.replica >= len(gpus):
            raise WrongUseError(f"--slow {change.replica}: replicas are 0 to {len(gpus) - 1}")
    return Case(
        _load(options),
        gpus,
        options.model,
        slo,
        options.poll_s,
        options.gateways,
        options.perturb,
        tuple(options.slow),
    )


def _gpus(options: argparse.Namespace) -> tuple[str, ...]:
    if options.fleet is None:
        return ("a100",) * (options.replicas or _REPLICAS)
    gpus = tuple(gpu.strip().lower() for gpu in options.fleet.split(","))
    if options.replicas not in (None, len(gpus)):
        raise WrongUseError(f"--fleet names {len(gpus)} GPUs, --replicas asks for another number")
    return gpus


def _load(options: argparse.Namespace) -> TurnPlan | TraceLoad:
    given = {name: getattr(options, name) for name in (*_LOOP, *_OPEN)}
    mine, others = (_OPEN, _LOOP) if options.trace else (_LOOP, _OPEN)
    for name in others:
        if given[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise WrongUseError(
                f"{flag} {'is not for a trace' if options.trace else 'needs --trace'}"
            )
    chosen = {name: given[name] for name in mine if given[name] is not None}
    if options.trace:
        try:
            read_trace(Path(options.trace), options.limit)
        except (OSError, ValueError, EOFError) as error:
            raise WrongUseError(f"--trace: {error}") from error
        return TraceLoad(options.trace, **chosen)
    for name in ("input", "output"):
        if name in chosen:
            chosen[{"input": "prompt_tokens", "output": "output_tokens"}[name]] = chosen.pop(name)
    return TurnPlan(**chosen, reuse_generated=not options.no_reuse)


def contestant(text: str) -> Contestant:
    """A policy as the command line names it, `NAME[:OPTION=NUMBER]…`; raises WrongUseError."""
    name, *settings = text.strip().split(":")
    if name in _OTHERS and not settings:
        return Contestant(name, name)
    options = []
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            options.append((key, float(value)))
        except ValueError as error:
            raise WrongUseError(f"--policies {text}: {setting!r} is not OPTION=NUMBER") from error
    try:
        build_policy(name, dict(options))
    except ConfigError as error:
        near = get_close_matches(name, _OTHERS, n=1)
        more = f"; or the rival {near[0]}" if near else ""
        raise WrongUseError(f"--policies {text}: {'; '.join(error.faults)}{more}") from error
    return Contestant(text.strip(), name, tuple(options))


def _contestants(options: argparse.Namespace) -> list[Contestant]:
    names = list(POLICIES) if options.policies is None else options.policies.split(",")
    return [contestant(name) for name in dict.fromkeys(names)]


def table(found: dict[str, Figures]) -> str:
    """The main figures, a policy a line."""
    width = max(len(name) for name in found)
    lines = [
        f"{'':<{width}}  {'TTFT ms':>9} {'p99':>8} {'TPOT ms':>8} {'tok/s':>8} {'hit':>5}"
        f" {'work':>5} {'busy':>5} {'good':>5} {'us':>5}"
    ]
    for name, row in found.items():
        lines.append(
            f"{name:<{width}}  {1e3 * row['ttft_s']['mean']:>9.1f}"
            f" {1e3 * row['ttft_s']['p99']:>8.0f} {1e3 * row['tpot_s']['mean']:>8.2f}"
            f" {row['output_tokens_per_s']:>8.0f} {row['kv_hit_ratio']:>5.2f}"
            f" {row['work_max_over_mean']:>5.2f} {row['busy_max_over_mean']:>5.2f}"
            f" {row['goodput']:>5.2f} {row['decision_us']['p50']:>5.0f}"
        )
    return "\n".join(lines)


def _settings(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    return {"model": case.model, "fleet": list(case.gpus), "seeds": options.seeds}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 1 a live run failed, 2 wrong use."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "--live" in given:
        from tierway.bench import balance_live

        given.remove("--live")
        return balance_live.main(given)
    options = _parser().parse_args(given)
    try:
        case, contestants = _case(options), _contestants(options)
    except WrongUseError as error:
        print(f"tierway bench balance: {error}", file=sys.stderr)
        return 2
    total = options.seeds * len(contestants)
    progress = bar(total, sys.stderr, time.monotonic)
    found = measure(case, contestants, options.seeds, jobs=options.jobs, progress=progress)
    if options.json:
        print(json.dumps({"policies": found, "settings": _settings(options, case)}))
    else:
        print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
