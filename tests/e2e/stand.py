"""Simulated engines and the gateway on the test's own event loop, over real sockets.

For faults: the engines' and the gateway's counts can be looked at while clients come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import uvicorn
from e2e.servers import ADMIN_KEY, SPEED, configuration

from tierway.bench.engine_server import EngineServer
from tierway.middleware import Gateway

GONE_WITHIN_S = 1.0
"""What a client that left still holds must be free so soon."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the tests' own process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(slots=True)
class Stand:
    """`client` talks to the gateway, `url` is where it listens."""

    gateway: Gateway
    engines: list[EngineServer]
    url: str
    client: httpx.AsyncClient

    @property
    def running(self) -> int:
        """Requests that engines work on or hold back."""
        return sum(one.engine.running + one.engine.waiting for one in self.engines)

    @property
    def generated(self) -> int:
        return sum(sum(one.engine.totals.finished.values()) for one in self.engines)

    @property
    def replicas(self) -> list[dict[str, Any]]:
        tiers = self.gateway.parts.state()["tiers"].values()
        return [replica for tier in tiers for replica in tier["replicas"]]

    @property
    def inflight(self) -> int:
        return sum(replica["inflight"] for replica in self.replicas)

    @property
    def cache(self) -> dict[str, Any]:
        found: dict[str, Any] = self.gateway.parts.state()["cache"]
        return found

    def idle(self) -> bool:
        """True when nothing is left of any request, in the gateway and in the engines."""
        return not (self.running or self.inflight or self.cache["flights"])

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the admin listener that may do everything."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        transport = httpx.ASGITransport(self.gateway.admin_app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://admin", headers=headers
        ) as client:
            yield client

    async def settled(self) -> None:
        """Returns once everything stored so far has its vector and is in the store."""
        await self.gateway.parts.stage.cache.settled()

    async def ask(
        self, question: str, *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = body_of(question, **fields)
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)


def body_of(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": question}], **fields}


def engine(seed: int = 0, *, speed: float = SPEED, **fields: Any) -> EngineServer:
    return EngineServer("8b-l40s", model="sim-7b", seed=seed, speed=speed, **fields)


async def until(condition: Callable[[], bool], *, within_s: float = 5.0) -> bool:
    """Polls until the condition holds; False when the time is over."""
    until_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(0.005)
    return True


@asynccontextmanager
async def stand(
    *engines: EngineServer, dead: int = 0, environ: Mapping[str, str] | None = None, **changes: Any
) -> AsyncIterator[Stand]:
    """The gateway before these engines, in one tier; `dead` more replicas refuse connections.

    `changes` are sections of the configuration.
    """
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for one in engines:
            urls.append(f"http://127.0.0.1:{await one.start()}")
            stack.push_async_callback(one.aclose)
        for _ in range(dead):
            urls.append(f"http://127.0.0.1:{_closed_port(stack)}")
        config = configuration(urls, **changes)
        # Told here, it need not be asked of replicas that may be dead.
        config["models"]["sim-7b"] |= {"served_name": "sim-7b", "context_tokens": 32768}
        gateway = Gateway(config, environ={"TIERWAY_ADMIN_KEY": ADMIN_KEY, **(environ or {})})
        await stack.enter_async_context(gateway.lifespan())
        url = await stack.enter_async_context(served(gateway))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        yield Stand(gateway, list(engines), url, client)


@asynccontextmanager
async def served(app: Any, *, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[str]:
    """Serves an ASGI application and gives its base URL."""
    config = uvicorn.Config(
        app, interface="asgi3", lifespan=lifespan, log_level="error", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            assert await until(lambda: server.started, within_s=30)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def _closed_port(stack: contextlib.AsyncExitStack) -> int:
    """A port that stays taken and never listens."""
    taken = stack.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    return int(taken.getsockname()[1])


class RawClient:
    """A client at the level of bytes, which can leave at any moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def post(cls, url: str, body: Mapping[str, Any] | bytes, *extra: bytes) -> RawClient:
        """Sends a chat request, its head lines followed by `extra` ones."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: gateway",
            b"content-type: application/json",
            *(extra or (b"content-length: %d" % len(raw),)),
        ]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + raw)
        await writer.drain()
        return cls(reader, writer)

    async def read_until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readuntil(mark)

    async def read_all(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.read(-1)

    async def leave(self, *, reset: bool = False) -> None:
        if reset:
            self._writer.transport.abort()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
