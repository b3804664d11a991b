"""The machines of the soak: simulated engines that join, leave, restart, throttle and move.

Who serves is told to the gateways by a file, as a scheduler would write it: replaced whole, with
what each replica is. A machine that restarts comes back on its port with an empty prefix cache
and whole memory; one that moves comes back on another port.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierway.bench.engine_server import EngineServer
from tierway.bench.profiles import profile

PROFILES = (
    "8b-a10",
    "8b-a10",
    "8b-l40s",
    "8b-l40s",
    "8b-a100",
    "8b-a100",
    "8b-h100",
    "8b-h200",
)
MODEL = "soak"


@dataclass(slots=True, eq=False)
class Machine:
    """`fragments` is on while its memory fragments, an illness that a restart ends; `ill` counts
    those it had, `mended` the restarts that somebody asked for."""

    name: str
    profile: str
    seed: int
    speed: float
    zone: str
    server: EngineServer | None = None
    port: int = 0
    starts: int = 0
    fragments: bool = False
    ill: int = 0
    mended: int = 0
    throttled: bool = False
    ended: set[int] = field(default_factory=set)

    @property
    def up(self) -> bool:
        return self.server is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.starts += 1
        seed = self.seed + 1000 * self.starts
        self.server = EngineServer(
            self.profile, model=MODEL, seed=seed, speed=self.speed, node=self.name
        )
        self.port = await self.server.start(port=self.port)

    async def stop(self) -> None:
        """What is in flight there is cut, as with a machine that dies."""
        if self.server is not None:
            server, self.server = self.server, None
            await server.aclose()

    async def restart(self) -> None:
        """On the same port; whatever ailed it is over."""
        await self.stop()
        self.fragments = self.throttled = False
        await self.start()

    async def move(self) -> None:
        """To another address."""
        await self.stop()
        self.ended.add(self.port)
        self.port = 0
        self.fragments = self.throttled = False
        await self.start()

    def throttle(self, share: float) -> None:
        """Leaves its GPUs this share of their clock; 1 is all of it."""
        self.throttled = share < 1.0
        self._set()

    def fragment(self) -> None:
        if not self.fragments:
            self.fragments = True
            self.ill += 1
            self._set()

    def _set(self) -> None:
        assert self.server is not None
        switch: dict[str, Any] = {}
        if self.throttled:
            switch["throttle"] = 0.4
        if self.fragments:
            switch["fragment"] = 0.02
        self.server.set_faults(switch)

    def replica(self) -> Mapping[str, Any]:
        """Its settings, as a gateway wants them."""
        made = profile(self.profile)
        return {
            "url": self.url,
            "engine": "vllm",
            "gpu": made.gpu.name,
            "gpus": made.gpus,
            "tp": made.gpus,
            "node": self.name,
            "zone": self.zone,
            "telemetry": f"{self.url}/gpu/metrics",
        }


class SoakFleet:
    """`file` is where the gateways read who serves."""

    def __init__(self, file: Path, *, seed: int, speed: float) -> None:
        self._file = file
        self.machines = [
            Machine(f"node{at}", name, seed + at, speed, "ab"[at % 2])
            for at, name in enumerate(PROFILES)
        ]
        self._away: set[str] = set()

    @property
    def serving(self) -> Sequence[Machine]:
        return [one for one in self.machines if one.name not in self._away]

    @property
    def away(self) -> Sequence[Machine]:
        return [one for one in self.machines if one.name in self._away]

    async def start(self) -> None:
        for machine in self.machines:
            await machine.start()
        self.publish()

    async def aclose(self) -> None:
        for machine in self.machines:
            await machine.stop()

    def publish(self) -> None:
        """Tells who serves; never half of it."""
        told = {MODEL: [dict(one.replica()) for one in self.serving]}
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(told))
        os.replace(new, self._file)

    def leave(self, machine: Machine) -> None:
        """It is told to go; it serves on what it has until it is stopped."""
        self._away.add(machine.name)
        self.publish()

    async def join(self, machine: Machine) -> None:
        if not machine.up:
            await machine.start()
        self._away.discard(machine.name)
        self.publish()

    def at(self, url: str) -> Machine | None:
        """The machine of that address."""
        return next((one for one in self.machines if one.url == url), None)
