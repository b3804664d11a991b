"""Policies are switched while traffic flows: nothing fails, and each request obeys one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
from e2e.servers import said
from e2e.stand import GONE_WITHIN_S, Stand, engine, stand, until

from tierway.policies.registry import POLICIES

REQUESTS, CLIENTS = 240, 12
DEBUG = {"x-tierway-debug": "1"}


async def load(made: Stand) -> list[tuple[str, int]]:
    """Busy clients; (policy, version) of every answer, each of which must be a whole one."""
    numbers = iter(range(REQUESTS))
    found: list[tuple[str, int]] = []

    async def client() -> None:
        for number in numbers:
            asked = f"Q {number} [[answer {5 + number % 20}]]"
            answer = await made.ask(asked, stream=number % 2 == 0, headers=DEBUG)
            assert answer.status_code == 200, answer.text
            assert said(answer)
            why = orjson.loads(answer.headers["x-tierway-reason"])
            found.append((why["policy"], why["policy_version"]))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


async def put(admin: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> int:
    answer = await admin.put(path, json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


async def under_load(made: Stand, switch: Any) -> list[tuple[str, int]]:
    """Runs the load and, every few requests, the next switch of an endless iterator."""
    loading = asyncio.create_task(load(made))
    while not loading.done():
        await anext(switch)
        await asyncio.sleep(0.005)
    found = await loading
    assert len(found) == REQUESTS
    assert await until(made.idle, within_s=GONE_WITHIN_S)
    return found


def test_every_policy_in_turn_under_load() -> None:
    async def main() -> None:
        async with (
            stand(engine(0), engine(1), engine(2), cache={"mode": "off"}) as made,
            made.admin() as admin,
        ):
            names = {1: made.gateway.parts.holder.current.for_tier("small").name}

            async def switch() -> Any:
                while True:
                    for name in sorted(POLICIES):
                        body = {"policy": name}
                        names[await put(admin, "/admin/tiers/small/policy", body)] = name
                        yield

            found = await under_load(made, switch())
            assert all(names[version] == policy for policy, version in found)
            assert {policy for policy, _ in found} == set(POLICIES)
            assert [replica["failed"] for replica in made.replicas] == [0, 0, 0]

    asyncio.run(main())


def test_llm_aware_off_and_on_under_load() -> None:
    async def main() -> None:
        async with (
            stand(engine(0), engine(1), engine(2), cache={"mode": "off"}) as made,
            made.admin() as admin,
        ):
            names = {1: "llm"}

            async def switch() -> Any:
                while True:
                    for enabled, name in ((False, "least_request"), (True, "llm")):
                        body = {"enabled": enabled}
                        names[await put(admin, "/admin/llm-aware", body)] = name
                        yield

            found = await under_load(made, switch())
            assert all(names[version] == policy for policy, version in found)
            assert {policy for policy, _ in found} == {"llm", "least_request"}

    asyncio.run(main())


def test_a_switch_that_is_refused_changes_nothing() -> None:
    async def main() -> None:
        async with stand(engine(0), engine(1)) as made, made.admin() as admin:
            wrong = ({"policy": "lest_request"}, {"policy": "llm", "options": {"surchrge": 1}})
            for body in wrong:
                answer = await admin.put("/admin/tiers/small/policy", json=body)
                assert answer.status_code == 400
                assert "did you mean" in answer.json()["error"]["message"]
            why = (await made.ask("Q", headers=DEBUG)).headers["x-tierway-reason"]
            assert orjson.loads(why)["policy_version"] == 1

    asyncio.run(main())
