"""How far the simulated engine is from what was published about real ones.

    python -m tierway.bench.engine_check [--only throughput|lone|load] [--json]

throughput  Llama-3.3-70B in FP8 (weights and KV cache) on two GPUs: output tokens per second and
            GPU against the table of TensorRT-LLM's performance page. As many requests as the KV
            cache holds, each end followed by the next, counted between two ends of one phase.
lone        One request by itself: totals against NVIDIA NeMo's page (Llama-2-7B, 128 tokens in,
            20 out), and times per token against the ranges of llm-d's table, whose authors call
            it an order of magnitude.
load        Times to the first token and per token as 1 to 256 callers take turns, with prompts
            of about 512 tokens and answers of about 200 (lognormal), callers coming one by one.
            Nobody published these: look at the shape, flat up to the knee, then linear, and
            requests that wait for memory on small GPUs.

Nothing is fitted to a case: every figure follows from policies/physics.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tierway.bench.engine_anchors import CALLERS, LOADED, PUBLISHED, loaded, lone, throughput


def check(only: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The parts that were asked for, each with its rows."""
    found: dict[str, list[dict[str, Any]]] = {}
    if only in (None, "throughput"):
        rows = [throughput(*case) for case in PUBLISHED]
        found["throughput"] = [{**asdict(row), "error": row.error} for row in rows]
    if only in (None, "lone"):
        found["lone"] = [asdict(row) for row in lone()]
    if only in (None, "load"):
        places = [(name, callers) for name in LOADED for callers in CALLERS]
        found["load"] = [asdict(loaded(name, callers)) for name, callers in places]
    return found


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    lines = []
    if rows := found.get("throughput"):
        lines.append("70B in FP8 on two GPUs, output tokens/s and GPU:")
        lines += [
            f"  {row['gpu']} {row['input_tokens']:>6} in {row['output_tokens']:>5} out"
            f"  published {row['published']:>6.0f}  simulated {row['simulated']:>6.0f}"
            f"  {100 * row['error']:+.0f} %"
            for row in rows
        ]
    if rows := found.get("lone"):
        lines.append("one request by itself, ms:")
        lines += [
            f"  {row['name']:<32}  published {_range(row):>9}  simulated {row['simulated']:>6.1f}"
            for row in rows
        ]
    if rows := found.get("load"):
        lines.append(
            "callers taking turns: TTFT p50 / p99 ms, per token p50 ms, tokens/s, preempted"
        )
        lines += [
            f"  {row['profile']:<12} {row['callers']:>4}  {row['ttft_ms_p50']:>7.0f} /"
            f" {row['ttft_ms_p99']:>7.0f}  {row['tpot_ms_p50']:>6.1f}"
            f"  {row['output_tokens_per_s']:>6.0f}  {row['preemptions']:>5}"
            for row in rows
        ]
    return "\n".join(lines)


def _range(row: dict[str, Any]) -> str:
    low, high = f"{row['low']:.0f}", f"{row['high']:.0f}"
    return low if low == high else f"{low} to {high}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tierway.bench.engine_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=("throughput", "lone", "load"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = check(options.only)
    print(json.dumps(found) if options.json else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
