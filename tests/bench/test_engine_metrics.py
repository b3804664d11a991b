"""The simulated engine's pages against pages of the real things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tierway.bench.engine import Engine, Work
from tierway.bench.engine_load_header import load_header
from tierway.bench.engine_metrics import EngineMetrics
from tierway.bench.profiles import profile
from tierway.router.engines import ENGINES, read_facts
from tierway.router.load_header import ASKS, load_report

REAL = Path(__file__).parent / "vllm_metrics.txt"


def page() -> str:
    engine = Engine(profile("8b-a100"))
    metrics = EngineMetrics(engine, "tiny")
    for _ in range(3):
        engine.submit(Work(640, 4, [("a", index) for index in range(40)]))
    engine.submit(Work(64, 40, stall_after=10))
    while engine.begin() is not None:
        metrics.observe(engine.finish())
    return metrics.render().decode()


def series(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """By the name of a sample: its family's type and the names of its labels."""
    return {
        sample.name: (family.type, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_is_one_of_vllm_with_its_type_and_labels() -> None:
    real = series(REAL.read_text())
    ours = series(page())
    assert len(ours) > 60
    assert ours.pop("process_start_time_seconds") == ("gauge", frozenset())  # of the client library
    assert {name: ours[name] for name in ours} == {name: real.get(name) for name in ours}


def values(text: str, name: str, label: str) -> Iterator[str]:
    return (match[1] for match in re.finditer(rf'{name}{{[^}}]*\b{label}="([^"]*)"', text))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("vllm:num_requests_waiting_by_reason", "reason"),
        ("vllm:engine_sleep_state", "sleep_state"),
        ("vllm:request_success_total", "finished_reason"),
        ("vllm:prompt_tokens_by_source_total", "source"),
        ("vllm:prompt_tokens_cached_by_source_total", "source"),
        ("vllm:time_to_first_token_seconds_bucket", "le"),
        ("vllm:inter_token_latency_seconds_bucket", "le"),
        ("vllm:e2e_request_latency_seconds_bucket", "le"),
    ],
)
def test_labels_take_the_values_that_vllm_gives_them(name: str, label: str) -> None:
    real = list(values(REAL.read_text(), name, label))
    assert list(values(page(), name, label)) == real != []


def test_a_gateway_reads_the_same_of_either_page() -> None:
    ours, real = (read_facts(ENGINES["vllm"], text, 7.0) for text in (page(), REAL.read_text()))
    assert (ours.running, ours.waiting) == (1, 0)
    assert ours.kv_usage is not None
    assert 0 < ours.kv_usage < 0.01
    assert ours.kv_capacity_tokens == profile("8b-a100").kv_capacity_tokens
    for name in ("running", "waiting", "kv_usage", "kv_capacity_tokens", "ranks", "read_s"):
        assert type(getattr(ours, name)) is type(getattr(real, name))


def test_prompt_tokens_come_from_where_they_came_from() -> None:
    told = series_values(page())
    computed, cached = (
        told[f'vllm:prompt_tokens_by_source_total{{source="{source}"}}']
        for source in ("local_compute", "local_cache_hit")
    )
    assert computed + cached == told["vllm:prompt_tokens_total"] == 3 * 640 + 64
    assert told["vllm:prefix_cache_hits_total"] == cached


def series_values(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            labels = ",".join(f'{name}="{value}"' for name, value in own.items())
            found[sample.name + (f"{{{labels}}}" if own else "")] = sample.value
    return found


@pytest.mark.parametrize("form", [b"TEXT", b"JSON", b"text"])
def test_the_load_header_is_what_a_gateway_reads(form: bytes) -> None:
    engine = Engine(replace(profile("8b-a10"), blocks=20))
    for _ in range(3):
        engine.submit(Work(160, 20))
    engine.begin()
    (header,) = load_header(engine, {ASKS[0]: form})
    report = load_report((header,))
    assert report is not None
    assert (report.waiting, report.kv_usage) == (1, 1.0)


def test_who_does_not_ask_for_the_load_gets_none() -> None:
    engine = Engine(profile("8b-a10"))
    assert not load_header(engine, {})
    assert not load_header(engine, {ASKS[0]: b"protobuf"})
