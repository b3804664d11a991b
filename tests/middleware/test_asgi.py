"""The gateway as an application and as middleware: paths, lifespan, and what is not ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from fakes import FakeAnswer, ScriptedUpstream, completion, stream_of

from tierway.middleware.asgi import Gateway, GatewayMiddleware, route_path

CONFIG: dict[str, Any] = {
    "cache": {"mode": "off"},
    "models": {
        "m": {
            "tier": "small",
            "served_name": "served",
            "context_tokens": 4096,
            "replicas": [{"url": "http://127.0.0.1:9"}],
        }
    },
    "tiers": {"small": {}},
}
REPLICA = "m@127.0.0.1:9"
ASK = {"model": "auto", "messages": [{"role": "user", "content": "Why?"}]}


async def foreign(scope: Any, receive: Any, send: Any) -> None:
    """Somebody's application: says which path it was asked for."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        headers = [(b"x-app", b"theirs")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": scope["path"].encode()})
    else:
        await send({"type": "websocket.accept"})


def gateway_of(**changes: Any) -> Gateway:
    return Gateway({**CONFIG, **changes}, environ={"ACME_KEY": "sk-acme", "TIERWAY_ADMIN_KEY": "k"})


@asynccontextmanager
async def started(gateway: Gateway, answer: FakeAnswer | None = None) -> AsyncIterator[Gateway]:
    """The gateway with its one replica answered for by a script."""
    async with gateway.lifespan():
        script = ScriptedUpstream(answer or FakeAnswer([orjson.dumps(completion())]))
        gateway.parts.dispatcher.upstreams = {REPLICA: script}
        yield gateway


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, **options)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    ("path", "root", "found"),
    [
        ("/v1/models", "", "/v1/models"),
        ("/llm/v1/models", "/llm", "/v1/models"),
        ("/v1/models", "/llm", "/v1/models"),
    ],
)
def test_paths_count_from_the_point_of_mounting(path: str, root: str, found: str) -> None:
    assert route_path({"path": path, "root_path": root}) == found


def test_before_the_start_every_request_is_told_so() -> None:
    async def main() -> None:
        gateway = gateway_of()
        with pytest.raises(RuntimeError, match="not started"):
            _ = gateway.parts
        async with client(gateway) as http:
            for answer in (await http.post("/v1/chat/completions", json=ASK),
                           await http.get("/readyz")):  # fmt: skip
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "not_started"
                assert "lifespan()" in answer.json()["error"]["message"]

    run(main)


def test_a_call_goes_through_whole_and_as_a_stream() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway, client(gateway) as http:
            answer = await http.post("/v1/chat/completions", json=ASK)
            assert (answer.status_code, answer.json()) == (200, completion())
            assert answer.headers["x-tierway-replica"] == REPLICA
        events = FakeAnswer(list(stream_of("Paris.")), stream=True)
        async with started(gateway_of(), events) as gateway, client(gateway) as http:
            answer = await http.post("/v1/chat/completions", json={**ASK, "stream": True})
            assert answer.content == b"".join(stream_of("Paris."))
            assert events.closed == 1

    run(main)


def test_probes_follow_what_can_answer() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway, client(gateway) as http:
            assert (await http.get("/readyz")).status_code == 200
            gateway.parts.fleet.set_draining(REPLICA, True)
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.get("/healthz")).status_code == 200

    run(main)


def test_what_is_not_here_is_told_in_openais_shape() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway, client(gateway) as http:
            nothing = await http.get("/v1/nothing")
            assert nothing.status_code == 404
            assert "/v1/chat/completions" in nothing.json()["error"]["message"]
            wrong = await http.get("/v1/chat/completions")
            assert wrong.status_code == 405
            assert "POST" in wrong.json()["error"]["message"]

    run(main)


def test_models_are_listed_and_shown_one_by_one() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway, client(gateway) as http:
            listed = (await http.get("/v1/models")).json()
            assert [card["id"] for card in listed["data"]] == ["auto", "small", "m"]
            assert (await http.get("/v1/models/m")).json() == listed["data"][2]
            unknown = await http.get("/v1/models/gpt")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (
                404,
                "model_not_found",
            )

    run(main)


def test_with_tenants_the_list_of_models_needs_a_key() -> None:
    async def main() -> None:
        tenants = [{"name": "acme", "key_env": "ACME_KEY"}]
        async with started(gateway_of(tenants=tenants)) as gateway, client(gateway) as http:
            assert (await http.get("/v1/models")).status_code == 401
            key = {"authorization": "Bearer sk-acme"}
            assert (await http.get("/v1/models", headers=key)).status_code == 200

    run(main)


def test_mounted_it_answers_below_its_prefix() -> None:
    async def main() -> None:
        async with (
            started(gateway_of()) as gateway,
            client(gateway, root_path="/llm") as http,
        ):
            answer = await http.post("/llm/v1/chat/completions", json=ASK)
            assert answer.status_code == 200

    run(main)


def test_middleware_takes_its_own_paths_and_hands_on_the_rest() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway:
            app = GatewayMiddleware(foreign, gateway=gateway)
            async with client(app) as http:
                for path in ("/", "/v1", "/v1/files", "/v1/modelsx", "/healthz"):
                    answer = await http.get(path)
                    assert (answer.headers["x-app"], answer.text) == ("theirs", path)
                assert "x-app" not in (await http.get("/v1/models")).headers
                assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 200

    run(main)


def test_a_websocket_is_the_applications_affair() -> None:
    async def main() -> None:
        gateway = gateway_of()
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/v1/chat/completions"}
        await GatewayMiddleware(foreign, gateway=gateway)(scope, _silence, send)
        await gateway(scope, _silence, send)
        assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]

    run(main)


async def _silence() -> MutableMapping[str, Any]:
    raise AssertionError("nobody has anything to say")


class Life:
    """One lifespan of an application, as a server leads it."""

    def __init__(self, app: Any) -> None:
        self.inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.outbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self.task = asyncio.ensure_future(app(scope, self.inbox.get, self.outbox.put))

    async def say(self, what: str) -> MutableMapping[str, Any]:
        await self.inbox.put({"type": f"lifespan.{what}"})
        return await self.outbox.get()


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "around an application"])
def test_start_and_stop_hang_on_the_lifespan(wrapped: bool) -> None:
    async def main() -> None:
        gateway = gateway_of()
        life = Life(GatewayMiddleware(foreign, gateway=gateway) if wrapped else gateway)
        assert (await life.say("startup"))["type"] == "lifespan.startup.complete"
        assert gateway.parts.ready()
        assert (await life.say("shutdown"))["type"] == "lifespan.shutdown.complete"
        await life.task
        with pytest.raises(RuntimeError):
            _ = gateway.parts

    run(main)


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "around an application"])
def test_a_wrong_configuration_ends_the_start_with_every_fault(wrapped: bool) -> None:
    async def main() -> None:
        gateway = Gateway({"cache": {"mode": "of"}, "unknwon": 1}, environ={})
        life = Life(GatewayMiddleware(foreign, gateway=gateway) if wrapped else gateway)
        told = await life.say("startup")
        assert told["type"] == "lifespan.startup.failed"
        assert "cache.mode" in told["message"]
        assert "unknwon" in told["message"]
        life.task.cancel()
        await asyncio.wait({life.task})

    run(main)


def test_an_application_that_does_not_start_keeps_the_gateway_down() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    async def main() -> None:
        gateway = gateway_of()
        life = Life(GatewayMiddleware(failing, gateway=gateway))
        assert (await life.say("startup"))["message"] == "no database"
        with pytest.raises(RuntimeError):
            _ = gateway.parts

    run(main)


def test_starting_and_closing_twice_is_once() -> None:
    async def main() -> None:
        gateway = gateway_of()
        await gateway.start()
        parts = gateway.parts
        await gateway.start()
        assert gateway.parts is parts
        await gateway.aclose()
        await gateway.aclose()

    run(main)


def test_the_admin_application_is_there_to_be_mounted() -> None:
    async def main() -> None:
        async with started(gateway_of()) as gateway, client(gateway.admin_app) as http:
            assert (await http.get("/admin/state")).status_code == 401
            key = {"authorization": "Bearer k"}
            state = (await http.get("/admin/state", headers=key)).json()
            assert list(state["tiers"]) == ["small"]

    run(main)


def test_an_application_without_a_lifespan_still_gets_a_started_gateway() -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("this application knows nothing of lifespans")

    async def main() -> list[str]:
        said: list[str] = []
        incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> dict[str, str]:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            said.append(message["type"])

        config = {"cache": {"mode": "off"}, "tiers": {"small": {}}, "models": {}}
        middleware = GatewayMiddleware(inner, config=config)
        await middleware({"type": "lifespan"}, receive, send)
        return said

    assert asyncio.run(main()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
