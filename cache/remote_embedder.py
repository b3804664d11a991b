"""Any server of the OpenAI wire as an embedder: POST /v1/embeddings, many callers in one call.

A server that hangs must not cost every request its deadline: while a call is under way for
three deadlines, further texts are refused at once, and so again until one is answered.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from tierway.cache.batching import Lane, Room
from tierway.cache.embedders import refuse_long, unit_rows
from tierway.policies.errors import CacheError, GatewayError

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

Post = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Sends a JSON body to the server's /embeddings; status and body of the answer. Raises
GatewayError."""

TIMEOUT_S = 0.3
MAX_CHARS = 400
"""Within 512 tokens, the window of most encoders, in nearly every language; what is longer is
never judged to be the same question anyway. Servers cut silently, so this must not be too much."""
PARALLEL = 8
STALLS = 3
_CALL_S = 5.0
_PROBE_S = 5.0
_OF_THE_TEXTS = (400, 413, 422)


class OpenAIEmbedder:
    """`dim` is learnt from the first answer where it is not given; then the server must be
    there at the start. A row is the server's vector at unit length. `timeout_s` is the deadline
    of a text that somebody waits for, kept by the caller."""

    def __init__(
        self,
        post: Post,
        model: str,
        *,
        dim: int | None = None,
        max_chars: int = MAX_CHARS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._post, self._model, self._dim, self._timeout_s = post, model, dim, timeout_s
        self.max_chars = max_chars
        self._format: Literal["base64", "float"] = "base64"
        self._under_way: dict[int, float] = {}
        self._numbers = itertools.count()
        self._lane: Lane[Vectors] | None = None

    @property
    def id(self) -> str:
        """Model and size: its vectors are the same on every server."""
        return f"openai-{self._model}-{self.dim}"

    @property
    def dim(self) -> int:
        if self._dim is None:
            raise CacheError(f"the size of {self._model}'s vectors is known once it has started")
        return self._dim

    def fits(self, text: str) -> bool:
        return len(text) <= self.max_chars

    async def start(self) -> None:
        """Asks for one vector. Raises CacheError when there is none and `dim` is not given, or
        when it is of another size than that."""
        if self._lane is not None:
            return
        try:
            async with asyncio.timeout(_PROBE_S):
                found = await self._probe()
        except (TimeoutError, CacheError) as fault:
            if self._dim is None:
                told = fault.public if isinstance(fault, CacheError) else "no answer"
                raise CacheError(f"{told}; cache.embedder.dim would let it start alone") from fault
            found = self._dim
        if self._dim not in (None, found):
            raise CacheError(f"cache.embedder.dim is {self._dim}; {self._model} has {found}")
        self._dim = found
        self._lane = Lane(self._encode, room=Room(chars=32 * self.max_chars), parallel=PARALLEL)

    async def encode(self, texts: Sequence[str]) -> Vectors:
        if self._lane is None:
            raise CacheError("the encoder was not started")
        refuse_long(texts, self.fits)
        now_s = asyncio.get_running_loop().time()
        if any(now_s - began_s > STALLS * self._timeout_s for began_s in self._under_way.values()):
            raise CacheError("the embedding server does not answer")
        rows = await self._lane.encode(texts)
        return np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    async def aclose(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.aclose()

    async def _probe(self) -> int:
        """The size of a vector; learns whether the server knows the compact form."""
        try:
            rows = await self._rows(["ready"])
        except ValueError:
            self._format = "float"
            try:
                rows = await self._rows(["ready"])
            except ValueError as fault:
                raise CacheError(f"the embedding server refuses every text: {fault}") from fault
        return len(rows[0])

    async def _encode(self, texts: list[str]) -> list[Vectors]:
        number = next(self._numbers)
        self._under_way[number] = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_CALL_S):
                rows = await self._rows(texts)
        except TimeoutError as fault:
            raise CacheError(f"no answer within {_CALL_S:g} s") from fault
        finally:
            del self._under_way[number]
        try:
            return list(unit_rows(np.stack(rows), len(texts), self.dim))
        except ValueError as fault:
            raise CacheError("the embedding server's vectors differ in size") from fault

    async def _rows(self, texts: list[str]) -> list[Vectors]:
        """Raises ValueError where the server refuses the texts, CacheError for all else."""
        asked = {"model": self._model, "input": texts, "encoding_format": self._format}
        try:
            body = orjson.dumps(asked)
        except TypeError as fault:  # lone surrogates
            raise ValueError("the text is not valid Unicode") from fault
        try:
            status, answer = await self._post(body)
        except GatewayError as fault:
            raise CacheError(fault.public) from fault
        if status in _OF_THE_TEXTS:
            raise ValueError(f"status {status}: {answer[:200].decode(errors='replace')}")
        if status != 200:
            raise CacheError(f"the embedding server answered with status {status}")
        try:
            return _parsed(orjson.loads(answer), len(texts))
        except (ValueError, KeyError, TypeError, IndexError) as fault:
            raise CacheError(
                f"the embedding server's answer makes no sense: {type(fault).__name__}: {fault}"
            ) from fault


def _parsed(answer: Any, count: int) -> list[Vectors]:
    """The vectors in the order of the texts."""
    items = answer["data"]
    if len(items) != count:
        raise ValueError(f"{len(items)} vectors for {count} texts")
    rows: dict[int, Vectors] = {}
    for place, item in enumerate(items):
        rows[item.get("index", place)] = _vector(item["embedding"])
    return [rows[at] for at in range(count)]


def _vector(given: Any) -> Vectors:
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), dtype="<f4")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused as that
        row: Vectors = np.array(given, dtype=np.float32)
    if row.ndim != 1 or not row.size:
        raise ValueError("an embedding that is no list of numbers")
    return row
