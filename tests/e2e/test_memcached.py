"""Gateways that share a memcached: exact answers and deletions, and no request lost with it."""

from __future__ import annotations

import asyncio

import pytest
from datastores import memcached_server
from e2e.stand import engine, stand, until
from e2e.test_redis import CAPITAL, OTHER_WORDS, becomes, outcome


@pytest.mark.parametrize("sealed", [False, True])
def test_gateways_share_exact_answers_and_deletions(
    caplog: pytest.LogCaptureFixture, sealed: bool
) -> None:
    environ = {"CACHE_KEY": "0123456789abcdef" * 4}

    async def main(url: str) -> None:
        store = {"kind": "memcached", "url": url, **({"key_env": "CACHE_KEY"} if sealed else {})}
        async with (
            stand(engine(), cache={"store": store}, environ=environ) as one,
            stand(engine(seed=1), cache={"store": store}, environ=environ) as two,
        ):
            first = await one.ask(CAPITAL)
            await one.settled()
            shared = await two.ask(CAPITAL)
            assert shared.headers["x-tierway-cache"] == "hit"
            assert shared.json()["choices"] == first.json()["choices"]
            assert await outcome(two, OTHER_WORDS) == "miss"
            assert await becomes(one, CAPITAL, "hit")
            await two.gateway.parts.stage.cache.delete([shared.headers["x-tierway-entry"]])
            assert await becomes(two, CAPITAL, "miss", within_s=0)
            assert await becomes(one, CAPITAL, "miss")

    with memcached_server() as server:
        asyncio.run(main(server.url))
    assert "exact only" in caplog.text


def test_sixteen_callers_lose_no_request_when_memcached_dies() -> None:
    async def main() -> None:
        with memcached_server() as server:
            store = {"kind": "memcached", "url": server.url}
            async with stand(engine(), engine(seed=1), cache={"store": store}) as made:
                done = 0

                async def caller(number: int) -> list[str]:
                    nonlocal done
                    seen = []
                    for turn in range(6):
                        seen.append(await outcome(made, f"Caller {number}, what is item {turn}?"))
                        done += 1
                    return seen

                callers = asyncio.gather(*(caller(number) for number in range(16)))
                assert await until(lambda: done > 16, within_s=30)
                await asyncio.to_thread(server.stop)
                assert [len(seen) for seen in await callers] == [6] * 16
                assert await until(lambda: made.cache["faults"].get("store", 0) > 0)

    asyncio.run(main())
