"""Joined calls: fewer of them upstream, and each caller's part as if it had been alone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.middleware.wire import PATHS
from tierway.policies.errors import Refused, Rejected, UpstreamTimeout
from tierway.policies.types import Call, Head, Source
from tierway.router.joining import JoiningUpstream, JoinRules, shares
from tierway.router.upstreams import WholeAnswer

SOURCE = Source("small", "m", "r")
RULES = JoinRules(max_items=8, wait_s=0.002, max_prompt_tokens=50)


def call(path: str, tenant: str = "", timeout_s: float = 1e6, **body: Any) -> Call:
    return PATHS[f"/v1/{path}"].parse(
        orjson.dumps({"model": "m", **body}),
        {},
        request_id="r",
        tenant=tenant,
        arrived_s=time.monotonic(),
        default_timeout_s=timeout_s,
    )


def embedding(text: Any, **more: Any) -> Call:
    return call("embeddings", input=text, **more)


class Engine:
    """Answers lists; a text that says `bad` is rejected, and with it all that came along."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []
        self.fault: Exception | None = None
        self.gate, self.came = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def open(self, call: Call, source: Source) -> WholeAnswer:
        embeds = call.wire == "embeddings"
        given_ = orjson.loads(call.raw)["input" if embeds else "prompt"]
        flat = isinstance(given_, str) or isinstance(given_[0], int)
        texts = [given_] if flat else given_
        self.asked.append(texts)
        self.came.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        if "bad" in texts:
            raise Rejected(400, (), b"bad text")
        usage: dict[str, int] = {"prompt_tokens": sum(len(text) for text in texts)}
        if embeds:
            items = [{"index": n, "embedding": [float(len(t))]} for n, t in enumerate(texts)]
            whole = {"object": "list", "data": items, "model": "m"}
        else:
            items = [{"index": n, "text": f"<{t}>"} for n, t in enumerate(texts)]
            whole = {"object": "text_completion", "choices": items}
            usage["completion_tokens"] = 3 * len(texts)
        head = Head(200, (), call.wire, False)
        return WholeAnswer(head, source, orjson.dumps({**whole, "usage": usage}), None)

    async def aclose(self) -> None:
        pass


async def told(upstream: JoiningUpstream, one: Call) -> dict[str, Any]:
    answer = await upstream.open(one, SOURCE)
    found: dict[str, Any] = orjson.loads(await answer.read())
    await answer.aclose()
    return found


def joined(*calls: Call, engine: Engine, rules: JoinRules = RULES) -> list[Any]:
    async def main() -> list[Any]:
        upstream = JoiningUpstream(engine, rules, clock=time.monotonic)
        asked = (told(upstream, one) for one in calls)
        found = await asyncio.gather(*asked, return_exceptions=True)
        await upstream.aclose()
        return list(found)

    return asyncio.run(main())


def vectors(document: dict[str, Any]) -> list[tuple[int, float]]:
    return [(one["index"], one["embedding"][0]) for one in document["data"]]


def test_calls_that_come_together_are_one_and_each_gets_its_own() -> None:
    engine = Engine()
    found = joined(embedding("a"), embedding(["bb", "ccc"]), embedding("dddd"), engine=engine)
    assert engine.asked == [["a", "bb", "ccc", "dddd"]]
    assert [vectors(one) for one in found] == [[(0, 1.0)], [(0, 2.0), (1, 3.0)], [(0, 4.0)]]
    assert [one["usage"] for one in found] == [
        {"prompt_tokens": tokens, "total_tokens": tokens} for tokens in (1, 5, 4)
    ]


def test_completions_too_with_their_share_of_both_tokens() -> None:
    engine = Engine()
    calls = [call("completions", prompt=text, max_tokens=5) for text in ("x", "yy")]
    found = joined(*calls, engine=engine)
    assert engine.asked == [["x", "yy"]]
    assert [one["choices"] for one in found] == [
        [{"index": 0, "text": "<x>"}],
        [{"index": 0, "text": "<yy>"}],
    ]
    assert sum(one["usage"]["completion_tokens"] for one in found) == 6
    assert sum(one["usage"]["prompt_tokens"] for one in found) == 3


@pytest.mark.parametrize(
    "other",
    [
        embedding("b", dimensions=8),
        embedding("b", tenant="red"),
        embedding([1, 2, 3]),
        call("completions", prompt="b"),
    ],
    ids=["parameters", "tenant", "ids", "wire"],
)
def test_calls_that_differ_are_not_joined(other: Call) -> None:
    engine = Engine()
    joined(embedding("a"), other, engine=engine)
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    "alone",
    [
        embedding("x" * 201),
        embedding(["x"] * 8),
        call("completions", prompt="x", n=2),
        call("completions", prompt="x", stream=True),
        call("chat/completions", messages=[{"role": "user", "content": "x"}]),
    ],
    ids=["long", "many", "n", "stream", "chat"],
)
def test_what_is_large_or_streams_goes_alone(alone: Call) -> None:
    async def main() -> None:
        engine = Engine()
        upstream = JoiningUpstream(engine, RULES, clock=time.monotonic)
        assert upstream._joinable(alone) is None

    asyncio.run(main())


def test_a_batch_is_sent_once_it_is_full() -> None:
    engine = Engine()
    patient = JoinRules(max_items=4, wait_s=0.05)
    joined(*(embedding(str(n)) for n in range(9)), engine=engine, rules=patient)
    assert [len(texts) for texts in engine.asked] == [4, 4, 1]


def test_one_alone_is_sent_as_it_came() -> None:
    engine = Engine()
    (found,) = joined(embedding("a"), engine=engine)
    assert engine.asked == [["a"]]
    assert "usage" in found


def test_a_text_at_fault_fails_its_own_caller_only() -> None:
    engine = Engine()
    good, bad, other = joined(embedding("a"), embedding("bad"), embedding("cc"), engine=engine)
    assert isinstance(bad, Rejected)
    assert (vectors(good), vectors(other)) == ([(0, 1.0)], [(0, 2.0)])
    assert len(engine.asked) == 4


def test_a_dead_engine_is_every_callers_failure() -> None:
    engine = Engine()
    engine.fault = Refused("down", replica="r")
    found = joined(embedding("a"), embedding("b"), engine=engine)
    assert [type(one) for one in found] == [Refused, Refused]


def test_who_leaves_takes_nobody_with_them() -> None:
    async def main() -> None:
        engine = Engine()
        engine.gate.clear()
        upstream = JoiningUpstream(engine, RULES, clock=time.monotonic)
        leaver = asyncio.ensure_future(told(upstream, embedding("a")))
        stayer = asyncio.ensure_future(told(upstream, embedding("bb")))
        await engine.came.wait()
        leaver.cancel()
        engine.gate.set()
        assert vectors(await stayer) == [(0, 2.0)]
        await upstream.aclose()

    asyncio.run(main())


def test_each_caller_waits_no_longer_than_its_own_time() -> None:
    async def main() -> None:
        engine = Engine()
        engine.gate.clear()
        upstream = JoiningUpstream(engine, RULES, clock=time.monotonic)
        hurried = asyncio.ensure_future(told(upstream, embedding("a", timeout_s=0.05)))
        patient = asyncio.ensure_future(told(upstream, embedding("bb")))
        with pytest.raises(UpstreamTimeout):
            await hurried
        engine.gate.set()
        assert vectors(await patient) == [(0, 2.0)]
        await upstream.aclose()

    asyncio.run(main())


@given(
    st.lists(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=3), max_size=8)
)
def test_joined_and_split_is_as_each_alone(asked: list[list[str]]) -> None:
    async def alone(texts: list[str]) -> dict[str, Any]:
        answer = await Engine().open(embedding(texts), SOURCE)
        found: dict[str, Any] = orjson.loads(await answer.read())
        return found

    found = joined(*(embedding(texts) for texts in asked), engine=Engine())
    for texts, one in zip(asked, found, strict=True):
        assert vectors(one) == vectors(asyncio.run(alone(texts)))


@given(st.integers(0, 10_000), st.lists(st.integers(0, 500), min_size=1, max_size=9))
def test_shares_add_up(total: int, weights: list[int]) -> None:
    found = shares(total, weights)
    assert sum(found) == total
    assert all(one >= 0 for one in found)
