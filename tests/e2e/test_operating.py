"""Two gateways on one cache file: what an operator does at one of them acts at both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from e2e.stand import Stand, engine, stand, until


def cache_of(tmp_path: Path) -> dict[str, Any]:
    return {"store": {"kind": "sqlite", "path": str(tmp_path / "c.sqlite3")}}


async def result(one: Stand, question: str, **headers: str) -> str:
    answer = await one.ask(question, headers=headers)
    assert answer.status_code == 200
    await one.settled()
    return str(answer.headers["x-tierway-cache"])


def test_a_user_is_erased_at_both_within_a_second(tmp_path: Path) -> None:
    async def main() -> None:
        cache = cache_of(tmp_path)
        async with (
            stand(engine(), cache=cache) as one,
            stand(engine(), cache=cache) as other,
            one.admin() as http,
        ):
            ann, bob = {"x-tierway-user": "ann"}, {"x-tierway-user": "bob"}
            assert await result(one, "What is a monad in Haskell?", **ann) == "miss"
            assert await result(one, "How do whales sleep?", **bob) == "miss"
            assert await until(lambda: other.cache["entries"] == 2, within_s=2)
            assert await result(other, "What is a monad in Haskell?") == "hit"
            answer = await http.delete("/admin/cache", params={"user": "ann"})
            assert answer.json() == {"deleted": 1}
            assert one.cache["entries"] == 1
            assert await until(lambda: other.cache["entries"] == 1, within_s=1)
            assert await result(other, "How do whales sleep?") == "hit"
            assert await result(other, "What is a monad in Haskell?") == "miss"

    asyncio.run(main())


def test_the_mode_is_switched_at_both_and_outlives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        cache = cache_of(tmp_path)
        async with (
            stand(engine(), cache=cache) as one,
            stand(engine(), cache=cache) as other,
            one.admin() as http,
        ):
            question = "How do whales sleep?"
            assert [await result(one, question) for _ in range(2)] == ["miss", "hit"]
            answer = await http.put("/admin/cache", json={"mode": "off"})
            assert (answer.json()["mode"], answer.json()["shared"]) == ("off", True)
            assert await result(one, question) == "bypass"
            assert await until(lambda: other.cache["mode"] == "off", within_s=1)
            assert await result(other, question) == "bypass"
            await http.put("/admin/cache", json={"mode": "observe"})
            assert await result(one, question) == "miss"
            assert await until(lambda: other.cache["version"] == 3, within_s=1)
        async with stand(engine(), cache=cache) as again:
            state = again.cache
            assert (state["mode"], state["configured_mode"]) == ("observe", "serve")
            assert state["version"] == 3

    asyncio.run(main())


def test_the_state_tells_what_the_cache_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with stand(engine(), cache=cache_of(tmp_path)) as one:
            for _ in range(3):
                await result(one, "How do whales sleep?")
            state = one.cache
            assert state["results"] == {"miss": 1, "hit": 2}
            assert (state["store"], state["entries"], state["faults"]) == ("sqlite", 1, {})
            assert state["encoder"]
            assert state["languages"] == ["en", "zh"]
            assert state["bytes"] is not None

    asyncio.run(main())
