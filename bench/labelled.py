"""Labelled questions for the benchmarks of the cache: reading them, and counting what was served.

A pair line is {a, b, same, source, lang} (`kind` on made ones), a stream line {text, class,
source, lang}; files are .jsonl or .jsonl.gz. "Wrong" is what the labels call wrong.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """`a` is stored, `b` asked; `same`: one answer serves both."""

    a: str
    b: str
    same: bool
    source: str = ""
    lang: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a stream; an answer to any text of its class is right."""

    text: str
    class_: str
    source: str = ""
    lang: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decision came to for one pair, and whether serving it is right."""

    served: bool
    right: bool


def read_pairs(path: Path) -> list[Pair]:
    """Raises ValueError naming the line that is no pair, OSError for a file that is none."""
    return [_pair(line, where) for line, where in _lines(path)]


def read_stream(path: Path) -> list[Prompt]:
    """Raises ValueError naming the line that is no prompt, OSError for a file that is none."""
    return [_prompt(line, where) for line, where in _lines(path)]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON lines, gzipped where the name ends in .gz."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield json.loads(line), where
            except ValueError as fault:
                raise ValueError(f"{where}: not a JSON line") from fault


def _pair(line: Any, where: str) -> Pair:
    match line:
        case {"a": str(a), "b": str(b), "same": bool() | 0 | 1 as same}:
            return Pair(a, b, bool(same), *_labels(line), str(line.get("kind") or ""))
    raise ValueError(f"{where}: not a pair {{a, b, same, source, lang}} with same true or false")


def _prompt(line: Any, where: str) -> Prompt:
    match line:
        case {"text": str(text), "class": str() | int() as class_}:
            return Prompt(text, str(class_), *_labels(line))
    raise ValueError(f"{where}: not a line {{text, class, source, lang}} of a stream")


def _labels(line: Mapping[str, Any]) -> tuple[str, str]:
    return str(line.get("source") or ""), str(line.get("lang") or "")


# ---- counting --------------------------------------------------------------------------------


def wilson(wrong: int, served: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927); (0, 1) without observations."""
    if not served:
        return 0.0, 1.0
    share, square = wrong / served, z * z / served
    centre = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / served + square / (4 * served)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval(wrong: int, served: int) -> list[float]:
    """The Wilson interval as it is printed."""
    low, high = wilson(wrong, served)
    return [round(low, 4), round(high, 4)]


def share(part: int, whole: int) -> float:
    """Four digits of a share; 0 of nothing."""
    return round(part / whole, 4) if whole else 0.0


def pair_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Recall over what should be served (None without any), wrong over what was served."""
    same = sum(each.right for each in outcomes)
    right = sum(each.served and each.right for each in outcomes)
    wrong = sum(each.served and not each.right for each in outcomes)
    return {
        "n": len(outcomes),
        "recall": share(right, same) if same else None,
        "served": right + wrong,
        "served_different": wrong,
        "false_hit_rate": share(wrong, right + wrong),
        "false_hit_rate_ci95": interval(wrong, right + wrong),
    }


def quantiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median and the 99th percentile."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": 0.0, "p99": 0.0}
    last = len(ordered) - 1
    return {
        "p50": round(ordered[round(0.50 * last)], digits),
        "p99": round(ordered[math.ceil(0.99 * last)], digits),
    }
