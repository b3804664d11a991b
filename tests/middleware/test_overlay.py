"""What admin calls changed: kept, followed by every gateway, never half-written."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from admins import CONFIG, FIRST, Admin, run
from datastores import redis_server

from tierway.cache.redis_link import RedisLink
from tierway.middleware.overlay import Document, MemoryOverlay, Overlay, OverlayStore
from tierway.middleware.overlay_stores import FileOverlay, RedisOverlay, packed, parsed
from tierway.policies.errors import CacheError

POLICY = "/admin/tiers/small/policy"


class Away(MemoryOverlay):
    """A store that is away at will."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    async def read(self) -> Document:
        if self.away:
            raise CacheError("The store is away.")
        return await super().read()


def heard(overlay: Overlay, section: str) -> list[Mapping[str, Any]]:
    told: list[Mapping[str, Any]] = []
    overlay.on(section, told.append)
    return told


def test_every_overlay_of_a_store_follows_and_hears_only_what_changed() -> None:
    async def main() -> None:
        store = MemoryOverlay()
        here, there = Overlay(store), Overlay(store)
        policies, drains = heard(there, "policies"), heard(there, "draining")
        assert await here.put("policies", "small", {"name": "prefix"}) == 1
        await there.follow()
        assert policies == [{"small": {"name": "prefix"}}]
        await here.put("policies", "small", None)
        await there.follow()
        assert policies[-1] == {}
        assert drains == []
        assert (here.version, there.version) == (2, 2)

    asyncio.run(main())


def test_changes_made_at_once_by_several_all_stay() -> None:
    async def main() -> None:
        store = MemoryOverlay()
        overlays = [Overlay(store) for _ in range(5)]
        await asyncio.gather(*(one.put("s", str(n), n) for n, one in enumerate(overlays)))
        for one in overlays:
            await one.follow()
            assert one.section("s") == {str(n): n for n in range(5)}

    asyncio.run(main())


def test_a_change_while_the_store_is_away_acts_here_and_is_kept_later() -> None:
    async def main() -> None:
        store = Away()
        here, there = Overlay(store), Overlay(store)
        told = heard(here, "s")
        store.away = True
        await here.put("s", "a", 1)
        assert told == [{"a": 1}]
        assert not here.kept
        store.away = False
        await there.put("s", "b", 2)
        await here.follow()
        await there.follow()
        assert here.kept
        assert here.section("s") == there.section("s") == {"a": 1, "b": 2}

    asyncio.run(main())


def test_what_one_does_not_understand_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        overlay = Overlay()
        overlay.on("s", lambda section: section["missing"])
        told = heard(overlay, "s")
        await overlay.put("s", "a", 1)
        assert told == [{"a": 1}]

    asyncio.run(main())
    assert "was not understood" in caplog.text


@asynccontextmanager
async def _redis(folder: Path) -> Any:
    with redis_server(folder) as server:
        link = RedisLink(server.url, clock=time.monotonic, draw=random.random)
        link.open()
        try:
            yield RedisOverlay(link, "test")
        finally:
            await link.aclose()


@asynccontextmanager
async def _file(folder: Path) -> Any:
    yield FileOverlay(folder / "deep" / "admin.json")


@asynccontextmanager
async def _memory(folder: Path) -> Any:
    yield MemoryOverlay()


@pytest.mark.parametrize("made", [_memory, _file, _redis])
def test_a_store_keeps_only_the_next_version(made: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with made(tmp_path) as store:
            kept: OverlayStore = store
            assert await kept.read() == Document()
            one = Document().put("s", "größe", {"x": [1, None, 2.5]})
            assert await kept.swap(one)
            assert not await kept.swap(one)
            assert not await kept.swap(Document(7))
            assert await kept.read() == one
            assert await kept.swap(one.put("s", "größe", None))
            assert (await kept.read()).section("s") == {}

    asyncio.run(main())


def test_a_file_is_read_again_by_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "admin.json"

    async def main() -> None:
        await Overlay(FileOverlay(path)).put("s", "a", 1)
        overlay = Overlay(FileOverlay(path))
        await overlay.start(follow=False)
        assert overlay.section("s") == {"a": 1}

    asyncio.run(main())
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["admin.json"]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"version": 1}', b'{"version":1,"sections":{"s":1}}']
)
def test_a_broken_file_is_set_aside(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "admin.json"
    path.write_bytes(text)

    async def main() -> None:
        overlay = Overlay(FileOverlay(path))
        await overlay.put("s", "a", 1)
        assert overlay.kept

    asyncio.run(main())
    assert (tmp_path / "admin.unreadable").read_bytes() == text
    assert parsed(path.read_bytes()).section("s") == {"a": 1}
    assert "admin.json" in caplog.text


def test_a_document_is_read_as_it_was_written() -> None:
    document = Document(3, {"s": {"a": {"b": [1, 2]}}})
    assert parsed(packed(document)) == document
    assert orjson.loads(packed(document))["version"] == 3


@pytest.fixture
def durable(tmp_path: Path) -> dict[str, Any]:
    store = {"kind": "sqlite", "path": str(tmp_path / "cache.sqlite3")}
    embedder = {"kind": "openai", "url": "http://127.0.0.1:1", "model": "none", "dim": 8}
    return {**CONFIG, "cache": {"store": store, "embedder": embedder}}


def test_policies_switch_and_drains_outlive_a_restart(durable: dict[str, Any]) -> None:
    async def change(admin: Admin) -> None:
        await admin.http.put(POLICY, json={"policy": "prefix", "options": {"bound": 3.0}})
        await admin.http.put("/admin/llm-aware", json={"enabled": False})
        assert (await admin.http.post(f"/admin/replicas/{FIRST}/drain")).status_code == 200

    async def look(admin: Admin) -> None:
        state = await admin.state()
        small = state["tiers"]["small"]
        assert (small["aware_policy"], small["options"]) == ("prefix", {"bound": 3.0})
        assert not state["policies"]["llm_aware"]
        assert [one["reason"] for one in small["replicas"]] == ["draining", ""]
        assert state["overlay"] == {"version": 3, "kept": True}
        await admin.http.post(f"/admin/replicas/{FIRST}/undrain")

    async def look_again(admin: Admin) -> None:
        small = (await admin.state())["tiers"]["small"]
        assert [one["available"] for one in small["replicas"]] == [True, True]

    for step in (change, look, look_again):
        run(step, durable)


def test_a_file_that_says_something_new_is_newer_than_the_change(durable: dict[str, Any]) -> None:
    async def change(admin: Admin) -> None:
        await admin.http.put(POLICY, json={"policy": "prefix"})

    run(change, durable)
    newer = {**durable, "tiers": {**CONFIG["tiers"], "small": {"policy": "random"}}}
    for name, config in (("prefix", durable), ("random", newer)):

        async def look(admin: Admin, name: str = name) -> None:
            assert (await admin.state())["tiers"]["small"]["aware_policy"] == name

        run(look, config)


def test_a_reload_that_changes_a_policy_ends_what_was_laid_over_it(tmp_path: Path) -> None:
    path = tmp_path / "tierway.yaml"

    def write(policy: str) -> None:
        tiers = {**CONFIG["tiers"], "small": {"policy": policy}}
        path.write_text(json.dumps({**CONFIG, "tiers": tiers}))

    async def main(admin: Admin) -> None:
        await admin.http.put(POLICY, json={"policy": "prefix"})
        for policy in ("random", "round_robin"):  # the last is what it was at the change
            write(policy)
            await admin.http.post("/admin/reload")
            assert (await admin.state())["tiers"]["small"]["aware_policy"] == policy
        assert admin.parts.overlay.section("policies") == {}

    write("round_robin")
    run(main, path)


def test_a_policy_of_another_release_is_refused_and_told(
    durable: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(admin: Admin) -> None:
        over = {"name": "round_robin", "options": {}}
        entry = {"name": "of_tomorrow", "options": {}, "over": over}
        await admin.parts.overlay.put("policies", "small.policy", entry)
        assert (await admin.state())["tiers"]["small"]["aware_policy"] == "round_robin"

    run(main, durable)
    assert "of_tomorrow" in caplog.text
