"""`tierway report`: what the cache did, or would have done, read from its store.

Works whether gateways run or not; a mark given here reaches running ones through the store, as
every mark does. Tallies are noted once a minute and when a gateway ends.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gzip
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import orjson

from tierway.cache.lessons import MARK, PAIR_TTL_S, Near, mark_body
from tierway.cache.report import Pair, Summary, read, summarise
from tierway.cache.upkeep import Faults
from tierway.middleware import config as configuration
from tierway.middleware.build_cache import make_store
from tierway.middleware.config import Settings
from tierway.middleware.demo import DEMO_STORE
from tierway.policies.errors import CacheError, ConfigError
from tierway.policies.protocols import CacheStore, Note

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_KINDS = {"spent": "Spent", "saved": "Saved", "would_save": "Would have saved"}
_SHOWN = 10  # pairs and reasons in the text; --json has them all


def report_main(
    settings: Settings | None, options: argparse.Namespace, environ: Mapping[str, str]
) -> int:
    """The command: exit 0, 1 when the store cannot be read, 2 for a wrong use."""
    try:
        since_at = since(options.since, time.time())
        if options.mark and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ValueError("--mark asks questions: it needs a terminal")
        store = _store(settings, environ)
    except (ValueError, ConfigError) as error:
        print(f"tierway report: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_report(store, since_at, options))
    except (CacheError, OSError) as error:
        print(f"tierway report: {error}", file=sys.stderr)
        return 1


def since(text: str, now_at: float) -> float:
    """Epoch seconds of `24h` ago, of a time or of a number of seconds since the epoch. Raises
    ValueError."""
    if span := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text):
        return now_at - float(span[1]) * _UNITS_S[span[2]]
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return float(text)
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        allowed = "30m, 24h, 7d, a time such as 2026-11-30T08:00, or seconds since the epoch"
        raise ValueError(f"--since {text}: must be {allowed}") from error
    return when.timestamp()


def _store(settings: Settings | None, environ: Mapping[str, str]) -> CacheStore:
    if settings is None:
        settings = configuration.demo_settings({}, store_path=DEMO_STORE, environ=environ)
    given = settings.cache.store
    if given.kind not in ("sqlite", "redis"):
        raise ValueError(f"cache.store.kind = {given.kind}: it keeps no notes to report from")
    path = Path(given.path).expanduser()
    if given.kind == "sqlite" and not path.exists():
        raise ValueError(f"cache.store.path = {given.path}: there is no cache file yet")
    return make_store(settings, environ, Faults())


async def _report(store: CacheStore, since_at: float, options: argparse.Namespace) -> int:
    await store.start()
    try:
        summary = summarise(await read(store, since_at), since_at)
        if options.export_pairs:
            written = export(Path(options.export_pairs), [*summary.pairs, *summary.near_misses])
            print(f"{written} pairs to label in {options.export_pairs}", file=sys.stderr)
        if options.json:
            print(orjson.dumps(summary.as_json()).decode())
        elif not options.export_pairs or options.mark:
            write_text(summary, sys.stdout)
        if options.mark:
            await mark(store, summary.pairs, ask=_ask, out=sys.stdout, now_at=time.time())
        return 0
    finally:
        await store.aclose()


def export(path: Path, pairs: Sequence[Pair]) -> int:
    """Writes {a, b, same: null, source, lang} lines: `a` is stored, `b` was asked."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        for pair in pairs:
            line = {
                "a": pair["stored"],
                "b": pair["asked"],
                "same": None,
                "source": "report",
                "lang": pair["language"],
                "cosine": pair["cosine"],
                "reason": pair["reason"],
            }
            file.write(orjson.dumps(line).decode() + "\n")
    return len(pairs)


def _ask(prompt: str) -> str:
    try:
        return input(prompt)
    except EOFError:
        return "q"


async def mark(
    store: CacheStore,
    pairs: Sequence[Pair],
    *,
    ask: Callable[[str], str],
    out: TextIO,
    now_at: float,
) -> Counter[str]:
    """Asks of each pair whether one answer serves both; tells the store at once. Counts the
    answers: right, wrong, skipped."""
    told: Counter[str] = Counter()
    for number, pair in enumerate(pairs, start=1):
        print(f"\n{number} of {len(pairs)}\n  asked   {pair['asked']}", file=out)
        print(f"  stored  {pair['stored']}", file=out)
        answer = ask("Does one answer serve both? [y]es, [n]o, [s]kip, [q]uit: ").strip().lower()
        if answer.startswith("q"):
            break
        correct = {"y": True, "n": False}.get(answer[:1])
        if correct is None:
            told["skipped"] += 1
            continue
        await _tell(store, pair, correct, now_at)
        told["right" if correct else "wrong"] += 1
    print(f"\n{told['right']} right, {told['wrong']} wrong, {told['skipped']} skipped", file=out)
    return told


async def _tell(store: CacheStore, pair: Pair, correct: bool, now_at: float) -> None:
    near = Near(
        pair["entry"],
        pair["stored"],
        pair["cosine"],
        pair["probability"],
        pair["language"],
        judged=bool(pair["judged"]),
    )
    body = mark_body(pair["request"], pair["pair"], near, correct)
    await store.note(Note(MARK, pair.tenant, pair.user, body, now_at, now_at + PAIR_TTL_S))
    if not correct and pair["served"]:
        await store.delete([near.entry_id])


def write_text(summary: Summary, out: TextIO) -> None:
    for line in _lines(summary):
        print(line, file=out)


def _lines(summary: Summary) -> list[str]:
    when = datetime.datetime.fromtimestamp(summary.since_at, datetime.UTC)
    lines = [f"Since {when:%Y-%m-%d %H:%M} UTC: {summary.count('cache'):,} requests"]
    if not summary.counts:
        return [*lines, "Nothing was noted since: no gateway of this store had a request."]
    lines += _hit_lines(summary) + _table("Why the rest missed", summary.group("miss"))
    lines += _table("Why the cache was passed by", summary.group("bypass"))
    lines += _table("Tiers that answered", summary.group("tiers"))
    lines += _cost_lines(summary) + _elsewhere_lines(summary) + _pair_lines(summary)
    return lines


def _hit_lines(summary: Summary) -> list[str]:
    served, would = summary.group("cache"), summary.group("observed")
    shown = [(name, served.get(name, 0), "") for name in ("hit", "semantic-hit", "shared", "stale")]
    shown += [(name, count, "would be a ") for name, count in would.items()]
    rate = f"{summary.hits / summary.lookups:.1%}" if summary.lookups else "none"
    lines = [f"Looked up {summary.lookups:,}, answered from the cache: {rate}"]
    lines += [f"  {would}{name:14} {count:8,}" for name, count, would in shown if count]
    if summary.marks:
        lines.append(f"Marked {summary.marks['right']} right, {summary.marks['wrong']} wrong")
    if summary.shadow:
        told = ", ".join(f"{count:,} {name}" for name, count in summary.shadow.most_common())
        lines.append(f"Asked upstream besides (cache.shadow_sample): {told}")
    return lines


def _table(title: str, counts: Mapping[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    total = sum(counts.values())
    rows = [f"  {name:24} {count:8,}  {count / total:6.1%}" for name, count in ordered[:_SHOWN]]
    return [title, *rows] if rows else []


def _cost_lines(summary: Summary) -> list[str]:
    lines = [
        f"{name}: {tokens.get('input', 0):,} input and {tokens.get('output', 0):,} output tokens"
        f", {summary.dollars.get(kind, 0.0):.4f} USD"
        for kind, name in _KINDS.items()
        if (tokens := summary.group(f"tokens_{kind}"))
    ]
    if unpriced := summary.counts.get("unpriced"):
        lines.append(f"  without a price, and not in these dollars: {', '.join(sorted(unpriced))}")
    return lines


def _elsewhere_lines(summary: Summary) -> list[str]:
    lines = []
    for times, what in summary.elsewhere[:_SHOWN]:
        lines.append(f"  {times:,} times: {what['detail']}")
        if what["ignore"]:
            rule = orjson.dumps(what["ignore"]).decode()
            lines.append(f"    cache.ignore could take it out: {{in: system, regex: {rule}}}")
        elif what["kind"] == "a name":
            lines.append("    if no answer depends on it, cache.ignore can take it out")
    head = "The same question came under another key"
    return [f"{head} (seen among the misses that were looked at)", *lines] if lines else []


def _pair_lines(summary: Summary) -> list[str]:
    lines = []
    for pair in summary.pairs[:_SHOWN]:
        verb = "served" if pair["served"] else "would serve"
        lines.append(f"  {verb} ({pair['reason']}, cosine {pair['cosine']})")
        lines += [f"    asked   {pair['asked']}", f"    stored  {pair['stored']}"]
    if not lines:
        return []
    more = len(summary.pairs) - _SHOWN
    if more > 0:
        lines.append(f"  and {more} more")
    return ["Pairs to read (--mark to mark them, --export-pairs to label them)", *lines]
