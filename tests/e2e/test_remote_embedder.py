"""A gateway whose vectors come from a server of the OpenAI wire."""

from __future__ import annotations

import asyncio
import logging

import pytest
from e2e.stand import engine, stand

CAPITAL, OTHER_WORDS = "What is the capital of France?", "What's France's capital?"


def test_a_served_model_is_an_embedder_and_what_is_uncalibrated_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        encoder = engine(seed=5)
        url = f"http://127.0.0.1:{await encoder.start()}"
        try:
            cache = {
                "store": {"kind": "memory"},
                "embedder": {"kind": "openai", "model": "sim-7b", "url": f"{url}/v1"},
            }
            async with stand(engine(), cache=cache) as made:
                assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "miss"
                await made.settled()
                assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"
                answer = await made.ask(OTHER_WORDS)
                assert answer.headers["x-tierway-cache"] == "miss"
                await made.settled()
                assert not made.cache["faults"]
            # One text to learn from, two stored questions; what cannot hit is not encoded.
            assert sum(encoder.engine.totals.finished.values()) == 3
        finally:
            await encoder.aclose()

    asyncio.run(main())
    assert "there is no calibration for openai-sim-7b-" in caplog.text


def test_without_its_server_the_cache_is_exact(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cache = {
            "store": {"kind": "memory"},
            "embedder": {"kind": "openai", "model": "m", "url": "http://127.0.0.1:1"},
        }
        async with stand(engine(), cache=cache) as made:
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "miss"
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"

    asyncio.run(main())
    assert "The cache is exact only." in caplog.text
