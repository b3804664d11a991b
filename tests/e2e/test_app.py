"""The gateway inside somebody else's FastAPI application, as middleware and mounted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import ADMIN_KEY, configuration
from e2e.stand import served
from fastapi import FastAPI, Request, WebSocket

from tierway.middleware import Gateway, GatewayMiddleware

BODY = {"model": "auto", "messages": [{"role": "user", "content": "How do tides work?"}]}
BEARER = {"authorization": f"Bearer {ADMIN_KEY}"}


def own_app(events: list[str]) -> FastAPI:
    """An application with routes, a websocket and a lifespan of its own."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, str]]:
        events.append("up")
        yield {"colour": "green"}
        events.append("down")

    app = FastAPI(lifespan=lifespan)

    @app.get("/hello")
    async def hello(request: Request) -> dict[str, str]:
        return {"colour": request.state.colour}

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, Any]:
        body = await request.body()
        return {"size": len(body), "kind": request.headers["content-type"]}

    @app.get("/v1/other")
    async def other() -> str:
        return "the app's own"

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("you said " + await websocket.receive_text())
        await websocket.close()

    return app


def test_middleware_takes_its_paths_and_leaves_the_rest(
    fleet: EngineUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERWAY_ADMIN_KEY", ADMIN_KEY)
    events: list[str] = []
    app = own_app(events)
    app.add_middleware(GatewayMiddleware, config=configuration(fleet.small))

    async def main() -> None:
        async with live(app) as client:
            assert events == ["up"]
            assert (await client.get("/hello")).json() == {"colour": "green"}
            sent = await client.post(
                "/echo", content=b"x" * 300_000, headers={"content-type": "a/b"}
            )
            assert sent.json() == {"size": 300_000, "kind": "a/b"}
            assert (await client.get("/v1/other")).json() == "the app's own"
            assert (await client.get("/nothing")).json() == {"detail": "Not Found"}
            answer = await client.post("/v1/chat/completions", json=BODY)
            assert answer.json()["choices"]
            assert answer.headers["x-tierway-cache"] == "miss"
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "auto"
            assert not [name for name in sent.headers if name.startswith("x-tierway")]
        assert events == ["up", "down"]

    asyncio.run(main())


def test_a_websocket_passes_through_the_middleware(fleet: EngineUrls) -> None:
    app = own_app([])
    app.add_middleware(GatewayMiddleware, config=configuration(fleet.small))

    async def main() -> list[dict[str, Any]]:
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        inbox.put_nowait({"type": "websocket.connect"})
        inbox.put_nowait({"type": "websocket.receive", "text": "hi"})
        scope = {"type": "websocket", "path": "/ws", "raw_path": b"/ws", "root_path": ""}
        scope |= {"headers": [], "query_string": b"", "scheme": "ws", "subprotocols": []}
        await app(scope, inbox.get, send)
        return sent

    sent = asyncio.run(main())
    assert [message["type"] for message in sent] == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]
    assert sent[1]["text"] == "you said hi"


def test_a_wrong_configuration_keeps_the_app_from_starting() -> None:
    app = own_app([])
    app.add_middleware(GatewayMiddleware, config={"cach": {"mode": "serve"}})

    async def main() -> dict[str, Any]:
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        running = asyncio.create_task(app(scope, inbox.get, outbox.put))
        told = await outbox.get()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return told

    told = asyncio.run(main())
    assert told["type"] == "lifespan.startup.failed"
    assert "did you mean 'cache" in told["message"]


def test_mounted_with_its_lifespan_and_its_admin_app(fleet: EngineUrls) -> None:
    environ = {"TIERWAY_ADMIN_KEY": ADMIN_KEY}
    gateway = Gateway(configuration(fleet.small), environ=environ)
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount("/llm", gateway)
    app.mount("/operators", gateway.admin_app)

    async def main() -> None:
        async with live(app) as client:
            path = "/llm/v1/chat/completions"
            assert (await client.post(path, json=BODY)).json()["choices"]
            hit = await client.post(path, json=BODY)
            assert hit.headers["x-tierway-cache"] == "hit"
            assert (await client.get("/llm/v1/models/small")).json()["id"] == "small"
            assert (await client.get("/llm/healthz")).json() == {"status": "ok"}
            assert (await client.get("/llm/nothing")).status_code == 404
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 404
            assert (await client.get("/operators/admin/state")).status_code == 401
            state = await client.get("/operators/admin/state", headers=BEARER)
            assert state.json()["cache"]["entries"] == 1

    asyncio.run(main())


def test_a_mounted_gateway_that_was_not_started_says_so(fleet: EngineUrls) -> None:
    app = FastAPI()
    app.mount("/llm", Gateway(configuration(fleet.small)))

    async def main() -> httpx.Response:
        async with live(app) as client:
            return await client.post("/llm/v1/chat/completions", json=BODY)

    answer = asyncio.run(main())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "not_started"
    assert "gateway.lifespan()" in answer.json()["error"]["message"]


@asynccontextmanager
async def live(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application served over HTTP, with its lifespan."""
    async with (
        served(app, lifespan="on") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield client
