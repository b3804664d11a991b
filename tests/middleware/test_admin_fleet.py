"""Replicas by admin call: who may, where, and that it lasts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from admins import CONFIG, ENVIRON, FIRST, SECOND, Admin, run

from tierway.middleware.build import build
from tierway.middleware.parts import AdminKeys

OPEN = {**CONFIG, "fleet": {"allowed_networks": ["127.0.0.0/8", "::1/128"]}}
THIRD = "m@127.0.0.1:9"
ADD = "/admin/models/m/replicas"


async def post(admin: Admin, body: Any, status: int, path: str = ADD) -> Any:
    admin.parts.admin_keys = AdminKeys([("k-operate", "admin")])
    answer = await admin.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def replicas(admin: Admin) -> dict[str, str]:
    """Source by id."""
    state = await admin.state()
    return {one["id"]: one["source"] for one in state["tiers"]["small"]["replicas"]}


def test_a_replica_joins_and_leaves_by_call() -> None:
    async def main(admin: Admin) -> None:
        made = await post(admin, {"url": "http://127.0.0.1:9", "gpu": "a10"}, 201)
        assert made == {"id": THIRD, "model": "m"}
        assert (await replicas(admin))[THIRD] == "admin"
        assert THIRD in admin.parts.dispatcher.upstreams
        await post(admin, {"url": "http://127.0.0.1:9", "weight": 2}, 200)
        answer = await admin.http.delete(f"/admin/replicas/{THIRD}")
        assert answer.json() == {"id": THIRD, "removed": True}
        assert THIRD not in await replicas(admin)
        assert THIRD not in admin.parts.dispatcher.upstreams
        assert (await admin.http.delete(f"/admin/replicas/{THIRD}")).status_code == 404

    run(main, OPEN)


def test_a_configured_one_that_was_removed_stays_out_until_it_is_added_again() -> None:
    async def main(admin: Admin) -> None:
        admin.parts.admin_keys = AdminKeys([("k-operate", "admin")])
        await admin.http.delete(f"/admin/replicas/{FIRST}")
        assert list(await replicas(admin)) == [SECOND]
        admin.parts.members.configured(admin.parts.settings)
        assert list(await replicas(admin)) == [SECOND]

    run(main, OPEN)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1"),
        ("http://169.254.169.254", "169.254.169.254"),
        ("http://no-such-host.invalid", "cannot be resolved"),
    ],
)
def test_only_addresses_inside_the_allowed_networks(url: str, told: str) -> None:
    async def main(admin: Admin) -> None:
        error = (await post(admin, {"url": url}, 403))["error"]["message"]
        assert told in error
        assert "fleet.allowed_networks (127.0.0.0/8, ::1/128)" in error
        inside = {"url": "http://127.0.0.1:9", "telemetry": url + "/metrics"}
        await post(admin, inside, 403)
        assert list(await replicas(admin)) == [FIRST, SECOND]

    run(main, OPEN)


def test_without_a_network_none_may_be_added() -> None:
    async def main(admin: Admin) -> None:
        error = (await post(admin, {"url": "http://127.0.0.1:9"}, 403))["error"]["message"]
        assert "it is empty: none may be added" in error

    run(main)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"url": "ftp://127.0.0.1"}, "must be an http:// or https:// address"),
        ({"url": "http://127.0.0.1:9", "engine": "vlm"}, "did you mean 'vllm'?"),
        ({"url": "http://127.0.0.1:9", "gpu_count": 3}, "unknown key"),
        ({"url": "http://127.0.0.1:9", "tp": 4, "gpus": 2}, "at least tp x pp = 4"),
        ({"url": "http://127.0.0.1:9", "api_key_env": "NOT_SET"}, "NOT_SET"),
        ([], "JSON object"),
        (None, "JSON object"),
    ],
)
def test_wrong_settings_are_told_and_change_nothing(body: Any, told: str) -> None:
    async def main(admin: Admin) -> None:
        assert told in (await post(admin, body, 400))["error"]["message"]
        assert list(await replicas(admin)) == [FIRST, SECOND]

    run(main, OPEN)


def test_a_model_that_has_no_replicas_is_told() -> None:
    async def main(admin: Admin) -> None:
        path = "/admin/models/other/replicas"
        error = await post(admin, {"url": "http://127.0.0.1:9"}, 400, path)
        assert "must be one of the models with replicas: m" in error["error"]["message"]

    run(main, OPEN)


def test_it_needs_the_role_admin() -> None:
    async def main(admin: Admin) -> None:
        assert (await admin.http.post(ADD, json={"url": "http://127.0.0.1:9"})).status_code == 403
        assert (await admin.http.delete(f"/admin/replicas/{FIRST}")).status_code == 403

    run(main, OPEN)


def test_what_was_added_outlives_a_restart(tmp_path: Path) -> None:
    store = {"kind": "sqlite", "path": str(tmp_path / "cache.sqlite3")}
    embedder = {"kind": "openai", "url": "http://127.0.0.1:1", "model": "none", "dim": 8}
    config = {**OPEN, "cache": {"store": store, "embedder": embedder}}

    async def add(admin: Admin) -> None:
        await post(admin, {"url": "http://127.0.0.1:9"}, 201)
        await admin.http.delete(f"/admin/replicas/{SECOND}")

    async def look(admin: Admin) -> None:
        assert await replicas(admin) == {FIRST: "configuration", THIRD: "admin"}

    run(add, config)
    run(look, config)


def test_a_reload_takes_replicas_in_and_out(tmp_path: Path) -> None:
    path = tmp_path / "tierway.yaml"
    path.write_text(json.dumps(CONFIG))

    async def main() -> None:
        parts = await build(path, ENVIRON, live=False)
        model = {
            **CONFIG["models"]["m"],
            "replicas": [{"url": "http://c:1"}, {"url": "http://a:1"}],
        }
        path.write_text(json.dumps({**CONFIG, "models": {"m": model}}))
        found = await parts.reload()
        assert (found.changed, found.needs_restart) == (["models.m.replicas"], [])
        assert [spec.id for spec in parts.fleet.specs()] == [FIRST, "m@c:1"]
        assert (await parts.reload()).changed == []
        await parts.aclose()

    asyncio.run(main())
