"""The admin listener: state, switches, metrics and probes, for operators.

Every call under /admin needs a bearer key whose role (read, operate, admin) is enough. The
metrics and the probes need none: the listener is on the loopback address unless told otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from tierway.middleware.admin_cache import add_cache_calls
from tierway.middleware.admin_fleet import add_fleet_calls
from tierway.middleware.admin_policies import add_policy_calls
from tierway.middleware.explain import explain
from tierway.middleware.parts import enough
from tierway.middleware.reply import openai_error
from tierway.middleware.tenants import bearer
from tierway.policies.errors import GatewayError

if TYPE_CHECKING:
    from tierway.middleware.asgi import Gateway
    from tierway.middleware.parts import Parts


class MarkBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    correct: bool
    request_id: str | None = None
    entry_id: str | None = None


class _Denied(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_admin_app(gateway: Gateway) -> FastAPI:
    """The application of the admin listener of `gateway`."""
    app = FastAPI(title="Tierway admin", docs_url=None, redoc_url=None, openapi_url=None)

    def parts() -> Parts:
        return gateway.parts

    def needs(role: str) -> Any:
        def check(request: Request) -> None:
            key = bearer(dict(request.scope["headers"]))
            held = parts().admin_keys.role(key)
            if held is None:
                raise _Denied(401, "Give an admin key as `Authorization: Bearer KEY`.")
            request.state.role = held
            if not enough(held, role):
                raise _Denied(403, f"This call needs an admin key with the role {role}.")

        return Depends(check)

    _add_handlers(app)
    _add_reads(app, parts, needs)
    _add_switches(app, parts, needs)
    add_policy_calls(app, parts, needs)
    add_fleet_calls(app, parts, needs)
    add_cache_calls(app, parts, needs)
    return app


def _add_handlers(app: FastAPI) -> None:
    @app.exception_handler(_Denied)
    async def denied(_: Request, error: _Denied) -> JSONResponse:
        return JSONResponse(openai_error("authentication_error", str(error)), error.status)

    @app.exception_handler(GatewayError)
    async def failed(_: Request, error: GatewayError) -> JSONResponse:
        wrong = error.source == "configuration"
        kind, status = ("invalid_request_error", 400) if wrong else (error.type, error.status)
        return JSONResponse(openai_error(kind, error.public, code=error.code), status)


def _add_reads(app: FastAPI, parts: Any, needs: Any) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        ready = parts().ready()
        return JSONResponse({"status": "ok" if ready else "no"}, 200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        found = parts().metrics
        return Response(found.render(), media_type=found.content_type)

    @app.get("/admin/state", dependencies=[needs("read")])
    async def state() -> dict[str, Any]:
        found: dict[str, Any] = parts().state()
        return found

    @app.post("/admin/explain", dependencies=[needs("read")])
    async def explain_call(request: Request) -> Response:
        found = await explain(parts(), await request.body())
        return Response(orjson.dumps(found), media_type="application/json")


def _add_switches(app: FastAPI, parts: Any, needs: Any) -> None:
    @app.delete("/admin/cache/{entry_id}", dependencies=[needs("operate")])
    async def delete_entry(entry_id: str) -> JSONResponse:
        deleted = await parts().stage.cache.delete([entry_id])
        return JSONResponse({"deleted": deleted}, 200 if deleted else 404)

    @app.post("/admin/cache/feedback", dependencies=[needs("operate")])
    async def mark(body: MarkBody) -> JSONResponse:
        return await _mark(parts(), body)


async def _mark(parts: Parts, body: MarkBody) -> JSONResponse:
    """Marks an answer by its request's id, of whatever tenant, or an entry by its own."""
    named = {"request_id": body.request_id, "entry_id": body.entry_id}
    named = {name: value for name, value in named.items() if value is not None}
    if len(named) != 1:
        message = "Give either request_id or entry_id, and not both."
        return JSONResponse(openai_error("invalid_request_error", message), 400)
    feedback, outcome = parts.stage.feedback, None
    if feedback is not None and body.request_id is not None:
        outcome = await feedback.mark(body.request_id, body.correct)
    elif feedback is not None and body.entry_id is not None:
        outcome = await feedback.mark_entry(body.entry_id, body.correct)
    if outcome is None:
        ((name, value),) = named.items()
        message = f"Nothing is known of {name} {value!r}."
        return JSONResponse(openai_error("invalid_request_error", message, param=name), 404)
    return JSONResponse({**named, "correct": body.correct, **outcome.as_json()})
