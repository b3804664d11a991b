"""One HTTP/1.1 connection to an upstream, and the answer that is read from it.

An asyncio.Protocol that feeds an httptools parser (llhttp). It carries one exchange at a time,
without pipelining; the pool in transport.py decides when it may carry the next one. Bodies end
as RFC 9112 section 6.3 says: by Content-Length, by the last chunk, or by the close.

Cost per piece of a stream is what matters here: the parser appends body bytes straight to a
list, pieces that came together leave as one, and the idle timer is one handle that looks at
the time of the last byte when it fires instead of being set again for each.

Trailers are dropped, upgrades are faults, content codings pass through undecoded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

from tierway.policies.errors import BrokenStream, Dropped, UpstreamError, UpstreamTimeout
from tierway.policies.types import Headers

HIGH_WATER_BYTES = 256 * 1024
"""Unread bytes above which the socket is no longer read."""

MAX_HEAD_BYTES = 64 * 1024

_NOT_HTTP = "The upstream's answer was not valid HTTP."


class _NotAsked(Exception):
    """A second answer behind the first, or a change of protocol."""


class Connection(asyncio.Protocol):
    """`on_rest` is called when an exchange is over and another may follow, `on_gone`, at least
    once, as soon as the connection can carry nothing more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_rest: Callable[[Connection], None],
        on_gone: Callable[[Connection], None],
    ) -> None:
        self._loop, self._on_rest, self._on_gone = loop, on_rest, on_gone
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._idle_handle: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        self.on_body: Callable[[bytes], None] = self._chunks.append
        self._aborted = self._paused = False
        self.idle_since_s = 0.0
        self._reset(bodiless=False)

    def _reset(self, *, bodiless: bool) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks.clear()
        self._error: UpstreamError | None = None
        self._status = self._buffered = 0
        self._bodiless = bodiless
        self._heard = self._head_done = self._complete = False
        self._keep_alive = self._until_close = False
        self._idle_s: float | None = None
        self._last_byte_s = 0.0

    @property
    def usable(self) -> bool:
        """True while another request may be written."""
        transport = self._transport
        return not (self._aborted or transport is None or transport.is_closing())

    async def exchange(self, payload: bytes, *, bodiless: bool) -> Response:
        """Writes one request and waits for the head of its answer.

        `bodiless` tells of an answer to HEAD. Raises Dropped when the connection closed before
        one byte came, BrokenStream after that. Any exception, cancellation included, leaves
        the connection closed.
        """
        assert self._transport is not None
        self._reset(bodiless=bodiless)
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(payload)
        try:
            while not self._head_done:
                if self._error is not None:
                    raise self._error
                await self.changed()
        except BaseException:
            self.abort()
            raise
        return Response(self, self._status, tuple(self._headers))

    def changed(self) -> asyncio.Future[None]:
        """Is done at the next byte, end or fault. One waiter at a time."""
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError("this answer is already being read by another task")
        self._waiter = self._loop.create_future()
        return self._waiter

    def take(self) -> bytes | None:
        """All decoded bytes there are, b"" at the end, None when there is nothing yet."""
        chunks = self._chunks
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self._buffered = 0
            if self._paused:
                self._resume()
            return data
        if self._error is not None:
            raise self._error
        return b"" if self._complete else None

    def watch_idle(self, seconds: float | None) -> None:
        """Fails the answer once no byte came for `seconds`, counted from now at the earliest.
        The time in which reading is paused for the reader's sake does not count."""
        self._stop_watching()
        self._idle_s = seconds
        self._last_byte_s = self._loop.time()
        if seconds is not None and not self._complete and self._error is None:
            self._idle_handle = self._loop.call_later(seconds, self._check_idle)

    def finish(self) -> None:
        """Ends the exchange: rests when the whole answer has arrived, else closes at once."""
        if not (self._complete and self._keep_alive and self.usable):
            self.abort()
            return
        self._stop_watching()
        self._parser = None
        self._chunks.clear()
        if self._paused:
            self._resume()
        self._on_rest(self)

    def abort(self) -> None:
        """Closes at once and wakes the reader; may be called at any time, and twice."""
        self._aborted = True
        self._parser = None
        self._stop_watching()
        if self._transport is not None:
            self._transport.abort()
        if not self._complete and self._error is None:
            self._error = BrokenStream("The answer was closed before its end was read.")
        self._wake()
        self._on_gone(self)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._aborted:
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()
            return
        self._heard = True
        self._last_byte_s = self._loop.time()
        self._buffered += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._malformed(error)
        if self._buffered > HIGH_WATER_BYTES and self._chunks:
            self._pause()
        elif self._buffered > MAX_HEAD_BYTES and not self._head_done:
            self._fail(BrokenStream("The head of the upstream's answer is too long."))
        self._wake()

    def eof_received(self) -> None:
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(exc)
        self.abort()

    # What the parser calls (and `on_body`, which is the list's own append).

    def on_message_begin(self) -> None:
        if self._complete:
            raise _NotAsked
        self._headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        if self._status == 101:
            raise _NotAsked
        if self._interim:
            return
        self._head_done = True
        self._keep_alive = self._parser.should_keep_alive()
        if self._bodiless:
            self._complete, self._keep_alive = True, False
        elif not self._keep_alive:
            self._until_close = not any(map(_gives_length, self._headers))

    def on_message_complete(self) -> None:
        if not self._interim:
            self._complete = True

    @property
    def _interim(self) -> bool:
        return 100 <= self._status < 200

    def _malformed(self, error: Exception) -> None:
        if self._complete:
            self._keep_alive = False
        else:
            self._fail(BrokenStream(_NOT_HTTP), error)

    def _ended(self, cause: Exception | None) -> None:
        if self._complete or self._error is not None:
            return
        if self._until_close and cause is None:
            self._complete = True
            self._wake()
        elif self._heard:
            self._fail(BrokenStream("The upstream closed in the middle of its answer."), cause)
        else:
            self._fail(Dropped("The upstream closed before it answered."), cause)

    def _fail(self, error: UpstreamError, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        self._error = error
        self.abort()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _pause(self) -> None:
        if not self._paused and self.usable:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self._last_byte_s = self._loop.time()
        if self.usable:
            assert self._transport is not None
            self._transport.resume_reading()

    def _check_idle(self) -> None:
        assert self._idle_s is not None
        if self._complete or self._error is not None:
            return
        silent_s = 0.0 if self._paused else self._loop.time() - self._last_byte_s
        if silent_s >= self._idle_s:
            self._fail(UpstreamTimeout("idle", self._idle_s))
        else:
            self._idle_handle = self._loop.call_later(self._idle_s - silent_s, self._check_idle)

    def _stop_watching(self) -> None:
        if self._idle_handle is not None:
            self._idle_handle.cancel()
            self._idle_handle = None


class Response:
    """An answer whose head is there; its body is pulled. One reader at a time."""

    __slots__ = ("_at_end", "_connection", "_idle_timeout_s", "headers", "status")

    def __init__(self, connection: Connection, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._connection: Connection | None = connection
        self._idle_timeout_s: float | None = None
        self._at_end = False

    @property
    def idle_timeout_s(self) -> float | None:
        """Seconds without a byte after which `read` raises UpstreamTimeout("idle")."""
        return self._idle_timeout_s

    @idle_timeout_s.setter
    def idle_timeout_s(self, seconds: float | None) -> None:
        self._idle_timeout_s = seconds
        if self._connection is not None:
            self._connection.watch_idle(seconds)

    async def read(self) -> bytes:
        """The next decoded bytes, all that are there; b"" at the end.

        Raises BrokenStream when the body was cut, made no sense, or was closed on this side,
        UpstreamTimeout when `idle_timeout_s` passed; bytes that came before are given out
        first. A cancelled read loses nothing.
        """
        while (connection := self._connection) is not None:
            data = connection.take()
            if data is not None:
                self._at_end = not data
                return data
            await connection.changed()
        if self._at_end:
            return b""
        raise BrokenStream("The answer was closed before its end was read.")

    async def read_all(self, limit: int) -> bytes:
        """The rest of the body; raises BrokenStream once it exceeds `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit:
                raise BrokenStream(f"The upstream's answer is longer than {limit} bytes.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def aclose(self) -> None:
        """Gives the connection back if the whole body has arrived, else closes it at once.
        May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()


def _gives_length(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    return name == b"content-length" or (
        name == b"transfer-encoding" and value.lower().rstrip().endswith(b"chunked")
    )
