"""A replica, or a cloud model that speaks the OpenAI wire, as an Upstream.

The request goes out as the client's bytes with a few splices, the answer comes back as the
upstream's bytes. `open` waits for the first real token of a stream (the role chunk is no token)
or the whole body of anything else: what fails until then can still be tried elsewhere.

Timeouts: `first_token_timeout_s` bounds the wait for a stream's first token,
`idle_timeout_s` each silence after it, the call's own deadline everything. A call that does not
stream shows nothing before its end, so only the deadline bounds it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tierway.policies.errors import BrokenStream, Rejected, UpstreamError, UpstreamTimeout
from tierway.policies.protocols import Clock
from tierway.policies.types import Call, Head, Headers, Model, Source, Usage, WireName
from tierway.policies.usage import usage_from, usage_of
from tierway.router.discover import ask_model
from tierway.router.facts import LoadReport
from tierway.router.load_header import ASKS, load_report
from tierway.router.splice import upstream_body
from tierway.router.sse import Framer, error_of, has_first_token, rejection
from tierway.router.transport import Origin, Response, Transport

_PATHS: Mapping[WireName, bytes] = {
    "chat": b"/chat/completions",
    "completions": b"/completions",
    "embeddings": b"/embeddings",
    "messages": b"/chat/completions",
}
_VERSION = re.compile(r"/v\d+\w*$")
_JSON = b"application/json"
_EVENTS = b"text/event-stream"
_ERROR_BODY_BYTES = 1 << 20
_OUR_KEY = (401, 403, 407)  # about the gateway's credentials, none of the client's business
_HOLD_BYTES = 1 << 20  # a stream that says nothing in so many bytes is no stream of tokens
_ASK_EVERY_S = 10.0
_DRAIN_S = 0.05  # grace for the end of the body after [DONE], so that the connection is kept


def api_origin(url: str) -> Origin:
    """Where the API of a base URL lies: the URL itself when its path ends in a version
    (`/v1`, `/api/paas/v4`), else `/v1` below it. Raises ConfigError."""
    url = url.rstrip("/")
    return Origin.parse(url if _VERSION.search(url) else url + "/v1")


def root_url(url: str) -> str:
    """The URL below which health and metrics lie: without the API's version."""
    return _VERSION.sub("", url.rstrip("/"))


@dataclass(frozen=True, slots=True)
class Timeouts:
    first_token_s: float = 30.0
    idle_s: float = 30.0
    total_s: float = 600.0


class HttpUpstream:
    """One OpenAI-wire server. `max_body_bytes` bounds an answer that does not stream. With
    `on_load` it is asked to report its load with each answer, and `on_load` gets the reports."""

    def __init__(
        self,
        transport: Transport,
        origin: Origin,
        model: Model,
        *,
        timeouts: Timeouts,
        clock: Clock,
        api_key: str = "",
        max_body_bytes: int = 64 << 20,
        on_load: Callable[[LoadReport], None] | None = None,
    ) -> None:
        self._transport, self._origin, self._model = transport, origin, model
        self._timeouts, self._clock = timeouts, clock
        self._api_key, self._max_body_bytes = api_key, max_body_bytes
        self._ask_again_s = 0.0
        self._static: Headers = ((b"content-type", _JSON), (b"user-agent", b"tierway"))
        if api_key:
            self._static += ((b"authorization", b"Bearer " + api_key.encode()),)
        self._on_load = on_load
        if on_load is not None:
            self._static += (ASKS,)

    async def open(self, call: Call, source: Source) -> WholeAnswer | StreamAnswer:
        response: Response | None = None
        now = self._clock()
        limit_s, which = self._limit(call, now)
        if limit_s <= 0:
            raise UpstreamTimeout("total", _total_s(call), replica=source.replica)
        try:
            async with asyncio.timeout(limit_s):
                response = await self._send(call)
                if self._on_load is not None and (report := load_report(response.headers)):
                    self._on_load(report)
                return await self._answer(call, source, response)
        except TimeoutError as cause:
            await _close(response)
            seconds = _total_s(call) if which == "total" else self._timeouts.first_token_s
            raise UpstreamTimeout(which, seconds, replica=source.replica) from cause
        except BaseException:
            await _close(response)
            raise

    async def aclose(self) -> None:
        """The transport is shared and closed by its owner."""

    def _limit(self, call: Call, now: float) -> tuple[float, str]:
        left = call.deadline_s - now
        if call.stream and self._timeouts.first_token_s < left:
            return self._timeouts.first_token_s, "first_token"
        return left, "total"

    async def _send(self, call: Call) -> Response:
        if self._model.served_name is None and self._clock() >= self._ask_again_s:
            # Nobody could tell at the start: an engine may take longer to load than we do.
            self._ask_again_s = self._clock() + _ASK_EVERY_S
            replica = (self._origin, self._api_key)
            self._model = await ask_model(self._transport, [replica], self._model)
        accept = _EVENTS if call.stream else _JSON
        headers = [*self._static, (b"accept", accept), (b"x-request-id", call.id.encode())]
        if call.traceparent:
            headers.append((b"traceparent", call.traceparent))
        body = upstream_body(call, self._model)
        return await self._transport.request(
            self._origin, b"POST", _PATHS[call.wire], headers, body
        )

    async def _answer(
        self, call: Call, source: Source, response: Response
    ) -> WholeAnswer | StreamAnswer:
        if response.status != 200:
            body = await response.read_all(_ERROR_BODY_BYTES)
            await response.aclose()
            if response.status in _OUR_KEY:
                why = "The upstream refused the gateway's key."
                raise UpstreamError(why, replica=source.replica)
            raise Rejected(response.status, response.headers, body, replica=source.replica)
        content_type = _content_type(response.headers)
        if call.stream and content_type.startswith(_EVENTS):
            return await self._stream(call, source, response, content_type)
        body = await response.read_all(self._max_body_bytes)
        await response.aclose()
        return _whole(call, source, body, content_type)

    async def _stream(
        self, call: Call, source: Source, response: Response, content_type: bytes
    ) -> StreamAnswer:
        framer = Framer(strip_usage=not call.includes_usage)
        held = b""
        while True:
            chunk = await response.read()
            block = framer.feed(chunk) if chunk else framer.finish()
            held += block
            if block and has_first_token(block):
                break
            if framer.error is not None:
                raise rejection(framer.error)
            if not chunk or len(held) > _HOLD_BYTES:
                raise BrokenStream("The upstream's stream had no content.", replica=source.replica)
        response.idle_timeout_s = self._timeouts.idle_s
        head = Head(200, ((b"content-type", content_type),), _wire(call), stream=True)
        return StreamAnswer(head, source, response, framer, held, self._deadline(call))

    def _deadline(self, call: Call) -> _Deadline:
        return _Deadline(call.deadline_s, _total_s(call), self._clock)


@dataclass(frozen=True, slots=True)
class _Deadline:
    at_s: float
    total_s: float
    clock: Clock

    def check(self, replica: str) -> None:
        if self.clock() > self.at_s:
            raise UpstreamTimeout("total", self.total_s, replica=replica)


class WholeAnswer:
    """An answer that is there whole."""

    __slots__ = ("_body", "head", "source", "usage")

    def __init__(self, head: Head, source: Source, body: bytes, usage: Usage | None) -> None:
        self.head, self.source, self.usage = head, source, usage
        self._body = body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def aclose(self) -> None:
        self._body = b""


class StreamAnswer:
    """A stream past its first token, passed on block by block."""

    __slots__ = ("_deadline", "_ended", "_first", "_framer", "_response", "head", "source", "usage")

    def __init__(
        self,
        head: Head,
        source: Source,
        response: Response,
        framer: Framer,
        first: bytes,
        deadline: _Deadline,
    ) -> None:
        self.head, self.source = head, source
        self.usage: Usage | None = None
        self._response, self._framer, self._deadline = response, framer, deadline
        self._first = first
        self._ended = False

    async def read(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        while not self._framer.done:
            if self._framer.error is not None:
                raise BrokenStream(_told(self._framer.error), replica=self.source.replica)
            self._deadline.check(self.source.replica)
            chunk = await self._response.read()
            block = self._framer.feed(chunk) if chunk else self._framer.finish()
            if block:
                return block
            if not chunk and not self._framer.done and self._framer.error is None:
                raise BrokenStream(
                    "The upstream's answer broke off before its end.", replica=self.source.replica
                )
        await self._end()
        return b""

    async def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.usage = usage_of(self._framer.usage_event)
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await self._response.read():
                    pass
        except (TimeoutError, BrokenStream, UpstreamTimeout):
            pass  # the answer is complete; only the connection is lost

    async def aclose(self) -> None:
        await self._response.aclose()


def _usage(document: Any) -> Usage | None:
    usage = document.get("usage") if isinstance(document, dict) else None
    return usage_from(usage) if isinstance(usage, dict) else None


def _total_s(call: Call) -> float:
    """The time the call had in all: its client may have given it less than the setting."""
    return round(call.deadline_s - call.arrived_s, 3)


def _told(error: Mapping[str, Any]) -> str:
    message = error.get("message")
    return f"The upstream broke off its answer: {str(message)[:500] if message else 'no reason'}"


def _whole(call: Call, source: Source, body: bytes, content_type: bytes) -> WholeAnswer:
    try:
        document = orjson.loads(body)
    except ValueError as cause:
        raise BrokenStream("The upstream's answer is not JSON.", replica=source.replica) from cause
    error = error_of(document)
    if error is not None:
        raise rejection(error)
    head = Head(200, ((b"content-type", content_type or _JSON),), _wire(call), stream=False)
    return WholeAnswer(head, source, body, _usage(document))


def _wire(call: Call) -> WireName:
    # A messages call is translated on the way out, so what comes back is a chat answer.
    return "chat" if call.wire == "messages" else call.wire


def _content_type(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"content-type":
            return value
    return b""


async def _close(response: Response | None) -> None:
    if response is not None:
        await response.aclose()
