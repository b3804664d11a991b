"""The judges: the cross-encoder with a model that is a table, and the scripted one."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tierway.cache.opinion import CrossEncoderOpinion, ScriptedOpinion, probabilities
from tierway.policies.errors import CacheError

SAME, DIFFERENT = ("How do tides work?", "What makes tides work?"), ("one", "two")
INSTALLED = importlib.util.find_spec("sentence_transformers") is not None


class Model:
    """The cross-encoder of sentence-transformers, as far as it is used."""

    made: tuple[Any, ...] = ()

    def __init__(self, name: str, **options: Any) -> None:
        if name == "absent":
            raise OSError("no such model")
        Model.made = (name, options["device"], type(options["activation_fn"]))

    def predict(self, pairs: Sequence[Sequence[str]], **options: Any) -> Any:
        assert options == {"convert_to_numpy": True, "show_progress_bar": False}
        if any("odd" in pair for pair in pairs):
            return np.zeros((len(pairs), 3), np.float32)
        return np.array([-2.0 if pair == list(DIFFERENT) else 4.0 for pair in pairs], np.float32)


class Identity:
    pass


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two foreign modules, faked."""
    for name, content in (
        ("sentence_transformers", {"CrossEncoder": Model}),
        ("torch", {}),
        ("torch.nn", {"Identity": Identity}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("models")
def test_the_sigmoid_of_the_models_own_number_is_the_probability() -> None:
    async def main() -> None:
        judge = CrossEncoderOpinion("some/model")
        await judge.start()
        assert Model.made == ("some/model", "cpu", Identity)
        assert await judge.judge([SAME, DIFFERENT]) == [
            pytest.approx(0.982, abs=1e-3),
            pytest.approx(0.119, abs=1e-3),
        ]
        assert await judge.judge([]) == []
        await judge.aclose()
        with pytest.raises(CacheError, match="not started"):
            await judge.judge([SAME])

    asyncio.run(main())


@pytest.mark.usefixtures("models")
def test_trouble_of_the_model_is_trouble_of_the_cache() -> None:
    async def main() -> None:
        absent = CrossEncoderOpinion("absent")
        with pytest.raises(CacheError, match="absent: OSError: no such model"):
            await absent.start()
        await absent.aclose()
        judge = CrossEncoderOpinion("some/model")
        await judge.start()
        with pytest.raises(CacheError, match="shape"):
            await judge.judge([("odd", "odd")])
        await judge.aclose()

    asyncio.run(main())


@pytest.mark.skipif(INSTALLED, reason="sentence-transformers is installed")
def test_without_the_package_it_says_what_to_install() -> None:
    async def main() -> None:
        judge = CrossEncoderOpinion("some/model")
        with pytest.raises(CacheError, match=r"pip install 'tierway\[sentence-transformers\]'"):
            await judge.start()
        await judge.aclose()

    asyncio.run(main())


def test_one_number_or_two_labels_make_a_probability() -> None:
    assert probabilities(np.array([0.0, 1000.0]), 2) == [0.5, pytest.approx(1.0)]
    assert probabilities(np.array([[0.0]]), 1) == [0.5]
    assert probabilities(np.array([[0.0, 0.0], [3.0, -1000.0]]), 2) == [0.5, pytest.approx(0.0)]
    for shape in ((2, 3), (3,), (2, 2, 2)):
        with pytest.raises(CacheError):
            probabilities(np.zeros(shape), 2)


def test_a_scripted_judge_errs_as_often_as_it_is_told() -> None:
    labels = {(f"a{n}", f"b{n}"): n % 3 == 0 for n in range(2000)}
    judge = ScriptedOpinion(labels, 0.9, seed=7)
    right = [(judge.opinion(*pair) > 0.5) == same for pair, same in labels.items()]
    assert 0.88 < sum(right) / len(right) < 0.92
    again = ScriptedOpinion(labels, 0.9, seed=7)
    assert all(judge.opinion(*pair) == again.opinion(*pair) for pair in labels)
    other = ScriptedOpinion(labels, 0.9, seed=8)
    assert any(judge.opinion(*pair) != other.opinion(*pair) for pair in labels)


def test_a_scripted_judge_knows_pairs_both_ways_and_no_others() -> None:
    judge = ScriptedOpinion({SAME: True})
    assert judge.opinion(*SAME) == judge.opinion(*reversed(SAME)) == 0.95
    assert judge.opinion("what", "else") == 0.05
