"""Shadow samples: asked after the hit was served, bounded, compared, and never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
import pytest
from fakes import FakeAnswer, FakeClock, completion, make_call, stream_of

from tierway.cache.journal import Journal
from tierway.cache.lessons import Near, pair_of
from tierway.cache.lookup import Hit
from tierway.cache.memory_store import MemoryStore
from tierway.cache.report import SHADOW, summarise
from tierway.middleware.shadow import Shadow
from tierway.policies.errors import GatewayError, NoCapacity
from tierway.policies.types import Call, Source, Trace

NEAR = Near("e_1", "Capital of France?", 0.98, 0.99, "en")
HIT = Hit("e_1", orjson.dumps(completion("It is Paris.")), Source("small", "m", "cache"), 1.0, 0.98)


class Rig:
    """A shadow before a fleet that answers by script: answers, errors, events to wait for."""

    def __init__(self, *script: Any, share: float = 1.0, at_most: int = 4) -> None:
        self.script, self.calls, self.draw = list(script), list[Call](), 0.0
        self.store = MemoryStore(wall=lambda: 1000.0)
        self.shadow = Shadow(
            share,
            self.open,
            Journal(self.store, lambda: 1000.0, lambda part, error: None),
            draw=lambda: self.draw,
            clock=FakeClock(50.0),
            at_most=at_most,
        )

    async def open(self, call: Call, trace: Trace) -> FakeAnswer:
        self.calls.append(call)
        item = self.script.pop(0)
        if isinstance(item, Exception):
            raise item
        answer: FakeAnswer = item
        return answer

    def serve(self, **fields: Any) -> None:
        call = make_call("What is France's capital?", tenant="acme", **fields)
        self.shadow.consider(call, b"p", call.ask.question, NEAR, HIT)

    async def done(self) -> dict[str, int]:
        async with asyncio.timeout(5):
            while self.shadow._tasks:
                await asyncio.gather(*self.shadow._tasks)
        return {name: count for name, count in self.shadow.counts.items() if count}


def whole(text: Any) -> FakeAnswer:
    return FakeAnswer([orjson.dumps(completion(text))])


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], *script: Any, **options: Any) -> None:
    async def main() -> None:
        rig = Rig(*script, **options)
        await rig.store.start()
        await asyncio.wait_for(test(rig), 10)
        await rig.shadow.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (whole("it is paris"), "same"),
        (whole("Berlin, since 1990."), "different"),
        (whole(None), "failed"),
        (FakeAnswer([b"{"]), "failed"),
        (FakeAnswer([b"x" * 700_000, b"x" * 700_000]), "failed"),
        (FakeAnswer([*stream_of("It is ", "Paris.")], stream=True), "same"),
        (NoCapacity("nobody"), "failed"),
        (GatewayError("broken"), "failed"),
    ],
)
def test_answers_are_compared_and_closed(answer: Any, result: str) -> None:
    async def main(rig: Rig) -> None:
        rig.serve()
        assert await rig.done() == {result: 1}
        if isinstance(answer, FakeAnswer):
            assert answer.closed == 1

    run(main, answer)


def test_a_fault_of_ours_is_logged_and_ends_there(caplog: pytest.LogCaptureFixture) -> None:
    async def main(rig: Rig) -> None:
        rig.serve()
        assert await rig.done() == {"failed": 1}

    run(main, KeyError("x"))
    assert "a shadow sample failed" in caplog.text


def test_the_result_is_noted_and_puts_the_pair_first_in_the_report() -> None:
    async def main(rig: Rig) -> None:
        rig.serve()
        await rig.done()
        (note,) = await rig.store.notes(0)
        pair = pair_of(b"p", "What is France's capital?", NEAR.question)
        assert (note.kind, note.tenant) == (SHADOW, "acme")
        assert note.body == {"request": "req_test", "pair": pair, "result": "different"}
        assert summarise([note], 0.0).shadow == {"different": 1}

    run(main, whole("Berlin"))


def test_only_the_share_is_sampled() -> None:
    async def main(rig: Rig) -> None:
        rig.draw = 0.25
        rig.serve()
        assert await rig.done() == {}
        rig.draw = 0.24
        rig.serve()
        assert await rig.done() == {"same": 1}

    run(main, whole("It is Paris."), share=0.25)


def test_it_is_asked_late_as_batch_work_with_time_of_its_own() -> None:
    async def main(rig: Rig) -> None:
        rig.serve()
        await rig.done()
        (call,) = rig.calls
        assert (call.controls.priority, call.arrived_s, call.deadline_s) == ("batch", 50.0, 170.0)

    run(main, whole("It is Paris."))


def test_at_most_so_many_are_asked_and_the_end_cancels_them() -> None:
    gate = asyncio.Event()
    waiting = FakeAnswer([gate])

    async def main(rig: Rig) -> None:
        for _ in range(3):
            rig.serve()
        await asyncio.sleep(0)
        await rig.shadow.aclose()
        assert dict(rig.shadow.counts)["skipped"] == 2
        assert (len(rig.calls), waiting.closed) == (1, 1)
        assert await rig.store.notes(0) == []

    run(main, waiting, at_most=1)
