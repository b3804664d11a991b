"""The cache's file: answers survive restarts, and a file that is no good costs only the cache."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from pathlib import Path

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import (
    ask,
    ask_until_cached,
    configuration,
    eventually,
    gateway,
    generated,
    outcome,
    said,
)
from e2e.stand import engine, stand, until

CAPITAL, OTHER_WORDS = "What is the capital of France?", "What's France's capital?"


def entries_with_vectors(file: Path) -> int:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
        query = "SELECT count(*) FROM entries WHERE vector IS NOT NULL"
        found = int(connection.execute(query).fetchone()[0])
    connection.close()
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_restarted_gateway_still_hits(
    fleet: EngineUrls, tmp_path: Path, end: signal.Signals
) -> None:
    file = tmp_path / "cache.sqlite3"
    config = configuration(fleet.small, cache={"store": {"kind": "sqlite", "path": str(file)}})
    with gateway(tmp_path, config) as running:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            first = ask(client, CAPITAL)
            if end is signal.SIGKILL:  # what is not written yet may be lost then
                assert eventually(lambda: entries_with_vectors(file) == 1)
        assert running.stop(end) == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    before = generated(*fleet.all)
    with (
        gateway(tmp_path, config) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        exact, other = ask(client, CAPITAL), ask_until_cached(client, OTHER_WORDS)
        streamed = ask(client, CAPITAL, stream=True)
    assert [outcome(one) for one in (exact, other, streamed)] == ["hit", "semantic-hit", "hit"]
    assert said(exact) == said(other) == said(streamed) == said(first)
    assert exact.json()["id"] == first.json()["id"]
    assert generated(*fleet.all) == before


def test_a_deleted_entry_stays_deleted_after_a_restart(fleet: EngineUrls, tmp_path: Path) -> None:
    config = configuration(fleet.small, cache={"store": {"kind": "sqlite", "path": "c.sqlite3"}})
    with (
        gateway(tmp_path, config) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        ask(client, CAPITAL)
        entry = ask(client, CAPITAL).headers["x-tierway-entry"]
        assert running.admin("DELETE", f"/admin/cache/{entry}").status_code == 200
    with (
        gateway(tmp_path, config) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        assert outcome(ask(client, CAPITAL)) == "miss"


def corrupt(file: Path) -> None:
    file.write_bytes(b"this is no database " * 1000)


def folder_in_its_place(file: Path) -> None:
    file.mkdir()


def file_in_the_place_of_its_folder(file: Path) -> None:
    file.parent.rmdir()
    file.parent.write_text("no folder")


def read_only(file: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    sqlite3.connect(file).close()
    file.chmod(0o400)
    file.parent.chmod(0o500)


@pytest.mark.parametrize(
    "spoil", [corrupt, folder_in_its_place, file_in_the_place_of_its_folder, read_only]
)
def test_a_file_that_cannot_be_used_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: object
) -> None:
    file = tmp_path / "folder" / "cache.sqlite3"
    file.parent.mkdir()
    assert callable(spoil)
    spoil(file)

    async def main() -> None:
        store = {"kind": "sqlite", "path": str(file)}
        async with stand(engine(), cache={"store": store}) as made:
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "miss"
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"

    asyncio.run(main())
    assert "memory only" in caplog.text


def test_a_store_that_breaks_while_running_costs_no_request(tmp_path: Path) -> None:
    file = tmp_path / "cache.sqlite3"

    async def main() -> None:
        store = {"kind": "sqlite", "path": str(file)}
        async with stand(engine(), cache={"store": store}) as made:
            assert (await made.ask(CAPITAL)).status_code == 200
            await made.settled()
            with sqlite3.connect(file) as connection:
                connection.execute("DROP TABLE entries")
            connection.close()
            assert (await made.ask("How do tides work?")).status_code == 200
            assert await until(lambda: made.cache["faults"].get("store", 0) > 0)
            assert (await made.ask(CAPITAL)).headers["x-tierway-cache"] == "hit"
            assert (await made.ask("How do tides work?")).headers["x-tierway-cache"] == "hit"

    asyncio.run(main())
