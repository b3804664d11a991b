"""The admin listener: who may do what, and what a switch changes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from admins import FIRST, SECOND, Admin, run
from fakes import completion, make_call

from tierway.cache.keys import fingerprint
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.types import Source, Work

CALLS = [
    ("GET", "/admin/state", "read"),
    ("POST", "/admin/explain", "read"),
    ("PUT", "/admin/tiers/small/policy", "operate"),
    ("PUT", "/admin/llm-aware", "operate"),
    ("POST", "/admin/reload", "operate"),
    ("POST", f"/admin/replicas/{FIRST}/drain", "operate"),
    ("POST", f"/admin/replicas/{FIRST}/undrain", "operate"),
    ("DELETE", "/admin/cache/e_1", "operate"),
    ("DELETE", "/admin/cache?all=true", "operate"),
    ("PUT", "/admin/cache", "operate"),
    ("POST", "/admin/cache/feedback", "operate"),
]


def test_every_admin_call_needs_a_key_and_switches_need_a_strong_one() -> None:
    async def main(admin: Admin) -> None:
        before = await admin.state()
        for method, path, role in CALLS:
            for key, status in [("", 401), ("Bearer sk-acme", 401), ("Bearer k-read", 403)]:
                if role == "read" and status == 403:
                    continue
                answer = await admin.http.request(method, path, headers={"authorization": key})
                assert answer.status_code == status, (method, path, key)
                assert answer.json()["error"]["type"] == "authentication_error"
                assert "k-read" not in answer.text
        assert await admin.state() == before

    run(main)


def test_probes_and_metrics_need_none() -> None:
    async def main(admin: Admin) -> None:
        for path in ("/healthz", "/readyz", "/metrics"):
            answer = await admin.http.get(path, headers={"authorization": ""})
            assert answer.status_code == 200, path
        assert "tierway_policy_version 1.0" in answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        for replica in (FIRST, SECOND):
            admin.parts.fleet.set_draining(replica, True)
        answer = await admin.http.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "no"})

    run(main)


def test_the_state_shows_tiers_replicas_cache_and_tenants() -> None:
    async def main(admin: Admin) -> None:
        lease = admin.parts.fleet.lease(FIRST, Work(100, 100))
        state = await admin.state()
        lease.finish()
        tier = state["tiers"]["small"]
        assert (tier["class"], tier["policy"], tier["models"]) == ("7b", "round_robin", ["m"])
        assert (tier["aware_policy"], tier["plain_policy"]) == ("round_robin", "least_request")
        assert (tier["options"], tier["shadow"], tier["version"]) == ({}, None, 1)
        first, second = tier["replicas"]
        assert (first["id"], first["inflight"], first["inflight_tokens"]) == (FIRST, 1, 100)
        assert (first["gpu"], first["breaker"], first["facts_age_s"]) == ("a10", "closed", None)
        assert (second["id"], second["available"]) == (SECOND, True)
        assert state["tiers"]["large"]["replicas"] == []
        assert state["cache"] == {
            "mode": "off",
            "configured_mode": "off",
            "version": 1,
            "store": "memory",
            "entries": 0,
            "bytes": 0,
            "results": {},
            "encoder": None,
            "languages": [],
            "lessons": {"blocked_pairs": 0, "marks": []},
            "faults": {},
            "flights": 0,
        }
        assert state["tenants"] == ["acme"]
        assert state["policies"] == {"version": 1, "llm_aware": True, "faults": {}}
        assert "k-read" not in orjson.dumps(state).decode()

    run(main)


def test_a_policy_is_swapped_and_told() -> None:
    async def main(admin: Admin) -> None:
        body = {"policy": "llm"}
        answer = await admin.http.put("/admin/tiers/small/policy", json=body)
        assert answer.json() == {"tier": "small", "policy": "llm", "version": 2}
        assert (await admin.state())["tiers"]["small"]["policy"] == "llm"
        assert admin.parts.holder.current.for_tier("large").name == "llm"

    run(main)


@pytest.mark.parametrize(
    ("tier", "body", "status", "told"),
    [
        ("small", {"policy": "least_reqest"}, 400, "did you mean least_request?"),
        ("small", {"policy": "round_robin", "options": {"a": 1}}, 400, "options.a"),
        ("tiny", {"policy": "random"}, 400, "tiny"),
        ("small", {}, 422, "policy"),
        ("small", {"policy": "random", "option": {}}, 422, "option"),
    ],
)
def test_a_wrong_policy_changes_nothing(tier: str, body: Any, status: int, told: str) -> None:
    async def main(admin: Admin) -> None:
        answer = await admin.http.put(f"/admin/tiers/{tier}/policy", json=body)
        assert answer.status_code == status
        assert told in answer.text
        assert await admin.version() == 1

    run(main)


def test_the_one_switch_turns_every_tier_to_its_plain_policy() -> None:
    async def main(admin: Admin) -> None:
        answer = await admin.http.put("/admin/llm-aware", json={"enabled": False})
        assert answer.json() == {"llm_aware": False, "version": 2}
        assert (await admin.state())["tiers"]["small"]["policy"] == "least_request"
        await admin.http.put("/admin/llm-aware", json={"enabled": True})
        assert (await admin.state())["tiers"]["small"]["policy"] == "round_robin"
        wrong = await admin.http.put("/admin/llm-aware", json={"enabled": "no"})
        assert wrong.status_code == 422
        assert await admin.version() == 3

    run(main)


@pytest.mark.parametrize("replica", [FIRST, SECOND])
def test_a_replica_is_drained_and_taken_back(replica: str) -> None:
    async def main(admin: Admin) -> None:
        async def reason() -> str:
            replicas = (await admin.state())["tiers"]["small"]["replicas"]
            return next(item["reason"] for item in replicas if item["id"] == replica)

        answer = await admin.http.post(f"/admin/replicas/{replica}/drain")
        assert answer.json() == {"id": replica, "draining": True}
        assert await reason() == "draining"
        answer = await admin.http.post(f"/admin/replicas/{replica}/undrain")
        assert answer.json() == {"id": replica, "draining": False}
        assert await reason() == ""

    run(main)


def test_a_replica_that_is_not_there_is_told_with_those_that_are() -> None:
    async def main(admin: Admin) -> None:
        answer = await admin.http.post("/admin/replicas/m@c:1/drain")
        assert answer.status_code == 404
        assert FIRST in answer.json()["error"]["message"]

    run(main)


def test_an_entry_is_deleted_once() -> None:
    async def main(admin: Admin) -> None:
        cache, call = admin.parts.stage.cache, make_call()
        mark = fingerprint(call, names="auto", scope="tenant", ignore=())
        plan = lookup(call, CacheRules())
        entry = cache.keep(call, mark, plan, Source("small", "m", FIRST), completion(), None)
        assert (await admin.state())["cache"]["entries"] == 1
        answer = await admin.http.delete(f"/admin/cache/{entry}")
        assert (answer.status_code, answer.json()) == (200, {"deleted": 1})
        answer = await admin.http.delete(f"/admin/cache/{entry}")
        assert (answer.status_code, answer.json()) == (404, {"deleted": 0})
        assert (await admin.state())["cache"]["entries"] == 0

    run(main)


def test_explain_answers_and_refuses_as_the_request_would_be() -> None:
    async def main(admin: Admin) -> None:
        key = {"authorization": "Bearer k-read"}
        ask = {"model": "auto", "messages": [{"role": "user", "content": "Why?"}]}
        answer = await admin.http.post("/admin/explain", json=ask, headers=key)
        assert (answer.status_code, answer.json()["tier"]) == (200, "small")
        wrong = await admin.http.post("/admin/explain", json={**ask, "model": "x"}, headers=key)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        assert (await admin.http.post("/admin/explain", content=b"{")).status_code == 400

    run(main)
