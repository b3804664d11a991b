"""The models of the encoder process: which text goes to which, when they are loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from tierway.cache.encoder_models import DIM, Alone, Pair, made, missing_of_the_pair
from tierway.policies.errors import CacheError

ENGLISH, CHINESE, FRENCH = "What is the capital of France?", "法国的首都是哪里？", "quelle est la"
complete = pytest.mark.skipif(
    bool(missing_of_the_pair()), reason="the English model is not installed"
)


class Scripted:
    """A model of `dim` numbers: ones. It knows what it was asked, and when it was loaded."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.loads = 0
        self.texts: list[str] = []

    def load(self) -> Callable[[list[str]], np.ndarray]:
        self.loads += 1
        return self.encode

    def encode(self, texts: list[str]) -> np.ndarray:
        self.texts += texts
        return np.ones((len(texts), self.dim), np.float32) * len(self.texts)


def vectors(rows: list[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


def test_english_goes_to_one_model_and_the_rest_to_the_other() -> None:
    english, other = Scripted(384), Scripted(DIM)

    async def main() -> None:
        pair = Pair(english.load, other.load)
        found = vectors(await pair.encode([CHINESE, ENGLISH, FRENCH, ENGLISH]))
        assert found.shape == (4, DIM)
        assert (english.texts, other.texts) == ([ENGLISH, ENGLISH], [CHINESE, FRENCH])
        assert [bool(row[384:].any()) for row in found] == [True, False, True, False]
        assert (found[[1, 3], :384] == 2).all()

    asyncio.run(main())


def test_a_model_is_loaded_once_and_only_where_a_text_wants_it() -> None:
    english, other = Scripted(384), Scripted(DIM)

    async def main() -> None:
        pair = Pair(english.load, other.load)
        assert english.loads == other.loads == 0
        await asyncio.gather(*(pair.encode([ENGLISH]) for _ in range(5)))
        assert (english.loads, other.loads) == (1, 0)
        await pair.encode([CHINESE])
        assert (english.loads, other.loads) == (1, 1)

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_fails_its_own_texts_and_says_why() -> None:
    def broken() -> Callable[[list[str]], np.ndarray]:
        raise ImportError("no onnxruntime here")

    async def main() -> None:
        pair = Pair(broken, Scripted(DIM).load)
        with pytest.raises(CacheError, match="ImportError: no onnxruntime here"):
            await pair.encode([CHINESE, ENGLISH])
        assert len(await pair.encode([CHINESE])) == 1

    asyncio.run(main())


def test_use_alone_takes_every_text_and_need_not_wait_for_one() -> None:
    model, other = Scripted(DIM), Scripted(DIM)

    async def main() -> None:
        alone = Alone(model.load)
        await alone.load()
        assert model.loads == 1
        assert len(await alone.encode([ENGLISH, CHINESE])) == 2
        await Pair(other.load, other.load).load()

    asyncio.run(main())
    assert model.texts == [ENGLISH, CHINESE]
    assert (model.loads, other.loads) == (1, 0)


def test_what_the_pair_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierway.cache.encoder_models.find_spec", lambda name: None)
    assert missing_of_the_pair() == "onnxruntime"
    monkeypatch.setattr("tierway.cache.encoder_models.find_spec", lambda name: name)
    monkeypatch.setattr("tierway.cache.encoder_models.MINILM_PACKAGE", "no-such-package")
    assert missing_of_the_pair() == "no-such-package"


@complete
def test_the_pair_tells_questions_apart_in_both_languages() -> None:
    models, name = made("pair")
    assert name.startswith("usem3-")
    assert "+minilm-l6-int8-" in name

    async def main() -> None:
        same, other = "Tell me the capital city of France", "How do I bake bread?"
        zh_same, zh_other = "法国首都在哪里？", "怎么做面包？"
        texts = [ENGLISH, same, other, CHINESE, zh_same, zh_other]
        found = vectors(await models.encode(texts))
        assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
        near = found @ found.T
        assert near[0, 1] > 0.85
        assert near[0, 2] < 0.2
        assert near[3, 4] > 0.7
        assert near[3, 5] < 0.6
        assert np.abs(near[:3, 3:]).max() < 0.2

    asyncio.run(main())
