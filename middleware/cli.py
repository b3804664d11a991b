"""The `tierway` command. Parts are imported by the sub-command that needs them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierway.bench.cache_rig import Setting
    from tierway.middleware.config import Settings
    from tierway.policies.protocols import Embedder

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


BENCHES = {
    "balance": "tierway.bench.balance_bench",
    "cache": "tierway.bench.cache_bench",
    "gateway": "tierway.bench.load",
    "relay": "tierway.bench.relay",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 done, 1 failed, 2 wrong use."""
    arguments = _parser().parse_args(argv)
    if arguments.run is None:
        _parser().print_help()
        return 2
    code: int = arguments.run(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tierway",
        description="A semantic-cache-first, tiered serving gateway for large language models.",
    )
    parser.add_argument("--version", action="version", version=f"tierway {_version()}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_serve(commands)
    _add_demo(commands)
    _add_engine(commands)
    _add_check(commands)
    _add_explain(commands)
    _add_bench(commands)
    _add_report(commands)
    _add_cache(commands)
    return parser


def _version() -> str:
    try:
        return version("tierway")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _add_serve(commands: Commands) -> None:
    parser = commands.add_parser("serve", help="the gateway")
    parser.add_argument("--config", help="a file; else TIERWAY_CONFIG, ./tierway.yaml, the demo")
    parser.add_argument("--host", help="address to listen on (server.host)")
    parser.add_argument("--port", type=_port, help="port to listen on (server.port)")
    parser.add_argument("--admin-port", type=_port, help="port of the admin listener (admin.port)")
    parser.add_argument("--workers", type=int, help="processes (server.workers)")
    parser.set_defaults(run=_serve)


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser("demo", help="the gateway before a simulated fleet")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on (8080)")
    parser.add_argument("--admin-port", type=_port, help="port of the admin listener (port + 1)")
    parser.set_defaults(run=_demo)


def _add_engine(commands: Commands) -> None:
    parser = commands.add_parser("engine", help="one simulated inference engine")
    parser.add_argument("--profile", required=True, help="model and GPU, such as 8b-a10")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen on (8000)")
    parser.add_argument("--seed", type=int, default=0, help="what its answers are drawn from")
    parser.add_argument("--speed", type=float, default=1.0, help="faster than real time by this")
    parser.add_argument("--model", help="the model id it serves (made from the profile)")
    parser.set_defaults(run=_engine)


def _add_check(commands: Commands) -> None:
    parser = commands.add_parser("check", help="validates and prints the configuration")
    parser.add_argument("--config", help="a file; else TIERWAY_CONFIG, ./tierway.yaml, defaults")
    parser.set_defaults(run=_check)


def _add_explain(commands: Commands) -> None:
    parser = commands.add_parser("explain", help="what would happen to a request, and why")
    parser.add_argument("--config", help="a file; else TIERWAY_CONFIG, ./tierway.yaml, the demo")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("prompt", nargs="?", metavar="PROMPT", help="a question")
    what.add_argument("--request", metavar="FILE", help="a chat completions body")
    parser.set_defaults(run=_explain)


def _add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="benchmarks", add_help=False)
    parser.add_argument("name", choices=sorted(BENCHES), help="what to measure")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own options")
    parser.set_defaults(run=_bench)


def _add_report(commands: Commands) -> None:
    parser = commands.add_parser("report", help="what the cache did, or would have done")
    parser.add_argument("--config", help="a file; else TIERWAY_CONFIG, ./tierway.yaml, the demo")
    parser.add_argument("--since", default="24h", help="30m, 24h, 7d, or a time (24h)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--mark", action="store_true", help="read pairs one by one and mark them")
    parser.add_argument(
        "--export-pairs",
        metavar="FILE",
        help="write pairs to label for `tierway cache calibrate`: .jsonl or .jsonl.gz",
    )
    parser.set_defaults(run=_report)


def _add_cache(commands: Commands) -> None:
    parser = commands.add_parser("cache", help="work on a cache", add_help=False)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what to do, and its options")
    parser.set_defaults(run=_cache)


def _single_threaded() -> None:
    """For libraries that are loaded later: the vectors here are too small to be shared out."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _serve(arguments: argparse.Namespace) -> int:
    _single_threaded()
    from tierway.middleware.serve import serve

    settings, code = _settings(arguments.config)
    if code:
        return code
    workers = arguments.workers or (settings.server.workers if settings else 1)
    if workers > 1 and (settings is None or settings.state.backend != "redis"):
        print(
            f"server.workers = {workers}: more than one worker needs state.backend: redis",
            file=sys.stderr,
        )
        return 2
    if settings is None:
        port = 8080 if arguments.port is None else arguments.port
        admin_port = _beside(port) if arguments.admin_port is None else arguments.admin_port
        host = arguments.host or "127.0.0.1"
        return serve(None, host=host, port=port, admin=("127.0.0.1", admin_port))
    port = settings.server.port if arguments.port is None else arguments.port
    admin_port = settings.admin.port if arguments.admin_port is None else arguments.admin_port
    return serve(
        settings,
        host=arguments.host or settings.server.host,
        port=port,
        admin=(settings.admin.host, admin_port),
        workers=workers,
    )


def _demo(arguments: argparse.Namespace) -> int:
    _single_threaded()
    from tierway.middleware.serve import serve

    admin_port = arguments.admin_port
    if admin_port is None:
        admin_port = _beside(arguments.port)
    return serve(None, host=arguments.host, port=arguments.port, admin=("127.0.0.1", admin_port))


def _engine(arguments: argparse.Namespace) -> int:
    import asyncio

    from tierway.bench.engine_server import serve_engine

    def ready(url: str) -> None:
        print(f"Simulated engine {arguments.profile} serves {url}/v1", flush=True)

    try:
        asyncio.run(
            serve_engine(
                arguments.profile,
                port=arguments.port,
                seed=arguments.seed,
                speed=arguments.speed,
                model=arguments.model,
                ready=ready,
            )
        )
    except ValueError as error:
        print(f"tierway engine: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tierway engine: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from tierway.middleware.config import check_main

    return check_main(arguments.config, os.environ, sys.stdout, sys.stderr)


def _explain(arguments: argparse.Namespace) -> int:
    from tierway.middleware.explain import explain_main

    settings, code = _settings(arguments.config)
    if code:
        return code
    return explain_main(
        settings,
        prompt=arguments.prompt,
        request=arguments.request,
        as_json=arguments.json,
    )


def _report(arguments: argparse.Namespace) -> int:
    _single_threaded()
    from tierway.middleware.report import report_main

    settings, code = _settings(arguments.config)
    return code or report_main(settings, arguments, os.environ)


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    more = {"configured": _cache_setting} if arguments.name == "cache" else {}
    code: int = import_module(BENCHES[arguments.name]).main(arguments.arguments, **more)
    return code


def _cache_setting(path: str | None) -> tuple[Embedder, Setting]:
    """What of a configuration file, or of the defaults, decides in the cache; ConfigError."""
    from tierway.bench.cache_rig import Setting
    from tierway.middleware.build_cache import new_embedder
    from tierway.middleware.catalog import verifiers
    from tierway.middleware.config import resolve
    from tierway.router.transport import Transport

    settings = resolve(path or {}, os.environ)
    assert settings is not None, "a file that was named is read"
    given = settings.cache
    transport = Transport(connect_timeout_s=settings.resilience.connect_timeout_s)
    embedder = new_embedder(given.embedder, os.environ, transport)
    by_user = given.scope == "user"
    return embedder, Setting(given.max_error_rate, by_user, verifiers=tuple(verifiers(given)))


def _cache(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    given = arguments.arguments
    code: int
    if given[:1] == ["calibrate"]:
        code = import_module("tierway.bench.calibrate").main(given[1:])
    else:
        _single_threaded()
        code = import_module("tierway.middleware.cache_cli").main(given)
    return code


def _settings(config: str | None) -> tuple[Settings | None, int]:
    """The settings and 0, or None and the exit code 2 with every fault on standard error."""
    from tierway.middleware.config import resolve
    from tierway.policies.errors import ConfigError

    try:
        return resolve(config, os.environ), 0
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        return None, 2


def _beside(port: int) -> int:
    """The next port; any free one where there is none."""
    return port + 1 if 0 < port < 65535 else 0


def _port(text: str) -> int:
    port = int(text) if text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
