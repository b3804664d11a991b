"""The load that an engine reports in the head of each answer (ORCA, `endpoint-load-metrics`).

vLLM answers a request with `endpoint-load-metrics-format: TEXT` by the header
`endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.…=…`, or with the
same as JSON (vllm/entrypoints/openai/orca_metrics.py). It is the state when the head was written:
news for free, between two polls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tierway.policies.types import Headers
from tierway.router.facts import LoadReport

ASKS: tuple[bytes, bytes] = (b"endpoint-load-metrics-format", b"TEXT")
_NAME = b"endpoint-load-metrics"
_PREFIX = "named_metrics."
_WAITING = ("num_requests_waiting",)
_KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_MOST_BYTES = 4096
_MOST = 1e9


def load_report(headers: Headers) -> LoadReport | None:
    """What the head of an answer tells, None where it tells nothing that is understood."""
    for name, value in headers:
        if name == _NAME:
            return _read(value)
    return None


def _read(value: bytes) -> LoadReport | None:
    form, _, rest = value.strip().partition(b" ")
    if len(value) > _MOST_BYTES:
        return None
    if form == b"TEXT":
        metrics = _from_text(rest.decode("latin-1"))
    elif form == b"JSON":
        metrics = _from_json(rest)
    else:
        return None
    waiting, kv_usage = _number(metrics, _WAITING), _number(metrics, _KV_USAGE)
    report = LoadReport(
        waiting=None if waiting is None else int(waiting),
        kv_usage=kv_usage if kv_usage is None or kv_usage <= 1.0 else None,
    )
    return None if report == LoadReport() else report


def _from_text(text: str) -> Mapping[str, Any]:
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip().removeprefix(_PREFIX): value for name, _, value in pairs}


def _from_json(text: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(text)
    except ValueError:
        return {}
    metrics = document.get("named_metrics") if isinstance(document, dict) else None
    return metrics if isinstance(metrics, dict) else {}


def _number(metrics: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of these that is there, when it is a number that may be meant."""
    found = next((metrics[name] for name in names if name in metrics), None)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    try:
        value = float(found)
    except ValueError:
        return None
    return value if 0.0 <= value <= _MOST else None
