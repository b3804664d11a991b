"""The only road to replicas: a small HTTP/1.1 client with a keep-alive pool per origin.

Written because the client is the largest single cost of a relay: per request it takes a
fraction of what general clients take (`python -m tierway.bench.relay` compares). It does what
an inference engine needs, plain HTTP or TLS, one request per connection at a time. It follows
no redirects, keeps no cookies, decodes no content codings and knows no proxies.

A request is repeated in one case only: it went out on a kept connection which closed before
one byte of an answer, the ordinary race with a server's keep-alive limit (RFC 9112, 9.3.1).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tierway.policies.errors import (
    BadCall,
    ConfigError,
    Dropped,
    Refused,
    Rejected,
    UpstreamTimeout,
)
from tierway.router.connection import Connection, Response

__all__ = ["Origin", "Response", "Transport"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_OWN_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding"))
_WITH_BODY = frozenset((b"POST", b"PUT", b"PATCH"))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replica listens. `base_path` goes before every path; no trailing slash."""

    scheme: str
    host: str
    port: int
    base_path: str = ""

    @classmethod
    def parse(cls, url: str) -> Origin:
        """From `http[s]://host[:port][/prefix]`; raises ConfigError naming the value."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise _wrong(repr(url), str(error)) from error
        if parts.username is not None or parts.password is not None:
            raise _wrong(repr(parts.hostname or ""), "credentials in the URL are not supported")
        if parts.scheme not in _DEFAULT_PORTS:
            raise _wrong(repr(url), "the scheme must be http or https")
        if not parts.hostname or port == 0:
            raise _wrong(repr(url), "a host, and a port of 1 to 65535 if any, are needed")
        if parts.query or parts.fragment or not _is_plain(parts.netloc + parts.path):
            raise _wrong(repr(url), "query, fragment, spaces and non-ASCII are not allowed")
        return cls(
            parts.scheme,
            parts.hostname,
            port or _DEFAULT_PORTS[parts.scheme],
            parts.path.rstrip("/"),
        )

    @property
    def authority(self) -> str:
        """The value of the Host header: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class Transport:
    """Sends requests. Belongs to one event loop; times are seconds.

    `max_connections` bounds the open connections of each origin, busy and idle: one more
    request raises Rejected (503) at once, so that waiting stays with admission, where it is
    seen. An idle connection is closed after `keepalive_s`.
    """

    def __init__(
        self, *, connect_timeout_s: float, max_connections: int = 1024, keepalive_s: float = 15.0
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._max_connections = max_connections
        self._keepalive_s = keepalive_s
        self._pools: dict[Origin, _Pool] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def request(
        self,
        origin: Origin,
        method: bytes,
        path: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> Response:
        """Returns when the head of the answer is there; the caller must `aclose` it.

        `host` and `content-length` are added, nothing else; `headers` must not hold them.
        Raises BadCall for a head that would not be one (line breaks, NUL), Refused when no
        connection could be made, Dropped when it closed before a byte came,
        UpstreamTimeout("connect"), BrokenStream. Cancelling closes the connection.
        """
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = _Pool(origin, self._keepalive_s)
        pool.left = False
        payload = pool.encode(method, path, headers, body)
        bodiless = method == b"HEAD"
        connection = pool.take()
        if connection is not None:
            try:
                return await connection.exchange(payload, bodiless=bodiless)
            except Dropped:
                pass  # closed while it was idle: once more on a fresh connection
        connection = await self._connect(pool)
        return await connection.exchange(payload, bodiless=bodiless)

    def forget(self, origin: Origin) -> None:
        """Closes what is idle there; what is in use goes on, and is closed some time after."""
        if pool := self._pools.get(origin):
            pool.left = True
            pool.rid()
        self._pools = {
            there: pool for there, pool in self._pools.items() if pool.open or not pool.left
        }

    def cut(self, origin: Origin) -> None:
        """Aborts all connections there, also those in use: what waits there for an answer, or reads
        one, fails as if the other end had gone."""
        if pool := self._pools.get(origin):
            pool.close()

    async def aclose(self) -> None:
        """Closes every connection, also those in use; later requests raise Refused."""
        self._closed = True
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)  # the loop closes aborted sockets in its next round

    async def _connect(self, pool: _Pool) -> Connection:
        if self._closed:
            raise Refused("The transport is closed.")
        if len(pool.open) >= self._max_connections:
            raise Rejected(503, ((b"retry-after", b"1"),), b"")  # load, not a fault
        loop = asyncio.get_running_loop()
        connection = Connection(loop, on_rest=pool.rest, on_gone=pool.forget)
        pool.open.add(connection)
        connected = False
        try:
            tls = await self._tls_context() if pool.origin.scheme == "https" else None
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    lambda: connection, pool.origin.host, pool.origin.port, ssl=tls
                )
            connected = connection.usable
        except TimeoutError as error:
            raise UpstreamTimeout("connect", self._connect_timeout_s) from error
        except (OSError, UnicodeError) as error:
            raise Refused("The upstream could not be reached.") from error
        finally:
            if not connected:
                connection.abort()
        if not connected:
            raise Refused("The upstream closed the connection at once.")
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            # Loading the certificates of the system takes tens of milliseconds.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls


class _Pool:
    """The connections of one origin: `open` are all, `idle` those at rest, oldest first; `left`
    where nobody is known to listen any more."""

    __slots__ = (
        "_base",
        "_host_line",
        "_keepalive_s",
        "_sweeper",
        "idle",
        "left",
        "open",
        "origin",
    )

    def __init__(self, origin: Origin, keepalive_s: float) -> None:
        self.origin, self._keepalive_s = origin, keepalive_s
        self._base = origin.base_path.encode("ascii")
        self._host_line = b" HTTP/1.1\r\nhost: " + origin.authority.encode("ascii") + b"\r\n"
        self._sweeper: asyncio.TimerHandle | None = None
        self.open: set[Connection] = set()
        self.idle: list[Connection] = []
        self.left = False

    def encode(
        self, method: bytes, path: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> bytes:
        """The request as it goes out, one bytes object; raises BadCall."""
        lines = [method, b" ", self._base, path, self._host_line]
        for name, value in headers:
            if name.lower() in _OWN_HEADERS:
                raise BadCall(f"The header {_shown(name)} is set by the transport.")
            lines += (name, b": ", value, b"\r\n")
        count = 2 + len(headers)
        if body or method in _WITH_BODY:
            lines.append(b"content-length: %d\r\n" % len(body))
            count += 1
        head = b"".join(lines)
        if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
            raise BadCall(_fault(headers))
        if b" " in path or b" " in method:
            raise BadCall("The method or path of an upstream request holds a space.")
        return b"".join((head, b"\r\n", body))

    def take(self) -> Connection | None:
        """The idle connection used last: the ones below it may time out."""
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    def rid(self) -> None:
        """Closes what is idle."""
        for connection in tuple(self.idle):
            connection.abort()

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in tuple(self.open):
            connection.abort()

    def rest(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self.idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest_s = loop.time() - self._keepalive_s
        while self.idle and self.idle[0].idle_since_s <= oldest_s:
            self.idle.pop(0).abort()
        self._sweeper = None
        if self.idle:
            left_s = self.idle[0].idle_since_s - oldest_s
            self._sweeper = loop.call_later(left_s, self._sweep, loop)


def _fault(headers: Sequence[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if any(byte in name + value for byte in b"\r\n\0"):
            return f"The header {_shown(name)} holds a line break or a NUL."
    return "The method or path of an upstream request holds a line break or a NUL."


def _shown(name: bytes) -> str:
    return ascii(name.decode("latin-1"))


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _wrong(value: str, why: str) -> ConfigError:
    return ConfigError([f"url: {value}: {why}; for example http://10.0.0.7:8000"])
