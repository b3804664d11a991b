"""Observe mode, the report out of it, and a mark over the wire, on simulated engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datastores import redis_server
from e2e.stand import Stand, engine, stand, until

from tierway.middleware.cli import main as command

QUESTION = "What is the capital of France?"
REWORDED = "what is the capital of france"


def dated(date: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"You are Ann. Date: {date}."},
        {"role": "user", "content": "How tall is the Eiffel tower?"},
    ]


def cache_of(folder: Path, mode: str) -> dict[str, Any]:
    return {"mode": mode, "store": {"kind": "sqlite", "path": str(folder / "cache.db")}}


def report(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    config = folder / "tierway.yaml"
    config.write_text(f"cache: {{store: {{path: {folder / 'cache.db'}}}}}\n", encoding="utf-8")
    assert command(["report", "--config", str(config), "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_observe_serves_nothing_and_reports_what_would_have_hit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with stand(engine(), cache=cache_of(tmp_path, "observe")) as here:
            for question in (QUESTION, QUESTION, REWORDED):
                answer = await here.ask(question)
                assert answer.headers["x-tierway-cache"] == "miss"
                await here.settled()
            for date in ("2026-11-30", "2026-12-01"):
                await here.ask("", messages=dated(date))
            assert here.generated == 5

    asyncio.run(main())
    found = report(tmp_path, capsys)
    assert (found["requests"], found["lookups"], found["hit_rate"]) == (5, 5, 0.4)
    assert found["would_hit"] == {"hit": 1, "semantic-hit": 1}
    (pair,) = found["pairs"]
    assert (pair["asked"], pair["stored"], pair["served"]) == (REWORDED, QUESTION, False)
    (elsewhere,) = found["elsewhere"]
    assert (elsewhere["kind"], elsewhere["times"]) == ("a date", 1)
    assert elsewhere["ignore"].startswith("You are Ann\\. Date: ")
    assert found["tiers"] == {"small": 5}
    assert found["tokens"]["output"] > found["would_save_tokens"]["output"] > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_a_wrong_semantic_hit_is_seen_and_marked_over_the_wire(
    tmp_path: Path,
    streamed: bool,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="tierway.requests")

    async def mark(here: Stand, name: str) -> Any:
        body = {"request_id": name, "correct": False}
        return (await here.client.post("/v1/tierway/feedback", json=body)).json()

    async def main() -> None:
        async with stand(engine(), cache=cache_of(tmp_path, "serve")) as here:
            await here.ask(QUESTION)
            await here.settled()
            hit = await here.ask(REWORDED, stream=streamed)
            assert hit.headers["x-tierway-cache"] == "semantic-hit"
            assert 0.5 < float(hit.headers["x-tierway-similarity"]) <= 1
            scraped = here.gateway.parts.metrics.render().decode()
            assert 'tierway_cache_lookups_total{result="semantic-hit"} 1.0' in scraped
            assert 'tierway_cache_similarity_count{result="semantic-hit"} 1.0' in scraped
            line = json.loads(caplog.messages[-1])
            assert (line["cache"], line["stream"], "similarity" in line, line["entry"]) == (
                "semantic-hit",
                streamed,
                True,
                hit.headers["x-tierway-entry"],
            )
            told = await mark(here, hit.headers["x-request-id"])
            assert told["withdrawn"] == [hit.headers["x-tierway-entry"]]
            assert (told["blocked"], told["counted"]) == (True, True)
            await here.ask(QUESTION)
            await here.settled()
            missed = await here.ask(REWORDED, stream=streamed, headers={"x-tierway-debug": "1"})
            assert missed.headers["x-tierway-cache"] == "miss"
            assert json.loads(missed.headers["x-tierway-reason"])["cache"] == "blocked"

    asyncio.run(main())
    found = report(tmp_path, capsys, "--since", "1h")
    assert (found["hits"]["semantic-hit"], found["marks"]) == (1, {"right": 0, "wrong": 1})
    assert found["misses"]["blocked"] == 1
    assert found["pairs"] == []


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The cache's configuration with a store that several gateways can share."""
    if request.param == "sqlite":
        yield cache_of(tmp_path, "serve")
        return
    with redis_server(tmp_path) as server:
        yield {"mode": "serve", "store": {"kind": "redis", "url": server.url}}


def test_two_gateways_of_one_store_act_on_one_mark_within_a_second(shared: dict[str, Any]) -> None:
    async def main() -> None:
        cache = shared
        async with stand(engine(), cache=cache) as one, stand(engine(), cache=cache) as two:
            await one.ask(QUESTION)
            await one.settled()
            assert await until(lambda: two.cache["entries"] == 1)
            hit = await two.ask(QUESTION)
            assert hit.headers["x-tierway-cache"] == "hit"
            body = {"request_id": hit.headers["x-request-id"], "correct": False}
            told = await one.client.post("/v1/tierway/feedback", json=body)
            assert (told.status_code, len(told.json()["withdrawn"])) == (200, 1)
            assert await until(lambda: not one.cache["entries"], within_s=1.0)
            assert not two.cache["entries"]
            body["request_id"] = "nobody's"
            assert (await two.client.post("/v1/tierway/feedback", json=body)).status_code == 404

    asyncio.run(main())


def test_a_shadow_sample_asks_behind_the_served_hit(tmp_path: Path) -> None:
    async def main() -> None:
        cache = {**cache_of(tmp_path, "serve"), "shadow_sample": 1.0}
        async with stand(engine(), cache=cache) as here:
            await here.ask(QUESTION)
            await here.settled()
            hit = await here.ask(REWORDED)
            assert hit.headers["x-tierway-cache"] == "semantic-hit"
            counts = here.gateway.parts.stage.shadow.counts  # type: ignore[union-attr]  # set
            assert await until(lambda: counts.total() == 1)
            assert here.generated == 2
            assert await until(here.idle)
            scraped = here.gateway.parts.metrics.render().decode()
            assert 'tierway_cache_shadow_total{result="skipped"} 0.0' in scraped
            assert 'tierway_requests_total{outcome="ok",tier="small",wire="chat"} 2.0' in scraped

    asyncio.run(main())
