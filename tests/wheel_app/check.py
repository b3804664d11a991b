"""Serves app.py with the installed wheel and asks it; run by .ci/check_wheel.sh in its folder."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import httpx
import uvicorn

from tierway.bench.engine_server import EngineServer

BODY = {
    "model": "auto",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def write_configuration(engine_port: int) -> None:
    replica = {"url": f"http://127.0.0.1:{engine_port}", "engine": "vllm"}
    config = {
        "cache": {"store": {"kind": "memory"}},
        "models": {"sim-7b": {"tier": "small", "replicas": [replica]}},
    }
    Path("tierway.yaml").write_text(json.dumps(config))


async def ask(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        own = (await client.get("/own")).json()
        assert own == [f"{name}: the app" for name in own_names()], own
        for outcome in ("miss", "hit"):
            answer = await client.post("/v1/chat/completions", json=BODY)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-tierway-cache"] == outcome, answer.headers
        assert "France" in answer.json()["choices"][0]["message"]["content"]


def own_names() -> list[str]:
    """The bare names, which must all be the application's."""
    names = ["bench", "cache", "middleware", "policies", "router"]
    here = Path.cwd()
    for name in names:
        assert here in Path(sys.modules[name].__file__ or "").parents, sys.modules[name]
    return names


async def main() -> None:
    engine = EngineServer("8b-l40s", model="sim-7b", speed=50.0)
    write_configuration(await engine.start())
    from app import app  # reads the configuration when it starts

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # the first request waits until the server is up
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await ask(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            await serving
            await engine.aclose()


asyncio.run(main())
print("The wheel serves inside an application with folders of the same names.")
