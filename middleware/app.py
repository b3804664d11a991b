"""The stand-alone gateway: GatewayMiddleware around a small FastAPI application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tierway.middleware.asgi import Gateway, GatewayMiddleware, no_such_path


def create_app(config: Any = None, *, gateway: Gateway | None = None) -> GatewayMiddleware:
    """An ASGI application to serve with uvicorn; `config` as for `Gateway`."""
    gateway = gateway or Gateway(config)
    inner = FastAPI(title="Tierway", docs_url=None, redoc_url=None, openapi_url=None)

    @inner.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @inner.get("/readyz")
    async def readyz() -> JSONResponse:
        ready = gateway.parts.ready()
        return JSONResponse({"status": "ok" if ready else "no"}, 200 if ready else 503)

    @inner.exception_handler(404)
    async def unknown(request: Request, _: Exception) -> JSONResponse:
        return JSONResponse(no_such_path(request.method, request.url.path), 404)

    return GatewayMiddleware(inner, gateway=gateway)
