"""Users in conversations, over HTTP: the closed loop of the live balancing benchmark.

Each user takes a conversation and asks its turns one after the other, every question together
with all that was said before, so that whoever holds the conversation's KV cache need read only
the newest turn. Answers stream; a first token is the first event with content, and the tokens of
prompt, answer and cache are those that the engine reports at the end.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from tierway.bench.load_clients import Wrong
from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Clock
from tierway.router.sse import payloads
from tierway.router.transport import Origin, Response, Transport

_FIRST = re.compile(rb'"content":"[^"]')
_BODY_BYTES = 1 << 20
_USERS_S = 600.0  # per answer
_TEMPLATE_TOKENS = 12  # of the engine's chat template and the directive, about
# fmt: off
_WORDS = (
    "apricot", "badger", "barley", "basalt", "canyon", "cedar", "cobalt", "comet", "copper",
    "coral", "cotton", "dagger", "ember", "falcon", "fennel", "fjord", "garnet", "ginger",
    "glacier", "granite", "harbor", "hazel", "heron", "indigo", "island", "ivory", "jasper",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Talk:
    """The load: `sessions` conversations of `turns` turns, `concurrency` of them at a time."""

    sessions: int = 60
    turns: int = 5
    prompt_tokens: int = 200
    output_tokens: int = 800
    concurrency: int = 20


@dataclass(frozen=True, slots=True)
class Told:
    """One answer; times on the clients' clock. `replica` is empty where nobody named it."""

    began_s: float
    first_s: float
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    replica: str


@dataclass(slots=True)
class Heard:
    """All answers of one run, and what went wrong by kind."""

    answers: list[Told] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0


async def converse(
    url: str,
    model: str,
    talk: Talk,
    *,
    seed: str,
    clock: Clock,
    progress: Callable[[], None] = lambda: None,
) -> Heard:
    """Holds all conversations. Another `seed` says other things, so that no cache knows them;
    a conversation ends with its first fault."""
    users = min(talk.concurrency, talk.sessions)
    transport = Transport(connect_timeout_s=30.0, max_connections=users)
    heard = Heard()
    sessions = iter(range(talk.sessions))
    origin = Origin.parse(url)

    async def user() -> None:
        for session in sessions:
            try:
                await _session(transport, origin, model, talk, f"{seed}-{session}", clock, heard)
            except TimeoutError:
                heard.faults["no answer in time"] += 1
            except Wrong as fault:
                heard.faults[str(fault)] += 1
            except GatewayError as fault:
                heard.faults[fault.public] += 1
            progress()

    began = clock()
    try:
        await asyncio.gather(*(user() for _ in range(users)))
    finally:
        await transport.aclose()
    heard.wall_s = clock() - began
    return heard


async def _session(
    transport: Transport,
    origin: Origin,
    model: str,
    talk: Talk,
    name: str,
    clock: Clock,
    heard: Heard,
) -> None:
    draw = random.Random(name)
    turns: list[dict[str, str]] = []
    for number in range(talk.turns):
        question = _question(name, number, talk, draw)
        turns.append({"role": "user", "content": question})
        async with asyncio.timeout(_USERS_S):
            told, text = await _ask(transport, origin, model, turns, clock)
        heard.answers.append(told)
        turns.append({"role": "assistant", "content": text})


def _question(name: str, turn: int, talk: Talk, draw: random.Random) -> str:
    """About as many tokens of the simulated engine as asked for: a word is one."""
    words = draw.choices(_WORDS, k=max(1, talk.prompt_tokens - _TEMPLATE_TOKENS))
    return f"{name} {turn}: {' '.join(words)} [[answer {talk.output_tokens}]]"


async def _ask(
    transport: Transport,
    origin: Origin,
    model: str,
    turns: list[dict[str, str]],
    clock: Clock,
) -> tuple[Told, str]:
    body = {
        "model": model,
        "messages": turns,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = [(b"content-type", b"application/json")]
    began_s = clock()
    response = await transport.request(
        origin, b"POST", b"/v1/chat/completions", headers, orjson.dumps(body)
    )
    try:
        if response.status != 200:
            await response.read_all(_BODY_BYTES)
            raise Wrong(f"status {response.status}")
        first_s, raw = await _read(response, clock)
    finally:
        await response.aclose()
    usage, text = _parsed(raw)
    told = Told(
        began_s=began_s,
        first_s=first_s,
        ended_s=clock(),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        output_tokens=usage["completion_tokens"],
        replica=dict(response.headers).get(b"x-tierway-replica", b"").decode(),
    )
    return told, text


async def _read(response: Response, clock: Clock) -> tuple[float, bytes]:
    """When the first content came, and the whole stream; it is parsed only after its end, so
    that the clients take little time from whom they measure."""
    pieces: list[bytes] = []
    first_s: float | None = None
    while piece := await response.read():
        pieces.append(piece)
        if first_s is None and _FIRST.search(piece):
            first_s = clock()
    if first_s is None:
        raise Wrong("a stream without content")
    return first_s, b"".join(pieces)


def _parsed(raw: bytes) -> tuple[dict[str, Any], str]:
    """The usage and the text of a stream."""
    usage: dict[str, Any] | None = None
    text: list[str] = []
    done = False
    for payload in payloads(raw):
        if payload == b"[DONE]":
            done = True
            continue
        event = orjson.loads(payload)
        usage = event.get("usage") or usage
        text += [(choice.get("delta") or {}).get("content") or "" for choice in event["choices"]]
    if usage is None or not done:
        raise Wrong("a stream without usage or end")
    return usage, "".join(text)
