"""First tokens on a replica that returns, with and without prefilled prompts.

    python -m tierway.bench.prefetch [--prompts 8] [--json]

A `tierway serve` before two simulated L40S over sockets, at their own speed. Callers of several
applications, each with a system prompt of some 4,000 tokens, ask; then one engine restarts with an
empty cache, and once the gateway has it back the other is drained. Told is the first token of the
next question of each application, all of which go to the returned engine, with
`fleet.prefetch.learn` on and off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import orjson

from tierway.bench.engine_server import EngineServer
from tierway.bench.gateway_process import Gateway, configured_gateway
from tierway.router.transport import Origin, Transport

_MODEL, _PROFILE = "sim", "8b-l40s"
_WORDS = ("amber", "birch", "cairn", "delta", "ember", "fjord", "grove", "harbour")
_PROMPT_WORDS = 4000
_ASKED = 4  # times, before the restart
_PATIENCE_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="prefetch", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    found = {
        name: asyncio.run(_run(learn, given.prompts))
        for name, learn in (("without", 0), ("with", 16))
    }
    if given.json:
        print(json.dumps(found))
        return 0
    print("| prefetch | TTFT ms | slowest | cached prompt tokens |")
    print("| --- | ---: | ---: | ---: |")
    for name, one in found.items():
        print(f"| {name} | {one['ttft_ms']:.0f} | {one['slowest_ms']:.0f} | {one['cached']:.0%} |")
    return 0


async def _run(learn: int, prompts: int) -> dict[str, float]:
    engines = [EngineServer(_PROFILE, model=_MODEL, seed=seed) for seed in range(2)]
    ports = [await engine.start() for engine in engines]
    try:
        with configured_gateway(_configuration(ports, learn)) as gateway:
            return await _measured(gateway, engines, ports, prompts)
    finally:
        for engine in engines:
            await engine.aclose()


async def _measured(
    gateway: Gateway, engines: list[EngineServer], ports: list[int], prompts: int
) -> dict[str, float]:
    transport = Transport(connect_timeout_s=10.0)
    origin = Origin.parse(gateway.url)
    texts = [" ".join(random.Random(n).choices(_WORDS, k=_PROMPT_WORDS)) for n in range(prompts)]
    try:
        for turn in range(_ASKED):
            for text in texts:
                await _ask(transport, origin, text, f"Question {turn}")
        await engines[0].aclose()
        engines[0] = EngineServer(_PROFILE, model=_MODEL, seed=7)
        await engines[0].start(port=ports[0])
        await _returned(gateway, ports[0], engines[0])
        await asyncio.to_thread(
            gateway.admin, "POST", f"/admin/replicas/sim@127.0.0.1:{ports[1]}/drain"
        )
        found = [await _ask(transport, origin, text, "And now") for text in texts]
    finally:
        await transport.aclose()
    return {
        "ttft_ms": 1000 * statistics.fmean(first_s for first_s, _ in found),
        "slowest_ms": 1000 * max(first_s for first_s, _ in found),
        "cached": statistics.fmean(cached for _, cached in found),
    }


async def _returned(gateway: Gateway, port: int, engine: EngineServer) -> None:
    """Until the gateway sends to it again, and nothing runs there."""
    quiet = 0
    for _ in range(int(_PATIENCE_S / 0.5)):
        state = json.loads(await asyncio.to_thread(gateway.admin, "GET", "/admin/state"))
        replicas = state["tiers"]["small"]["replicas"]
        there = next(one for one in replicas if one["id"].endswith(f":{port}"))
        idle = there["available"] and not engine.engine.running and not engine.engine.waiting
        quiet = quiet + 1 if idle else 0
        if quiet >= 8:
            return
        await asyncio.sleep(0.5)
    raise RuntimeError("the engine did not come back")


async def _ask(
    transport: Transport, origin: Origin, system: str, question: str
) -> tuple[float, float]:
    """(seconds to the first token, share of the prompt that was cached)"""
    body = {
        "model": _MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{question} [[answer 8]]"},
        ],
    }
    headers = [(b"content-type", b"application/json")]
    began_s = time.monotonic()
    response = await transport.request(
        origin, b"POST", b"/v1/chat/completions", headers, orjson.dumps(body)
    )
    try:
        pieces, first_s = [], None
        while piece := await response.read():
            pieces.append(piece)
            if first_s is None and b'"content":"' in piece:
                first_s = time.monotonic() - began_s
    finally:
        await response.aclose()
    usage = _usage(b"".join(pieces))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return first_s or 0.0, cached / usage["prompt_tokens"]


def _usage(raw: bytes) -> dict[str, Any]:
    for line in reversed(raw.split(b"\n")):
        if line.startswith(b"data: {") and (usage := orjson.loads(line[6:]).get("usage")):
            found: dict[str, Any] = usage
            return found
    raise RuntimeError("an answer without usage")


def _configuration(ports: Sequence[int], learn: int) -> str:
    replicas = [{"url": f"http://127.0.0.1:{port}", "gpu": "l40s"} for port in ports]
    model = {"tier": "small", "served_name": _MODEL, "context_tokens": 32768, "replicas": replicas}
    return json.dumps(
        {
            "cache": {"mode": "off"},
            "models": {_MODEL: model},
            "tiers": {"small": {"class": "7b"}},
            "fleet": {"prefetch": {"learn": learn}, "slow_start_s": 0},
        }
    )


if __name__ == "__main__":
    sys.exit(main())
