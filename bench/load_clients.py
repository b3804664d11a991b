"""The busy clients of the load benchmark: what they ask, and how they read an answer.

Each asks one question after the other (a closed loop). An answer is right when it is one: status
200, JSON with choices, or a stream with content that ends in `[DONE]`; all else is a fault,
counted by its kind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Clock
from tierway.router.sse import Framer, payloads
from tierway.router.transport import Origin, Response, Transport

_CONTENT = ("content", "reasoning", "reasoning_content", "tool_calls")
_BODY_BYTES = 64 << 20


class Wrong(Exception):
    """An answer that is none; the text says why, in a few words that repeat."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One right answer. `first_s` is None and `events` 0 when it did not stream."""

    latency_s: float
    first_s: float | None = None
    events: int = 0


@dataclass(slots=True)
class Result:
    samples: list[Sample] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0

    @property
    def done(self) -> int:
        return len(self.samples) + self.faults.total()


@dataclass(frozen=True, slots=True)
class Target:
    """`origin` is the address below which `/v1` lies."""

    origin: Origin
    model: str
    stream: bool
    api_key: str = ""
    max_tokens: int | None = None

    def body(self, prompt: str) -> bytes:
        ask: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
        }
        if self.stream:
            ask["stream"] = True
        if self.max_tokens is not None:
            ask["max_tokens"] = self.max_tokens
        return orjson.dumps(ask)

    def headers(self) -> list[tuple[bytes, bytes]]:
        made = [(b"content-type", b"application/json")]
        if self.api_key:
            made.append((b"authorization", b"Bearer " + self.api_key.encode()))
        return made


async def load(
    target: Target,
    prompts: Iterator[str],
    *,
    concurrency: int,
    timeout_s: float,
    clock: Clock,
    progress: Callable[[int], None],
) -> Result:
    """Asks all of `prompts`; `progress` is told how many are done after each."""
    transport = Transport(connect_timeout_s=min(timeout_s, 30.0), max_connections=concurrency)
    result = Result()

    async def worker() -> None:
        for prompt in prompts:
            try:
                async with asyncio.timeout(timeout_s):
                    result.samples.append(await _ask(transport, target, prompt, clock))
            except TimeoutError:
                result.faults["no answer in time"] += 1
            except Wrong as fault:
                result.faults[str(fault)] += 1
            except GatewayError as fault:
                result.faults[fault.public] += 1
            progress(result.done)

    began = clock()
    try:
        await asyncio.gather(*(worker() for _ in range(concurrency)))
    finally:
        await transport.aclose()
    result.wall_s = clock() - began
    return result


async def _ask(transport: Transport, target: Target, prompt: str, clock: Clock) -> Sample:
    began = clock()
    response = await transport.request(
        target.origin, b"POST", b"/v1/chat/completions", target.headers(), target.body(prompt)
    )
    try:
        if response.status != 200:
            await response.read_all(_BODY_BYTES)
            raise Wrong(f"status {response.status}")
        if target.stream:
            return await _read_stream(response, began, clock)
        document = _parsed(await response.read_all(_BODY_BYTES))
        if not document.get("choices"):
            raise Wrong("an answer without choices")
        return Sample(clock() - began)
    finally:
        await response.aclose()


async def _read_stream(response: Response, began: float, clock: Clock) -> Sample:
    framer = Framer(strip_usage=True)
    first_s, events = None, 0
    chunk = b"begin"
    while chunk:
        chunk = await response.read()
        now = clock()
        block = framer.feed(chunk) if chunk else framer.finish()
        count = sum(_has_content(payload) for payload in payloads(block))
        if count and first_s is None:
            first_s = now - began
        events += count
    if framer.error is not None:
        raise Wrong("an error event")
    if not framer.done or first_s is None:
        raise Wrong("a stream without content or end")
    return Sample(clock() - began, first_s, events)


def _has_content(payload: bytes) -> bool:
    if payload == b"[DONE]":
        return False
    document = _parsed(payload)
    return any(
        choice.get("text") or any((choice.get("delta") or {}).get(name) for name in _CONTENT)
        for choice in document.get("choices") or ()
    )


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Wrong("an answer that is not JSON")
    return document
