"""`tierway cache`: stats, warm, export, import and purge on the configured store.

Exit 0 done, 1 the store or a replica failed, 2 wrong use: an option, a file, a configuration.
Gateways that run on the same store follow what is done here within a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tierway.cache.purge import purge_from_outside
from tierway.cache.store import Selection
from tierway.middleware import build, cache_warm, cache_work
from tierway.middleware.cache_lines import BadLine, LineFile
from tierway.middleware.config import Settings, resolve
from tierway.middleware.progress import Progress
from tierway.policies.errors import CacheError, ConfigError

_TEXTS = ("tenant", "user", "namespace", "model", "context_id")
Result = Mapping[str, Any]


class _WrongUse(Exception):
    """Ends the command with exit 2 and this message."""


class _Failed(Exception):
    """Ends the command with exit 1 and this message."""


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = resolve(arguments.config, os.environ) or build.demo_at_rest(os.environ)
        result, code = asyncio.run(_run(arguments, settings))
    except ConfigError as error:
        return _ended(2, *error.faults)
    except (BadLine, _WrongUse) as error:
        return _ended(2, str(error))
    except OSError as error:
        return _ended(2, f"{error.filename}: {error.strerror}")
    except CacheError as error:
        return _ended(1, error.public)
    except _Failed as error:
        return _ended(1, str(error))
    except KeyboardInterrupt:
        return _ended(1, "interrupted")
    # Where the entries themselves go to standard output, nothing else does.
    out = sys.stderr if getattr(arguments, "file", None) == "-" else sys.stdout
    print(json.dumps(result, ensure_ascii=False) if arguments.json else _text(result), file=out)
    return code


def _ended(code: int, *lines: str) -> int:
    print(*(f"tierway cache: {line}" for line in lines), sep="\n", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tierway cache", description="Work on a cache.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, text: str, run: _Command) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--config", help="a file; else TIERWAY_CONFIG, ./tierway.yaml, the demo")
        made.add_argument("--json", action="store_true", help="one JSON object")
        made.set_defaults(run=run)
        return made

    add("stats", "what the store holds", _stats)
    warm = add("warm", "store answers known beforehand, fill prefix caches", _warm)
    warm.add_argument(
        "faq", nargs="?", type=Path, help="lines {question, answer[, model, system, tenant, ttl_s]}"
    )
    warm.add_argument(
        "--prefill", type=Path, metavar="FILE", help="lines {system[, model]}, sent to each replica"
    )
    export = add("export", "write the living entries to a file", _export)
    export.add_argument("file", help=".jsonl or .jsonl.gz, `-` for standard output")
    export.add_argument("--vectors", action="store_true", help="with the vectors of the questions")
    load = add("import", "store the entries of an exported file", _import)
    load.add_argument("file", type=Path, help=".jsonl or .jsonl.gz")
    _add_purge(add("purge", "delete entries; those that meet all conditions", _purge))
    commands.add_parser("calibrate", help="fit the verifier: `tierway cache calibrate --help`")
    return parser


def _add_purge(parser: argparse.ArgumentParser) -> None:
    for name in _TEXTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=_not_empty)
    parser.add_argument("--older-than-s", type=_seconds, metavar="SECONDS")
    parser.add_argument("--all", action="store_true", help="everything, where nothing else is said")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed without a terminal")


def _not_empty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


_Command = Callable[[argparse.Namespace, Settings], Awaitable[tuple[Result, int]]]


async def _run(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    given = settings.cache.store
    if given.kind == "memory":
        raise _WrongUse("cache.store.kind = memory: only the gateway's own process has that cache")
    creates = arguments.run in (_import, _warm)
    if given.kind == "sqlite" and not creates and not await asyncio.to_thread(_is_file, given.path):
        raise _Failed(f"there is no cache file {given.path}")
    run: _Command = arguments.run
    return await run(arguments, settings)


def _is_file(path: str) -> bool:
    return Path(path).is_file()


async def _stats(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    async with cache_work.opened(settings, os.environ) as store:
        return {"store": settings.cache.store.kind, **await cache_work.count(store)}, 0


async def _export(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    async with cache_work.opened(settings, os.environ) as store:
        progress = Progress((await store.size()).entries, sys.stderr)
        file = LineFile(arguments.file, sys.stdout)
        try:
            result = await cache_work.export(
                store, file, vectors=arguments.vectors, step=progress.step
            )
        except BaseException:
            file.abandon()
            raise
        file.finish()
        return result, 0


async def _import(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    now_at = time.time()
    lines, _, encoders = await asyncio.to_thread(cache_work.checked, arguments.file, now_at)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(cache_work.opened(settings, os.environ))
        embedder = None
        if encoders:
            encoding = cache_work.encoding(settings, os.environ)
            embedder = await stack.enter_async_context(encoding)
        step = Progress(lines, sys.stderr).step
        return await cache_work.import_(
            store, arguments.file, embedder, now_at=now_at, step=step
        ), 0


async def _purge(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    conditions = {name: getattr(arguments, name) for name in _TEXTS}
    age_s = arguments.older_than_s
    now_at = time.time()
    chosen = Selection(**conditions, older_than_at=None if age_s is None else now_at - age_s)
    if not chosen.given() and not arguments.all:
        raise _WrongUse("say what to purge, or --all for everything")
    if not arguments.yes and not sys.stdin.isatty():
        raise _WrongUse("nobody can be asked here: say --yes")
    async with cache_work.opened(settings, os.environ) as store:
        if not arguments.yes:
            size, count = await store.size(), await cache_work.matching(store, chosen)
            question = f"Delete {count} of {size.entries} entries? [y/N] "
            if (await asyncio.to_thread(input, question)).strip().lower() not in ("y", "yes"):
                return {"deleted": 0}, 1
        return {"deleted": await purge_from_outside(store, chosen, now_at)}, 0


async def _warm(arguments: argparse.Namespace, settings: Settings) -> tuple[Result, int]:
    if arguments.faq is None and arguments.prefill is None:
        raise _WrongUse("name a file of questions and answers, or --prefill a file of prompts")
    if arguments.faq is not None and settings.cache.mode == "off":
        raise _WrongUse("cache.mode = off: there is no cache to warm")
    if arguments.faq is not None and settings.cache.scope == "user":
        raise _WrongUse("cache.scope = user: each user has answers of their own")
    parts = await build.build(settings, os.environ, live=False, hooks=())
    try:
        check = asyncio.to_thread
        faqs = await check(cache_warm.checked, parts, arguments.faq) if arguments.faq else []
        prompts = (
            await check(cache_warm.prompts_checked, parts, arguments.prefill)
            if arguments.prefill
            else []
        )
        if faqs and parts.stage.store != settings.cache.store.kind:
            raise _Failed("the configured store cannot be used")
        result: dict[str, Any] = {}
        if arguments.faq:
            step = Progress(len(faqs), sys.stderr).step
            result |= await cache_warm.warm(parts, faqs, step)
        if arguments.prefill:
            step = Progress(cache_warm.prefills(parts, prompts), sys.stderr).step
            result |= await cache_warm.prefill(parts, prompts, step)
        result["store_faults"] = dict(parts.stage.cache.counts)
        return result, 1 if result.get("faults") or result["store_faults"] else 0
    finally:
        await parts.aclose()


def _text(result: Result) -> str:
    """One line for each figure, and one for each part of those that have parts."""
    lines = []
    for name, value in result.items():
        if isinstance(value, Mapping):
            lines += [f"{name} {part or '-'}: {inner}" for part, inner in value.items()]
        else:
            lines.append(f"{name}: {'-' if value is None else value}")
    return "\n".join(lines)
