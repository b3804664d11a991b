"""Purge and switch by admin calls: what they take, what they refuse, what they change."""

from __future__ import annotations

import pytest
from admins import FIRST, Admin, run
from fakes import completion, make_call

from tierway.cache.keys import fingerprint
from tierway.middleware.admin_cache import selection
from tierway.policies.cacheability import CacheRules, lookup
from tierway.policies.errors import BadCall
from tierway.policies.types import Source


def keep(admin: Admin, question: str, tenant: str) -> None:
    call = make_call(question, tenant=tenant)
    mark, plan = fingerprint(call, names="auto"), lookup(call, CacheRules())
    admin.parts.stage.cache.keep(call, mark, plan, Source("small", "m", FIRST), completion(), None)


def test_a_purge_deletes_what_meets_its_conditions() -> None:
    async def main(admin: Admin) -> None:
        for number, tenant in enumerate(["acme", "acme", "other"]):
            keep(admin, f"question {number}", tenant)
        await admin.parts.stage.cache.settled()

        async def purge(query: str) -> int:
            answer = await admin.http.delete(f"/admin/cache?{query}")
            assert answer.status_code == 200
            return int(answer.json()["deleted"])

        assert await purge("tenant=acme&older_than_s=3600") == 0
        assert await purge("tenant=acme&model=m") == 2
        assert (await admin.state())["cache"]["entries"] == 1
        assert await purge("user=nobody") == 0
        assert await purge("all=true") == 1
        assert (await admin.state())["cache"]["entries"] == 0

    run(main)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", "or all=true"),
        ("all=false", "or all=true"),
        ("all=yes", "all must be true or false"),
        ("tenat=acme", "'tenat'"),
        ("tenant=", "tenant must not be empty"),
        ("tenant=a&tenant=b", "tenant is given 2 times"),
        ("tenant=a&older_than_s=soon", "not 'soon'"),
        ("older_than_s=-1", "0 or more"),
        ("older_than_s=inf", "0 or more"),
        ("older_than_s=nan", "0 or more"),
        ("older_than_s=", "older_than_s must not be empty"),
    ],
)
def test_a_purge_that_is_not_clear_deletes_nothing(query: str, told: str) -> None:
    async def main(admin: Admin) -> None:
        keep(admin, "question", "")
        answer = await admin.http.delete(f"/admin/cache?{query}")
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await admin.state())["cache"]["entries"] == 1

    run(main)


def test_conditions_are_taken_together_with_all() -> None:
    chosen = selection([("all", "true"), ("user", "u1"), ("older_than_s", "60")], now_at=100.0)
    assert (chosen.user, chosen.older_than_at, chosen.tenant) == ("u1", 40.0, None)
    with pytest.raises(BadCall) as caught:
        selection([("entry", "e_1")], now_at=0.0)
    assert caught.value.param == "entry"


def test_the_mode_is_switched_and_told() -> None:
    async def main(admin: Admin) -> None:
        answer = await admin.http.put("/admin/cache", json={"mode": "observe"})
        told = {"mode": "observe", "version": 2, "store": "memory", "shared": True}
        assert (answer.status_code, answer.json()) == (200, told)
        cache = (await admin.state())["cache"]
        assert (cache["mode"], cache["configured_mode"]) == ("observe", "off")
        assert cache["version"] == 2
        for body in ({"mode": "on"}, {}, {"mode": "serve", "ttl_s": 1}, {"mode": True}):
            wrong = await admin.http.put("/admin/cache", json=body)
            assert wrong.status_code == 422
        assert (await admin.state())["cache"]["version"] == 2

    run(main)
