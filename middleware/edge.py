"""The HTTP edge of one request: body in, Call, answer out, whatever happens in between.

A watcher listens for the client's leaving from the moment the body is there until the last byte
is out, whether the call waits, streams or stalls; it cancels the request, and closing the answer
closes the upstream. Errors become HTTP here and nowhere else. A stream that stays silent past
`commit_after_s` gets its status and SSE comments while the search for an answer goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierway.middleware.pipeline import Pipeline
from tierway.middleware.reply import Reply
from tierway.middleware.tenants import Tenants
from tierway.middleware.wire import Codec
from tierway.policies.errors import BadCall, GatewayError
from tierway.policies.protocols import Clock, Hook
from tierway.policies.types import Trace

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int = 16 << 20
    total_timeout_s: float = 600.0
    commit_after_s: float = 10.0


class ClientLeft(Exception):
    """The client closed its connection; nobody is there to answer."""


class Edge:
    def __init__(
        self,
        pipeline: Pipeline,
        tenants: Tenants,
        *,
        limits: Limits,
        clock: Clock,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._pipeline, self.tenants = pipeline, tenants
        self._limits, self._clock, self._hooks = limits, clock, hooks

    async def serve(self, codec: Codec, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = self._clock()
        headers = _headers(scope)
        trace = Trace(request_id=_request_id(headers), wire=codec.name)
        reply = Reply(send, codec, trace)
        watch = _Watch(receive)
        try:
            await self._answer_or_fail(codec, headers, receive, reply, watch, began_s)
        except ClientLeft:
            trace.outcome = "client_left"
        except asyncio.CancelledError:
            if not watch.left():
                raise
            trace.outcome = "client_left"
        finally:
            watch.stop()
            reply.stop()
            self._finish(trace, began_s)

    async def _answer_or_fail(
        self,
        codec: Codec,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        reply: Reply,
        watch: _Watch,
        began_s: float,
    ) -> None:
        try:
            await self._answer(codec, headers, receive, reply, watch, began_s)
        except GatewayError as error:
            await self._fail(reply, error)
        except ClientLeft:
            raise
        except Exception:  # border: whatever went wrong, the client hears of it
            logger.exception("request %s failed inside the gateway", reply.trace.request_id)
            await self._fail(reply, GatewayError("The gateway failed; see its log."))

    async def _answer(
        self,
        codec: Codec,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        reply: Reply,
        watch: _Watch,
        began_s: float,
    ) -> None:
        trace, limits = reply.trace, self._limits
        tenant = self.tenants.identify(headers)
        trace.tenant = tenant
        raw = await self.body(receive, headers)
        call = codec.parse(
            raw,
            headers,
            request_id=trace.request_id,
            tenant=tenant,
            arrived_s=began_s,
            default_timeout_s=limits.total_timeout_s,
        )
        trace.requested_model, trace.stream = call.model, call.stream
        reply.debug = call.controls.debug
        watch.start()
        if call.stream:
            reply.commit_after(limits.commit_after_s)
        answer = await self._pipeline.handle(call, trace)
        try:
            trace.first_token_s = self._clock() - began_s
            try:
                await reply.send_answer(call, answer)
            except OSError as gone:  # how servers of ASGI 2.4 on tell that the client left
                raise ClientLeft from gone
            watch.stop()  # a client that goes after the last byte has not left anything
        finally:
            trace.usage = answer.usage
            await answer.aclose()

    async def body(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """The whole body of a request. Raises BadCall for one that is too large or too slow,
        ClientLeft when nobody is there any more."""
        limits = self._limits
        return await _body(receive, headers, limits.max_body_bytes, limits.total_timeout_s)

    async def _fail(self, reply: Reply, error: GatewayError) -> None:
        try:
            await reply.send_error(error)
        except OSError:
            reply.trace.outcome = "client_left"

    def _finish(self, trace: Trace, began_s: float) -> None:
        trace.duration_s = self._clock() - began_s
        for hook in self._hooks:
            try:
                hook(trace)
            except Exception:  # border: a hook may be anybody's code
                logger.exception("a hook failed for request %s", trace.request_id)


class _Watch:
    """Cancels the task that started it when the client leaves.

    It begins to listen when that task first waits for something: an answer out of memory is
    written before there is anybody to wait for.
    """

    __slots__ = ("_begin", "_left", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False
        self._begin: asyncio.Handle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.current_task()
        self._begin = asyncio.get_running_loop().call_soon(self._watch)

    def _watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._task is not None:
            self._task.cancel()

    def left(self) -> bool:
        """True when it was this watch that cancelled; the task may go on then."""
        if self._left and self._task is not None:
            self._task.uncancel()
        return self._left

    def stop(self) -> None:
        if self._begin is not None:
            self._begin.cancel()
        if self._watcher is not None:
            self._watcher.cancel()


async def _body(
    receive: Receive, headers: Mapping[bytes, bytes], limit: int, seconds: float
) -> bytes:
    """The whole body. Raises BadCall: 413 past `limit` bytes, 408 past `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await _read_body(receive, headers, limit)
    except TimeoutError as cause:
        raise BadCall(
            f"The request body did not come within total_timeout_s = {seconds:g}.", status=408
        ) from cause


async def _read_body(receive: Receive, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> BadCall:
    return BadCall(
        f"The request body is larger than server.max_body_bytes = {limit}.",
        status=413,
        code="request_too_large",
    )


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= 128 and given.isascii():
        name = given.decode("ascii")
        if name.isprintable():
            return name
    return "req_" + os.urandom(12).hex()
