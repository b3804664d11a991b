"""The two calls that mark an answer: who may mark what, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
from fakes import FakeAnswer, ScriptedUpstream, completion

from tierway.middleware import Gateway
from tierway.policies.types import Call, Usage

PATH = "/v1/tierway/feedback"
CONFIG: dict[str, Any] = {
    "cache": {"store": {"kind": "memory"}, "embedder": {"kind": "builtin"}},
    "models": {"m": {"tier": "small", "served_name": "m", "context_tokens": 8192,
                     "replicas": [{"url": "http://127.0.0.1:9"}]}},
    "tiers": {"small": {"class": "7b"}},
    "tenants": [{"name": name, "key_env": f"{name.upper()}_KEY"} for name in ("acme", "other")],
    "admin": {"keys": [{"key_env": "ADMIN", "role": "operate"}]},
}  # fmt: skip
ENVIRON = {"ACME_KEY": "sk-acme", "OTHER_KEY": "sk-other", "ADMIN": "k"}
ASK = {"model": "auto", "messages": [{"role": "user", "content": "Who wrote Faust?"}]}


@dataclass
class Desk:
    """Clients of one gateway whose replica answers by script."""

    http: httpx.AsyncClient
    admin: httpx.AsyncClient

    async def ask(self, key: str = "sk-acme", **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.http.post("/v1/chat/completions", json={**ASK, **fields}, headers=headers)

    async def mark(self, body: Any, key: str = "sk-acme") -> httpx.Response:
        return await self.http.post(PATH, json=body, headers={"x-api-key": key})


async def answer(_: Call) -> FakeAnswer:
    return FakeAnswer([orjson.dumps(completion())], usage=Usage(7, 2))


def run(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        gateway = Gateway(CONFIG, environ=ENVIRON, hooks=())
        async with gateway.lifespan():
            upstreams = gateway.parts.dispatcher.upstreams
            for name in upstreams:
                upstreams[name] = ScriptedUpstream(answer)  # type: ignore[index]  # a dict inside
            out = httpx.ASGITransport(gateway)
            inside = httpx.ASGITransport(gateway.admin_app)
            key = {"authorization": "Bearer k"}
            async with (
                httpx.AsyncClient(transport=out, base_url="http://g") as http,
                httpx.AsyncClient(transport=inside, base_url="http://a", headers=key) as admin,
            ):
                await asyncio.wait_for(test(Desk(http, admin)), 30)

    asyncio.run(main())


def test_a_tenant_marks_its_own_answers_only() -> None:
    async def main(desk: Desk) -> None:
        assert (await desk.ask()).json() == completion()
        hit = await desk.ask()
        assert hit.headers["x-tierway-cache"] == "hit"
        mark = {"request_id": hit.headers["x-request-id"], "correct": False}
        foreign = await desk.mark(mark, key="sk-other")
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "unknown_request")
        assert (await desk.ask()).headers["x-tierway-cache"] == "hit"
        told = await desk.mark(mark)
        assert (told.status_code, told.json()) == (
            200,
            {**mark, "withdrawn": [hit.headers["x-tierway-entry"]], "blocked": False,
             "counted": False},
        )  # fmt: skip
        assert (await desk.ask()).headers["x-tierway-cache"] == "miss"

    run(main)


def test_wrong_bodies_are_told_by_field() -> None:
    async def main(desk: Desk) -> None:
        for body, param in [
            ({"correct": True}, "request_id"),
            ({"request_id": 7, "correct": True}, "request_id"),
            ({"request_id": "", "correct": True}, "request_id"),
            ({"request_id": "r" * 129, "correct": True}, "request_id"),
            ({"request_id": "r"}, "correct"),
            ({"request_id": "r", "correct": "yes"}, "correct"),
            ({"request_id": "r", "correct": True, "why": ""}, "why"),
            ([], None),
        ]:
            answer = await desk.mark(body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        headers = {"x-api-key": "sk-acme"}
        assert (await desk.http.post(PATH, content=b"{", headers=headers)).status_code == 400
        assert (await desk.mark({}, key="sk-nobody")).status_code == 401
        got = await desk.http.get(PATH, headers=headers)
        assert (got.status_code, got.headers["allow"]) == (405, "POST")

    run(main)


def test_an_operator_marks_requests_of_all_and_entries() -> None:
    async def main(desk: Desk) -> None:
        path = "/admin/cache/feedback"
        request_id = (await desk.ask()).headers["x-request-id"]
        entry_id = (await desk.ask()).headers["x-tierway-entry"]
        right = await desk.admin.post(path, json={"request_id": request_id, "correct": True})
        assert (right.status_code, right.json()["withdrawn"]) == (200, [])
        wrong = await desk.admin.post(path, json={"entry_id": entry_id, "correct": False})
        assert (wrong.status_code, wrong.json()["withdrawn"]) == (200, [entry_id])
        assert (await desk.ask()).headers["x-tierway-cache"] == "miss"
        for body in ({"entry_id": entry_id}, {"request_id": "nobody's"}):
            gone = await desk.admin.post(path, json={**body, "correct": False})
            assert gone.status_code == 404
            assert next(iter(body)) in gone.json()["error"]["message"]
        for body in ({}, {"entry_id": "e", "request_id": "r"}):
            assert (await desk.admin.post(path, json={**body, "correct": True})).status_code == 400
        unlike = await desk.admin.post(path, json={"entry_id": "e", "correct": "no"})
        assert unlike.status_code == 422

    run(main)


@pytest.mark.parametrize("path", [PATH, "/admin/cache/feedback"])
def test_marks_need_a_key(path: str) -> None:
    async def main(desk: Desk) -> None:
        http = desk.http if path == PATH else desk.admin
        answer = await http.post(path, json={}, headers={"authorization": ""})
        assert answer.status_code == 401

    run(main)
