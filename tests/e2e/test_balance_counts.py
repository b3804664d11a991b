"""What is in flight is counted exactly: whoever comes, goes, is answered from the cache or fails.

The numbers in the names are those of the table of reported faults of balancers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from e2e.servers import said
from e2e.stand import GONE_WITHIN_S, RawClient, Stand, body_of, engine, stand, until

from tierway.router.shared_scripts import Keys

COUNTS = ("inflight", "inflight_tokens", "prefill_tokens", "output_tokens")
UNCACHED = {"mode": "off"}


def counts(made: Stand) -> list[tuple[int, ...]]:
    """Of each replica, in their order."""
    return [tuple(replica[name] for name in COUNTS) for replica in made.replicas]


def nothing_counted(made: Stand) -> bool:
    return not any(any(of_replica) for of_replica in counts(made))


@asynccontextmanager
async def never_negative(made: Stand) -> AsyncIterator[None]:
    """Looks at all counts again and again while the block runs."""
    lowest = 0

    async def look() -> None:
        nonlocal lowest
        while True:
            lowest = min(lowest, *(min(of_replica) for of_replica in counts(made)))
            await asyncio.sleep(0.001)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    assert lowest == 0


async def leave_before_headers(made: Stand, number: int) -> None:
    client = await RawClient.post(made.url, body_of(f"Wait {number}. [[fault:hang]]", stream=True))
    await asyncio.sleep(0)
    await client.leave(reset=number % 2 == 0)


async def leave_in_mid_stream(made: Stand, number: int) -> None:
    asked = body_of(f"Write {number}. [[answer 20000]]", stream=True)
    client = await RawClient.post(made.url, asked)
    await client.read_until(b'"content":"')
    await client.leave(reset=number % 2 == 0)


async def stay(made: Stand, number: int) -> None:
    assert said(await made.ask(f"Q {number} [[answer 30]]", stream=number % 3 > 0))


async def leave_on_retry(made: Stand, clients: int) -> None:
    """The first replica refuses for load, the others never answer: all are on their way there,
    some for the second time, when their clients leave."""
    made.engines[0].faults.set({"fault": "429"})
    for one in made.engines[1:]:
        one.faults.set({"fault": "hang"})
    refused = made.replicas[0]["id"]
    waiting = await asyncio.gather(
        *(RawClient.post(made.url, body_of(f"R {n}", stream=True)) for n in range(clients))
    )
    assert await until(
        lambda: (
            made.inflight == clients
            and not any(one["inflight"] for one in made.replicas if one["id"] == refused)
        )
    )
    await asyncio.gather(*(client.leave() for client in waiting))
    retried = 'tierway_retries_total{reason="overload"}'
    assert await until(lambda: retried in made.gateway.parts.metrics.render().decode())


def test_balancer_fault_05_of_500_requests_a_third_of_which_leave_no_count_is_left() -> None:
    """vllm router #215: a disconnect while waiting for headers leaked one count each."""

    async def main() -> None:
        async with stand(engine(0), engine(1), engine(2), cache=UNCACHED) as made:
            lot = [stay] * 12 + [leave_before_headers] * 3 + [leave_in_mid_stream] * 3
            async with never_negative(made):
                for start in range(0, 432, 48):
                    numbers = range(start, start + 48)
                    await asyncio.gather(*(lot[n % len(lot)](made, n) for n in numbers))
                assert await until(made.idle, within_s=GONE_WITHIN_S)
                await leave_on_retry(made, 68)
                assert await until(lambda: nothing_counted(made), within_s=GONE_WITHIN_S)
            assert await until(made.idle, within_s=GONE_WITHIN_S)
            assert all(replica["breaker"] == "closed" for replica in made.replicas)
            assert min(replica["served"] for replica in made.replicas) > 0

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["llm", "least_request"])
def test_balancer_fault_08_a_hit_touches_no_count(policy: str) -> None:
    """litellm #39322: hits took away what they never added; a negative count won for ever."""

    async def main() -> None:
        tiers = {"small": {"policy": policy}, "medium": {}, "large": {}}
        async with stand(engine(0), engine(1), engine(2), tiers=tiers) as made:
            await made.ask("What is a tide?")
            asked = [body_of(f"Write {n}. [[fault:stall 3]]", stream=True) for n in range(6)]
            streams = [await RawClient.post(made.url, one) for one in asked]
            for stream in streams:
                await stream.read_until(b'"content":"')
            held = counts(made)
            assert sum(of_replica[0] for of_replica in held) == 6
            async with never_negative(made):
                for number in range(15):
                    hit = await made.ask("What is a tide?", stream=number % 2 == 0)
                    assert hit.headers["x-tierway-cache"] == "hit"
                    assert counts(made) == held
                    miss = await made.ask(f"What is {number}? [[answer 5]]")
                    assert miss.headers["x-tierway-cache"] == "miss"
                    assert counts(made) == held
                await asyncio.gather(*(stream.leave() for stream in streams))
                assert await until(lambda: nothing_counted(made), within_s=GONE_WITHIN_S)
            # What is equally busy takes turns: nobody serves all of the 16 misses.
            served = [replica["served"] for replica in made.replicas]
            assert sum(served) == 16
            assert min(served) >= 1

    asyncio.run(main())


class Leaver:
    """An ASGI client that goes at the head or the first piece of the body, as a server of
    ASGI 2.4 tells it (`send` raises) or one of 2.3 (only `receive` does)."""

    def __init__(self, body: dict[str, Any], at: str, *, raises: bool) -> None:
        self._body, self._at, self._raises = orjson.dumps(body), at, raises
        self._asked = False
        self._gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] != self._at:
            return
        self._gone.set()
        if self._raises:
            raise OSError("the client is gone")
        await asyncio.sleep(0)

    async def ask(self, made: Stand) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4" if self._raises else "2.3"},
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"content-type", b"application/json")],
        }
        await made.gateway(scope, self.receive, self.send)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("raises", [True, False], ids=["2.4", "2.3"])
@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
def test_balancer_fault_07_an_asgi_client_that_goes_at_a_send(
    at: str, raises: bool, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM production stack #1072: an answer aborted at its head or body left its counts."""

    async def main() -> None:
        async with stand(engine(0, speed=5.0), engine(1, speed=5.0), cache=UNCACHED) as made:
            async with never_negative(made), asyncio.timeout(10):
                answer = "[[answer 20000]]" if stream else "[[answer 20]]"
                asked = [body_of(f"Write {n}. {answer}", stream=stream) for n in range(8)]
                leavers = [Leaver(body, at, raises=raises) for body in asked]
                await asyncio.gather(*(leaver.ask(made) for leaver in leavers))
                assert await until(lambda: nothing_counted(made), within_s=GONE_WITHIN_S)
            assert await until(made.idle, within_s=GONE_WITHIN_S)
            outcomes = _outcomes(made)
            assert outcomes == {"client_left": 8} or (not raises and not stream)
            assert all(replica["failed"] == 0 for replica in made.replicas)

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert not caplog.records


def _outcomes(made: Stand) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in made.gateway.parts.metrics.render().decode().splitlines():
        if line.startswith("tierway_requests_total{"):
            name, _, count = line.partition("} ")
            found[name.split('outcome="')[1].split('"')[0]] += int(float(count))
    return found


def test_balancer_fault_11_the_state_shows_what_is_counted() -> None:
    """higress #4610: operators could not find the counts."""

    async def main() -> None:
        async with stand(engine(0), engine(1), cache=UNCACHED) as made:
            asked = [body_of(f"Stall {n}. [[fault:stall 3]]", stream=True) for n in range(4)]
            streams = [await RawClient.post(made.url, one) for one in asked]
            for stream in streams:
                await stream.read_until(b'"content":"')
            async with made.admin() as admin:
                state = (await admin.get("/admin/state")).json()
            replicas = state["tiers"]["small"]["replicas"]
            assert [replica["inflight"] for replica in replicas] == [2, 2]
            for replica in replicas:
                assert set(COUNTS) <= set(replica)
                assert replica["inflight_tokens"] > 0
                assert replica["prefill_tokens"] == 0  # the first token of each has come
                assert replica["output_tokens"] > 0
            await asyncio.gather(*(stream.leave() for stream in streams))
            assert await until(lambda: nothing_counted(made), within_s=GONE_WITHIN_S)

    asyncio.run(main())


def test_balancer_fault_11_the_keys_of_shared_counts_are_documented() -> None:
    """higress #4610: no common prefix, no documentation."""
    keys = Keys("NAME")
    told = (Path(__file__).parents[2] / "docs/operating.md").read_text("utf-8")
    for key in (keys.counts("REPLICA"), keys.gateways, keys.placed):
        assert f"`{key}`" in told


def test_an_answer_that_is_not_read_keeps_its_slot_until_it_is_closed() -> None:
    async def main() -> None:
        async with stand(engine(), cache=UNCACHED) as made:
            body = body_of("Write. [[answer 2000]]", stream=True)
            async with made.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert isinstance(answer, httpx.Response)
                assert await until(lambda: made.inflight == 1)
            assert await until(lambda: nothing_counted(made), within_s=GONE_WITHIN_S)

    asyncio.run(main())
