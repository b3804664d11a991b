"""Closed-loop load on any address that speaks OpenAI's chat wire.

`concurrency` workers ask one question after the other until `requests` are done, so the load
adapts to the server: it shows what a number of busy clients get, not what a fixed arrival rate
would do to the queue. Each question is another one, of a few random words, so that no cache
answers it; `--same` asks one question only, to measure just that.

A stream's TTFT runs from the request to its first event with content, and
TPOT = (latency - TTFT) / (n - 1) over its n such events, as vLLM's benchmark defines them: an
engine that puts several tokens into one event looks slower per token than it is.
Percentiles are nearest-rank. Only answers that were right are in the times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import uvloop

from tierway.bench.load_clients import Result, Target, load
from tierway.policies.errors import ConfigError
from tierway.policies.protocols import Clock
from tierway.router.transport import Origin

# fmt: off
_WORDS = (
    "anchor", "apricot", "badger", "barley", "basalt", "canyon", "cedar", "cobalt", "comet",
    "copper", "coral", "cotton", "cricket", "dagger", "ember", "falcon", "fennel", "fjord",
    "garnet", "ginger", "glacier", "granite", "harbor", "hazel", "heron", "indigo", "island",
    "ivory", "jasper", "juniper", "kelp", "lantern", "lemon", "lichen", "linen", "lobster",
    "maple", "marble", "meadow", "mercury", "monsoon", "nectar", "nickel", "oasis", "olive",
    "onyx", "orchid", "osprey", "papyrus", "pebble", "pepper", "plateau", "quartz", "quiver",
    "raven", "reef", "saffron", "sandal", "sierra", "silver", "spruce", "thistle", "tundra",
    "velvet", "walnut",
)
# fmt: on
_BAR_CELLS = 30
_BAR_EVERY_S = 0.1

# What came out.


def summary(result: Result) -> dict[str, Any]:
    """The figures, times in milliseconds; a time that was never measured is None."""
    samples = result.samples
    gaps = [
        (sample.latency_s - sample.first_s) / (sample.events - 1)
        for sample in samples
        if sample.first_s is not None and sample.events > 1
    ]
    firsts = [sample.first_s for sample in samples if sample.first_s is not None]
    return {
        "rps": round(len(samples) / result.wall_s, 2) if result.wall_s else 0.0,
        "latency_ms": _spread([sample.latency_s for sample in samples]),
        "ttft_ms": _spread(firsts),
        "tpot_ms": _spread(gaps),
        "errors": result.faults.total(),
    }


def _spread(seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return {"mean": None, "p50": None, "p99": None}
    ordered = sorted(seconds)
    found = {
        "mean": math.fsum(ordered) / len(ordered),
        "p50": ordered[math.ceil(0.50 * len(ordered)) - 1],
        "p99": ordered[math.ceil(0.99 * len(ordered)) - 1],
    }
    return {name: round(1e3 * value, 3) for name, value in found.items()}


def table(figures: dict[str, Any]) -> str:
    lines = [f"{'':<12}{'mean':>10}{'p50':>10}{'p99':>10}"]
    for name in ("latency_ms", "ttft_ms", "tpot_ms"):
        cells = ("-" if value is None else f"{value:.2f}" for value in figures[name].values())
        lines.append(f"{name:<12}" + "".join(f"{cell:>10}" for cell in cells))
    lines.append(f"{figures['rps']} answers a second, {figures['errors']} errors")
    return "\n".join(lines)


# The command.


def questions(count: int, draw: random.Random) -> Iterator[str]:
    """Questions that have little in common but their shape."""
    for _ in range(count):
        words = " ".join(draw.sample(_WORDS, 6))
        yield f"Tell a short story with these words: {words} {draw.getrandbits(32):08x}"


def bar(total: int, stream: TextIO, clock: Clock) -> Callable[[int], None]:
    """A progress bar for `stream`, or nothing where it is no terminal."""
    if not stream.isatty():
        return lambda done: None
    shown_s = -math.inf

    def show(done: int) -> None:
        nonlocal shown_s
        now = clock()
        if done < total and now - shown_s < _BAR_EVERY_S:
            return
        shown_s = now
        filled = "#" * (_BAR_CELLS * done // total)
        end = "\n" if done == total else ""
        stream.write(f"\r[{filled:<{_BAR_CELLS}}] {done}/{total}{end}")
        stream.flush()

    return show


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tierway bench gateway", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--url", required=True, help="base address, with or without its /v1")
    parser.add_argument("--model", required=True, help="the model to ask for")
    parser.add_argument("--concurrency", type=positive, default=8, help="busy clients (8)")
    parser.add_argument("--requests", type=positive, default=200, help="in all (200)")
    parser.add_argument("--stream", action="store_true", help="ask for streams")
    parser.add_argument("--same", action="store_true", help="ask one question again and again")
    parser.add_argument("--prompt-file", type=Path, help="one question a line, asked in turn")
    parser.add_argument("--max-tokens", type=positive, help="per answer")
    parser.add_argument("--timeout-s", type=_seconds, default=600.0, help="per answer (600)")
    parser.add_argument("--seed", type=int, help="of the made questions")
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def positive(text: str) -> int:
    """For argparse."""
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on is needed")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds above 0 is needed")
    return value


def _prompts(options: argparse.Namespace) -> Iterator[str]:
    """Raises ConfigError for a file that holds no question."""
    count: int = options.requests
    if options.prompt_file is None:
        made = questions(1 if options.same else count, random.Random(options.seed))
        given = list(made)
    else:
        try:
            lines = options.prompt_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"--prompt-file {options.prompt_file}: {error}"]) from error
        given = [line for line in lines if line.strip()]
        if not given:
            raise ConfigError([f"--prompt-file {options.prompt_file}: it holds no question"])
        given = given[:1] if options.same else given
    return (given[number % len(given)] for number in range(count))


def _target(options: argparse.Namespace) -> Target:
    """Raises ConfigError for a wrong address or a variable that is not there."""
    name = options.api_key_env
    if name and not os.environ.get(name):
        raise ConfigError([f"--api-key-env {name}: there is no such environment variable"])
    return Target(
        Origin.parse(options.url.rstrip("/").removesuffix("/v1")),
        options.model,
        options.stream,
        os.environ[name] if name else "",
        options.max_tokens,
    )


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 measured, 1 no answer was right, 2 wrong use."""
    options = _parser().parse_args(argv)
    try:
        target, prompts = _target(options), _prompts(options)
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        return 2
    result = uvloop.run(
        load(
            target,
            prompts,
            concurrency=min(options.concurrency, options.requests),
            timeout_s=options.timeout_s,
            clock=time.perf_counter,
            progress=bar(options.requests, sys.stderr, time.monotonic),
        )
    )
    figures = summary(result)
    print(json.dumps(figures) if options.json else table(figures))
    for fault, count in result.faults.most_common():
        print(f"{count} x {fault}", file=sys.stderr)
    return 0 if result.samples else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
