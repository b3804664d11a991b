"""The load of a simulated engine in the head of its answers, as vLLM writes it (ORCA).

`endpoint-load-metrics-format: TEXT` or `JSON` in a request asks for it; see vLLM's
entrypoints/openai/orca_metrics.py. Any other format is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from tierway.bench.engine import Engine


def load_header(engine: Engine, headers: Mapping[bytes, bytes]) -> Sequence[tuple[bytes, bytes]]:
    """The header that a request with these headers asks for, with the load of this moment."""
    wanted = headers.get(b"endpoint-load-metrics-format", b"").strip().upper()
    metrics = {
        "kv_cache_usage_perc": engine.kv_usage,
        "num_requests_waiting": float(engine.waiting),
    }
    if wanted == b"TEXT":
        told = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return [(b"endpoint-load-metrics", f"TEXT {told}".encode())]
    if wanted == b"JSON":
        report = orjson.dumps({"named_metrics": metrics})
        return [(b"endpoint-load-metrics", b"JSON " + report)]
    return []
