"""The admin calls that change policies: what they do, what they refuse, what the log keeps."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from admins import Admin, run

from tierway.router.balancer import Look

PATH = "/admin/tiers/small/policy"


def test_options_are_told_and_kept() -> None:
    async def main(admin: Admin) -> None:
        body = {"policy": "llm", "options": {"surcharge": 5}}
        assert (await admin.http.put(PATH, json=body)).json()["version"] == 2
        tier = (await admin.state())["tiers"]["small"]
        assert (tier["policy"], tier["options"], tier["version"]) == ("llm", {"surcharge": 5}, 2)
        await admin.http.put("/admin/llm-aware", json={"enabled": False})
        tier = (await admin.state())["tiers"]["small"]
        assert (tier["policy"], tier["aware_policy"]) == ("least_request", "llm")

    run(main)


def test_a_shadow_is_set_seen_and_ended() -> None:
    async def main(admin: Admin) -> None:
        body = {"policy": "consistent_hash", "shadow": True}
        answer = await admin.http.put(PATH, json=body)
        assert answer.json() == {
            "tier": "small",
            "policy": "consistent_hash",
            "version": 2,
            "shadow": True,
        }
        balancer = admin.parts.dispatcher.balancer
        for number in range(20):
            choice = balancer.rank("small", ["m"], Look(str(number), 10), sequence=number)
            (await balancer.take(choice)).finish()
        tier = (await admin.state())["tiers"]["small"]
        assert (tier["policy"], tier["shadow"]["policy"]) == ("round_robin", "consistent_hash")
        assert tier["shadow"]["dispatches"] == 20
        assert 0 < tier["shadow"]["agreement"] < 1
        page = (await admin.http.get("/metrics")).text
        label = 'tierway_balance_shadow_total{agrees="yes",policy="consistent_hash",tier="small"}'
        assert label in page
        ended = await admin.http.put(PATH, json={"policy": None, "shadow": True})
        assert (ended.json()["policy"], ended.json()["version"]) == (None, 3)
        assert (await admin.state())["tiers"]["small"]["shadow"] is None

    run(main)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"policy": None}, "only a shadow may be null"),
        ({"policy": "lmm", "shadow": True}, "did you mean llm?"),
        ({"policy": "llm", "options": {"spred": 1}}, "did you mean spread?"),
        ({"policy": "llm", "options": {"spred": 1}, "shadow": True}, "shadow_options.spred"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(body: Any, told: str) -> None:
    async def main(admin: Admin) -> None:
        before = await admin.state()
        answer = await admin.http.put(PATH, json=body)
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]
        assert await admin.state() == before

    run(main)


def test_the_log_tells_who_changed_what_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    async def main(admin: Admin) -> None:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await admin.http.put(PATH, json={"policy": "llm", "options": {"spread": 2}})
            await admin.http.put(PATH, json={"policy": "random", "shadow": True})
            await admin.http.put("/admin/llm-aware", json={"enabled": False})
            await admin.http.put(PATH, json={"policy": "nothing"})

    run(main)
    who = "a key with the role operate set "
    assert [record.getMessage() for record in caplog.records] == [
        f"{who}the policy of small to llm {{'spread': 2}}: policy set version 2",
        f"{who}the shadow of small to random: policy set version 3",
        f"{who}llm-aware to False: policy set version 4",
    ]
    assert "k-operate" not in caplog.text
