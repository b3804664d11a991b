"""What a client is told of a failure, before its wire gives it a shape.

An upstream's 4xx is about the client's request and speaks with the upstream's own words; its
5xx is the fleet's affair, so the text behind it stays inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tierway.policies.errors import (
    BadCall,
    GatewayError,
    NoCapacity,
    Rejected,
    Unauthorised,
    UpstreamError,
)

Header = tuple[bytes, bytes]

_LONGEST_RETRY_AFTER_S = 120  # told more, the official clients do not come back at all
_LONGEST_MESSAGE = 2000
_RETRIED_BY_CLIENTS = (408, 409, 429)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class Report:
    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None


def report(error: GatewayError) -> Report:
    """The neutral form. A status that is no error's (an upstream's redirect) becomes 502."""
    status = error.status if 400 <= error.status <= 599 else 502
    if isinstance(error, Rejected) and status < 500:
        return _upstreams_own(error, status)
    return Report(status, error.type, error.public, error.param, error.code)


def reply(
    error: GatewayError,
    told: Report,
    shaped: bytes,
    is_ours: Callable[[Mapping[str, Any]], bool],
    ids: Iterable[Header],
) -> tuple[int, list[Header], bytes]:
    """Status, headers and body: `shaped`, or an upstream's 4xx as it came when `is_ours` says
    that it has the client's shape already."""
    passed = isinstance(error, Rejected) and told.status < 500 and _matches(error, is_ours)
    body = error.body if passed and isinstance(error, Rejected) else shaped
    kind = (_header(error, b"content-type") if passed else b"") or b"application/json"
    return told.status, [(b"content-type", kind), *_retry_headers(error), *ids], body


def _retry_headers(error: GatewayError) -> list[Header]:
    """What keeps a client's own retries in step with ours."""
    headers: list[Header] = []
    retry_after = _retry_after(error)
    if retry_after:
        headers.append((b"retry-after", retry_after))
    if _is_final(error):
        headers.append((b"x-should-retry", b"false"))
    if isinstance(error, Unauthorised):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _matches(error: Rejected, is_ours: Callable[[Mapping[str, Any]], bool]) -> bool:
    document = _document(error)
    return document is not None and is_ours(document)


def _upstreams_own(error: Rejected, status: int) -> Report:
    document = _document(error) or {}
    inner = document.get("error")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else document
    message = next(
        (
            text[:_LONGEST_MESSAGE]
            for text in (fields.get("message"), inner, fields.get("detail"))
            if isinstance(text, str) and text
        ),
        error.public,
    )
    return Report(
        status,
        _text(fields.get("type")) or _TYPES.get(status, "invalid_request_error"),
        message,
        _text(fields.get("param")),
        _text(fields.get("code")) or error.code,
    )


def _document(error: Rejected) -> Mapping[str, Any] | None:
    try:
        document = orjson.loads(error.body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _is_final(error: GatewayError) -> bool:
    """Our attempts are spent, or asking again cannot help though the status says it might."""
    if isinstance(error, BadCall):
        return error.status >= 500 or error.status in _RETRIED_BY_CLIENTS
    if isinstance(error, NoCapacity):
        return error.attempted
    return isinstance(error, UpstreamError)


def _retry_after(error: GatewayError) -> bytes:
    if isinstance(error, Rejected) and error.status < 500:  # a date, maybe: not ours to read
        return _header(error, b"retry-after")
    if error.retry_after_s is None or not math.isfinite(error.retry_after_s):
        return b""
    seconds = min(max(1, math.ceil(error.retry_after_s)), _LONGEST_RETRY_AFTER_S)
    return str(seconds).encode()


def _header(error: GatewayError, wanted: bytes) -> bytes:
    headers = error.headers if isinstance(error, Rejected) else ()
    return next((value for name, value in headers if name == wanted), b"")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
