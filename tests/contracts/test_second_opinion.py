"""The contract of a SecondOpinion, over all that there are."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import orjson
import pytest
from fakes import FakeAnswer, FakeClock, ScriptedUpstream, completion

from tierway.cache.opinion import CrossEncoderOpinion, ScriptedOpinion
from tierway.policies.policyset import PolicySet
from tierway.policies.protocols import SecondOpinion
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import Call, Model, Tier
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.dispatch import Dispatcher
from tierway.router.fleet import Fleet
from tierway.router.opinion import TierOpinion
from tierway.router.replica import ReplicaSpec

PAIRS = [("How do tides work?", "What makes tides work?"), ("一", "二"), ("", "a" * 400)]


class _Model:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def predict(self, pairs: Sequence[Any], **_: Any) -> Any:
        return np.array([float(len(pair[1]) - 3) for pair in pairs])


def scripted(monkeypatch: pytest.MonkeyPatch) -> SecondOpinion:
    return ScriptedOpinion({PAIRS[0]: True}, 0.5)


def cross_encoder(monkeypatch: pytest.MonkeyPatch) -> SecondOpinion:
    for name, content in (
        ("sentence_transformers", {"CrossEncoder": _Model}),
        ("torch", {}),
        ("torch.nn", {"Identity": object}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return CrossEncoderOpinion("some/model")


def tier(monkeypatch: pytest.MonkeyPatch) -> SecondOpinion:
    async def answer(call: Call) -> FakeAnswer:
        word = "yes" if "tides" in call.ask.question else "no"
        return FakeAnswer([orjson.dumps(completion(word))])

    made = Tier("small", 0, "7b", (Model("s", "small"),))
    clock = FakeClock()
    fleet = Fleet([ReplicaSpec("s@a:1", "s", "small", "")], clock=clock)
    holder = PolicyHolder(PolicySet.build([made]))
    dispatcher = Dispatcher(
        Balancer(fleet, holder, clock=clock, draw=lambda: 0.0),
        {"s@a:1": ScriptedUpstream(answer)},
        clock=clock,
        budget=RetryBudget(),
    )
    return TierOpinion(dispatcher, made, clock=clock)


Make = Callable[[pytest.MonkeyPatch], SecondOpinion]
everybody = pytest.mark.parametrize(
    "make", [scripted, cross_encoder, tier], ids=lambda m: m.__name__
)


@everybody
def test_one_probability_a_pair_in_their_order_and_the_same_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        judge = make(monkeypatch)
        await judge.start()
        together = await judge.judge(PAIRS)
        assert all(0.0 <= given <= 1.0 for given in together)
        alone = [(await judge.judge([pair]))[0] for pair in PAIRS]
        assert list(together) == pytest.approx(alone)
        assert list(await judge.judge([])) == []
        await judge.aclose()
        await judge.aclose()

    asyncio.run(main())
