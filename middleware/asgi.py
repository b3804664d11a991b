"""Tierway as an ASGI application and as middleware.

`Gateway` is the thing itself: `app.mount("/llm", gateway)`, or served alone. `GatewayMiddleware`
puts one in front of an application and takes only the API paths; everything else passes through
untouched. Both are cheap to construct and import nothing heavy before they start: configuration,
encoder and fleet come up in the lifespan, and a fault there ends start-up with its message.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson

from tierway.middleware.reply import openai_error
from tierway.middleware.wire import PATHS
from tierway.policies.errors import GatewayError

if TYPE_CHECKING:
    from tierway.middleware.parts import Parts
    from tierway.policies.protocols import Hook

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_MODELS = "/v1/models"
_FEEDBACK = "/v1/tierway/feedback"
_PROBES = ("/healthz", "/readyz")


class Gateway:
    """The gateway as an ASGI application.

    `config` is a path, a mapping, a Settings object, or None for `TIERWAY_CONFIG`, then
    `tierway.yaml`, then the embedded demo. Served alone it follows the server's lifespan; mounted
    in another application, which hides that, enter `gateway.lifespan()` in the outer one.
    `hooks` are called with the Trace of every finished request, instead of the log line.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        environ: Mapping[str, str] | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> None:
        self._config, self._environ, self._hooks = config, environ, hooks
        self._parts: Parts | None = None
        self._admin: ASGIApp | None = None

    @property
    def parts(self) -> Parts:
        """What runs behind the gateway; raises RuntimeError before start."""
        if self._parts is None:
            raise RuntimeError("the gateway is not started: serve or mount it with its lifespan")
        return self._parts

    async def start(self) -> None:
        """Raises ConfigError, with every fault of the configuration in its message."""
        if self._parts is None:
            from tierway.middleware.build import build

            self._parts = await build(self._config, self._environ, hooks=self._hooks)

    async def aclose(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.aclose()

    @asynccontextmanager
    async def lifespan(self, _app: Any = None) -> AsyncIterator[None]:
        await self.start()
        try:
            yield
        finally:
            await self.aclose()

    async def admin_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The admin listener's application: mount it where the operators can reach it."""
        if self._admin is None:
            from tierway.middleware.admin import create_admin_app

            self._admin = create_admin_app(self)
        await self._admin(scope, receive, send)

    def owns(self, path: str) -> bool:
        """True for the paths of the API."""
        return path in PATHS or path in (_MODELS, _FEEDBACK) or path.startswith(_MODELS + "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _serve_lifespan(self, receive, send)
        elif scope["type"] == "http":
            await self.serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request on a path of the gateway, or a 404 that says so."""
        path = route_path(scope)
        if self._parts is None:
            await _send_json(
                send, 503, openai_error("server_error", _NOT_STARTED, code="not_started")
            )
        elif path in PATHS:
            await self._call(path, scope, receive, send)
        elif path == _FEEDBACK:
            await self._take_mark(scope, receive, send)
        elif (path == _MODELS or path.startswith(_MODELS + "/")) and scope["method"] == "GET":
            await self._list_models(path[len(_MODELS) :].strip("/"), scope, send)
        elif path in _PROBES:
            ready = path == "/healthz" or self._parts.ready()
            await _send_json(send, 200 if ready else 503, {"status": "ok" if ready else "no"})
        else:
            await _send_json(send, 404, no_such_path(scope["method"], path))

    async def _list_models(self, name: str, scope: Scope, send: Send) -> None:
        try:
            status, body = self.parts.models(name, dict(scope["headers"]))
        except GatewayError as error:
            status = error.status
            body = openai_error(error.type, error.public, code=error.code)
        await _send_json(send, status, body)

    async def _call(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await _send_not_post(send, path, scope["method"])
            return
        await self.parts.edge.serve(PATHS[path], scope, receive, send)

    async def _take_mark(self, scope: Scope, receive: Receive, send: Send) -> None:
        from tierway.middleware.feedback import take_mark

        if scope["method"] != "POST":
            await _send_not_post(send, _FEEDBACK, scope["method"])
            return
        told = await take_mark(self.parts, dict(scope["headers"]), receive)
        if told is not None:
            await _send_json(send, *told)


class GatewayMiddleware:
    """`app.add_middleware(GatewayMiddleware, config="tierway.yaml")`.

    Give a `gateway` of your own instead of `config` to keep hold of it, for its `admin_app`.
    """

    def __init__(self, app: ASGIApp, config: Any = None, *, gateway: Gateway | None = None) -> None:
        self.app = app
        self.gateway = gateway or Gateway(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http" and self.gateway.owns(route_path(scope)):
            await self.gateway.serve(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starts before the application says that it is up, stops after it is down."""

        asked = False

        async def inward() -> Message:
            nonlocal asked
            asked = True
            return await receive()

        async def outward(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self.gateway.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
            elif message["type"].startswith("lifespan.shutdown"):
                await self.gateway.aclose()
            await send(message)

        try:
            await self.app(scope, inward, outward)
        except Exception:
            if asked:
                raise
            # By the specification such an application has no lifespan; the gateway has one.
            await _serve_lifespan(self.gateway, receive, send)


def route_path(scope: Mapping[str, Any]) -> str:
    """The path below the point where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


_NOT_STARTED = (
    "The gateway has not started: a mounted gateway needs `gateway.lifespan()` "
    "in the outer application's lifespan."
)


async def _serve_lifespan(gateway: Gateway, receive: Receive, send: Send) -> None:
    await receive()
    try:
        await gateway.start()
    except Exception as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await gateway.aclose()
    await send({"type": "lifespan.shutdown.complete"})


def no_such_path(method: str, path: str) -> dict[str, Any]:
    """The body of a 404, in the wire's own shape."""
    message = f"There is no {method} {path} here; there are {', '.join(PATHS)}."
    return openai_error("invalid_request_error", message, code="unknown_path")


async def _send_not_post(send: Send, path: str, method: str) -> None:
    document = openai_error("invalid_request_error", f"{path} takes POST, not {method}.")
    await _send_json(send, 405, document, (b"allow", b"POST"))


async def _send_json(send: Send, status: int, document: Any, *more: tuple[bytes, bytes]) -> None:
    body = orjson.dumps(document)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
