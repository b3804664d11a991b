"""A gateway whose cache file is sealed: the same hits, and nothing to read in the file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="nothing can be sealed without it")

from e2e.stand import Stand, engine, stand

QUESTION = "How do I reset the password of my Zyxel router?"
KEYS = {"STORE_KEY": "a7" * 32}
OTHER = {"STORE_KEY": "b8" * 32}
ROTATED = {"STORE_KEY": "b8" * 32, "OLD_KEY": "a7" * 32}


def test_answers_outlive_a_restart_with_their_key_and_not_without(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite3"
    store: dict[str, Any] = {"path": str(path), "key_env": "STORE_KEY"}

    async def ask(gateway: Stand) -> str:
        answer = await gateway.ask(QUESTION)
        assert answer.status_code == 200
        await gateway.settled()
        return answer.headers["x-tierway-cache"]

    async def main() -> None:
        cache = {"store": store}
        async with stand(engine(), environ=KEYS, cache=cache) as one:
            assert [await ask(one), await ask(one)] == ["miss", "hit"]
            paraphrase = await one.ask("how do i reset the password of my Zyxel router")
            assert paraphrase.headers["x-tierway-cache"] == "semantic-hit"
            text = paraphrase.json()["choices"][0]["message"]["content"]
            assert one.cache["faults"] == {}
        written = path.read_bytes()
        for word in ("Zyxel", "password", text[:20]):
            assert word.encode() not in written
        async with stand(engine(), environ=KEYS, cache=cache) as again:
            assert await ask(again) == "hit"
        rotated = {"store": {**store, "old_key_env": "OLD_KEY"}}
        async with stand(engine(), environ=ROTATED, cache=rotated) as new:
            assert await ask(new) == "hit"
        async with stand(engine(), environ=OTHER, cache=cache) as stranger:
            assert await ask(stranger) == "miss"
            assert stranger.cache["faults"].keys() == {"sealed"}  # entries and notes

    asyncio.run(main())
