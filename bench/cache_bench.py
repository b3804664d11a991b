"""`tierway bench cache`: how often the semantic cache answers, and how often wrongly.

`--pairs F` judges labelled pairs one by one, `--made` pairs made by rule; `--stream F` sends
prompts through a cache that starts empty and stores on a miss; `--speed` times the parts of a
lookup. Beside what was served stand the peers' rules on the same vectors. Labels call some right
answers wrong, so "wrong" is an upper bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tierway.bench import cache_pairs, cache_stream
from tierway.bench.cache_rig import Setting
from tierway.bench.labelled import read_pairs, read_stream, write_lines
from tierway.bench.made_misses import DIFFERENT, made_misses
from tierway.bench.vectors import Remembered, embedder_named
from tierway.cache.opinion import ScriptedOpinion
from tierway.policies.errors import CacheError, ConfigError
from tierway.policies.protocols import Embedder

Configured = Callable[[str | None], tuple[Embedder, Setting]]
"""The embedder and the decision's settings of a configuration file, or of the defaults; raises
ConfigError."""

SIZES = (10_000, 100_000, 1_000_000)
SPREAD = 10_000  # partitions beside the one that holds everything
CALLERS = (1, 16)
RESTART = 10_000
HIGH = 0.9
TRAINED_ON = "made,pawsx_zh,banking77,clinc150"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="tierway bench cache", description=__doc__)
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--pairs", type=Path, metavar="F", help="lines {a, b, same, source, lang}")
    what.add_argument("--stream", type=Path, metavar="F", help="lines {text, class, source, lang}")
    what.add_argument(
        "--made",
        type=int,
        nargs="?",
        const=DIFFERENT,
        metavar="N",
        help="pairs made by rule, at most N of each kind and language",
    )
    what.add_argument("--speed", action="store_true", help="what the parts of a lookup cost")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--config", metavar="F", help="take embedder and budget from this file")
    made.add_argument("--embedder", metavar="NAME", help="builtin (the default), use, or a model")
    made.add_argument("--max-error-rate", type=_budget, metavar="E", help="wrong among hits (0.02)")
    made.add_argument(
        "--second-opinion",
        type=_accuracy,
        metavar="scripted:A",
        help="a judge right in the share A of the pairs in doubt",
    )
    made.add_argument(
        "--sweep", type=_budgets, default=(), metavar="E,E", help="a stream at these budgets too"
    )
    made.add_argument(
        "--entries", type=_counts, default=SIZES, metavar="N,N", help="--speed: sizes of the cache"
    )
    made.add_argument(
        "--restart", type=int, default=RESTART, metavar="N", help="--speed: entries to start with"
    )
    made.add_argument("--reliability", action="store_true", help="add the table by probability")
    made.add_argument("--print-hits", type=Path, metavar="F", help="write what was served to read")
    made.add_argument(
        "--vectors-cache", type=Path, metavar="DIR", help="keep vectors there for the next run"
    )
    made.add_argument(
        "--trained-on", default=TRAINED_ON, metavar="A,B", help="sources not `left_out`"
    )
    made.add_argument(
        "--high", type=float, default=HIGH, metavar="C", help="cosine from which a veto loses a hit"
    )
    return made


def main(
    argv: Sequence[str] | None = None,
    *,
    configured: Configured | None = None,
    embedder: Embedder | None = None,
) -> int:
    """0 done, 1 failed, 2 wrong use. `embedder` takes the place of the built-in one."""
    options = parser().parse_args(argv)
    try:
        chosen, setting = _chosen(options, configured, embedder)
        result = asyncio.run(_run(options, chosen, setting))
    except ConfigError as fault:
        print(*fault.faults, sep="\n", file=sys.stderr)
        return 2
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    except CacheError as fault:
        print(fault.public, file=sys.stderr)
        return 1
    print(json.dumps(result, ensure_ascii=False) if options.json else _table(result))
    return 0


def _chosen(
    options: argparse.Namespace, configured: Configured | None, embedder: Embedder | None
) -> tuple[Embedder, Setting]:
    setting = Setting()
    if options.config:
        if configured is None:
            raise ValueError("--config is read by the tierway command only")
        embedder, setting = configured(options.config)
    if options.embedder and options.embedder != "builtin":
        embedder = embedder_named(options.embedder)
    elif configured is not None and embedder is None:
        embedder, _ = configured(None)
    if options.max_error_rate is not None:
        setting = replace(setting, max_error_rate=options.max_error_rate)
    return embedder or embedder_named(None), setting


async def _run(options: argparse.Namespace, embedder: Embedder, setting: Setting) -> dict[str, Any]:
    remembered = Remembered(embedder, options.vectors_cache)
    run = _run_speed if options.speed else _run_stream if options.stream else _run_pairs
    await remembered.start()
    try:
        found = await run(options, remembered, setting)
    finally:
        await remembered.aclose()
    return {"encoder": embedder.id, "max_error_rate": setting.max_error_rate, **found}


async def _run_pairs(
    options: argparse.Namespace, embedder: Remembered, setting: Setting
) -> dict[str, Any]:
    pairs = read_pairs(options.pairs) if options.pairs else made_misses(at_most=options.made)
    if options.second_opinion is not None:
        labels = {(pair.b, pair.a): pair.same for pair in pairs}
        setting = replace(setting, opinion=ScriptedOpinion(labels, options.second_opinion))
    judged = await cache_pairs.judge_pairs(pairs, embedder, setting)
    found = cache_pairs.report(
        judged, target=setting.max_error_rate, trained_on=options.trained_on.split(",")
    )
    found["lost_to_vetoes"] = cache_pairs.lost_to_vetoes(judged, options.high)
    found["decide_ms"] = cache_pairs.times(judged)
    found["lookup_ms"] = await cache_pairs.timed_lookups(pairs, embedder, setting)
    if options.reliability:
        found["reliability"] = cache_pairs.reliability(judged)
    if options.print_hits:
        write_lines(options.print_hits, cache_pairs.hits(judged))
    return found


async def _run_stream(
    options: argparse.Namespace, embedder: Remembered, setting: Setting
) -> dict[str, Any]:
    prompts = read_stream(options.stream)
    await embedder.learn([prompt.text for prompt in prompts])
    if options.second_opinion is not None:
        labels = cache_stream.labels(prompts)
        setting = replace(setting, opinion=ScriptedOpinion(labels, options.second_opinion))
    replay = await cache_stream.replay(prompts, embedder, setting)
    found = cache_stream.report(replay)
    found["baselines"] = await cache_stream.baselines(
        prompts, embedder, target=setting.max_error_rate
    )
    if options.sweep:
        found["sweep"] = await cache_stream.sweep(prompts, embedder, setting, options.sweep)
    if options.print_hits:
        write_lines(options.print_hits, cache_stream.hits(replay))
    return found


async def _run_speed(
    options: argparse.Namespace, embedder: Remembered, setting: Setting
) -> dict[str, Any]:
    from tierway.bench import cache_speed

    found: dict[str, Any] = {"stages": await cache_speed.stages(embedder.inner)}
    found["search"] = await asyncio.to_thread(_searches, options.entries)
    found["restart"] = await cache_speed.restart(options.restart, embedder.inner)
    return found


def _searches(sizes: Sequence[int]) -> list[dict[str, Any]]:
    from tierway.bench.cache_speed import Filled

    rows = []
    for entries in sizes:
        for partitions in (1, SPREAD):
            filled = Filled(entries, min(partitions, entries))
            rows += [filled.measure(callers) for callers in CALLERS]
    return rows


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers above 0: N,N")
    return tuple(map(int, parts))


def _budget(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and at most 0.5")
    return value


def _budgets(text: str) -> tuple[float, ...]:
    return tuple(_budget(part) for part in text.split(","))


def _accuracy(text: str) -> float:
    kind, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if kind != "scripted" or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be scripted:A, A from 0 to 1")
    return value


def _table(result: dict[str, Any]) -> str:
    """The JSON a key a line, groups indented."""
    lines: list[str] = []
    for key, value in result.items():
        if isinstance(value, dict) and any(isinstance(row, dict) for row in value.values()):
            lines.append(f"{key}:")
            lines += [f"  {name:28} {_flat(row)}" for name, row in value.items()]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{key}:", *(f"  {_flat(row)}" for row in value)]
        else:
            lines.append(f"{key}: {_flat(value)}")
    return "\n".join(lines)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_flat(inner)}" for key, inner in value.items())
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
