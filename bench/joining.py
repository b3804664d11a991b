"""What joining small embeddings saves: the same calls with `join` and without.

    python -m tierway.bench.joining [--calls 2000] [--clients 32] [--json]

A `tierway serve` before one simulated engine over sockets, asked for embeddings of short texts by
clients without a pause. The gateway's CPU is that of its process; rounds with and without take
turns, and the middle one counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from tierway.bench.engine_server import EngineServer
from tierway.bench.gateway_process import Gateway, configured_gateway
from tierway.router.transport import Origin, Transport

_MODEL = "sim"
_ROUNDS = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="joining", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    found = asyncio.run(_run(given.calls, given.clients))
    if given.json:
        print(json.dumps(found))
        return 0
    print("| | calls/s | gateway CPU us a call |\n| --- | ---: | ---: |")
    for name, one in found.items():
        print(f"| {name} | {one['per_s']:.0f} | {one['cpu_us']:.0f} |")
    return 0


async def _run(calls: int, clients: int) -> dict[str, dict[str, float]]:
    engine = EngineServer("8b-h100", model=_MODEL, speed=20.0)
    port = await engine.start()
    runs: dict[str, list[dict[str, float]]] = {"alone": [], "joined": []}
    try:
        for _ in range(_ROUNDS):
            for name, found in runs.items():
                with configured_gateway(_configuration(port, join=name == "joined")) as gateway:
                    found.append(await _measured(gateway, calls, clients))
    finally:
        await engine.aclose()
    return {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in runs.items()
    }


async def _measured(gateway: Gateway, calls: int, clients: int) -> dict[str, float]:
    transport = Transport(connect_timeout_s=10.0)
    origin = Origin.parse(gateway.url)
    numbers = iter(range(calls))
    headers = [(b"content-type", b"application/json")]

    async def client() -> None:
        for number in numbers:
            body = orjson.dumps({"model": _MODEL, "input": f"short text {number}"})
            answer = await transport.request(origin, b"POST", b"/v1/embeddings", headers, body)
            told: dict[str, Any] = orjson.loads(await answer.read_all(1 << 20))
            await answer.aclose()
            if len(told["data"]) != 1:
                raise RuntimeError("an answer that is not the caller's")

    cpu_s, began_s = _cpu_s(gateway.pid), time.monotonic()
    try:
        await asyncio.gather(*(client() for _ in range(clients)))
    finally:
        await transport.aclose()
    spent_s = time.monotonic() - began_s
    return {"per_s": calls / spent_s, "cpu_us": 1e6 * (_cpu_s(gateway.pid) - cpu_s) / calls}


def _cpu_s(pid: int) -> float:
    """Linux: user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _configuration(port: int, *, join: bool) -> str:
    model: dict[str, Any] = {
        "tier": "small",
        "kind": "embedding",
        "served_name": _MODEL,
        "context_tokens": 8192,
        "replicas": [{"url": f"http://127.0.0.1:{port}"}],
    }
    if join:
        model["join"] = {}
    config = {
        "cache": {"mode": "off"},
        "models": {_MODEL: model},
        "tiers": {"small": {"class": "7b"}},
    }
    return json.dumps(config)


if __name__ == "__main__":
    sys.exit(main())
