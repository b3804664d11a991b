"""Encoders that misbehave, named in a configuration's place by their class."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.encoder_models import encoder_id
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
        super().__init__({}, id=encoder_id(), otherwise=_same)


class Sleeping(ScriptedEmbedder):
    """Answers the first text and then never again."""

    def __init__(self) -> None:
        super().__init__({}, id=encoder_id(), otherwise=_same, before=self._stuck)

    async def _stuck(self) -> None:
        if len(self.texts) > 1:
            await _never()


class Raising(ScriptedEmbedder):
    """Answers the first text and raises from then on."""

    def __init__(self) -> None:
        super().__init__({}, id=encoder_id(), otherwise=_same, before=self._broken)

    async def _broken(self) -> None:
        if len(self.texts) > 1:
            await _fail()


class NotANumber(ScriptedEmbedder):
    """Vectors of NaN from the second text on."""

    def __init__(self) -> None:
        super().__init__({}, id=encoder_id(), otherwise=self._vector_of)

    def _vector_of(self, text: str) -> Sequence[float]:
        return _not_a_number(text) if len(self.texts) > 1 else _same(text)


class NeverStarts(ScriptedEmbedder):
    """Does not come up."""

    def __init__(self) -> None:
        super().__init__({}, id=encoder_id())

    async def start(self) -> None:
        await _fail()
