"""One structured line per request, from its Trace; no text of a prompt in it."""

from __future__ import annotations

import logging

import orjson

from tierway.policies.types import Trace

logger = logging.getLogger("tierway.requests")


def log_request(trace: Trace) -> None:
    """The hook: writes the line at info level."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", orjson.dumps(_line(trace)).decode())


def _line(trace: Trace) -> dict[str, object]:
    line: dict[str, object] = {
        "request_id": trace.request_id,
        "tenant": trace.tenant,
        "wire": trace.wire,
        "model": trace.requested_model,
        "stream": trace.stream,
        "status": trace.status,
        "outcome": trace.outcome,
        "cache": trace.cache,
        "cache_reason": trace.cache_reason,
        "tier": trace.tier,
        "replica": trace.replica,
        "route": trace.route_reason,
        "attempts": trace.attempts,
        "duration_ms": _ms(trace.duration_s),
        "first_token_ms": _ms(trace.first_token_s),
    }
    optional = {
        "similarity": trace.similarity,
        "entry": trace.entry_id,
        "retries": trace.retries,
        "degraded": trace.degraded,
        "error": trace.error,
    }
    line.update({key: value for key, value in optional.items() if value})
    if trace.usage is not None:
        line["input_tokens"] = trace.usage.input_tokens
        line["output_tokens"] = trace.usage.output_tokens
    return line


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
