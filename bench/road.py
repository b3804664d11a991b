"""What the gateway's road costs: CPU microseconds per request of a real `tierway serve`.

    pass-through    cache off: wire, tier, policy, replica, and the bytes back
    exact hit       one question again and again, cache in memory
    miss            every question another one: looked up, answered, stored

The gateway is a process of its own before the fast upstream of bench/relay.py, one model with
one replica, logs to a file. A figure is the user and system time of that process alone: the
encoder of the cache, some milliseconds a text, is another process and is not in it, nor is what
the upstream and the clients take. Beside it stand two bare relays, measured in the same run, as
the least that passing a request on can cost; `ratio` is over the one with our own HTTP client.

Whether hits hit and misses missed is read from the gateway's metrics and told as `as_meant`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from tierway.bench.gateway_process import Gateway, environment, fake_upstream, running_gateway
from tierway.bench.load import positive, questions
from tierway.bench.load_clients import Target, load
from tierway.bench.relay import cpu_s
from tierway.router.transport import Origin

_CONCURRENCY = 16
_WARM = 30


@dataclass(slots=True)
class Tally:
    """Sums over rounds; `meant` counts the lookups that ended as the row's name says."""

    name: str
    result: str
    done: int = 0
    errors: int = 0
    cpu_s: float = 0.0
    meant: float = 0.0


# The measurements.


def beside_relays(gateway: Gateway, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the relay benchmark for both relays and this gateway, in turns."""
    given = {
        "url": f"{gateway.url}/v1",
        "pid": gateway.pid,
        "model": "fake",
        "rounds": options.rounds,
        "requests": options.requests,
        "streams": options.streams,
        "tokens": options.tokens,
        "tick-ms": options.tick_ms,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tierway.bench.relay", "--json"]
        + [f"--{name}={value}" for name, value in given.items()],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError("the relay benchmark failed")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["targets"]
    return rows


def _ask(gateway: Gateway, prompts: Sequence[str], tally: Tally | None = None) -> None:
    target = Target(Origin.parse(gateway.url), "fake", stream=False)
    cpu_before, lookups_before = cpu_s(gateway.pid), gateway.lookups()
    result = uvloop.run(
        load(
            target,
            iter(prompts),
            concurrency=min(_CONCURRENCY, len(prompts)),
            timeout_s=60.0,
            clock=time.perf_counter,
            progress=lambda done: None,
        )
    )
    if tally is not None:
        tally.cpu_s += cpu_s(gateway.pid) - cpu_before
        tally.done += len(result.samples)
        tally.errors += result.faults.total()
        found = gateway.lookups()
        tally.meant += found.get(tally.result, 0.0) - lookups_before.get(tally.result, 0.0)


def through_cache(gateway: Gateway, rounds: int, hits: int, misses: int) -> list[Tally]:
    """Hits and misses in turns, so that a noisy neighbour meets both."""
    draw = random.Random(0)
    hit, miss = Tally("exact hit", "hit"), Tally("miss", "miss")
    (question,) = questions(1, draw)
    for prompt in (question, *questions(_WARM, draw), question):
        _ask(gateway, [prompt])  # alone, so that none joins another in flight
    for _ in range(rounds):
        _ask(gateway, [question] * hits, hit)
        _ask(gateway, list(questions(misses, draw)), miss)
    return [hit, miss]


def _rows(relayed: list[dict[str, Any]], cached: list[Tally]) -> list[dict[str, Any]]:
    names = {
        "transport": "bare relay, our client",
        "aiohttp": "bare relay, aiohttp",
        "gateway": "pass-through",
    }
    base = next(row for row in relayed if row["name"] == "transport")
    rows = []
    for per in ("request", "token"):
        for row in relayed:
            figure = row[f"cpu_us_per_{per}"]
            rows.append(_row(names[row["name"]], per, figure, base[f"cpu_us_per_{per}"]))
            rows[-1]["errors"] = row["errors"]
    for tally in cached:
        figure = 1e6 * tally.cpu_s / max(1, tally.done)
        rows.append(_row(tally.name, "request", figure, base["cpu_us_per_request"]))
        rows[-1]["errors"] = tally.errors
        rows[-1]["as_meant"] = round(tally.meant / max(1, tally.done), 3)
    return rows


def _row(name: str, per: str, figure: float, base: float) -> dict[str, Any]:
    ratio = round(figure / base, 2) if base else None
    return {"name": name, "per": per, "cpu_us": round(figure, 1), "ratio": ratio}


# The command.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="road", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--requests", type=positive, default=2000, help="passed on, per round")
    parser.add_argument("--hits", type=positive, default=1000, help="per round")
    parser.add_argument("--misses", type=positive, default=200, help="per round; each is encoded")
    parser.add_argument("--streams", type=positive, default=64, help="per round, all at once")
    parser.add_argument("--tokens", type=positive, default=200, help="per stream")
    parser.add_argument("--tick-ms", type=positive, default=5, help="between a stream's tokens")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Raises RuntimeError when a process does not come up."""
    with fake_upstream(options.tokens, options.tick_ms) as upstream:
        with running_gateway("off", upstream) as gateway:
            relayed = beside_relays(gateway, options)
        with running_gateway("serve", upstream) as gateway:
            cached = through_cache(gateway, options.rounds, options.hits, options.misses)
    return {
        "benchmark": "road",
        "python": sys.version.split()[0],
        "rows": _rows(relayed, cached),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'CPU of one process':<35}{'us':>9}{'ratio':>8}"]
    for row in rows:
        name, share = f"{row['name']}, a {row['per']}", row.get("as_meant", 1.0)
        note = "" if share == 1.0 else f"  ({100 * share:.0f} % were that)"
        lines.append(f"{name:<35}{row['cpu_us']:>9}{row['ratio']!s:>8}{note}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 measured, 1 an answer was wrong or something did not start, 2 wrong use."""
    options = _parser().parse_args(argv)
    try:
        result = measure(options)
    except (OSError, RuntimeError) as error:
        print(f"road: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result) if options.json else table(result["rows"]))
    return 1 if any(row["errors"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
