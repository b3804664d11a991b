"""A small client of memcached's meta protocol (1.6, doc/protocol.txt): get, set, delete, count.

Every use has a deadline and a bound (guard.py). Commands of one use go out together and their
replies come in their order. A connection on which anything went wrong is closed; one that the
server closed while it lay idle is replaced, and the commands are sent once more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from tierway.cache.guard import Away, Guard
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Clock

Result = TypeVar("Result")

LONGEST_S = 30 * 86400
"""Memcached takes a longer time to live for a date."""

_LINE = 64 * 1024


def parse_address(url: str) -> tuple[str, int]:
    """Host and port; ValueError says what is wrong with the address."""
    parts = urlsplit(url)
    if parts.scheme != "memcached":
        raise ValueError("must begin with memcached://")
    if not parts.hostname or parts.port == 0:
        raise ValueError("must name a host, and a port from 1 to 65535 if it is not 11211")
    if parts.path.strip("/") or parts.query or parts.username or parts.password:
        raise ValueError("must be memcached://host[:port] and nothing else")
    return parts.hostname, parts.port or 11211


@dataclass(frozen=True, slots=True)
class Reply:
    """`code` is HD, VA, EN, NF, NS or EX; `value` stands with VA, `token` where it was asked."""

    code: bytes
    value: bytes = b""
    token: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A value to set. With `token` only if nobody changed it since it was read."""

    key: str
    value: bytes
    live_s: float
    token: int | None = None


class MemcachedLink:
    """The deadlines are those of Guard; a use in a `hurry` is one that a request waits for.
    ValueError for an address that is none. Belongs to one event loop."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        draw: Callable[[], float],
        password: str | None = None,
        timeout_s: float = 0.25,
        patience_s: float = 2.0,
    ) -> None:
        if password is not None:
            raise ValueError("memcached has no passwords on the protocol spoken here")
        self._host, self._port = parse_address(url)
        self._guard = Guard(
            f"memcached at {self._host}:{self._port}",
            clock=clock,
            draw=draw,
            timeout_s=timeout_s,
            patience_s=patience_s,
        )
        self._idle: list[_Connection] = []

    @property
    def name(self) -> str:
        """For people: what it is and where."""
        return self._guard.name

    def open(self) -> None:
        self._guard.open()

    async def aclose(self) -> None:
        self._guard.close()
        while self._idle:
            self._idle.pop().close()

    async def get(self, keys: Sequence[str], *, hurry: bool = False) -> list[Reply]:
        """VA with value and token, or EN for what is not there."""
        return await self._send([f"mg {key} v c\r\n".encode() for key in keys], hurry=hurry)

    async def set(self, *values: Stored) -> list[Reply]:
        """HD, or EX where the token is out of date. CacheError for a value that is too large."""
        return await self._send([_set_command(one) for one in values])

    async def delete(self, keys: Sequence[str]) -> list[Reply]:
        """HD, or NF for what was not there."""
        return await self._send([f"md {key}\r\n".encode() for key in keys])

    async def count(self, key: str, first: int) -> int:
        """One more than the last time, `first` the first time."""
        (reply,) = await self._send([f"ma {key} N0 J{first} D1 v\r\n".encode()])
        return int(reply.value)

    async def stats(self) -> dict[str, str]:
        """What the server says of itself."""

        async def read(connection: _Connection) -> dict[str, str]:
            return await connection.stats()

        return await self._use(read, hurry=False)

    async def _send(self, commands: Sequence[bytes], *, hurry: bool = False) -> list[Reply]:
        if not commands:
            return []

        async def exchange(connection: _Connection) -> list[Reply]:
            return await connection.exchange(commands)

        replies = await self._use(exchange, hurry=hurry)
        for reply in replies:
            if reply.code in (b"SERVER_ERROR", b"CLIENT_ERROR", b"ERROR"):
                raise CacheError(f"{self.name} refuses: {reply.value.decode(errors='replace')}")
        return replies

    async def _use(
        self, action: Callable[[_Connection], Awaitable[Result]], *, hurry: bool
    ) -> Result:
        async def once() -> Result:
            while self._idle:
                used = self._idle.pop()
                with contextlib.suppress(Away):  # closed while it lay there
                    return await self._with(used, action)
            return await self._with(await _Connection.to(self._host, self._port), action)

        return await self._guard.run(once, hurry=hurry)

    async def _with(
        self, connection: _Connection, action: Callable[[_Connection], Awaitable[Result]]
    ) -> Result:
        try:
            result = await action(connection)
        except BaseException:  # whatever was read of the replies, the next user must not get
            connection.close()
            raise
        self._idle.append(connection)
        return result


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, host: str, port: int) -> _Connection:
        try:
            return cls(*await asyncio.open_connection(host, port, limit=_LINE))
        except OSError as error:
            raise Away(str(error)) from error

    async def exchange(self, commands: Sequence[bytes]) -> list[Reply]:
        """Reads while it writes, so that neither side waits for the other to empty its hands."""
        with _lost():
            self._writer.write(b"".join(commands))
            replies = [await self._reply() for _ in commands]
            await self._writer.drain()
        return replies

    async def stats(self) -> dict[str, str]:
        found = {}
        with _lost():
            self._writer.write(b"stats\r\n")
            while (line := await self._line()) != b"END":
                _, name, value = line.decode().split(" ", 2)
                found[name] = value
        return found

    def close(self) -> None:
        self._writer.transport.abort()

    async def _reply(self) -> Reply:
        code, _, rest = (await self._line()).partition(b" ")
        if code != b"VA":
            return Reply(code, rest)
        size, *flags = rest.split(b" ")
        value = (await self._reader.readexactly(int(size) + 2))[:-2]
        tokens = [int(flag[1:]) for flag in flags if flag.startswith(b"c")]
        return Reply(code, value, tokens[0] if tokens else 0)

    async def _line(self) -> bytes:
        line = await self._reader.readuntil(b"\r\n")
        return line[:-2]


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise Away(str(error) or "the connection was closed") from error


def _set_command(one: Stored) -> bytes:
    live_s = max(1, int(min(LONGEST_S, one.live_s)))
    token = f" C{one.token}" if one.token is not None else ""
    head = f"ms {one.key} {len(one.value)} T{live_s}{token}\r\n"
    return head.encode() + one.value + b"\r\n"
