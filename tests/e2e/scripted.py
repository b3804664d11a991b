"""Encoders, named in a configuration's place by their class, and an engine: all do as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from e2e.servers import SPEED

from tierway.bench.engine_http import HttpRequest, Reply
from tierway.bench.engine_server import EngineServer
from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.encoder_models import pair_id
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError


async def _never() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    raise CacheError("this encoder fails because it was told to")


def _same(_: str) -> Sequence[float]:
    return (1.0, 0.0)


def _not_a_number(_: str) -> Sequence[float]:
    return (float("nan"), 1.0)


class SameForAll(ScriptedEmbedder):
    """Every text has the same vector: cosine 1 between any two."""

    def __init__(self) -> None:
        super().__init__({}, id=pair_id(), otherwise=_same)


class Sleeping(ScriptedEmbedder):
    """Answers the first text and then never again."""

    def __init__(self) -> None:
        super().__init__({}, id=pair_id(), otherwise=_same, before=self._stuck)

    async def _stuck(self) -> None:
        if len(self.texts) > 1:
            await _never()


class Raising(ScriptedEmbedder):
    """Answers the first text and raises from then on."""

    def __init__(self) -> None:
        super().__init__({}, id=pair_id(), otherwise=_same, before=self._broken)

    async def _broken(self) -> None:
        if len(self.texts) > 1:
            await _fail()


class NotANumber(ScriptedEmbedder):
    """Vectors of NaN from the second text on."""

    def __init__(self) -> None:
        super().__init__({}, id=pair_id(), otherwise=self._vector_of)

    def _vector_of(self, text: str) -> Sequence[float]:
        return _not_a_number(text) if len(self.texts) > 1 else _same(text)


class NeverStarts(ScriptedEmbedder):
    """Does not come up."""

    def __init__(self) -> None:
        super().__init__({}, id=pair_id())

    async def start(self) -> None:
        await _fail()


TIDES, TIDES_TOO = "How do the tides of the sea work?", "How do the tides of the sea come about?"


class InDoubt(ScriptedEmbedder):
    """Puts TIDES_TOO as near to TIDES as leaves the shipped calibration in doubt."""

    def __init__(self) -> None:
        cosine = doubtful_cosine()
        vectors = {TIDES: (1.0, 0.0), TIDES_TOO: (cosine, (1 - cosine**2) ** 0.5)}
        super().__init__(vectors, id=pair_id(), otherwise=_same)


def doubtful_cosine() -> float:
    """The middle of the cosines at which the pair is neither served nor ruled out."""
    judge = Equivalence.shipped()
    steps = [1 - step / 500 for step in range(250)]
    found = [
        cosine
        for cosine in steps
        if judge.judge(TIDES_TOO, TIDES, cosine, pair_id()).uncertain
        and cosine >= judge.floor(pair_id(), "en")
    ]
    assert found, "no cosine leaves this pair in doubt"
    return found[len(found) // 2]


class JudgeEngine(EngineServer):
    """A simulated engine that has an opinion: `yes` to (asked, stored) pairs among `same`.

    `judged` lists what it was asked; `stuck` lets it never answer that, `broken` fail.
    """

    def __init__(self, *same: tuple[str, str]) -> None:
        super().__init__("8b-l40s", model="sim-7b", speed=SPEED)
        self.same = set(same)
        self.judged: list[tuple[str, str]] = []
        self.stuck = self.broken = False

    async def _infer(self, request: HttpRequest, reply: Reply) -> None:
        body = json.loads(request.body)
        if body.get("max_tokens") != 1:
            await super()._infer(request, reply)
            return
        pair = json.loads(body["messages"][-1]["content"].partition("\n\n")[0])
        self.judged.append((pair["first"], pair["second"]))
        if self.stuck:
            await _never()
        if self.broken:
            reply.send(500, b"{}")
            return
        word = "yes" if self.judged[-1] in self.same else "no"
        message = {"role": "assistant", "content": word}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        document = {"id": "j", "object": "chat.completion", "created": 1, "choices": [choice]}
        reply.send(200, json.dumps({**document, "model": self.model}).encode())
