"""The embedded demo: three tiers of simulated engines in a child process.

The engines live in the benchmarks' package, which the HTTP edge does not import; it runs them as
a program. The child ends when this process closes its standard input, or dies.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

DEMO_STORE = ".tierway/demo-cache.sqlite3"
_READY_S = 60.0
_STOP_S = 5.0

DEMO_FLEET: Mapping[str, tuple[tuple[str, str], ...]] = {
    "small": (("8b-l40s", "sim-7b"), ("8b-l40s", "sim-7b")),
    "medium": (("70b-h100x4", "sim-70b"), ("70b-h100x4", "sim-70b")),
    "large": (("175b-h100x8", "sim-175b"),),
}
"""Tier -> (engine profile, model name) of each replica."""


@dataclass(slots=True)
class DemoFleet:
    """The running engines; `urls` maps a tier to its replicas' addresses."""

    urls: Mapping[str, Sequence[str]]
    process: asyncio.subprocess.Process

    async def aclose(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def start_demo_fleet() -> DemoFleet:
    """Raises RuntimeError when the engines do not come up."""
    specs = [
        {"profile": profile, "model": model, "seed": seed}
        for replicas in DEMO_FLEET.values()
        for seed, (profile, model) in enumerate(replicas)
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tierway.bench.fleet"),
        *("--engines", orjson.dumps(specs).decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C in a terminal reaches the whole group; this child ends by its input alone.
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
        urls = iter(orjson.loads(line)["urls"])
    except (TimeoutError, ValueError) as cause:
        await DemoFleet({}, process).aclose()
        raise RuntimeError("the simulated engines of the demo did not come up") from cause
    return DemoFleet(
        {tier: [next(urls) for _ in made] for tier, made in DEMO_FLEET.items()}, process
    )
