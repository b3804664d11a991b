"""What the prefix index costs: CPU microseconds of its parts, and bytes over a million prompts.

Prompts of 32k tokens (`hash` from a call in the OpenAI wire to its blocks), before an index that
is full, of 8 and of 32 replicas:

    match     a prompt that some replicas hold to different depths
    again     insertion of a prompt that is there
    new       insertion of one that shares a head of a sixteenth, with what is evicted for it

Memory: prompts of four blocks, no two alike, over 8 replicas with room for 15,625 blocks each;
what the process has allocated for the index at each tenth. CPU time of the one thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tierway.bench.load import positive
from tierway.policies.prefix_blocks import BLOCK_BYTES, prompt_prefix
from tierway.policies.types import Ask, Call, Turn
from tierway.router.prefixes import DEFAULT_BLOCKS, PrefixIndex

LONG_BYTES = 131_072  # 32k tokens of four bytes
REPLICAS = (8, 32)
_HEADS = 64
"""Distinct beginnings that recur, each on a few replicas."""


def hashing(rounds: int, draw: random.Random) -> dict[str, float]:
    """Microseconds a prompt, each another one; `block` the median of one block."""
    found = []
    for number in range(rounds):
        call = _call(f"{draw.getrandbits(4 * LONG_BYTES):0{LONG_BYTES}x}")
        began = time.thread_time_ns()
        prompt_prefix(call, f"model-{number}")
        found.append((time.thread_time_ns() - began) / 1e3)
    spread = _spread(found)
    return {**spread, "block": round(spread["p50"] / (LONG_BYTES // BLOCK_BYTES), 2)}


def working(replicas: int, rounds: int, draw: random.Random) -> dict[str, dict[str, float]]:
    """Microseconds of a match and of both insertions before a full index."""
    index, names = PrefixIndex(), [f"replica-{n}" for n in range(replicas)]
    size = LONG_BYTES // BLOCK_BYTES
    heads = [_blocks(size, draw) for _ in range(_HEADS)]
    found: dict[str, list[float]] = {"match": [], "again": [], "new": []}
    for _ in range(DEFAULT_BLOCKS // size + 1):
        for name in names:
            index.insert(name, _renewed(draw.choice(heads), draw))
    gc.collect()
    for _ in range(rounds):
        head, name = draw.choice(heads), draw.choice(names)
        index.insert(name, head)
        index.insert(draw.choice(names), head[: draw.randrange(1, size)])
        fresh = _renewed(head, draw)
        found["match"].append(_us(partial(index.match, head)))
        found["again"].append(_us(partial(index.insert, name, head)))
        found["new"].append(_us(partial(index.insert, name, fresh)))
    return {part: _spread(values) for part, values in found.items()}


def growth(prompts: int, draw: random.Random, room: int = DEFAULT_BLOCKS) -> list[dict[str, int]]:
    """Bytes allocated for an index after each tenth of so many prompts, no two alike, over
    8 replicas that hold `room` blocks each."""
    index, marks = PrefixIndex(default_blocks=room), []
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, prompts + 1):
            index.insert(f"replica-{number % 8}", _blocks(4, draw))
            if number % max(1, prompts // 10) == 0:
                stats = index.stats()
                marks.append(
                    {
                        "prompts": number,
                        "blocks": sum(stats.blocks.values()),
                        "bytes": tracemalloc.get_traced_memory()[0],
                        "told_bytes": stats.approx_bytes,
                    }
                )
    finally:
        tracemalloc.stop()
    return marks


def _blocks(size: int, draw: random.Random) -> tuple[int, ...]:
    return tuple([draw.getrandbits(64) for _ in range(size)])


def _renewed(prompt: tuple[int, ...], draw: random.Random) -> tuple[int, ...]:
    """Another prompt with the same head."""
    head = len(prompt) // 16
    return prompt[:head] + _blocks(len(prompt) - head, draw)


def _call(text: str) -> Call:
    turns = (Turn("user", text),)
    body = {"messages": [{"role": "user", "content": text}]}
    ask = Ask(turns, text, text_bytes=len(text))
    return Call(id="call", wire="chat", raw=b"", body=body, ask=ask, model="m")


def _us(act: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    act()
    return (time.thread_time_ns() - began) / 1e3


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles."""
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[math.ceil(share / 100 * len(ordered)) - 1], 1)
        for share in (50, 99)
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"{'CPU of one prompt of 32k tokens, us':<44}{'p50':>9}{'p99':>9}"]
    rows = [(f"hash, {result['hash']['block']} a block", result["hash"])]
    for replicas, parts in result["index"].items():
        rows += [(f"{part}, {replicas} replicas", us) for part, us in parts.items()]
    lines += [f"{name:<44}{us['p50']:>9}{us['p99']:>9}" for name, us in rows]
    lines.append(f"\n{'prompts, no two alike':<24}{'blocks':>12}{'MB':>9}{'MB told':>9}")
    lines += [
        f"{mark['prompts']:<24,}{mark['blocks']:>12,}"
        f"{mark['bytes'] / 1e6:>9.1f}{mark['told_bytes'] / 1e6:>9.1f}"
        for mark in result["memory"]
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 measured, 2 wrong use."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="prefix_speed", description=about)
    parser.add_argument("--rounds", type=positive, default=300, help="prompts timed (300)")
    parser.add_argument(
        "--prompts", type=positive, default=1_000_000, help="over which memory is read (1000000)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(argv)
    draw = random.Random(0)
    result = {
        "benchmark": "prefix_speed",
        "hash": hashing(options.rounds, draw),
        "index": {str(n): working(n, options.rounds, draw) for n in REPLICAS},
        "memory": growth(options.prompts, draw),
    }
    print(json.dumps(result) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
