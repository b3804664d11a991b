"""The built-in pair: English by one model, the rest by another, under one id."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tierway.cache import embedders
from tierway.cache.embedders import BuiltinEmbedder, PairEmbedder
from tierway.cache.encoder_models import DIM, encoder_id, missing_of_the_pair, pair_id
from tierway.policies.errors import CacheError

ENGLISH, CHINESE = "What is the capital of France?", "法国的首都是哪里？"
complete = pytest.mark.skipif(
    bool(missing_of_the_pair()), reason="the English model is not installed"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's path, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="tw") as name:
        yield Path(name)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(embedders, "missing_of_the_pair", lambda: "onnxruntime")
    return "onnxruntime"


def sockets(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.sock")]


def test_without_the_english_model_it_is_use_alone_and_says_so(
    folder: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = PairEmbedder(folder=folder)
    assert embedder.id == encoder_id() == BuiltinEmbedder(folder=folder).id
    assert f"{lacking} is not installed" in caplog.text
    assert embedder.fits("a question " * 150)

    async def main() -> None:
        await embedder.start()
        assert (await embedder.encode([ENGLISH])).shape == (1, DIM)
        assert sockets(folder) == [f"encoder-{encoder_id()}.sock"]
        await embedder.aclose()

    asyncio.run(main())


@complete
def test_its_id_is_neither_models_alone() -> None:
    embedder = PairEmbedder()
    assert embedder.id == pair_id() != encoder_id()
    assert embedder.dim == DIM


@complete
def test_the_window_is_that_of_the_model_the_language_picks(folder: Path) -> None:
    embedder = PairEmbedder(folder=folder)
    assert embedder.fits("What is the meaning of this? " * 15)
    assert not embedder.fits("What is the meaning of this? " * 20)
    assert embedder.fits("这是什么意思？" * 100)
    assert not embedder.fits("这是什么意思？" * 300)

    async def main() -> None:
        await embedder.start()
        with pytest.raises(CacheError, match="window"):
            await embedder.encode([CHINESE, "What is the meaning of this? " * 20])
        await embedder.aclose()

    asyncio.run(main())


@complete
def test_both_languages_share_a_process_and_never_a_neighbourhood(folder: Path) -> None:
    async def main() -> None:
        embedder = PairEmbedder(folder=folder)
        await embedder.start()
        rows = await embedder.encode([ENGLISH, CHINESE, "Name the capital of France"])
        assert rows.shape == (3, DIM)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
        assert rows[0] @ rows[2] > 0.8
        assert abs(rows[0] @ rows[1]) < 0.2
        assert not rows[0, 384:].any()
        assert rows[1, 384:].any()
        assert len(sockets(folder)) == 1
        await embedder.aclose()

    asyncio.run(main())
