"""Fakes of the contracts, for tests here and in other projects."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from tierway.policies.equivalence import Verdict
from tierway.policies.errors import GatewayError
from tierway.policies.evidence import COLUMNS, closeness
from tierway.policies.types import Ask, Call, Controls, Head, Source, Turn, Usage
from tierway.policies.verifier import Scale, Verifier

JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream"),)


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def plain_verifier(
    cosine: float = 0.9,
    *,
    encoder: str = "scripted",
    error_rate: float = 0.01,
    slope: float = 1.5,
    languages: Sequence[str] = ("en",),
) -> Verifier:
    """Sure but for `error_rate` of questions of equal words from this cosine on, and of no
    others; with a slope of 0 at any cosine."""
    equal = 20.0
    weights = {"closeness": slope, "same-words": equal}
    sure = math.log((1 - error_rate) / error_rate)
    bias = sure - equal - slope * closeness(cosine) + 1e-6
    scale = Scale(tuple([weights.get(name, -1e-9) for name in COLUMNS]), bias)
    return Verifier(encoder, dict.fromkeys(languages, scale))


def make_call(
    question: str = "What is the capital of France?",
    *,
    model: str = "auto",
    stream: bool = False,
    tenant: str = "",
    controls: Controls = Controls(),  # noqa: B008 - frozen
    **fields: Any,
) -> Call:
    """A chat call with one user turn; `fields` go into its body."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        **({"stream": True} if stream else {}),
        **fields,
    }
    turns = tuple(Turn(m["role"], str(m["content"])) for m in body["messages"])
    return Call(
        id="req_test",
        wire="chat",
        raw=orjson.dumps(body),
        body=body,
        ask=Ask(turns, question, text_bytes=sum(len(t.text.encode()) for t in turns)),
        model=model,
        stream=stream,
        tenant=tenant,
        controls=controls,
    )


def completion(text: str = "Paris.", **fields: Any) -> dict[str, Any]:
    """A complete chat answer."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        **fields,
    }


def event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def chunk(content: str | None = None, *, finish: str | None = None, **delta: Any) -> bytes:
    """One event of a chat stream."""
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "fake",
            "choices": [choice],
        }
    )


def stream_of(*words: str) -> list[bytes]:
    """The events of a whole chat stream."""
    return [
        chunk(role="assistant", content=""),
        *(chunk(word) for word in words),
        chunk(finish="stop"),
        b"data: [DONE]\n\n",
    ]


class FakeAnswer:
    """Chunks, exceptions to raise, and events to wait for, in order."""

    def __init__(
        self,
        steps: Sequence[bytes | BaseException | asyncio.Event],
        *,
        source: Source = Source("small", "m", "m@a:1"),  # noqa: B008 - frozen
        stream: bool = False,
        usage: Usage | None = None,
    ) -> None:
        self.head = Head(200, EVENTS if stream else JSON, "chat", stream)
        self.source, self.usage = source, usage
        self.steps = list(steps)
        self.closed = 0

    async def read(self) -> bytes:
        while self.steps:
            step = self.steps[0]
            if isinstance(step, asyncio.Event):
                await step.wait()
                self.steps.pop(0)
                continue
            self.steps.pop(0)
            if isinstance(step, BaseException):
                raise step
            return step
        return b""

    async def aclose(self) -> None:
        self.closed += 1


Script = GatewayError | FakeAnswer | Callable[[Call], Awaitable[FakeAnswer]]


class ScriptedUpstream:
    """Answers calls from a list; the last item is for all that follow."""

    def __init__(self, *script: Script) -> None:
        self.script = list(script)
        self.calls: list[Call] = []
        self.answers: list[FakeAnswer] = []

    async def open(self, call: Call, source: Source) -> FakeAnswer:
        self.calls.append(call)
        item = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(item, GatewayError):
            raise item
        answer = item if isinstance(item, FakeAnswer) else await item(call)
        answer.source = source
        self.answers.append(answer)
        return answer

    async def aclose(self) -> None:
        pass


class Band:
    """An Equivalence of its own: serves from a cosine of 0.99 on, is uncertain from 0.8 on, and
    vetoes a stored "not"."""

    def floor(self, encoder: str, language: str) -> float:
        return 0.7

    def judge(self, asked: Any, stored: Any, cosine: float, *_: Any, **__: Any) -> Verdict:
        if "not" in stored.text:
            return Verdict(False, "negation")
        if cosine >= 0.99:
            return Verdict(True, "equal", 0.999)
        return Verdict(False, "below", cosine, uncertain=cosine >= 0.8)


async def until(condition: Callable[[], bool], *, rounds: int = 10_000) -> None:
    """Lets other tasks run until the condition holds; fails after so many rounds. The later
    ones last a millisecond each, in which other threads get on too."""
    for turn in range(rounds):
        if condition():
            return
        await asyncio.sleep(0 if turn < 1_000 else 0.001)
    raise AssertionError("the condition never came true")
