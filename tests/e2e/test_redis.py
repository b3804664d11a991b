"""Gateways that share a Redis: what one learns the others know, and a Redis that dies costs
nobody an answer."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from datastores import Server, redis_server
from e2e.stand import Stand, engine, stand, until

CAPITAL, OTHER_WORDS = "What is the capital of France?", "What's France's capital?"


def on(server: Server, index: str = "faiss", **store: object) -> dict[str, object]:
    return {"store": {"kind": "redis", "url": server.url, **store}, "index": {"kind": index}}


async def outcome(made: Stand, question: str) -> str:
    answer = await made.ask(question)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-tierway-cache"])


async def becomes(made: Stand, question: str, wanted: str, *, within_s: float = 1.0) -> bool:
    """Asks for what is stored only, so that asking changes nothing."""
    until_s = time.monotonic() + within_s
    while True:
        answer = await made.ask(question, headers={"cache-control": "only-if-cached"})
        found = answer.headers["x-tierway-cache"]
        if found == wanted or time.monotonic() > until_s:
            return bool(found == wanted)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("index", "key"), [("faiss", None), ("faiss", "KEY"), ("redis", None)])
def test_gateways_share_answers_and_deletions_within_a_second(
    tmp_path: Path, index: str, key: str | None
) -> None:
    environ = {"KEY": "0123456789abcdef" * 4}

    async def main(server: Server) -> None:
        cache = on(server, index, key_env=key)
        async with (
            stand(engine(), cache=cache, environ=environ) as one,
            stand(engine(seed=1), cache=cache, environ=environ) as two,
        ):
            first = await one.ask(CAPITAL)
            await one.settled()
            assert await becomes(two, CAPITAL, "hit")
            assert await becomes(two, OTHER_WORDS, "semantic-hit")
            shared = await two.ask(CAPITAL)
            assert shared.json()["choices"] == first.json()["choices"]
            assert two.generated == 0
            await two.gateway.parts.stage.cache.delete([shared.headers["x-tierway-entry"]])
            assert await becomes(two, CAPITAL, "miss", within_s=0)
            assert await becomes(one, CAPITAL, "miss")
            assert await becomes(one, OTHER_WORDS, "miss", within_s=0)
            await one.ask("How do tides work?")
            await one.settled()
        server.stop(signal.SIGTERM)
        server.start()
        async with stand(engine(), cache=cache, environ=environ) as later:
            assert await outcome(later, "How do tides work?") == "hit"
            assert await outcome(later, CAPITAL) == "miss"

    with redis_server(tmp_path, durable=True) as server:
        asyncio.run(main(server))
        server.stop(signal.SIGTERM)
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*.aof"))
    assert (b"tides" in kept) == (key is None)


@pytest.mark.parametrize("index", ["faiss", "redis"])
def test_sixteen_callers_lose_no_request_when_redis_dies(tmp_path: Path, index: str) -> None:
    async def main(server: Server) -> None:
        async with stand(engine(), engine(seed=1), cache=on(server, index)) as made:
            assert await outcome(made, CAPITAL) == "miss"
            await made.settled()
            done = 0

            async def caller(number: int) -> list[str]:
                nonlocal done
                seen = []
                for turn in range(6):
                    seen.append(await outcome(made, f"Caller {number}, what is item {turn}?"))
                    seen.append(await outcome(made, CAPITAL))
                    done += 1
                return seen

            callers = asyncio.gather(*(caller(number) for number in range(16)))
            assert await until(lambda: done > 16, within_s=30)
            await asyncio.to_thread(server.stop)
            outcomes = [one for seen in await callers for one in seen]
            assert len(outcomes) == 16 * 6 * 2
            assert outcomes.count("hit") >= 16 * 6
            assert await until(lambda: made.cache["faults"].get("store", 0) > 0)
            await asyncio.to_thread(server.start)
            async with stand(engine(), cache=on(server, index)) as other:
                assert await shares_again(made, other)

    async def shares_again(made: Stand, other: Stand) -> bool:
        """What is asked here once the pause after the fault is over, the other one knows."""
        for turn in range(20):
            question = f"What is stored in round {turn}?"
            await made.ask(question)
            await made.settled()
            if await becomes(other, question, "hit", within_s=0.5):
                return True
        return False

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("index", ["faiss", "redis"])
@pytest.mark.parametrize("question", [CAPITAL, "How do tides work?"])
def test_a_redis_that_hangs_holds_up_no_request(tmp_path: Path, question: str, index: str) -> None:
    async def main(server: Server) -> None:
        async with stand(engine(), cache=on(server, index, timeout_s=0.1)) as made:
            await made.ask(CAPITAL)
            await made.settled()
            server.pause()
            began = time.monotonic()
            for _ in range(10):
                assert await outcome(made, question) in ("hit", "miss")
            assert time.monotonic() - began < 5.0
            server.resume()

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))
