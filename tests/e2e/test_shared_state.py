"""Gateways before the same engines, over real sockets: one Redis, one truth of what is in
flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from datastores import Server, redis_server
from e2e.servers import ADMIN_KEY, configuration
from e2e.stand import body_of, engine, served, until

from tierway.bench.engine_server import EngineServer
from tierway.middleware import Gateway
from tierway.policies.policyset import Change

POLICY = {"small": {"policy": "llm"}}


class Gateways:
    """Several gateways of one configuration in this process."""

    def __init__(self, gateways: Sequence[Gateway], clients: Sequence[httpx.AsyncClient]) -> None:
        self.gateways, self.clients = gateways, clients

    async def ask(self, number: int, question: str, **fields: object) -> httpx.Response:
        body = body_of(question, **fields)
        return await self.clients[number].post("/v1/chat/completions", json=body)

    def inflight(self, number: int) -> list[int]:
        tiers = self.gateways[number].parts.state()["tiers"].values()
        return [replica["inflight"] for tier in tiers for replica in tier["replicas"]]

    def state(self, number: int) -> dict[str, object]:
        found: dict[str, object] = self.gateways[number].parts.state()["state"]
        return found


async def opened(
    stack: AsyncExitStack, server: Server, count: int, engines: Sequence[EngineServer]
) -> Gateways:
    urls = []
    for one in engines:
        urls.append(f"http://127.0.0.1:{await one.start()}")
        stack.push_async_callback(one.aclose)
    config = configuration(
        urls,
        cache={"mode": "off"},
        state={"backend": "redis", "url": server.url},
        tiers=POLICY,
    )
    config["models"]["sim-7b"] |= {"served_name": "sim-7b", "context_tokens": 32768}
    gateways, clients = [], []
    for _ in range(count):
        gateway = Gateway(config, environ={"TIERWAY_ADMIN_KEY": ADMIN_KEY})
        await stack.enter_async_context(gateway.lifespan())
        url = await stack.enter_async_context(served(gateway))
        client = httpx.AsyncClient(base_url=url, timeout=60)
        clients.append(await stack.enter_async_context(client))
        gateways.append(gateway)
    return Gateways(gateways, clients)


def test_gateways_see_each_others_requests_and_none_is_left(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with AsyncExitStack() as stack:
            engines = [engine(seed=n, speed=1.0) for n in range(4)]
            made = await opened(stack, server, 3, engines)
            assert await until(lambda: all(made.state(n)["gateways"] == 3 for n in range(3)))
            asked = [
                asyncio.ensure_future(made.ask(n % 3, f"Question {n}, at length?", max_tokens=150))
                for n in range(24)
            ]
            assert await until(lambda: all(sum(made.inflight(n)) == 24 for n in range(3)))
            assert max(made.inflight(0)) <= 8  # of 24 over four equal ones
            answers = await asyncio.gather(*asked)
            assert [answer.status_code for answer in answers] == [200] * 24
            assert await until(lambda: all(sum(made.inflight(n)) == 0 for n in range(3)))
            assert made.state(0) == {"backend": "redis", "ok": True, "gateways": 3, "error": ""}
            page = made.gateways[0].parts.metrics.render().decode()
            assert "tierway_state_ok 1.0" in page
            assert "tierway_state_gateways 3.0" in page

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))


def test_no_request_fails_and_hardly_one_waits_when_redis_goes(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with AsyncExitStack() as stack:
            engines = [engine(seed=n, speed=500.0) for n in range(2)]
            made = await opened(stack, server, 2, engines)
            await asyncio.gather(*(made.ask(n, "Hello?") for n in range(2)))
            server.pause()
            for _ in range(2):
                answers = await asyncio.gather(*(made.ask(n % 2, f"Number {n}?") for n in range(8)))
                assert all(answer.status_code == 200 for answer in answers)
            assert await until(lambda: not any(made.state(n)["ok"] for n in range(2)))
            began_s = time.monotonic()
            assert (await made.ask(0, "Are you there?")).status_code == 200
            assert time.monotonic() - began_s < 1.0
            server.stop()
            answers = await asyncio.gather(*(made.ask(n % 2, f"And {n}?") for n in range(8)))
            assert all(answer.status_code == 200 for answer in answers)
            assert "away" in str(made.state(0)["error"])
            assert "tierway_state_ok 0.0" in made.gateways[0].parts.metrics.render().decode()
            server.start()
            assert await until(lambda: all(made.state(n)["ok"] for n in range(2)), within_s=15)

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))


def test_a_gateway_without_its_redis_serves(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        server.stop()
        async with AsyncExitStack() as stack:
            made = await opened(stack, server, 1, [engine(speed=500.0)])
            assert (await made.ask(0, "Hello?")).status_code == 200
            assert made.state(0)["ok"] is False

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))


def test_an_admin_change_acts_on_every_gateway_within_a_second(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with AsyncExitStack() as stack:
            made = await opened(stack, server, 3, [engine(seed=n) for n in range(2)])
            first, *others = made.gateways
            replica = first.parts.fleet.specs()[0].id
            await first.parts.policies.set(Change("small", "policy", "prefix"))
            await others[0].parts.overlay.put("draining", replica, True)
            began = time.monotonic()

            def obeyed(gateway: Gateway) -> bool:
                policy = gateway.parts.holder.current.for_tier("small").name
                return policy == "prefix" and not gateway.parts.fleet.view(replica).available

            assert await until(lambda: all(obeyed(one) for one in made.gateways))
            assert time.monotonic() - began < 1.0

    with redis_server(tmp_path) as server:
        asyncio.run(main(server))
