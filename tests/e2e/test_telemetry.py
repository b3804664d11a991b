"""Facts of engines and GPUs on their whole way: from their pages to the state and the metrics."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
from e2e.servers import SPEED
from e2e.stand import Stand, engine, stand, until
from pages import UUIDS, gpu_page
from pages import engine as exporter

from tierway.bench.engine_http import HttpRequest, Reply
from tierway.bench.engine_server import EngineServer

SERIES = ("inflight", "waiting", "kv_usage", "gpu_utilisation", "gpu_memory_used_bytes",
          "gpu_temperature_celsius")  # fmt: skip


def with_gpus(page_url: str, urls: list[str]) -> dict[str, Any]:
    """Two replicas on one node, a GPU for each."""
    replicas = [
        {"url": url, "engine": "vllm", "telemetry": page_url, "gpu_uuids": [UUIDS[at]]}
        for at, url in enumerate(urls)
    ]
    model = {"tier": "small", "served_name": "sim-7b", "context_tokens": 32768}
    return {"sim-7b": {**model, "replicas": replicas}}


async def scraped(there: Stand) -> str:
    async with there.admin() as admin:
        return (await admin.get("/metrics")).text


def test_gpus_and_engines_are_seen_in_the_state_and_in_the_metrics() -> None:
    async def main() -> None:
        engines = [engine(seed) for seed in range(2)]
        urls = [f"http://127.0.0.1:{await one.start('127.0.0.1', 0)}" for one in engines]
        page = gpu_page(2, temp=[61, 88], util=[40, 99], used=[20_000, 30_000])
        async with (
            exporter({b"/metrics": (200, page.encode())}) as (url, asked),
            stand(models=with_gpus(url, urls)) as there,
        ):
            seen = await until(
                lambda: (
                    all(one["gpu_facts_age_s"] is not None for one in there.replicas)
                    and all(one["facts_age_s"] is not None for one in there.replicas)
                )
            )
            assert seen
            first, second = there.replicas
            assert asked == [b"/metrics"]
            assert (first["gpu_temperature_celsius"], first["gpu_utilisation"]) == (61, 0.4)
            assert (second["gpu_temperature_celsius"], second["gpu_throttled"]) == (88, False)
            assert second["gpu_memory_used_bytes"] == 30_000 << 20
            assert first["gpu"] == "NVIDIA H100 80GB HBM3"
            assert first["gpu_power_watts"] == 612.5
            assert first["kv_capacity_tokens"] > 10_000
            text = await scraped(there)
            for name in SERIES:
                assert len(re.findall(rf"^tierway_replica_{name}{{.*}} ", text, re.M)) == 2
        for one in engines:
            await one.aclose()

    asyncio.run(main())


def self_shown(urls: list[str]) -> dict[str, Any]:
    """Replicas whose engines show their own GPU."""
    replicas = [{"url": url, "engine": "vllm", "telemetry": f"{url}/gpu/metrics"} for url in urls]
    return {"sim-7b": {"tier": "small", "replicas": replicas}}


def test_a_hot_gpu_of_a_simulated_engine_is_seen() -> None:
    async def main() -> None:
        hot = engine(1)
        engines = [engine(0), hot]
        urls = [f"http://127.0.0.1:{await one.start()}" for one in engines]
        async with httpx.AsyncClient() as client:
            await client.put(f"{urls[1]}/faults", json={"temperature": 95})
        async with stand(models=self_shown(urls)) as there:
            assert await until(
                lambda: all(one["gpu_temperature_celsius"] is not None for one in there.replicas)
            )
            cool, warm = sorted(there.replicas, key=lambda one: one["gpu_temperature_celsius"])
            assert warm["id"].endswith(urls[1].removeprefix("http://"))
            assert (cool["gpu"], warm["gpu_temperature_celsius"]) == ("NVIDIA L40S", 95)
            assert 0.85 < cool["gpu_memory_used_bytes"] / cool["gpu_memory_bytes"] < 0.95
        for one in engines:
            await one.aclose()

    asyncio.run(main())


class WithoutMetrics(EngineServer):
    def _look(self, request: HttpRequest, reply: Reply) -> None:
        if request.path == "/metrics":
            reply.send(404, b"")
        else:
            super()._look(request, reply)


def test_answers_tell_the_load_when_the_metrics_page_does_not() -> None:
    async def main() -> None:
        async with stand(WithoutMetrics("8b-l40s", model="sim-7b", speed=SPEED)) as there:
            (before,) = there.replicas
            assert (before["facts_age_s"], before["waiting"]) == (None, None)
            answer = await there.ask("How do tides work?", stream=False)
            assert answer.status_code == 200
            (after,) = there.replicas
            assert (after["waiting"], after["running"]) == (0, None)
            assert 0.0 <= after["kv_usage"] < 0.5
            assert 0.0 <= after["facts_age_s"] < 5.0

    asyncio.run(main())
