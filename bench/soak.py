"""A soak: two gateways before eight simulated machines that come and go, fall ill and are mended.

    python -m tierway.bench.soak [--minutes 60] [--seed 0] [--json]

Machines of mixed GPUs join, leave, restart with an empty cache, die, throttle, fragment and change
their address (soak_events.py) under the load of several tenants (soak_clients.py); two `tierway
serve` share what is in flight through Redis, read who serves from one file, and have a webhook
restart what is ill (soak_mender.py). It fails, with what it found, unless

- no request was lost before its first byte;
- every count of what is in flight is 0 at the end, in both gateways;
- the prefix index and the metric series tell of no replica that has left, and are bounded;
- the gateways' memory does not go on growing;
- every machine that fragmented was mended exactly once for each time, and no other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tierway.bench.gateway_process import Gateway, configured_gateway
from tierway.bench.load import bar, positive
from tierway.bench.redis_process import running_redis
from tierway.bench.soak_checks import Watched, faults_of, watch
from tierway.bench.soak_clients import Client, Tally, Tenant
from tierway.bench.soak_config import FLEET_FILE, TENANTS, configuration, write_keys
from tierway.bench.soak_events import Trouble, stir
from tierway.bench.soak_fleet import MODEL, SoakFleet
from tierway.bench.soak_mender import Mender
from tierway.router.transport import Origin, Transport

_SPEED = 4.0
_CLIENTS = 12
_EVERY_S = 8.0
_SETTLE_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=positive, default=_CLIENTS)
    parser.add_argument("--every", type=float, default=_EVERY_S, help="seconds between events")
    parser.add_argument("--healthy", action="store_true", help="no machine falls ill")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    try:
        found = asyncio.run(_run(given))
    except RuntimeError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 1 if found["faults"] else 0


async def _run(given: argparse.Namespace) -> dict[str, Any]:
    with TemporaryDirectory(prefix="tierway-soak-") as folder, ExitStack() as servers:
        fleet = SoakFleet(Path(folder, FLEET_FILE), seed=given.seed, speed=_SPEED)
        mender = Mender(fleet)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(fleet.aclose)
            await fleet.start()
            stack.push_async_callback(mender.aclose)
            write_keys(Path(folder))
            config = configuration(
                redis=servers.enter_context(running_redis()),
                folder=Path(folder),
                webhook=await mender.start(),
            )
            gateways = [
                await asyncio.to_thread(servers.enter_context, configured_gateway(config))
                for _ in range(2)
            ]
            return await _soak(given, fleet, mender, gateways)


async def _soak(
    given: argparse.Namespace, fleet: SoakFleet, mender: Mender, gateways: Sequence[Gateway]
) -> dict[str, Any]:
    stop, tally, log = asyncio.Event(), Tally(), list[str]()
    began_s = time.monotonic()
    seconds = 60.0 * given.minutes
    trouble = Trouble(
        fleet, random.Random(given.seed), pause=asyncio.sleep, fragments=not given.healthy
    )
    watched = Watched()

    def tell(event: str) -> None:
        log.append(f"{time.monotonic() - began_s:.1f} s: {event}")

    transport = Transport(connect_timeout_s=10.0)
    try:
        async with asyncio.TaskGroup() as tasks:
            for client in _clients(given, gateways, transport, tally, stop):
                tasks.create_task(client.run())
            tasks.create_task(
                stir(trouble, every_s=given.every, pause=asyncio.sleep, tell=tell, stop=stop)
            )
            tasks.create_task(watch(gateways, watched, stop))
            show = bar(int(seconds), sys.stderr, time.monotonic)
            for second in range(int(seconds)):
                await asyncio.sleep(1.0)
                show(second + 1)
            stop.set()
    finally:
        await transport.aclose()
    faults = await faults_of(fleet, mender, gateways, tally, watched, patience_s=_SETTLE_S)
    return {
        "minutes": given.minutes,
        "asked": tally.asked,
        "answered": tally.answered,
        "refused": tally.refused,
        "cut": dict(tally.cut),
        "lost": dict(tally.lost),
        "events": dict(trouble.counts),
        "ill": sum(one.ill for one in fleet.machines),
        "mended": sum(one.mended for one in fleet.machines),
        "needless": mender.needless,
        "series": watched.series[-1:],
        "memory_mib": watched.memory_mib[-1:],
        "faults": faults,
        "log": log,
    }


def _clients(
    given: argparse.Namespace,
    gateways: Sequence[Gateway],
    transport: Transport,
    tally: Tally,
    stop: asyncio.Event,
) -> list[Client]:
    origins = [Origin.parse(gateway.url) for gateway in gateways]
    return [
        Client(
            Tenant(*TENANTS[number % len(TENANTS)]),
            origins,
            MODEL,
            transport,
            tally,
            random.Random(f"{given.seed} {number}"),
            time.monotonic,
            stop,
        )
        for number in range(given.clients)
    ]


def _print(found: dict[str, Any]) -> None:
    for key, value in found.items():
        if key not in ("log", "faults"):
            print(f"{key:12} {value}")
    for fault in found["faults"]:
        print(f"FAULT: {fault}")
    if found["faults"]:
        print("\n".join(found["log"]))


if __name__ == "__main__":
    raise SystemExit(main())
