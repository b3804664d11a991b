"""What happens to the machines of the soak: drawn from a seed, one event after the other, each kind
as often as the others.

Always at least `_LEAST` machines serve and are well enough, so that a request that is lost was lost
by the gateway and not for want of machines.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from tierway.bench.soak_fleet import Machine, SoakFleet

_LEAST = 4
_NOTICE_S = 3.0  # between being told to go and being stopped
_DOWN_S = (1.0, 4.0)


class Trouble:
    """`counts` tells how often each event came."""

    def __init__(
        self,
        fleet: SoakFleet,
        draw: random.Random,
        *,
        pause: Callable[[float], Awaitable[None]],
        fragments: bool = True,
    ) -> None:
        self._fleet, self._draw, self._pause = fleet, draw, pause
        self._bag: list[str] = []
        self.counts: Counter[str] = Counter()
        self._events: Mapping[str, Callable[[Machine], Awaitable[None]]] = {
            "leave": self._leave,
            "restart": self._restart,
            "die": self._die,
            "move": self._move,
            "throttle": self._throttle,
            **({"fragment": self._fragment} if fragments else {}),
        }

    async def step(self) -> str:
        """One event, its whole course; an empty text where none could happen."""
        if self._fleet.away and self._draw.random() < 0.7:
            machine = self._draw.choice(self._fleet.away)
            await self._fleet.join(machine)
            self.counts["join"] += 1
            return f"join {machine.name}"
        well = [one for one in self._fleet.serving if one.up and not one.fragments]
        if len(well) <= _LEAST:
            return ""
        if not self._bag:
            self._bag = self._draw.sample(sorted(self._events), len(self._events))
        name = self._bag.pop()
        machine = self._draw.choice(well)
        await self._events[name](machine)
        self.counts[name] += 1
        return f"{name} {machine.name}"

    async def _leave(self, machine: Machine) -> None:
        self._fleet.leave(machine)
        await self._pause(_NOTICE_S)
        await machine.stop()

    async def _restart(self, machine: Machine) -> None:
        """A restart that was announced to nobody: what it was saying is cut."""
        await machine.restart()

    async def _die(self, machine: Machine) -> None:
        await machine.stop()
        await self._pause(self._draw.uniform(*_DOWN_S))
        await machine.start()

    async def _move(self, machine: Machine) -> None:
        await machine.move()
        self._fleet.publish()

    async def _throttle(self, machine: Machine) -> None:
        machine.throttle(1.0 if machine.throttled else 0.4)

    async def _fragment(self, machine: Machine) -> None:
        machine.fragment()


async def stir(
    trouble: Trouble,
    *,
    every_s: float,
    pause: Callable[[float], Awaitable[None]],
    tell: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Event after event until `stop` is set."""
    while not stop.is_set():
        await pause(every_s)
        if not stop.is_set() and (event := await trouble.step()):
            tell(event)
