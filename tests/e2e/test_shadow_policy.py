"""A shadow policy beside live traffic: seen in header, metrics and state, felt by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import httpx
import orjson
from e2e.stand import Stand, engine, stand

from tierway.policies.guard import guarded
from tierway.policies.registry import POLICIES
from tierway.policies.types import BalanceAsk, Candidate, Ranking, ReplicaView

PATH = "/admin/tiers/small/policy"


class Broken:
    """Raises every second time and names a replica that is not there the others."""

    name = "broken"

    def __init__(self) -> None:
        self._calls = 0

    def rank(self, ask: BalanceAsk, views: Sequence[ReplicaView]) -> Ranking:
        self._calls += 1
        if self._calls % 2:
            raise RuntimeError("of mine")
        return Ranking((Candidate("nowhere", float("nan")),))


def plug_in(made: Stand) -> None:
    holder = made.gateway.parts.holder
    broken = {"broken": lambda options: guarded("broken", Broken())}
    registry = MappingProxyType({**POLICIES, **broken})
    holder.current = replace(holder.current, registry=registry)


async def ask(made: Stand, count: int) -> list[dict[str, Any]]:
    """The reasons of so many good answers, streamed and not, at the same time."""
    debug = {"x-tierway-debug": "1"}
    answers = await asyncio.gather(
        *(made.ask(f"Q {n} [[answer 9]]", stream=n % 2 == 0, headers=debug) for n in range(count))
    )
    assert [answer.status_code for answer in answers] == [200] * count
    return [orjson.loads(answer.headers["x-tierway-reason"]) for answer in answers]


async def page(admin: httpx.AsyncClient) -> str:
    return (await admin.get("/metrics")).text


def test_a_shadow_is_seen_everywhere_and_felt_nowhere() -> None:
    async def main() -> None:
        tiers = {"small": {"policy": "round_robin", "shadow_policy": "round_robin"}}
        async with (
            stand(engine(0), engine(1), cache={"mode": "off"}, tiers=tiers) as made,
            made.admin() as admin,
        ):
            why = await ask(made, 20)
            assert all(one["policy"] == "round_robin" for one in why)
            assert {one["shadow"]["policy"] for one in why} == {"round_robin"}
            shadow = made.gateway.parts.state()["tiers"]["small"]["shadow"]
            assert (shadow["dispatches"], shadow["agreement"]) == (20, 1.0)
            labels = 'agrees="yes",policy="round_robin",tier="small"'
            assert f"tierway_balance_shadow_total{{{labels}}} 20.0" in await page(admin)
            await admin.put(PATH, json={"policy": None, "shadow": True})
            assert all("shadow" not in one for one in await ask(made, 4))

    asyncio.run(main())


def test_a_policy_that_fails_in_every_way_fails_no_request() -> None:
    async def main() -> None:
        async with (
            stand(engine(0), engine(1), cache={"mode": "off"}) as made,
            made.admin() as admin,
        ):
            plug_in(made)
            body = {"policy": "broken", "shadow": True}
            assert (await admin.put(PATH, json=body)).status_code == 200
            why = await ask(made, 10)
            assert {one["policy"] for one in why} == {"llm"}
            state = made.gateway.parts.state()
            assert state["tiers"]["small"]["shadow"]["errors"] == 10
            assert state["policies"]["faults"] == {}

            await admin.put(PATH, json={"policy": None, "shadow": True})
            assert (await admin.put(PATH, json={"policy": "broken"})).status_code == 200
            why = await ask(made, 10)
            assert {one["policy"] for one in why} == {"least_request"}
            assert made.gateway.parts.state()["policies"]["faults"] == {"small": {"broken": 10}}
            labels = 'policy="broken",tier="small"'
            assert f"tierway_balance_policy_faults_total{{{labels}}} 10.0" in await page(admin)
            assert [replica["failed"] for replica in made.replicas] == [0, 0]

    asyncio.run(main())
