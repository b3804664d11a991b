"""Balancing policies before real sockets: a gateway, engines and users, each a process.

    python -m tierway.bench.balance_live [--quick] [--json]

A `tierway serve` as anybody starts it stands before simulated engines; users in conversations
load it over HTTP (balance_clients.py), once for each policy and round, and between runs the
policy is switched by the admin call. Every run says other things than those before, so that no
engine's prefix cache helps; what the gateway has learnt of the replicas' pace stays.

Engines run `speed` times faster than the machines they stand for, and all times are told as on
those: as measured, times `speed`. What the gateway and the sockets take is thereby counted
`speed` times, against every policy alike; a figure of this benchmark is a bound from above, and
virtual time (`tierway bench balance`) tells the rest. Of the engines' own work it sees what they
report: cached tokens of each answer. `busy` is the time with at least one request of ours there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tierway.bench.balance_clients import Heard, Talk, Told, converse
from tierway.bench.balance_figures import Slo, max_over_mean, spread
from tierway.bench.fleet import EngineSpec, spawn_fleet
from tierway.bench.gateway_process import Gateway, configured_gateway
from tierway.bench.load import bar, positive
from tierway.bench.profiles import profile
from tierway.policies.errors import ConfigError
from tierway.policies.registry import build_policy

POLICIES = "round_robin,least_request,llm"
_SPEED = 4.0
_QUICK = Talk(sessions=24, turns=5, prompt_tokens=200, output_tokens=100, concurrency=8)
_WARM = Talk(sessions=8, turns=2, prompt_tokens=200, output_tokens=50, concurrency=8)


def configuration(urls: Sequence[str], profiles: Sequence[str]) -> str:
    """Of a gateway before these engines; JSON is YAML too."""
    replicas = []
    for url, name in zip(urls, profiles, strict=True):
        made = profile(name)
        hardware = {"gpu": made.gpu.name, "gpus": made.gpus, "tp": made.gpus}
        replicas.append({"url": url, "engine": "vllm", **hardware})
    model = {"tier": "small", "served_name": "sim", "context_tokens": 32768, "replicas": replicas}
    return json.dumps(
        {"cache": {"mode": "off"}, "models": {"sim": model}, "tiers": {"small": {"class": "7b"}}}
    )


def figures(heard: Sequence[Heard], speed: float, slo: Slo) -> dict[str, Any]:
    """Of all rounds of one policy, in the shape of `tierway bench balance`; times as on the
    machines that the engines stand for. None where nobody tells."""
    answers = [told for one in heard for told in one.answers]
    ttfts = [speed * (told.first_s - told.began_s) for told in answers]
    tpots = [speed * gap for told in answers if (gap := _gap_s(told)) is not None]
    good = sum(
        speed * (told.first_s - told.began_s) <= slo.ttft_s
        and speed * (_gap_s(told) or 0.0) <= slo.tpot_s
        for told in answers
    )
    faults = sum(one.faults.total() for one in heard)
    wall_s = speed * math.fsum(one.wall_s for one in heard)
    prompts = sum(told.prompt_tokens for told in answers)
    shares = _by_replica(answers)
    return {
        "ttft_s": _spread(ttfts),
        "tpot_s": _spread(tpots),
        "output_tokens_per_s": sum(told.output_tokens for told in answers) / max(1e-9, wall_s),
        "kv_hit_ratio": sum(told.cached_tokens for told in answers) / max(1, prompts),
        "work_max_over_mean": _uneven([one["work"] for one in shares.values()]),
        "busy_max_over_mean": _uneven([one["busy_s"] for one in shares.values()]),
        "goodput": good / max(1, len(answers) + faults),
        "decision_us": {"p50": None, "p99": None},
        "requests": len(answers),
        "faults": faults,
        "shares": {name: one["requests"] / len(answers) for name, one in sorted(shares.items())},
    }


def _gap_s(told: Told) -> float | None:
    after = told.output_tokens - 1
    return (told.ended_s - told.first_s) / after if after > 0 else None


def _by_replica(answers: Sequence[Told]) -> dict[str, dict[str, float]]:
    there: dict[str, list[Told]] = defaultdict(list)
    for told in answers:
        there[told.replica].append(told)
    return {
        name: {
            "requests": float(len(own)),
            "work": float(sum(told.prompt_tokens - told.cached_tokens for told in own)),
            "busy_s": _covered_s(own),
        }
        for name, own in there.items()
        if name
    }


def _covered_s(answers: Sequence[Told]) -> float:
    """The time in which at least one of these was under way."""
    covered, end = 0.0, -math.inf
    for told in sorted(answers, key=lambda told: told.began_s):
        covered += max(0.0, told.ended_s - max(end, told.began_s))
        end = max(end, told.ended_s)
    return covered


def _uneven(values: Sequence[float]) -> float | None:
    return max_over_mean(values) if values else None


def _spread(values: Sequence[float]) -> Mapping[str, float | None]:
    return spread(values) if values else dict.fromkeys(("mean", "p50", "p99"))


# The measurement.


async def measure(
    policies: Sequence[str], profiles: Sequence[str], talk: Talk, *, speed: float, rounds: int
) -> dict[str, list[Heard]]:
    """What the users of each policy heard, round by round; the policies take turns, so that a
    noisy neighbour meets them all. Raises RuntimeError when a process does not come up."""
    specs = [EngineSpec(name, "sim", seed, speed) for seed, name in enumerate(profiles)]
    heard: dict[str, list[Heard]] = {name: [] for name in policies}
    total = talk.sessions * len(policies) * rounds
    show, done = bar(total, sys.stderr, time.monotonic), 0

    def progress() -> None:
        nonlocal done
        done += 1
        show(done)

    async with spawn_fleet(specs) as urls:
        with configured_gateway(configuration(urls, profiles)) as gateway:
            await converse(gateway.url, "sim", _WARM, seed="warm", clock=time.perf_counter)
            for number in range(rounds):
                for name in policies:
                    _switch(gateway, name)
                    seed = f"{number}-{name}"
                    clock = time.perf_counter
                    heard[name].append(
                        await converse(
                            gateway.url, "sim", talk, seed=seed, clock=clock, progress=progress
                        )
                    )
    return heard


def _switch(gateway: Gateway, policy: str) -> None:
    gateway.admin("PUT", "/admin/tiers/small/policy", {"policy": policy})


# The command.


def table(found: Mapping[str, Any]) -> str:
    lines = [
        f"{'':<24}{'TTFT s mean':>12}{'p50':>8}{'p99':>8}{'TPOT ms':>9}{'tokens/s':>10}{'hit':>7}"
        f"{'work':>7}{'busy':>7}  shares"
    ]
    for name, row in found["policies"].items():
        ttft, tpot = row["ttft_s"], row["tpot_s"]["mean"]
        numbers = [ttft["mean"], ttft["p50"], ttft["p99"], tpot and 1e3 * tpot]
        numbers += [row["output_tokens_per_s"], row["kv_hit_ratio"]]
        numbers += [row["work_max_over_mean"], row["busy_max_over_mean"]]
        widths, digits = (12, 8, 8, 9, 10, 7, 7, 7), (3, 3, 3, 1, 0, 3, 2, 2)
        cells = [
            f"{'-' if number is None else format(number, f'.{places}f'):>{width}}"
            for number, width, places in zip(numbers, widths, digits, strict=True)
        ]
        shares = " ".join(f"{100 * share:.0f}%" for share in row["shares"].values())
        lines.append(f"{name:<24}{''.join(cells)}  {shares}")
    lines.append(
        f"Times as on the machines, of which the engines are {found['speed']:g} times one."
    )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tierway bench balance --live", description=(__doc__ or "").splitlines()[0]
    )
    plan = Talk()
    parser.add_argument("--policies", default=POLICIES, help=f"by name ({POLICIES})")
    parser.add_argument("--replicas", type=positive, default=3, help="of one kind (3)")
    parser.add_argument("--fleet", help="a GPU per replica instead, as in a100,a100,a10")
    parser.add_argument("--model", default="8b", help="what the engines serve (8b)")
    parser.add_argument("--sessions", type=positive, help=f"conversations ({plan.sessions})")
    parser.add_argument("--turns", type=positive, help=f"of each ({plan.turns})")
    parser.add_argument("--input", type=positive, help=f"tokens a turn ({plan.prompt_tokens})")
    parser.add_argument("--output", type=positive, help=f"tokens a turn ({plan.output_tokens})")
    parser.add_argument("--concurrency", type=positive, help=f"users ({plan.concurrency})")
    parser.add_argument("--rounds", type=positive, default=1, help="of each policy (1)")
    parser.add_argument("--speed", type=_speed, default=_SPEED, help=f"of the engines ({_SPEED:g})")
    parser.add_argument("--slo-ttft", type=_speed, default=2.0, help="seconds (2)")
    parser.add_argument("--slo-tpot", type=_speed, default=0.05, help="seconds (0.05)")
    parser.add_argument("--quick", action="store_true", help="a small load, under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0 is needed")
    return value


def _talk(options: argparse.Namespace) -> Talk:
    plan = _QUICK if options.quick else Talk()
    return Talk(
        options.sessions or plan.sessions,
        options.turns or plan.turns,
        options.input or plan.prompt_tokens,
        options.output or plan.output_tokens,
        options.concurrency or plan.concurrency,
    )


def _profiles(options: argparse.Namespace) -> list[str]:
    """Raises ValueError, with near names, for an engine that there is not."""
    gpus = options.fleet.split(",") if options.fleet else ["a100"] * options.replicas
    return [profile(f"{options.model}-{gpu}").name for gpu in gpus]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 1 something did not start or an answer was wrong, 2 wrong use."""
    options = _parser().parse_args(argv)
    talk, policies = _talk(options), [name for name in options.policies.split(",") if name]
    try:
        profiles = _profiles(options)
        for name in policies:
            build_policy(name, {})
    except ValueError as error:
        print(f"--fleet, --model: {error}", file=sys.stderr)
        return 2
    except ConfigError as error:
        print(f"--policies: {'; '.join(error.faults)}", file=sys.stderr)
        return 2
    try:
        heard = asyncio.run(
            measure(policies, profiles, talk, speed=options.speed, rounds=options.rounds)
        )
    except (OSError, RuntimeError) as error:
        print(f"balance --live: {error}", file=sys.stderr)
        return 1
    slo = Slo(options.slo_ttft, options.slo_tpot)
    rows = {name: figures(runs, options.speed, slo) for name, runs in heard.items()}
    found = {"benchmark": "balance-live", "speed": options.speed, "policies": rows}
    print(json.dumps(found) if options.json else table(found))
    for name, runs in heard.items():
        for run in runs:
            for fault, count in run.faults.most_common():
                print(f"{name}: {count} x {fault}", file=sys.stderr)
    return 1 if any(row["faults"] or not row["requests"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
