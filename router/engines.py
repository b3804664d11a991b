"""Engines by table: what each calls its metrics, and where it says that it lives.

Counts and capacities are summed over data-parallel ranks, shares take the largest: one address
stands for all ranks, whose engine places a request on any of them, so sums are what it has, and a
full rank is a warning. A gauge with a sample that is no number, or out of range, is unknown as a
whole: part of a sum is wrong, not less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tierway.router.exposition import samples
from tierway.router.facts import Facts


@dataclass(frozen=True, slots=True)
class Engine:
    """Names of gauges; the first that a page has counts. Samples that differ only in the labels
    of `shards` tell of the same requests, and the first of these ranks speaks for all.

    `capacity` are ways to know how many tokens the KV cache holds, the first that works: factors
    to be multiplied, each a gauge, or a label of one that only informs, `name{label}`; `free`
    likewise for what it could still take. `preemptions` are counters of requests that lost their
    KV memory; `awake` is the gauge, `name{label=value}`, that is 0 while the engine has put its
    weights away. `reports_load` tells of engines that put it into the head of an answer when
    asked, `preallocates` of those that take all GPU memory at their start. `priority_sign` is 1
    where a higher number in the body's `priority` goes first, -1 where a lower one does, 0 where
    the engine knows none.
    """

    health: str
    metrics: str | None = None
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    capacity: tuple[tuple[str, ...], ...] = ()
    reports_load: bool = False
    preallocates: bool = True
    preemptions: tuple[str, ...] = ()
    free: tuple[tuple[str, ...], ...] = ()
    awake: str = ""
    priority_sign: int = 0


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        health="/health",
        metrics="/metrics",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        capacity=(
            ("vllm:cache_config_info{kv_cache_size_tokens}",),
            ("vllm:cache_config_info{block_size}", "vllm:cache_config_info{num_gpu_blocks}"),
        ),
        reports_load=True,
        preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
        awake="vllm:engine_sleep_state{sleep_state=awake}",
        priority_sign=-1,
    ),
    "sglang": Engine(
        health="/health",
        metrics="/metrics",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_usage=("sglang:token_usage",),
        shards=("pp_rank", "tp_rank", "moe_ep_rank"),
        capacity=(
            ("sglang:max_total_num_tokens",),
            ("sglang:page_size", "sglang:num_pages"),
            ("sglang:cache_config_info{page_size}", "sglang:cache_config_info{num_pages}"),
        ),
        preemptions=("sglang:num_retracted_requests_total",),
        priority_sign=1,
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
        capacity=(("trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"),),
        free=(("trtllm_kv_cache_free_blocks", "trtllm_kv_cache_tokens_per_block"),),
    ),
    "llamacpp": Engine(
        health="/health",
        metrics="/metrics",
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        preallocates=False,
    ),
    "ollama": Engine(health="/api/version", preallocates=False),
    "generic": Engine(health="/v1/models"),
}

_MOST = 1e12
_STARTED = "process_start_time_seconds"  # of the Prometheus client libraries
_ROUNDING = 1.01  # a share may be computed from counts that are not of quite the same moment

_Group = tuple[tuple[str, str], ...]
"""The labels that tell requests apart."""
_Gauge = dict[_Group, float | None]


def read_facts(engine: Engine, page: str, now_s: float) -> Facts:
    """The facts of one metrics page, asked for at `now_s`."""
    running = _first(page, engine.running, engine.shards)
    kv_usage = list(_first(page, engine.kv_usage, engine.shards).values())
    return Facts(
        waiting=_sum(_first(page, engine.waiting, engine.shards)),
        running=_sum(running),
        kv_usage=_largest(kv_usage),
        kv_capacity_tokens=_tokens(engine.capacity, engine, page),
        ranks=max(1, len(running)),
        preemptions=_sum(_first(page, engine.preemptions, engine.shards)),
        kv_free_tokens=_tokens(engine.free, engine, page, zero=True),
        process_start_s=_started_s(page),
        asleep=_asleep(engine, page),
        read_s=now_s,
        page_s=now_s,
    )


def _first(page: str, names: tuple[str, ...], shards: tuple[str, ...]) -> _Gauge:
    for name in names:
        if found := _gauge(page, name, shards):
            return found
    return {}


def _gauge(page: str, factor: str, shards: tuple[str, ...]) -> _Gauge:
    """A gauge, or a label that informs, by the labels that tell requests apart."""
    name, _, label = factor.removesuffix("}").partition("{")
    found: dict[_Group, tuple[tuple[int, ...], float | None]] = {}
    for told, value in samples(page, name):
        labels = dict(told)
        if label:
            value = _number(labels.get(label, ""))
        rank = tuple(_rank(labels.pop(shard, "")) for shard in shards)
        group = tuple(sorted(labels.items()))
        if group not in found or rank < found[group][0]:
            found[group] = rank, value
    return {group: value for group, (_, value) in found.items()}


def _rank(label: str) -> int:
    return int(label) if label.isdecimal() and len(label) < 10 else 0


def _number(label: str) -> float | None:
    return float(label) if label.isdecimal() and len(label) < 16 else None


def _sum(gauge: _Gauge) -> int | None:
    values = list(gauge.values())
    known = [value for value in values if value is not None and 0.0 <= value <= _MOST]
    return int(sum(known)) if known and len(known) == len(values) else None


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and 0.0 <= value <= _ROUNDING]
    return min(1.0, max(known)) if known and len(known) == len(values) else None


def _started_s(page: str) -> float | None:
    """When the newest process behind the page began: any of them that is new has lost its cache."""
    told = [value for _, value in samples(page, _STARTED) if value is not None and value > 0.0]
    return max(told, default=None)


def _asleep(engine: Engine, page: str) -> bool:
    """Whether all ranks say that they are not awake."""
    name, _, wanted = engine.awake.removesuffix("}").partition("{")
    label, _, text = wanted.partition("=")
    if not name:
        return False
    told = [value for labels, value in samples(page, name) if labels.get(label) == text]
    return bool(told) and not any(told)


def _tokens(
    ways: tuple[tuple[str, ...], ...], engine: Engine, page: str, *, zero: bool = False
) -> int | None:
    """The first way that works. Nothing has room for `zero` tokens, but it may have none free."""
    for factors in ways:
        gauges = [_gauge(page, factor, engine.shards) for factor in factors]
        groups = set(gauges[0]).union(*gauges)
        total = _sum({group: _product(gauges, group, zero=zero) for group in groups})
        if total is not None and (total or zero):
            return total
    return None


def _product(gauges: list[_Gauge], group: _Group, *, zero: bool) -> float | None:
    values = [gauge.get(group) for gauge in gauges]
    known = [value for value in values if value is not None and (value > 0.0 or zero)]
    return math.prod(known) if len(known) == len(values) else None
