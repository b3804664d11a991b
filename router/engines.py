"""Engines by table: what each calls its metrics, and where it says that it lives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tierway.router.fleet import Facts


@dataclass(frozen=True, slots=True)
class Engine:
    """Names without `_total`; the first that a page has counts. Counts are summed over
    labels (data-parallel ranks), shares take the largest. Samples that differ only in the
    labels of `shards` tell of the same requests, and the first of these ranks speaks for all.
    """

    health: str
    metrics: str | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()


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
        shards=("pp_rank", "tp_rank", "moe_ep_rank"),
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

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_NAME_END = re.compile(r"[{\s]")

_Samples = dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], float]]
"""By the labels that tell requests apart: the rank that spoke, and what it said."""


def read_facts(engine: Engine, page: str, now_s: float) -> Facts:
    """The facts of one metrics page (Prometheus text format)."""
    found: dict[str, _Samples] = {
        name: {} for name in (*engine.running, *engine.waiting, *engine.kv_usage)
    }
    for line in page.splitlines():
        samples = found.get(_NAME_END.split(line, 1)[0])
        if samples is not None:
            _add(samples, line, engine.shards)
    kv_usage = _first(engine.kv_usage, found)
    return Facts(
        waiting=_count(_first(engine.waiting, found)),
        running=_count(_first(engine.running, found)),
        kv_usage=max(kv_usage) if kv_usage else None,
        read_s=now_s,
    )


def _add(samples: _Samples, line: str, shards: tuple[str, ...]) -> None:
    labels = dict(_LABEL.findall(line))
    rank = tuple(_rank(labels.pop(shard, "")) for shard in shards)
    group = tuple(sorted(labels.items()))
    if group not in samples or rank < samples[group][0]:
        samples[group] = rank, _value(line)


def _rank(label: str) -> int:
    return int(label) if label.isdecimal() and len(label) < 10 else 0


def _first(names: tuple[str, ...], found: Mapping[str, _Samples]) -> list[float]:
    samples = next((found[name] for name in names if found[name]), {})
    return [value for _, value in samples.values()]


def _count(values: list[float]) -> int | None:
    total = sum(values)
    return int(total) if values and math.isfinite(total) else None


def _value(line: str) -> float:
    """The sample of a line; a timestamp may follow it. What is no number counts as 0."""
    rest = line.rsplit("}", 1)[-1].split() if "{" in line else line.split()[1:]
    try:
        value = float(rest[0])
    except (ValueError, IndexError):
        return 0.0
    return value if math.isfinite(value) else 0.0
