"""The load in the head of an answer, in both of its forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.router.facts import LoadReport
from tierway.router.load_header import load_report

TEXT = b"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2.0"
JSON = b'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}}'


def read(value: bytes) -> LoadReport | None:
    return load_report(((b"content-type", b"x"), (b"endpoint-load-metrics", value)))


@pytest.mark.parametrize("value", [TEXT, JSON, b" " + TEXT.replace(b", ", b",") + b" "])
def test_both_forms_say_the_same(value: bytes) -> None:
    assert read(value) == LoadReport(waiting=2, kv_usage=0.4)


def test_only_what_is_there_is_told() -> None:
    assert read(b"TEXT named_metrics.num_requests_waiting=0") == LoadReport(waiting=0)
    assert read(b'JSON {"named_metrics": {"gpu_cache_usage_perc": 1}}') == LoadReport(kv_usage=1.0)
    assert read(b"TEXT cpu_utilization=0.3, mem_utilization=0.8") is None


def test_without_the_header_there_is_no_report() -> None:
    assert load_report(((b"content-type", b"application/json"),)) is None
    assert load_report(()) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"TEXT",
        b"JSON",
        b"JSON {",
        b"JSON []",
        b'JSON {"named_metrics": 3}',
        b'JSON {"named_metrics": {"num_requests_waiting": true}}',
        b'JSON {"named_metrics": {"num_requests_waiting": [1]}}',
        b"TEXT named_metrics.num_requests_waiting=NaN",
        b"TEXT named_metrics.num_requests_waiting=-1",
        b"TEXT named_metrics.num_requests_waiting=1e999",
        b"TEXT named_metrics.num_requests_waiting=1e30",
        b"TEXT named_metrics.num_requests_waiting=inf",
        b"TEXT named_metrics.kv_cache_usage_perc=37",
        b"TEXT named_metrics.kv_cache_usage_perc",
        b"BIN AAAA",
        TEXT + b" " * 5000,
    ],
)
def test_what_makes_no_sense_tells_nothing(value: bytes) -> None:
    assert read(value) is None


@given(st.binary(max_size=100))
def test_any_other_bytes_are_no_fault(value: bytes) -> None:
    for form in (b"", b"TEXT ", b"JSON "):
        read(form + value)
