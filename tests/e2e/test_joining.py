"""Joined embeddings through a gateway: each client gets its own, and as it would have alone."""

from __future__ import annotations

import asyncio

import httpx
from e2e.servers import configuration
from e2e.stand import engine, served

from tierway.middleware import Gateway


def test_clients_that_ask_together_get_their_own_vectors() -> None:
    async def main() -> None:
        one = engine()
        url = f"http://127.0.0.1:{await one.start()}"
        config = configuration([url], cache={"mode": "off"})
        config["models"]["sim-7b"] |= {
            "served_name": "sim-7b",
            "context_tokens": 4096,
            "kind": "embedding",
            "join": {"wait_ms": 20},
        }
        gateway = Gateway(config, environ={"TIERWAY_ADMIN_KEY": "k"})
        try:
            async with (
                gateway.lifespan(),
                served(gateway) as address,
                httpx.AsyncClient(timeout=30) as http,
            ):

                async def ask(base: str, text: str) -> list[float]:
                    body = {"model": "sim-7b", "input": text}
                    answer = await http.post(f"{base}/v1/embeddings", json=body)
                    assert answer.status_code == 200, answer.text
                    (item,) = answer.json()["data"]
                    assert item["index"] == 0
                    found: list[float] = item["embedding"]
                    return found

                texts = [f"text number {n}" for n in range(12)]
                together = await asyncio.gather(*(ask(address, text) for text in texts))
                alone = [await ask(url, text) for text in texts]
                assert together == alone
        finally:
            await one.aclose()

    asyncio.run(main())
