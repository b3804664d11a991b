"""Engines that fail in every way they know; the client sees an answer or an honest error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import orjson
import pytest
from e2e.servers import said
from e2e.stand import Stand, engine, stand, until

ROUND_ROBIN = {"small": {"policy": "round_robin"}, "medium": {}, "large": {}}
QUICK = {"first_token_timeout_s": 0.4, "idle_timeout_s": 0.4}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The one error event at the end of a stream that broke off."""
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    last = answer.text.strip().split("\n\n")[-1]
    return dict(orjson.loads(last.removeprefix("data: "))["error"])


def attempts_of(answer: httpx.Response) -> int:
    return int(answer.headers["x-tierway-attempts"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse", "dropped"),
        ("500", "status"),
        ("503 2", "overload"),
        ("429 60", "overload"),
        ("error-event 0", "status"),
        ("cut 0", "brokenstream"),
    ],
)
def test_another_replica_answers_at_once(fault: str, reason: str, stream: bool) -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1), tiers=ROUND_ROBIN) as made:
            made.engines[0].faults.set({"fault": fault})
            debug = {"x-tierway-debug": "1"}
            began = time.monotonic()
            answers = [await made.ask(f"Q {n}", stream=stream, headers=debug) for n in range(2)]
            assert time.monotonic() - began < 5  # no Retry-After was slept
            assert all(said(answer) for answer in answers)
            again = max(answers, key=attempts_of)
            assert attempts_of(again) == 2
            assert again.headers["x-tierway-degraded"] == "other_replica"
            assert orjson.loads(again.headers["x-tierway-reason"])["retries"] == [reason]
            assert made.idle()

    asyncio.run(main())


def test_half_a_body_goes_to_another_replica() -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1), tiers=ROUND_ROBIN) as made:
            made.engines[0].faults.set({"fault": "broken-json 0"})
            answers = [await made.ask(f"Q {n}") for n in range(2)]
            assert all(said(answer) for answer in answers)
            assert max(map(attempts_of, answers)) == 2

    asyncio.run(main())


def test_a_silent_replica_is_left_for_another() -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1), tiers=ROUND_ROBIN, resilience=QUICK) as made:
            made.engines[0].faults.set({"fault": "hang"})
            answers = [await made.ask(f"Q {n}", stream=True) for n in range(2)]
            assert all(said(answer) for answer in answers)
            assert max(map(attempts_of, answers)) == 2
            assert await until(made.idle)

    asyncio.run(main())


def test_a_stream_that_breaks_ends_with_an_error_and_is_not_cached() -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            made.engines[0].faults.set({"fault": "cut 4", "count": 1})
            broken = await made.ask("How do tides work?", stream=True)
            assert error_of(broken)["code"] == "upstream_broken_stream"
            assert '"content":"' in broken.text
            assert made.cache["entries"] == 0
            assert made.idle()
            whole = await made.ask("How do tides work?", stream=True)
            assert whole.headers["x-tierway-cache"] == "miss"
            assert said(whole)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["error-event 4", "broken-json 4"])
def test_an_engines_own_error_event_or_a_broken_one_is_never_cached(fault: str) -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            made.engines[0].faults.set({"fault": fault, "count": 1})
            await made.ask("How do tides work?", stream=True)
            assert made.cache["entries"] == 0
            assert made.idle()

    asyncio.run(main())


TIMEOUTS = [
    ("first_token", "[[fault:hang]]", True, {"first_token_timeout_s": 0.3}),
    ("idle", "[[fault:stall 3]]", True, {"idle_timeout_s": 0.3}),
    ("total", "[[fault:hang]]", False, {"total_timeout_s": 0.3}),
    ("total", "[[answer 5000]]", True, {"total_timeout_s": 0.5}),
]


@pytest.mark.parametrize(("which", "asked", "stream", "limits"), TIMEOUTS)
def test_each_timeout_is_named(
    which: str, asked: str, stream: bool, limits: dict[str, float]
) -> None:
    async def main() -> None:
        async with stand(engine(speed=2.0), resilience=limits) as made:
            began = time.monotonic()
            answer = await made.ask(f"Write. {asked}", stream=stream)
            assert time.monotonic() - began < 5
            if answer.status_code == 200:
                error = error_of(answer)
            else:
                assert answer.status_code == 504
                assert answer.headers["x-should-retry"] == "false"
                error = answer.json()["error"]
            assert f"{which}_timeout_s" in error["message"]
            assert error["code"] == "upstream_timeout"
            assert (answer.status_code == 200) is (which != "first_token" and stream)
            assert await until(made.idle)

    asyncio.run(main())


def test_a_client_may_shorten_the_time() -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            answer = await made.ask("[[fault:hang]]", headers={"x-tierway-timeout-ms": "200"})
            assert answer.status_code == 504
            assert "total" in answer.json()["error"]["message"]

    asyncio.run(main())


def test_when_every_replica_is_overloaded_the_client_is_told_so() -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1)) as made:
            began = time.monotonic()
            answer = await made.ask("Hello [[fault:429 7]]")
            assert time.monotonic() - began < 3
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "7"
            assert answer.headers["x-tierway-attempts"] == "2"
            assert all(replica["breaker"] == "closed" for replica in made.replicas)

    asyncio.run(main())


def test_all_replicas_dead_is_said_quickly() -> None:
    async def main() -> None:
        async with stand(dead=2) as made:
            for _ in range(2):
                began = time.monotonic()
                answer = await made.ask("Hello")
                assert time.monotonic() - began < 2
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["code"] == "no_capacity"
            assert (await made.client.get("/readyz")).status_code == 503
            assert (await made.client.get("/healthz")).status_code == 200

    asyncio.run(main())


def test_one_dead_replica_costs_one_try() -> None:
    async def main() -> None:
        async with stand(engine(), dead=1, tiers=ROUND_ROBIN) as made:
            answers = [await made.ask(f"Q {n}") for n in range(6)]
            assert all(said(answer) for answer in answers)
            assert sum(map(attempts_of, answers)) <= 7

    asyncio.run(main())


def test_bad_requests_do_not_open_a_breaker() -> None:
    """sglang #25811: 400s for too long prompts took a healthy worker out."""

    async def main() -> None:
        async with stand(engine()) as made:
            for _ in range(20):
                assert (await made.ask("Hello", n=99)).status_code == 400
            assert [replica["breaker"] for replica in made.replicas] == ["closed"]
            assert said(await made.ask("Hello"))

    asyncio.run(main())


def test_stored_answers_outlive_the_fleet() -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            first = await made.ask("How do tides work?", cache={"ttl": 0.2})
            only = {"cache-control": "only-if-cached"}
            while (await made.ask("How do tides work?", headers=only)).status_code == 200:
                pass  # the entry lives for 0.2 s
            made.engines[0].faults.set({"fault": "refuse"})
            stale = await made.ask("How do tides work?")
            assert stale.headers["x-tierway-cache"] == "stale"
            assert stale.headers["x-tierway-degraded"] == "stale_cache"
            assert said(stale) == said(first)
            other = await made.ask("Never asked before")
            assert other.status_code in (502, 503)

    asyncio.run(main())


def test_a_silent_stream_is_committed_and_then_answered() -> None:
    async def main() -> None:
        async with stand(engine(), resilience={"commit_after_s": 0.2}) as made:
            answer = await made.ask("Hello [[fault:slow 1]]", stream=True)
            assert answer.text.startswith(": ")
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert said(answer)

    asyncio.run(main())


def test_a_committed_stream_that_fails_ends_with_an_error_event() -> None:
    limits = {"commit_after_s": 0.1, "first_token_timeout_s": 0.5}

    async def main() -> None:
        async with stand(engine(), resilience=limits) as made:
            answer = await made.ask("Hello [[fault:hang]]", stream=True)
            assert answer.text.startswith(": ")
            assert "first_token_timeout_s" in error_of(answer)["message"]
            assert await until(made.idle)

    asyncio.run(main())


def test_a_replica_that_fails_fast_gets_little_traffic() -> None:
    """higress #3255: the fast 5xx has the fewest requests in flight and draws them all."""

    async def main() -> None:
        async with stand(engine(0), engine(1), engine(2), cache={"mode": "off"}) as made:
            made.engines[0].faults.set({"fault": "500"})
            answers: list[httpx.Response] = []
            for n in range(10):
                answers += await asyncio.gather(*(made.ask(f"Q {n} {m}") for m in range(6)))
            assert all(answer.status_code == 200 for answer in answers)
            assert _tries_of(made, 0) <= 12
            assert min(made.engines[n].engine.totals.finished["stop"] for n in (1, 2)) > 10

    asyncio.run(main())


def _tries_of(made: Stand, number: int) -> int:
    replica = made.replicas[number]
    return int(replica["served"] + replica["failed"])
