"""The metrics of a simulated engine, with vLLM's names, labels and buckets (0.33).

Only what a gateway or a dashboard reads is here, and only series that the simulation can
fill. Counters follow the engine's totals when they are read; histograms are fed by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tierway.bench.engine import Engine, Job
from tierway.bench.engine_metrics_config import CACHE_CONFIG

_Metric = TypeVar("_Metric", Gauge, Counter)

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
    40, 80, 160, 640, 2560,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_REASONS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")


class EngineMetrics:
    """`started_at` is the wall clock at the engine's start."""

    def __init__(self, engine: Engine, model: str, *, started_at: float = 0.0) -> None:
        self._engine = engine
        self._labels = {"engine": "0", "model_name": model}
        self._registry = CollectorRegistry()
        self._seen: dict[str, float] = {}
        text = "Start time of the process since unix epoch in seconds."
        Gauge("process_start_time_seconds", text, registry=self._registry).set(started_at)
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def observe(self, moved: Sequence[Job]) -> None:
        """Books one step; `moved` are the jobs that got a token or ended in it."""
        self._step_tokens.observe(self._engine.step_tokens)
        for job in moved:
            if job.generated == 1 and job.first_token_s is not None:
                self._ttft.observe(job.first_token_s - job.arrived_s)
            elif job.token_s is not None and job.previous_s is not None:
                self._itl.observe(job.token_s - job.previous_s)
            if job.reason in ("stop", "length"):
                self._observe_finished(job)

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        engine, totals = self._engine, self._engine.totals
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._waiting_capacity.set(engine.waiting)
        self._kv_usage.set(engine.kv_usage)
        self._follow("prefix_queries", totals.prefix_queries)
        self._follow("prefix_hits", totals.prefix_hits)
        self._follow("prompt_tokens_cached", totals.prefix_hits)
        self._follow("prompt_tokens", totals.prompt_tokens)
        self._follow("generation_tokens", totals.generation_tokens)
        self._follow("preemptions", totals.preemptions)
        self._follow("source:local_cache_hit", totals.prefix_hits)
        self._follow("source:local_compute", totals.computed_prompt_tokens)
        self._follow("cached:device", totals.prefix_hits)
        for reason, count in totals.finished.items():
            self._follow(f"success:{reason}", count)
        return generate_latest(self._registry)

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests in execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage, 1 is full.")
        text = "Waiting requests by reason."
        by_reason = self._family(
            Gauge, "num_requests_waiting_by_reason", text, "reason", ("capacity", "deferred")
        )
        self._waiting_capacity = by_reason["capacity"]
        text = "1 for the state that the engine is in."
        states = ("awake", "weights_offloaded", "discard_all")
        self._family(Gauge, "engine_sleep_state", text, "sleep_state", states)["awake"].set(1)
        config = {**self._labels, **CACHE_CONFIG, **self._sizes()}
        # Of all series this one carries no name of the model.
        del config["model_name"]
        text = "Information of the cache config."
        made = Gauge("vllm:cache_config_info", text, list(config), registry=self._registry)
        made.labels(**config).set(1)

    def _sizes(self) -> dict[str, str]:
        profile = self._engine.profile
        longest = profile.kv_capacity_tokens / profile.max_model_len
        return {
            "block_size": str(profile.block_tokens),
            "effective_attention_block_size": str(profile.block_tokens),
            "kv_cache_max_concurrency": f"{longest}",
            "kv_cache_size_tokens": str(profile.kv_capacity_tokens),
            "num_gpu_blocks": str(profile.blocks),
        }

    def _make_counters(self) -> None:
        self._counters = {
            "prefix_queries": self._counter("prefix_cache_queries", "Queried tokens."),
            "prefix_hits": self._counter("prefix_cache_hits", "Cached tokens found."),
            "prompt_tokens_cached": self._counter("prompt_tokens_cached", "Cached prompt tokens."),
            "prompt_tokens": self._counter("prompt_tokens", "Prefill tokens processed."),
            "generation_tokens": self._counter("generation_tokens", "Tokens generated."),
            "preemptions": self._counter("num_preemptions", "Preemptions."),
        }
        families = (
            ("success", "request_success", "finished_reason", _REASONS),
            ("source", "prompt_tokens_by_source", "source", _SOURCES),
            ("cached", "prompt_tokens_cached_by_source", "source", _TIERS),
        )
        for short, name, label, values in families:
            made = self._family(Counter, name, f"Counts by {label}.", label, values)
            self._counters |= {f"{short}:{value}": counter for value, counter in made.items()}

    def _make_histograms(self) -> None:
        make = self._histogram
        self._ttft = make("time_to_first_token_seconds", _TTFT)
        self._itl = make("inter_token_latency_seconds", _ITL)
        self._tpot = make("request_time_per_output_token_seconds", _ITL)
        self._e2e = make("e2e_request_latency_seconds", _REQUEST)
        self._queue = make("request_queue_time_seconds", _REQUEST)
        self._prefill = make("request_prefill_time_seconds", _REQUEST)
        self._decode = make("request_decode_time_seconds", _REQUEST)
        self._inference = make("request_inference_time_seconds", _REQUEST)
        self._prompt_size = make("request_prompt_tokens", _TOKENS)
        self._answer_size = make("request_generation_tokens", _TOKENS)
        self._step_tokens = make("iteration_tokens_total", _STEP_TOKENS)

    def _observe_finished(self, job: Job) -> None:
        end_s, admitted_s = job.finished_s or 0.0, job.admitted_s or 0.0
        first_s = job.first_token_s or end_s
        self._e2e.observe(end_s - job.arrived_s)
        self._queue.observe(admitted_s - job.arrived_s)
        self._prefill.observe(first_s - admitted_s)
        self._decode.observe(end_s - first_s)
        self._inference.observe(end_s - admitted_s)
        self._prompt_size.observe(job.work.prompt_tokens)
        self._answer_size.observe(job.generated)
        if job.generated > 1:
            self._tpot.observe((end_s - first_s) / (job.generated - 1))

    def _follow(self, name: str, total: float) -> None:
        counter = self._counters[name]
        counter.inc(total - self._seen.get(name, 0.0))
        self._seen[name] = total

    def _gauge(self, name: str, text: str) -> Gauge:
        made = Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _family(
        self, kind: type[_Metric], name: str, text: str, label: str, values: Sequence[str]
    ) -> dict[str, _Metric]:
        """One metric for each value of a label of its own."""
        labels = [*self._labels, label]
        made = kind(f"vllm:{name}", text, labels, registry=self._registry)
        return {value: made.labels(**self._labels, **{label: value}) for value in values}

    def _counter(self, name: str, text: str) -> Counter:
        made = Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        text = f"Histogram of {name}."
        labels = list(self._labels)
        made = Histogram(f"vllm:{name}", text, labels, buckets=buckets, registry=self._registry)
        return made.labels(**self._labels)
