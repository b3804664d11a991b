"""The tenants of the soak: conversations and shared documents, streamed or not, through two
gateways.

What counts is the first byte. A request that ends without one for any reason but an honest
refusal (429 or 503 with Retry-After, which the client obeys) is lost. A stream that breaks after
its first byte is cut: a machine that dies cuts what it was saying.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from tierway.bench.load_clients import Wrong
from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Clock
from tierway.router.transport import Origin, Response, Transport

_TIMEOUT_S = 60.0
_LONGEST_WAIT_S = 5.0
_BODY_BYTES = 4 << 20
_DOCUMENTS = 12
_WORDS = (
    "amber",
    "birch",
    "cairn",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbour",
    "inlet",
    "juniper",
)


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    key: str


@dataclass(slots=True)
class Tally:
    """`lost` and `cut` by what happened, `first_s` of each answer, `refused` the honest noes."""

    asked: int = 0
    answered: int = 0
    refused: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    first_s: list[float] = field(default_factory=list)
    by_tenant: Counter[str] = field(default_factory=Counter)


class Lost(Exception):
    """No first byte; the text says why."""


@dataclass(slots=True)
class Client:
    """One user of a tenant: asks, reads, thinks, asks again, until `stop` is set."""

    tenant: Tenant
    gateways: Sequence[Origin]
    model: str
    transport: Transport
    tally: Tally
    draw: random.Random
    clock: Clock
    stop: asyncio.Event
    think_s: float = 0.3

    async def run(self) -> None:
        while not self.stop.is_set():
            turns: list[dict[str, str]] = []
            for _ in range(self.draw.randint(1, 4)):
                turns.append({"role": "user", "content": self._question(first=not turns)})
                text = await self._answer(turns)
                if text is None or self.stop.is_set():
                    break
                turns.append({"role": "assistant", "content": text})
                await self._pause(self.draw.expovariate(1 / self.think_s))

    def _question(self, *, first: bool) -> str:
        words = " ".join(self.draw.choices(_WORDS, k=self.draw.choice((20, 60, 200))))
        answer = f"[[answer {self.draw.choice((20, 60, 120))}]]"
        if first and self.draw.random() < 0.5:
            number = self.draw.randrange(_DOCUMENTS)
            page = " ".join(random.Random(number).choices(_WORDS, k=600))
            return f"Document {number}: {page}\n{words} {answer}"
        return f"{self.draw.random()} {words} {answer}"

    async def _answer(self, turns: list[dict[str, str]]) -> str | None:
        """The text, None where there was none to go on with."""
        self.tally.asked += 1
        while not self.stop.is_set():
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    text = await self._ask(turns)
            except _Refused as refusal:
                self.tally.refused += 1
                await self._pause(min(refusal.after_s, _LONGEST_WAIT_S))
                continue
            except TimeoutError:
                self.tally.lost["no first byte in time"] += 1
            except Lost as fault:
                self.tally.lost[str(fault)] += 1
            except Wrong as fault:
                self.tally.cut[str(fault)] += 1
            else:
                self.tally.answered += 1
                self.tally.by_tenant[self.tenant.name] += 1
                return text
            return None
        self.tally.asked -= 1  # it was waiting to ask again when the run ended
        return None

    async def _ask(self, turns: list[dict[str, str]]) -> str:
        stream = self.draw.random() < 0.8
        body = {"model": self.model, "messages": turns, "stream": stream}
        headers = [
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer " + self.tenant.key.encode()),
        ]
        began_s, origin = self.clock(), self.draw.choice(self.gateways)
        try:
            response = await self.transport.request(
                origin, b"POST", b"/v1/chat/completions", headers, orjson.dumps(body)
            )
        except GatewayError as error:
            raise Lost(type(error).__name__) from error
        try:
            if response.status != 200:
                await self._refuse(response)
            raw = await self._read(response, began_s)
        finally:
            await response.aclose()
        return _streamed(raw) if stream else _whole(raw)

    async def _refuse(self, response: Response) -> None:
        after = dict(response.headers).get(b"retry-after")
        body = await response.read_all(_BODY_BYTES)
        if response.status in (429, 503) and after is not None:
            raise _Refused(float(after))
        raise Lost(f"status {response.status}: {body[:160].decode(errors='replace')}")

    async def _read(self, response: Response, began_s: float) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := await response.read():
                if not pieces:
                    self.tally.first_s.append(self.clock() - began_s)
                pieces.append(piece)
        except GatewayError as error:
            if pieces:
                raise Wrong(f"cut: {type(error).__name__}") from error
            raise Lost(type(error).__name__) from error
        if not pieces:
            raise Lost("an empty answer")
        return b"".join(pieces)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return


class _Refused(Exception):
    def __init__(self, after_s: float) -> None:
        super().__init__(after_s)
        self.after_s = max(0.1, after_s)


def _streamed(raw: bytes) -> str:
    text: list[str] = []
    for line in raw.split(b"\n"):
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = orjson.loads(line[6:])
        if "error" in event:
            raise (Wrong if text else Lost)("an error event")
        text += [(choice.get("delta") or {}).get("content") or "" for choice in event["choices"]]
    if b"data: [DONE]" not in raw:
        raise Wrong("a stream without its end")
    return "".join(text)


def _whole(raw: bytes) -> str:
    return str(orjson.loads(raw)["choices"][0]["message"]["content"])
