"""What must hold in a soak and after it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierway.bench.gateway_process import Gateway
from tierway.bench.soak_clients import Tally
from tierway.bench.soak_fleet import SoakFleet
from tierway.bench.soak_mender import Mender

_WATCH_S = 5.0
_LOOK_S = 0.5
_GROWTH_MIB = 96.0
_SERIES_A_REPLICA = 60
_SERIES_BESIDE = 3000
_REPLICA = re.compile(r'replica="([^"]+)"')


@dataclass(slots=True)
class Watched:
    """Sums over the gateways, by the time of looking."""

    series: list[int] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


async def watch(gateways: Sequence[Gateway], watched: Watched, stop: asyncio.Event) -> None:
    while not stop.is_set():
        pages = [await asyncio.to_thread(one.admin, "GET", "/metrics") for one in gateways]
        watched.series.append(sum(len(_series(page)) for page in pages))
        watched.memory_mib.append(sum(_resident_mib(one.pid) for one in gateways))
        try:
            async with asyncio.timeout(_WATCH_S):
                await stop.wait()
        except TimeoutError:
            continue


async def faults_of(
    fleet: SoakFleet,
    mender: Mender,
    gateways: Sequence[Gateway],
    tally: Tally,
    watched: Watched,
    *,
    patience_s: float,
) -> list[str]:
    """What does not hold; waits for what is still under way."""
    for _ in range(int(patience_s / _LOOK_S)):
        if not await _unsettled(gateways) and _all_mended(fleet):
            break
        await asyncio.sleep(_LOOK_S)
    found = list(_of_requests(tally)) + await _unsettled(gateways)
    found += list(_of_mending(fleet, mender)) + list(_of_growth(watched))
    for number, gateway in enumerate(gateways):
        page = await asyncio.to_thread(gateway.admin, "GET", "/metrics")
        state = await _state(gateway)
        found += [f"gateway {number}: {fault}" for fault in _of_gone(page, state, fleet)]
    return found


def _of_requests(tally: Tally) -> Iterator[str]:
    if not tally.answered:
        yield "no request was answered"
    for why, count in tally.lost.items():
        yield f"{count} requests lost before their first byte: {why}"


async def _unsettled(gateways: Sequence[Gateway]) -> list[str]:
    found = []
    for number, gateway in enumerate(gateways):
        for replica in _replicas(await _state(gateway)):
            counts = [replica["inflight"], replica["inflight_here"], replica["prefill_tokens"]]
            if any(counts):
                found.append(f"gateway {number}: {replica['id']} still counts {counts}")
    return found


def _all_mended(fleet: SoakFleet) -> bool:
    return all(one.mended == one.ill for one in fleet.machines)


def _of_mending(fleet: SoakFleet, mender: Mender) -> Iterator[str]:
    for machine in fleet.machines:
        if machine.mended != machine.ill:
            yield f"{machine.name} was ill {machine.ill} times and mended {machine.mended} times"
    if mender.needless or mender.unknown:
        yield f"{mender.needless} well and {mender.unknown} unknown machines were to be mended"


def _of_growth(watched: Watched) -> Iterator[str]:
    """From the second third on: at first caches fill."""
    third = len(watched.memory_mib) // 3
    if third < 3:
        return
    early = min(watched.memory_mib[third : 2 * third])
    late = min(watched.memory_mib[2 * third :])
    if late - early > _GROWTH_MIB:
        yield f"the gateways grew from {early:.0f} to {late:.0f} MiB"
    most = max(watched.series)
    if most > 2 * (_SERIES_BESIDE + 8 * _SERIES_A_REPLICA):
        yield f"{most} metric series"


def _of_gone(page: bytes, state: dict[str, Any], fleet: SoakFleet) -> Iterator[str]:
    here = {replica["id"] for replica in _replicas(state)}
    ports = {str(one.port) for one in fleet.serving}
    if {name.rpartition(":")[2] for name in here} != ports:
        yield f"knows the replicas {sorted(here)}, and not those at {sorted(ports)}"
    told = set(_REPLICA.findall(page.decode())) - here
    if told:
        yield f"metric series of replicas that have left: {sorted(told)}"
    if beyond := set(state["prefixes"]["blocks"]) - here:
        yield f"the prefix index holds replicas that have left: {sorted(beyond)}"


def _series(page: bytes) -> list[str]:
    return [line for line in page.decode().splitlines() if line and line[0] != "#"]


def _replicas(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [replica for tier in state["tiers"].values() for replica in tier["replicas"]]


async def _state(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        await asyncio.to_thread(gateway.admin, "GET", "/admin/state")
    )
    return found


def _resident_mib(pid: int) -> float:
    """Linux: what a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20
