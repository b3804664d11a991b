"""A small HTTP/1.1 server for the simulated engine: httptools over asyncio.Protocol.

It exists because faults must act on the socket: an answer may be reset before its first byte,
cut in the middle, or announced longer than it is. Keep-alive, request bodies by length or in
chunks, chunked answers, one request at a time per connection (pipelined ones wait). When the
client leaves, the handler of its request is cancelled at once. No TLS, no upgrade.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import httptools

_LOG = logging.getLogger(__name__)
_MAX_BODY_BYTES = 64 * 1024 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PHRASES = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 429: b"Too Many Requests"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Header names are lower-case."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked: bool


class Reply:
    """The answer to one request; `over` once it is complete or the socket was taken from it."""

    def __init__(self, transport: asyncio.Transport, request: HttpRequest) -> None:
        self._transport = transport
        self._chunked = request.chunked
        self.keep_alive = request.keep_alive
        self.started = False
        self.over = False
        self.more: Callable[[], Sequence[tuple[bytes, bytes]]] = tuple
        """Further headers of a good answer, asked for when its head is written."""

    def send(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        length = (b"content-length", b"%d" % len(body))
        more = self.more() if status == 200 else ()
        self._write(_head(status, content_type, [length, *headers, *more]) + body)
        self.started = self.over = True

    def start(self, content_type: bytes) -> None:
        """Begins a body whose length is not known; to a HTTP/1.0 client its end is the close."""
        self.keep_alive = self.keep_alive and self._chunked
        extra = [(b"transfer-encoding", b"chunked")] if self._chunked else []
        extra += [(b"cache-control", b"no-cache"), *self.more()]
        self._write(_head(200, content_type, extra))
        self.started = True

    def write(self, data: bytes) -> None:
        if data and not self.over:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self) -> None:
        if not self.over:
            self._write(b"0\r\n\r\n" if self._chunked else b"")
            self.over = True

    def cut(self) -> None:
        """Closes after what was written, without the end that the client waits for."""
        self.over = True
        self._transport.close()

    def send_part(self, body: bytes, sent: int) -> None:
        """Announces the whole body, sends its first `sent` bytes, closes."""
        length = (b"content-length", b"%d" % len(body))
        self._write(_head(200, b"application/json", [length]) + body[:sent])
        self.cut()

    def reset(self) -> None:
        """Resets the connection: the client sees ECONNRESET."""
        self.over = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _head(status: int, content_type: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    lines = [b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b"Status"))]
    lines += [b"%b: %b" % pair for pair in ((b"content-type", content_type), *headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


Handler = Callable[[HttpRequest, Reply], Awaitable[None]]


class Connections(set["HttpProtocol"]):
    """The living ones of a server. Once it is `closed` a new one ends at once: a connection that
    was accepted a moment before is made after its server has closed the others."""

    closed = False


class HttpProtocol(asyncio.Protocol):
    """One connection. `connections` holds the living ones, for the server to close."""

    def __init__(self, handler: Handler, connections: Connections) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[HttpRequest] = deque()
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport
        self._begin_message()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport without inheriting it.
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)
        if self._connections.closed:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._requests.clear()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # the request itself is complete; the wish to upgrade is ignored
        except httptools.HttpParserError:
            self._refuse(400)

    def on_message_begin(self) -> None:
        self._begin_message()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= _MAX_BODY_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._size > _MAX_BODY_BYTES:
            self._refuse(413)
            return
        request = HttpRequest(
            method=self._parser.get_method().decode(),
            path=self._url.partition(b"?")[0].decode("latin-1"),
            headers=self._headers,
            body=b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
            chunked=self._parser.get_http_version() != "1.0",
        )
        self._requests.append(request)
        if self.task is None:
            self._next()

    def _begin_message(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0

    def _refuse(self, status: int) -> None:
        if not self.transport.is_closing():
            self.transport.write(
                _head(status, b"text/plain", [(b"content-length", b"0"), (b"connection", b"close")])
            )
            self.transport.close()

    def _next(self) -> None:
        if self._requests and not self.transport.is_closing():
            request = self._requests.popleft()
            self.task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: HttpRequest) -> None:
        reply = Reply(self.transport, request)
        try:
            await self._handler(request, reply)
        except Exception:
            # The border of a request: whatever went wrong ends this connection only.
            _LOG.exception("the simulated engine failed on %s %s", request.method, request.path)
            self.transport.abort()
        finally:
            self.task = None
        if not (reply.over and reply.keep_alive):
            self.transport.close()
        self._next()
