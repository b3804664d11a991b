"""Writes one answer, or one error, to the client; the only user of ASGI's `send`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from tierway.middleware.wire import Codec
from tierway.policies.errors import BrokenStream, GatewayError, UpstreamError
from tierway.policies.protocols import Answer
from tierway.policies.types import Call, Trace

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

COMMENT_EVERY_S = 10.0
_STREAM_HEADERS: HeaderList = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    def __init__(self, send: Send, codec: Codec, trace: Trace) -> None:
        self._send, self._codec = send, codec
        self.trace = trace
        self.debug = False
        self._started = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    def commit_after(self, seconds: float) -> None:
        """Starts a stream's answer with comments unless something is sent before."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._commit)

    async def send_answer(self, call: Call, answer: Answer) -> None:
        """Sends the answer to its end. A fault after the first byte becomes an error event;
        the stream then ends without `[DONE]`."""
        await self._settle()
        self.trace.status, self.trace.outcome = answer.head.status, "ok"
        if answer.head.stream:
            await self._send_stream(call, answer)
        elif self._started:
            raise BrokenStream("The upstream answered a stream with something else.")
        else:
            await self._send_whole(call, answer)

    async def send_error(self, error: GatewayError) -> None:
        await self._settle()
        trace = self.trace
        trace.outcome = trace.outcome if trace.outcome == "broken" else outcome_of(error)
        trace.error = error.code or type(error).__name__  # its text may quote the request
        if self._started:
            await self._body(self._codec.error_event(error, trace.request_id), more=False)
            return
        status, headers, body = self._codec.error(error, trace.request_id)
        trace.status = status
        ids = self._codec.id_headers  # the codec's error carries them itself
        headers = [header for header in headers if header[0] not in ids]
        await self._start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self._body(body, more=False)

    def stop(self) -> None:
        """Ends what `commit_after` began, at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()

    async def _send_whole(self, call: Call, answer: Answer) -> None:
        chunks = []
        while chunk := await answer.read():
            chunks.append(chunk)
        body = b"".join(chunks)
        renderer = self._codec.renderer(call, answer.head)
        if renderer is not None:
            body = renderer.feed(body) + renderer.finish()
        length = (b"content-length", str(len(body)).encode())
        await self._start(answer.head.status, [*answer.head.headers, length])
        await self._body(body, more=False)

    async def _send_stream(self, call: Call, answer: Answer) -> None:
        renderer = self._codec.renderer(call, answer.head)
        if not self._started:
            await self._start(answer.head.status, _STREAM_HEADERS)
        send, trace = self._send, self.trace
        try:
            while chunk := await answer.read():
                trace.chunks += 1
                if renderer is not None:
                    chunk = renderer.feed(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            rest = renderer.finish() if renderer is not None else b""
        except GatewayError:
            trace.outcome = "broken"
            raise
        await self._body(rest, more=False)

    async def _start(self, status: int, headers: HeaderList) -> None:
        self._started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *trace_headers(self.trace, debug=self.debug)],
            }
        )

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def _commit(self) -> None:
        self._timer = None
        self._beat = asyncio.get_running_loop().create_task(self._comment())

    async def _comment(self) -> None:
        self.trace.status = 200
        with contextlib.suppress(OSError):  # the client left; whoever watches it will say so
            await self._start(200, _STREAM_HEADERS)
            while True:
                await self._body(b": waiting for an answer\n\n", more=True)
                await asyncio.sleep(COMMENT_EVERY_S)

    async def _settle(self) -> None:
        """Waits until no comment is half sent."""
        self.stop()
        beat, self._beat = self._beat, None
        if beat is not None:
            await asyncio.wait({beat})


def openai_error(
    type: str, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error object of the OpenAI wire, for what is not answered by a codec."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def outcome_of(error: GatewayError) -> str:
    """A bounded word for metrics: who or what was at fault."""
    if isinstance(error, UpstreamError):
        return "upstream_error"
    return {401: "unauthorised", 429: "overloaded", 503: "no_capacity"}.get(
        error.status, "bad_call" if error.status < 500 else "error"
    )


def trace_headers(trace: Trace, *, debug: bool = False) -> HeaderList:
    """The `x-tierway-*` headers: what happened, as far as it is known by now."""
    request_id = trace.request_id.encode()
    headers = [
        (b"x-request-id", request_id),
        (b"x-tierway-cache", trace.cache.encode()),
        (b"x-tierway-tier", trace.tier.encode()),
        (b"x-tierway-replica", trace.replica.encode()),
        (b"x-tierway-attempts", str(trace.attempts).encode()),
    ]
    if trace.wire == "messages":
        headers.append((b"request-id", request_id))
    if trace.age_s is not None:
        headers.append((b"age", str(int(trace.age_s)).encode()))
    if trace.entry_id:
        headers.append((b"x-tierway-entry", trace.entry_id.encode()))
    if trace.similarity is not None:
        headers.append((b"x-tierway-similarity", f"{trace.similarity:.4f}".encode()))
    if trace.degraded:
        headers.append((b"x-tierway-degraded", trace.degraded.encode()))
    if debug:
        headers.append((b"x-tierway-reason", orjson.dumps(reason(trace))))
    return headers


def reason(trace: Trace) -> dict[str, Any]:
    """Why the request went where it went, short enough for a header."""
    found = {
        "cache": trace.cache_reason,
        "route": trace.route_reason,
        "probabilities": {name: round(p, 3) for name, p in trace.probabilities.items()},
        "excluded": [list(pair) for pair in trace.excluded],
        "policy": trace.policy,
        "policy_version": trace.policy_version,
        "balance": {name: round(score, 3) for name, score in trace.balance.items()},
        "retries": trace.retries,
    }
    if trace.shadow_policy:
        found["shadow"] = {"policy": trace.shadow_policy, "replica": trace.shadow_replica}
    return found
