"""Facts of engines and GPUs on their whole way: from their pages to the state and the metrics."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from e2e.stand import Stand, engine, stand, until
from pages import UUIDS, gpu_page
from pages import engine as exporter

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
