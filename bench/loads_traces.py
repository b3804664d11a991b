"""Recorded arrivals: `.jsonl` or `.jsonl.gz`, a request a line, read once and replayed by seed.

    {"timestamp_ms", "input_tokens", "output_tokens", "block_ids"?, "session"?}

Equal block ids mean equal prompts up to the end of that block of 512 tokens; the last may be
partial. What is generated is not told, so answers are never found again: ratios of reuse are
lower bounds. Some sources round their times (one conversation trace to 3 s), which would make
bursts that never were; `jitter_ms` moves every arrival by a uniform draw.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierway.bench.loads import Arrivals, Asked, NoText, Text, hashed

TRACE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class BlockText:
    """A prompt of known blocks; what lies behind the last full one is shared by equal prompts."""

    ids: tuple[int, ...]
    look_tokens: int = TRACE_TOKENS

    def keys(self, block_tokens: int, tokens: int) -> list[int]:
        parts, rest = divmod(TRACE_TOKENS, block_tokens)
        if rest:
            raise ValueError(f"block_tokens = {block_tokens}: {TRACE_TOKENS} is no multiple of it")
        last = min(tokens // block_tokens, len(self.ids) * parts)
        return [id * parts + part for id in self.ids for part in range(parts)][:last]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A line of a trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: str = ""


def read_trace(path: Path, limit: int | None = None) -> list[Recorded]:
    """The first `limit` requests; ValueError names the line and what is wrong with it, OSError
    as usual."""
    found: list[Recorded] = []
    for number, line in enumerate(_lines(path), 1):
        if limit is not None and len(found) >= limit:
            break
        if line.strip():
            try:
                found.append(_recorded(json.loads(line)))
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not found:
        raise ValueError(f"{path}: no request in it")
    return found


def _lines(path: Path) -> Iterator[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        yield from lines


def _recorded(row: dict[str, Any]) -> Recorded:
    session = row.get("session")
    return Recorded(
        at_s=_number(row, "timestamp_ms", 0) / 1000,
        prompt_tokens=int(_number(row, "input_tokens", 1)),
        output_tokens=max(1, int(_number(row, "output_tokens", 0))),
        blocks=tuple(int(block) for block in row.get("block_ids") or ()),
        session="" if session is None else str(session),
    )


def _number(row: dict[str, Any], key: str, least: float) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ValueError(f"{key} = {value!r}: must be a number, at least {least:g}")
    if not math.isfinite(value):
        raise ValueError(f"{key} = {value!r}: must be finite")
    return value


def replayed(
    trace: Sequence[Recorded], draw: random.Random, *, scale: float = 1.0, jitter_ms: float = 0.0
) -> Arrivals:
    """The trace `scale` times as fast; the jitter is in the trace's own time."""
    times = [one.at_s + draw.random() * jitter_ms / 1000 for one in trace]
    first = min(times)
    order = sorted(range(len(trace)), key=lambda place: times[place])
    return Arrivals(
        [
            ((times[place] - first) / scale, _asked(number, trace[place]))
            for number, place in enumerate(order)
        ]
    )


def _asked(number: int, one: Recorded) -> Asked:
    text: Text = BlockText(one.blocks) if one.blocks else NoText()
    return Asked(
        number=number,
        session=one.session or f"alone-{number}",
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        text=text,
        keyed_tokens=one.prompt_tokens if one.blocks else 0,
        segments=_segments(one.blocks),
    )


def _segments(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """A trace tells nothing of turns. Its blocks stand for them, but for the first, which is a
    system prompt in common and belongs to the first turn."""
    return (hashed(hashed(blocks[0]) + blocks[1]), *blocks[2:]) if len(blocks) > 1 else blocks
