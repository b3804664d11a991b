"""Replicas behind one name: a replica for each address that a headless service has.

The name is resolved every few seconds, off the loop. An address that is gone must be missing twice
in a row before its replica leaves, since a resolver may answer with a part; an answer that fails,
or is empty, says nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tierway.router.replica import ReplicaSpec
from tierway.router.transport import Origin

logger = logging.getLogger(__name__)

EVERY_S = 5.0
_GONE_AFTER = 2

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host; OSError where it has none or nobody answers."""


@dataclass(frozen=True, slots=True)
class Named:
    """`make` gives the replica at one of the addresses, with `host` in brackets where it is one
    of IPv6."""

    origin: Origin
    make: Callable[[str], ReplicaSpec]


@dataclass(slots=True)
class _Known:
    """Addresses with how often in a row they were missing."""

    missing: dict[str, int] = field(default_factory=dict)
    resolvable: bool = True


class DnsSource:
    """`want` gets the whole set whenever it has changed."""

    def __init__(
        self,
        named: Iterable[Named],
        want: Callable[[list[ReplicaSpec]], None],
        *,
        resolve: Resolve | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._named, self._want = tuple(named), want
        self._resolve = resolve or _resolve
        self._every_s = every_s
        self._known: Mapping[str, _Known] = {one.origin.host: _Known() for one in self._named}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once every name was asked for."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """One round over all names."""
        before = self._addresses()
        await asyncio.gather(*(self._ask(one.origin) for one in self._named))
        if self._addresses() != before:
            self._want(
                [one.make(text) for one in self._named for text in self._of(one.origin.host)]
            )

    def _addresses(self) -> list[list[str]]:
        return [self._of(one.origin.host) for one in self._named]

    def _of(self, host: str) -> list[str]:
        return sorted(self._known[host].missing)

    async def _ask(self, origin: Origin) -> None:
        known = self._known[origin.host]
        try:
            found = await self._resolve(origin.host, origin.port)
        except OSError as error:
            found = ()
            if known.resolvable:
                logger.warning("%s cannot be resolved: %s", origin.host, error)
        known.resolvable = bool(found)
        if not found:
            return
        for address in found:
            known.missing[address] = 0
        for address in known.missing.keys() - set(found):
            known.missing[address] += 1
        known.missing = {
            address: times for address, times in known.missing.items() if times < _GONE_AFTER
        }

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except Exception:  # border: the loop outlives any fault
                logger.exception("the names of replicas could not be looked at")


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
