"""What a choice of replica costs: CPU microseconds from a call to a slot.

The product's own Balancer before replicas of unequal speed that are all at work, with fresh
facts of engine and GPU, counts kept in memory. Two things are measured:

    decision       rank and take, of a call whose look is there
    whole          look, rank and take of a prompt of 32k tokens: what everybody shares, one of
                   a few long histories that some replicas hold, and a new turn

One call after the other, as many in flight as were there before. CPU time of the one thread; a
collection of garbage that falls into a decision is part of it. Neighbours on the same cores slow
even CPU time down, so every figure is also told as `ratio`: over what a thousand rounds of an
empty loop take, measured in turns with it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tierway.bench.load import positive
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Ask, Call, Model, Pace, Tier, Turn
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.facts import Facts, GpuFacts
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

T = TypeVar("T")

REPLICAS = (8, 32)
LONG_TOKENS = 32_000
SHORT_TOKENS = 200
_MODEL = Model("m", "small", served_name="m")
_INFLIGHT = 8  # per replica
_HISTORIES = 16
_BYTES_PER_TOKEN = 4
_PARTS = ("look", "rank", "take")


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of one decision by its parts, and of an empty loop just before it."""

    look: float
    rank: float
    take: float
    loop: float

    def of(self, parts: Sequence[str]) -> float:
        return math.fsum(getattr(self, part) for part in parts)


class Prompts:
    """Calls that come in long conversations; each is another one."""

    def __init__(self, tokens: int, draw: random.Random) -> None:
        self._draw, size = draw, tokens * _BYTES_PER_TOKEN
        self._system = self._text(size // 16)
        self._histories = [self._text(size * 13 // 16) for _ in range(_HISTORIES)]
        self._turn_bytes = size // 8
        self._made = 0

    def next(self) -> Call:
        self._made += 1
        which = self._draw.randrange(_HISTORIES)
        asked = self._text(self._turn_bytes)
        turns = (
            Turn("system", self._system),
            Turn("user", self._histories[which]),
            Turn("assistant", "Go on."),
            Turn("user", asked),
        )
        ask = Ask(turns, asked, self._system, text_bytes=sum(len(turn.text) for turn in turns))
        body = {"messages": [{"role": turn.role, "content": turn.text} for turn in turns]}
        return Call(
            id=f"call-{self._made}",
            wire="chat",
            raw=b"",
            body=body,
            ask=ask,
            model="auto",
            stream=True,
            session=f"session-{which}",
        )

    def _text(self, size: int) -> str:
        return f"{self._draw.getrandbits(4 * size):0{size}x}"


def balancer(replicas: int, draw: random.Random) -> Balancer:
    """One over a tier of replicas whose engines and GPUs have just told of themselves."""
    clock = time.monotonic
    specs = [ReplicaSpec(f"m@gpu-{n}:8000", "m", "small", "") for n in range(replicas)]
    fleet = Fleet(specs, clock=clock)
    tier = Tier("small", 0, "7b", (_MODEL,))
    for spec in specs:
        speed = draw.uniform(0.5, 1.0)
        fleet.set_pace(spec.id, Pace(prefill_s=1 / (7000 * speed), step_s=0.02 / speed))
        facts = Facts(
            waiting=draw.randrange(4),
            running=draw.randrange(12),
            kv_usage=draw.random(),
            kv_capacity_tokens=400_000,
            read_s=clock(),
        )
        gpu = GpuFacts(
            utilisation=draw.random(),
            memory_used_bytes=70 << 30,
            memory_bytes=80 << 30,
            temperature_celsius=draw.uniform(50, 90),
            read_s=clock(),
        )
        fleet.update_facts(spec.id, facts)
        fleet.update_gpu(spec.id, gpu)
    return Balancer(
        fleet,
        PolicyHolder(PolicySet.build([tier])),
        clock=clock,
        draw=draw.random,
        prefixes=PrefixIndex(),
    )


def _ended(waiting: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nobody."""
    try:
        waiting.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise RuntimeError("with counts in memory nothing should be waited for")


def measure(replicas: int, tokens: int, rounds: int, seed: int = 0) -> list[Spent]:
    """The cost of `rounds` decisions, once the fleet is at work."""
    draw = random.Random(seed)
    made, prompts = balancer(replicas, draw), Prompts(tokens, draw)
    leases: deque[Lease] = deque()
    found = []
    warm = replicas * _INFLIGHT
    gc.collect()
    for number in range(warm + rounds):
        spent, lease = _decide(made, prompts.next(), number)
        leases.append(lease)
        if number >= warm:
            found.append(spent)
            leases.popleft().finish()
    for lease in leases:
        lease.finish()
    if any(made.fleet.inflight().values()):
        raise RuntimeError("a count is left over")
    return found


def _decide(made: Balancer, call: Call, number: int) -> tuple[Spent, Lease]:
    _, loop_us = _timed(_empty_loop)
    look, look_us = _timed(lambda: made.look(call, _MODEL))
    choice, rank_us = _timed(lambda: made.rank("small", ("m",), look, sequence=number))
    lease, take_us = _timed(lambda: _ended(made.take(choice)))
    return Spent(look_us, rank_us, take_us, loop_us), lease


def _empty_loop() -> None:
    for _ in range(1000):
        pass


def _timed(act: Callable[[], T]) -> tuple[T, float]:
    began = time.thread_time_ns()
    value = act()
    return value, (time.thread_time_ns() - began) / 1e3


def _row(replicas: int, tokens: int, parts: Sequence[str], spent: Sequence[Spent]) -> Any:
    us, loop_us = _spread([one.of(parts) for one in spent]), _spread([one.loop for one in spent])
    return {
        "name": "whole" if "look" in parts else "decision",
        "replicas": replicas,
        "prompt_tokens": tokens,
        "us": us,
        "ratio": round(us["p50"] / loop_us["p50"], 2),
        "parts_us": {part: _spread([one.of((part,)) for one in spent]) for part in parts},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles."""
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[math.ceil(share / 100 * len(ordered)) - 1], 1)
        for share in (50, 99)
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'CPU of one choice, us':<44}{'p50':>9}{'p99':>9}{'ratio':>8}"]
    for row in rows:
        name = f"{row['name']}, {row['replicas']} replicas, {row['prompt_tokens']:,} tokens"
        lines.append(f"{name:<44}{row['us']['p50']:>9}{row['us']['p99']:>9}{row['ratio']:>8}")
        lines += [
            f"  {part:<42}{us['p50']:>9}{us['p99']:>9}" for part, us in row["parts_us"].items()
        ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="decision", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=2000, help="decisions a row (2000)")
    parser.add_argument("--long-rounds", type=positive, default=300, help="of long prompts (300)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    rows = []
    for replicas in REPLICAS:
        spent = measure(replicas, SHORT_TOKENS, options.rounds)
        rows.append(_row(replicas, SHORT_TOKENS, _PARTS[1:], spent))
        spent = measure(replicas, LONG_TOKENS, options.long_rounds)
        rows.append(_row(replicas, LONG_TOKENS, _PARTS, spent))
    print(json.dumps({"benchmark": "decision", "rows": rows}) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
