"""An engine that starts after the gateway: loading a model takes minutes."""

from __future__ import annotations

import asyncio
import socket

import httpx

from tierway.bench.engine_server import EngineServer
from tierway.middleware import Gateway


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_the_name_it_serves_is_asked_for_at_the_first_call() -> None:
    async def main() -> None:
        port = free_port()
        replicas = [{"url": f"http://127.0.0.1:{port}"}]
        config = {
            "cache": {"mode": "off"},
            "tiers": {"small": {}},
            "models": {"qwen": {"tier": "small", "replicas": replicas}},
        }
        gateway = Gateway(config, environ={})
        async with gateway.lifespan():
            engine = EngineServer("8b-h100", model="Qwen/Qwen2.5-7B-Instruct", speed=100)
            await engine.start("127.0.0.1", port)
            try:
                transport = httpx.ASGITransport(app=gateway)
                async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
                    body = {"model": "qwen", "messages": [{"role": "user", "content": "hi"}]}
                    answer = await client.post("/v1/chat/completions", json=body)
            finally:
                await engine.aclose()
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "Qwen/Qwen2.5-7B-Instruct"

    asyncio.run(asyncio.wait_for(main(), 30))
