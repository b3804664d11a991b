"""The contract of an Embedder, with the encoder that is built in and with the fake."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tierway.cache.embedders import BuiltinEmbedder, PairEmbedder, ScriptedEmbedder
from tierway.cache.remote_embedder import OpenAIEmbedder
from tierway.policies.errors import CacheError
from tierway.policies.protocols import Embedder

TEXTS = ["What is the capital of France?", "法国的首都是哪里？", "", "😀 \n\t", "a" * 2000]
Make = Callable[[Path], Embedder]


def builtin(folder: Path) -> Embedder:
    return BuiltinEmbedder(folder=folder)


def pair(folder: Path) -> Embedder:
    return PairEmbedder(folder=folder)


def remote(folder: Path) -> Embedder:
    async def post(body: bytes) -> tuple[int, bytes]:
        vectors = [[1.0 + len(text), 1.0, -1.0] for text in orjson.loads(body)["input"]]
        return 200, orjson.dumps({"data": [{"embedding": vector} for vector in vectors]})

    return OpenAIEmbedder(post, "m", max_chars=2000)


def scripted(folder: Path) -> Embedder:
    return ScriptedEmbedder({}, dim=3, otherwise=lambda text: [1.0 + len(text), 1.0, -1.0])


anybody = pytest.mark.parametrize(
    "make", [builtin, pair, remote, scripted], ids=lambda make: make.__name__
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Of all tests here: they share one encoder process, which starts once."""
    with tempfile.TemporaryDirectory(prefix="tw") as name:
        yield Path(name)


def run(embedder: Embedder, test: Callable[[Embedder], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await embedder.start()
        try:
            await asyncio.wait_for(test(embedder), 60)
        finally:
            await embedder.aclose()
            await embedder.aclose()

    asyncio.run(main())


@anybody
def test_rows_are_unit_vectors_of_its_dimension_in_the_order_of_the_texts(
    make: Make, folder: Path
) -> None:
    async def main(embedder: Embedder) -> None:
        assert embedder.id
        texts = [text for text in TEXTS if embedder.fits(text)]
        together = await embedder.encode(texts)
        assert together.shape == (len(texts), embedder.dim)
        assert together.dtype == np.float32
        assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
        for text, row in zip(texts, together, strict=True):
            (alone,) = await embedder.encode([text])
            assert float(alone @ row) > 0.999
        assert (await embedder.encode([])).shape == (0, embedder.dim)

    run(make(folder), main)


@anybody
def test_what_does_not_fit_is_refused_and_never_cut(make: Make, folder: Path) -> None:
    async def main(embedder: Embedder) -> None:
        long = "a" * 2001
        assert embedder.fits(TEXTS[0])
        assert not embedder.fits(long)
        with pytest.raises(CacheError):
            await embedder.encode(["short", long])

    run(make(folder), main)


@anybody
def test_starting_twice_and_many_at_once_are_fine(make: Make, folder: Path) -> None:
    async def main(embedder: Embedder) -> None:
        await embedder.start()
        rows = await asyncio.gather(*(embedder.encode([f"text {n % 3}"]) for n in range(12)))
        for number, row in enumerate(rows):
            assert np.allclose(row, rows[number % 3], atol=1e-4)

    run(make(folder), main)
