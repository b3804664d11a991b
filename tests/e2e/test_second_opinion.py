"""A paraphrase in doubt is served on the word of a judge, and a judge never costs a request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from e2e.scripted import TIDES, TIDES_TOO, JudgeEngine
from e2e.stand import Stand, engine, stand, until

from tierway.middleware import classes
from tierway.middleware.explain import explain

DEBUG = {"x-tierway-debug": "1"}


@pytest.fixture(autouse=True)
def in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(classes.CLASSES, "embedder.builtin", "e2e.scripted:InDoubt")


def run(
    judge: JudgeEngine,
    test: Callable[[Stand], Coroutine[Any, Any, None]],
    **opinion: Any,
) -> None:
    async def main() -> None:
        cache = {"store": {"kind": "memory"}, "second_opinion": {"kind": "tier", **opinion}}
        async with stand(judge, cache=cache) as made:
            assert (await made.ask(TIDES)).headers["x-tierway-cache"] == "miss"
            assert await until(lambda: made.cache["entries"] == 1)
            await made.settled()
            await test(made)
            assert await until(made.idle)

    asyncio.run(main())


def reason(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    return (
        answer.headers["x-tierway-cache"],
        json.loads(answer.headers["x-tierway-reason"])["cache"],
    )


def test_a_paraphrase_in_doubt_hits_on_the_judges_word_only() -> None:
    judge = JudgeEngine((TIDES_TOO, TIDES))

    async def main(made: Stand) -> None:
        answer = await made.ask(TIDES_TOO, headers=DEBUG)
        assert reason(answer) == ("semantic-hit", "second-opinion")
        assert judge.judged == [(TIDES_TOO, TIDES)]
        again = await made.ask(TIDES_TOO, headers=DEBUG)
        assert reason(again) == ("semantic-hit", "second-opinion")
        assert len(judge.judged) == 1
        page = made.gateway.parts.metrics.render().decode()
        assert 'tierway_cache_second_opinions_total{result="accepted"} 2.0' in page
        assert 'tierway_requests_total{outcome="ok",tier="small",wire="chat"} 3.0' in page

    run(judge, main)


def test_the_judges_no_is_a_miss() -> None:
    judge = JudgeEngine()

    async def main(made: Stand) -> None:
        answer = await made.ask(TIDES_TOO, headers=DEBUG)
        assert reason(answer) == ("miss", "second-opinion-refused")
        assert judge.judged == [(TIDES_TOO, TIDES)]

    run(judge, main)


def test_without_a_judge_it_is_a_miss() -> None:
    judge = JudgeEngine((TIDES_TOO, TIDES))

    async def main(made: Stand) -> None:
        cache, why = reason(await made.ask(TIDES_TOO, headers=DEBUG))
        assert cache == "miss"
        assert "opinion" not in why
        assert judge.judged == []

    run(judge, main, kind="none")


def test_a_broken_judge_is_a_miss_and_the_request_is_served() -> None:
    judge = JudgeEngine((TIDES_TOO, TIDES))
    judge.broken = True

    async def main(made: Stand) -> None:
        answer = await made.ask(TIDES_TOO, headers=DEBUG)
        assert reason(answer) == ("miss", "second-opinion-failed")
        assert answer.json()["choices"][0]["message"]["content"]
        assert len(judge.judged) == 1
        assert made.cache["faults"] == {"second-opinion": 1}

    run(judge, main)


def test_a_slow_judge_costs_its_deadline_and_no_more() -> None:
    judge = JudgeEngine((TIDES_TOO, TIDES))
    judge.stuck = True

    async def main(made: Stand) -> None:
        began = time.monotonic()
        answer = await made.ask(TIDES_TOO, headers=DEBUG)
        took = time.monotonic() - began
        assert reason(answer) == ("miss", "second-opinion-slow")
        assert 0.1 <= took < 3
        assert made.cache["faults"] == {"second-opinion-slow": 1}
        assert await until(lambda: made.inflight == 0)

    run(judge, main, timeout_ms=100)


def test_explaining_asks_nobody() -> None:
    judge = JudgeEngine((TIDES_TOO, TIDES))

    async def main(made: Stand) -> None:
        body = b'{"model":"auto","messages":[{"role":"user","content":"%b"}]}' % TIDES_TOO.encode()
        found = await explain(made.gateway.parts, body)
        assert found["cache"]["would_answer"] is False
        assert judge.judged == []

    run(judge, main)


def test_a_judge_that_does_not_come_up_is_told_and_done_without() -> None:
    async def main() -> None:
        opinion = {"kind": "cross_encoder", "model": "/nowhere/at/all"}
        cache = {"store": {"kind": "memory"}, "second_opinion": opinion}
        async with stand(engine(), cache=cache) as made:
            assert (await made.ask(TIDES)).status_code == 200
            await made.settled()
            assert (await made.ask(TIDES_TOO)).status_code == 200

    asyncio.run(main())
