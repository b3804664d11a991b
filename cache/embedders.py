"""The embedders: texts in, unit vectors out (the Embedder protocol, plus `fits`).

An embedder never truncates: a text beyond its window raises CacheError, and `fits` tells
beforehand. Two long prompts that differ in their last line only would otherwise share a vector.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.cache import minilm
from tierway.cache.encoder_client import (
    START_S,
    EncoderClient,
    Launch,
    launch_encoder,
    launch_pair,
    private_folder,
)
from tierway.cache.encoder_models import DIM, encoder_id, missing_of_the_pair, pair_id
from tierway.policies.errors import CacheError
from tierway.policies.lexicon import language_of

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

log = logging.getLogger(__name__)

MAX_CHARS = 2000
"""Window of the built-in encoder. USE has none of its own: it averages over all tokens, so a
long text costs in proportion and one differing sentence drowns. 2,000 characters are about
400 English words (60 ms of CPU)."""


def unit_rows(rows: Vectors, count: int, dim: int) -> Vectors:
    """The rows scaled to unit length; raises CacheError for a wrong shape, NaN, inf or zero."""
    if rows.shape != (count, dim):
        raise CacheError(f"the encoder returned shape {rows.shape}, not {(count, dim)}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or (lengths < 1e-6).any():
        raise CacheError("the encoder returned a vector that is not finite or is zero")
    return np.ascontiguousarray(rows / lengths, dtype=np.float32)


class BuiltinEmbedder:
    """USE multilingual v3 in a process of its own, shared by all workers of the host.

    English, Chinese and 14 other languages in one space; about 6 ms of CPU a question.
    `folder` holds the socket (mode 0700, this user's; made when it is not given).
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        launch: Launch = launch_encoder,
        start_s: float = START_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._id = encoder_id()
        self._folder, self._launch, self._start_s = folder, launch, start_s
        self._client: EncoderClient | None = None
        self.max_chars = max_chars

    @property
    def id(self) -> str:
        return self._id

    @property
    def dim(self) -> int:
        return DIM

    def fits(self, text: str) -> bool:
        return len(text) <= self.max_chars

    async def start(self) -> None:
        """Returns when the encoder answers (2 s for the first on a host); else CacheError."""
        if self._client is not None:
            return
        path = (self._folder or private_folder()) / f"encoder-{self._id}.sock"
        client = EncoderClient(path, id=self._id, launch=self._launch, start_s=self._start_s)
        await client.start()
        self._client = client

    async def encode(self, texts: Sequence[str]) -> Vectors:
        if self._client is None:
            raise CacheError("the encoder was not started")
        if not texts:
            return np.empty((0, DIM), np.float32)
        refuse_long(texts, self.fits)
        raw = await self._client.encode(texts)
        if len(raw) != len(texts) * DIM * 4:
            raise CacheError(f"the encoder returned {len(raw)} bytes for {len(texts)} texts")
        rows = np.frombuffer(raw, dtype="<f4").reshape(len(texts), DIM)
        return unit_rows(rows, len(texts), DIM)

    async def warm(self, questions: Sequence[str]) -> None:
        """Has the models loaded that questions like these will want: a text of each language
        is encoded, so that after a restart no request waits for it."""
        samples = {language_of(text): text for text in questions if self.fits(text)}
        if samples:
            try:
                await self.encode(list(samples.values()))
            except CacheError as fault:
                log.warning("encoder: %s", fault)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class PairEmbedder(BuiltinEmbedder):
    """The same process with MiniLM for English beside USE for Chinese and all else.

    One id and one size for both: see encoder_models.Pair. MiniLM tells English questions apart
    better and costs twice as much (10 ms of CPU alone, 6 in company). An English text beyond its
    window does not fit, and is never cut. Where the English model is not installed this is the
    BuiltinEmbedder, id and process included, and a warning says so.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        launch: Launch = launch_pair,
        start_s: float = START_S,
        max_chars: int = MAX_CHARS,
    ) -> None:
        missing = missing_of_the_pair()
        if missing:
            log.warning("%s is not installed: English too is encoded by USE", missing)
            launch = launch_encoder
        super().__init__(folder=folder, launch=launch, start_s=start_s, max_chars=max_chars)
        self._english = not missing
        if self._english:
            self._id = pair_id()

    def fits(self, text: str) -> bool:
        if self._english and language_of(text) == "en":
            return minilm.fits(text)
        return super().fits(text)


class SentenceTransformersEmbedder:
    """Any sentence-transformers model, in this process, on one thread of its own.

    Needs the extra `tierway[sentence-transformers]`. `dim` is known once started. A cache with
    a model that has no calibration stores vectors and serves nothing by meaning.
    """

    def __init__(self, model: str, *, device: str = "cpu") -> None:
        self._name, self._device = model, device
        self._model: Any = None
        self._dim = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    @property
    def id(self) -> str:
        # The same model whether loaded by its name on a hub or from a folder of that name.
        return f"sentence-transformers-{Path(self._name).name}"

    @property
    def dim(self) -> int:
        if not self._dim:
            raise CacheError(f"the size of {self._name}'s vectors is known once it has started")
        return self._dim

    def fits(self, text: str) -> bool:
        window = self._model.max_seq_length if self._model is not None else None
        return window is None or len(self._model.tokenizer(text)["input_ids"]) <= window

    async def start(self) -> None:
        if self._model is None:
            self._model = await self._run(self._load)
            self._dim = int(self._model.get_sentence_embedding_dimension())

    async def encode(self, texts: Sequence[str]) -> Vectors:
        if self._model is None:
            raise CacheError("the encoder was not started")
        if not texts:
            return np.empty((0, self.dim), np.float32)
        return unit_rows(await self._run(lambda: self._encode(texts)), len(texts), self.dim)

    async def aclose(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    def _load(self) -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as fault:
            raise CacheError(
                "embedder sentence-transformers needs: pip install 'tierway[sentence-transformers]'"
            ) from fault
        return SentenceTransformer(self._name, device=self._device)

    def _encode(self, texts: Sequence[str]) -> Vectors:
        refuse_long(texts, self.fits)
        rows = self._model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(rows, dtype=np.float32)

    async def _run(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except CacheError:
            raise
        except Exception as fault:  # Whatever a foreign model raises is trouble of the cache.
            raise CacheError(f"{self._name}: {type(fault).__name__}: {fault}") from fault


class ScriptedEmbedder:
    """A fake for tests and demonstrations: each text has the vector it was given.

    Vectors are scaled to unit length; a text without one gets `otherwise(text)`, or raises
    CacheError where that is None. `before` is awaited first: make it slow or let it raise.
    `texts` lists what was encoded, call by call.
    """

    def __init__(
        self,
        vectors: Mapping[str, Sequence[float]],
        *,
        dim: int = 2,
        id: str = "scripted",
        otherwise: Callable[[str], Sequence[float]] | None = None,
        before: Callable[[], Awaitable[None]] | None = None,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self.vectors = dict(vectors)
        self.texts: list[tuple[str, ...]] = []
        self.started = False
        self._id, self._dim, self._otherwise, self._before = id, dim, otherwise, before
        self.max_chars = max_chars

    @property
    def id(self) -> str:
        return self._id

    @property
    def dim(self) -> int:
        return self._dim

    def fits(self, text: str) -> bool:
        return len(text) <= self.max_chars

    async def start(self) -> None:
        self.started = True

    async def encode(self, texts: Sequence[str]) -> Vectors:
        refuse_long(texts, self.fits)
        self.texts.append(tuple(texts))
        if self._before is not None:
            await self._before()
        rows = np.array([self._vector(text) for text in texts], dtype=np.float32)
        return unit_rows(rows.reshape(len(texts), -1 if texts else self._dim), len(texts), self.dim)

    async def aclose(self) -> None:
        self.started = False

    def _vector(self, text: str) -> Sequence[float]:
        if text in self.vectors:
            return self.vectors[text]
        if self._otherwise is None:
            raise CacheError(f"no vector was scripted for {text!r}")
        return self._otherwise(text)


def refuse_long(texts: Sequence[str], fits: Callable[[str], bool]) -> None:
    """Raises CacheError for a text that does not fit."""
    for text in texts:
        if not fits(text):
            raise CacheError(f"a text of {len(text)} characters is beyond the encoder's window")
