"""Somebody's application: folders named like ours, a route, and the gateway as middleware."""

from __future__ import annotations

from fastapi import FastAPI

import bench  # noqa: TID251 - the app's own
import cache  # noqa: TID251 - the app's own
import middleware  # noqa: TID251 - the app's own
import policies  # noqa: TID251 - the app's own
import router  # noqa: TID251 - the app's own
from tierway.middleware import GatewayMiddleware

OWN = (bench, cache, middleware, policies, router)

app = FastAPI()
app.add_middleware(GatewayMiddleware, config="tierway.yaml")


@app.get("/own")
async def own() -> list[str]:
    return [f"{module.__name__}: {module.OWNER}" for module in OWN]
