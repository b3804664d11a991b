"""Engines by table: what each calls its metrics, and where it says that it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tierway.router.fleet import Facts


@dataclass(frozen=True, slots=True)
class Engine:
    """Names without `_total`; the first that a page has counts. Counts are summed over
    labels (data-parallel ranks), shares take the largest."""

    health: str
    metrics: str | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        health="/health",
        metrics="/metrics",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    "sglang": Engine(
        health="/health",
        metrics="/metrics",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_usage=("sglang:token_usage",),
    ),
    "tgi": Engine(
        health="/health",
        metrics="/metrics",
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
    ),
    "trtllm": Engine(
        health="/health",
        metrics="/metrics",
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_usage=("trtllm_kv_cache_utilization",),
    ),
    "llamacpp": Engine(
        health="/health",
        metrics="/metrics",
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
    ),
    "ollama": Engine(health="/api/version"),
    "generic": Engine(health="/v1/models"),
}


def read_facts(engine: Engine, page: str, now_s: float) -> Facts:
    """The facts of one metrics page (Prometheus text format)."""
    names = {*engine.running, *engine.waiting, *engine.kv_usage}
    samples: dict[str, list[float]] = {}
    for line in page.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in names:
            samples.setdefault(name, []).append(_value(line))
    running = _first(engine.running, samples)
    waiting = _first(engine.waiting, samples)
    kv_usage = _first(engine.kv_usage, samples)
    return Facts(
        waiting=int(sum(waiting)) if waiting else None,
        running=int(sum(running)) if running else None,
        kv_usage=max(kv_usage) if kv_usage else None,
        read_s=now_s,
    )


def _first(names: tuple[str, ...], samples: Mapping[str, list[float]]) -> list[float]:
    for name in names:
        if name in samples:
            return samples[name]
    return []


def _value(line: str) -> float:
    """The sample of a line; a timestamp may follow it."""
    rest = line.rsplit("}", 1)[-1] if "{" in line else line.split(" ", 1)[1]
    try:
        value = float(rest.split()[0])
    except (ValueError, IndexError):
        return 0.0
    return value if value == value and value not in (float("inf"), float("-inf")) else 0.0
