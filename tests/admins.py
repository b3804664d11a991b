"""The admin application before parts that were built and not started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx

from tierway.middleware.admin import create_admin_app
from tierway.middleware.build import build
from tierway.middleware.parts import Parts

CONFIG: dict[str, Any] = {
    "cache": {"mode": "off"},
    "models": {
        "m": {
            "tier": "small",
            "served_name": "served",
            "replicas": [{"url": "http://a:1", "gpu": "a10"}, {"url": "http://b:1/pool"}],
        }
    },
    "tiers": {"small": {"policy": "round_robin"}, "large": {"class": "175b"}},
    "admin": {
        "keys": [{"key_env": f"{role.upper()}_KEY", "role": role} for role in ("read", "operate")]
    },
    "tenants": [{"name": "acme", "key_env": "ACME_KEY"}],
}
ENVIRON = {"READ_KEY": "k-read", "OPERATE_KEY": "k-operate", "ACME_KEY": "sk-acme"}
FIRST, SECOND = "m@a:1", "m@b:1/pool"


@dataclass
class Admin:
    """The admin application before parts that were built and not started; `http` may operate."""

    parts: Parts
    http: httpx.AsyncClient

    async def state(self) -> dict[str, Any]:
        answer = await self.http.get("/admin/state")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    async def version(self) -> int:
        return int((await self.state())["policies"]["version"])


@dataclass
class _Holder:
    parts: Parts


def run(test: Callable[[Admin], Coroutine[Any, Any, None]], config: Any = CONFIG) -> None:
    async def main() -> None:
        parts = await build(config, ENVIRON, live=False)
        app = create_admin_app(_Holder(parts))  # type: ignore[arg-type]  # `parts` is all it uses
        transport = httpx.ASGITransport(app)
        headers = {"authorization": "Bearer k-operate"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://admin", headers=headers
        ) as http:
            try:
                await asyncio.wait_for(test(Admin(parts, http)), 20)
            finally:
                await parts.aclose()

    asyncio.run(main())
