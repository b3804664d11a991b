"""One structured line per request, from its Trace; no text of a prompt in it.

`log_request` hands it to `logging`, for applications that have set that up. The stand-alone
gateway writes the lines itself, some at a time: `logging` costs as much as a tenth of a relay.
"""

from __future__ import annotations

import asyncio
import logging
import os

import orjson

from tierway.policies.types import Trace

logger = logging.getLogger("tierway.requests")


def log_request(trace: Trace) -> None:
    """The hook: writes the line at info level."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", orjson.dumps(_line(trace)).decode())


class RequestLog:
    """The hook of a process of our own: lines to a file descriptor, every `every_s` seconds.

    They are written in a worker thread: a reader that stands still must not stop the loop.
    """

    def __init__(self, descriptor: int = 2, *, every_s: float = 0.25) -> None:
        self._descriptor, self._every_s = descriptor, every_s
        self._lines: list[bytes] = []

    def __call__(self, trace: Trace) -> None:
        if not self._lines:
            loop = asyncio.get_running_loop()
            loop.call_later(self._every_s, loop.run_in_executor, None, self.flush)
        self._lines.append(orjson.dumps(_line(trace), option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Writes what is there; a reader that is gone costs the lines, not the gateway."""
        lines, self._lines = self._lines, []
        try:
            os.write(self._descriptor, b"".join(lines))
        except OSError:
            logger.debug("the request log could not be written", exc_info=True)


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
        "probability": None if trace.probability is None else round(trace.probability, 4),
        "observed": trace.observed,
        "entry": trace.entry_id,
        "retries": trace.retries,
        "degraded": trace.degraded,
        "shadow_policy": trace.shadow_policy,
        "shadow_replica": trace.shadow_replica,
        "error": trace.error,
    }
    line.update({key: value for key, value in optional.items() if value})
    if trace.usage is not None:
        line["input_tokens"] = trace.usage.input_tokens
        line["output_tokens"] = trace.usage.output_tokens
    return line


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
