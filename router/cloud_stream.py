"""A stream of litellm's chunk objects, read as OpenAI's server-sent events.

Each chunk becomes one event with the public model name. litellm has habits that an OpenAI client
would stumble over: the usage comes with an empty choice (here: without, and only if the client
asked), and a stream whose provider just went away ends with an invented `stop` (here: a fault).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from tierway.policies.errors import BrokenStream, GatewayError, UpstreamTimeout
from tierway.policies.protocols import Clock
from tierway.policies.types import Head, Source, Usage
from tierway.policies.usage import usage_from
from tierway.router.cloud_errors import stream_error
from tierway.router.sse import has_first_token

_DONE = b"data: [DONE]\n\n"
_FINISH_REASONS = ("received_finish_reason", "intermittent_finish_reason")


class CloudStream:
    """A stream of litellm's chunk objects, read as OpenAI's events."""

    def __init__(
        self,
        head: Head,
        source: Source,
        stream: AsyncIterator[Any],
        *,
        name: str,
        shows_usage: bool,
        idle_s: float,
        total_s: float,
        deadline_s: float,
        clock: Clock,
    ) -> None:
        self.head, self.source = head, source
        self.usage: Usage | None = None
        self._chunks = stream
        # On the completions wire it is a wrapper that cannot be closed; what it wraps can.
        closable = hasattr(stream, "aclose")
        self._stream: Any = stream if closable else getattr(stream, "completion_stream", stream)
        self._name, self._shows_usage, self._clock = name, shows_usage, clock
        self._idle_s, self._total_s, self._deadline_s = idle_s, total_s, deadline_s
        self._pending: asyncio.Task[Any] | None = None
        self._first = b""
        self._usage_event = b""
        self._over = self._closed = False

    async def start(self) -> None:
        """Waits for the first real token; raises what litellm raises, and BrokenStream."""
        while True:
            chunk = await self._pull()
            event = self._event(chunk) if chunk is not None else b""
            self._first += event
            if event and has_first_token(event):
                return
            if chunk is None:
                raise BrokenStream("The cloud model's stream had no content.")

    async def read(self) -> bytes:
        """One event at a time, usage and `[DONE]` together at the end."""
        if self._first:
            first, self._first = self._first, b""
            return first
        while not (self._over or self._closed):
            chunk = await self._next()
            if chunk is None:
                self._over = True
                return self._usage_event + _DONE if self._shows_usage else _DONE
            event = self._event(chunk)
            if event:
                return event
        return b""

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})
                if not pending.cancelled():
                    pending.exception()  # looked at, so that nobody logs it as forgotten
        finally:
            await self._stream.aclose()

    async def _next(self) -> Any:
        left_s = self._deadline_s - self._clock()
        which, limit_s = ("idle", self._idle_s) if self._idle_s < left_s else ("total", left_s)
        try:
            async with asyncio.timeout(limit_s):
                return await self._pull()
        except TimeoutError as cause:
            seconds = self._idle_s if which == "idle" else self._total_s
            raise UpstreamTimeout(which, seconds, replica=self.source.replica) from cause
        except GatewayError:
            raise
        except Exception as cause:
            # The border to litellm, as in the upstream's `open`.
            replica = self.source.replica
            raise stream_error(cause, replica=replica, idle_s=self._idle_s) from cause

    async def _pull(self) -> Any:
        """litellm's next chunk, None at the end. A cancelled pull is taken up by the next."""
        pending = self._pending
        if pending is None:
            pending = asyncio.get_running_loop().create_task(_after(self._chunks))
            self._pending = pending
        await asyncio.wait({pending})
        self._pending = None
        if pending.cancelled():
            raise BrokenStream("The answer was closed before its end was read.")
        return pending.result()

    def _event(self, chunk: Any) -> bytes:
        """The chunk as an event, b"" when it only told the usage."""
        document = chunk.model_dump(exclude_none=True)
        document["model"] = self._name
        usage = document.pop("usage", None)
        if usage:
            self._keep_usage({**document, "choices": [], "usage": usage})
        choices = document.get("choices") or []
        if usage and not any(_says_something(choice) for choice in choices):
            return b""
        for choice in choices:
            if "delta" not in choice:
                choice.setdefault("text", "")
            if choice.setdefault("finish_reason", None) is not None:
                self._check_finish()
        return b"data: " + orjson.dumps(document) + b"\n\n"

    def _keep_usage(self, document: dict[str, Any]) -> None:
        self.usage = usage_from(document.get("usage") or {})
        self._usage_event = b"data: " + orjson.dumps(document) + b"\n\n"

    def _check_finish(self) -> None:
        """Raises BrokenStream for the `stop` that no provider sent."""
        if all(getattr(self._stream, name, "") is None for name in _FINISH_REASONS):
            raise BrokenStream(
                "The cloud model's answer broke off before its end.", replica=self.source.replica
            )


async def _after(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, None)


def _says_something(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("finish_reason") or choice.get("text") or delta)
