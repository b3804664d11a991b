"""What litellm raises, as our errors.

litellm maps every provider's failure to a class, but the class says little: a refused connection
and a provider's own 500 are both InternalServerError, a 402 or 529 is a bare APIError, a fault of
a stream is MidStreamFallbackError with the real one inside. So the chain of causes is asked for
a timeout or a socket's fault first, then the status, and never the class. Nothing of litellm is
imported: its objects are looked at by their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from tierway.policies.errors import (
    BrokenStream,
    Refused,
    Rejected,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.policies.types import Headers

_TIMEOUTS = frozenset(("httpx.TimeoutException", "openai.APITimeoutError"))
_SOCKET_FAULTS = frozenset(("httpx.TransportError",))
_PREFIX = re.compile(r"^(?:litellm\.)?(?:\w+(?:Error|Exception)(?::| -) ?)*(?:litellm\.\w+: )*")
_OVERFLOW = "context_length_exceeded"
_UNKNOWN = "The cloud model failed to answer."


def open_error(error: Exception, *, replica: str, which: str, seconds: float) -> UpstreamError:
    """A failure before the first token; `which` and `seconds` name the timeout in force."""
    causes = list(_chain(error))
    status = _status(error)
    if any(_is_a(cause, _TIMEOUTS) or isinstance(cause, TimeoutError) for cause in causes[1:]):
        return UpstreamTimeout(which, seconds, replica=replica)
    if _is_midstream(error) and status in (None, 500):
        return BrokenStream("The cloud model's stream broke off at once.", replica=replica)
    if any(_is_a(cause, _SOCKET_FAULTS) or isinstance(cause, OSError) for cause in causes):
        return Refused("The cloud model could not be reached.", replica=replica)
    return Rejected(
        status or 500,
        ((b"content-type", b"application/json"), *_retry_after(causes)),
        _body(error, causes, status or 500),
        replica=replica,
    )


def stream_error(error: Exception, *, replica: str, idle_s: float) -> UpstreamError:
    """A failure after the first token: whatever it was, the answer is incomplete."""
    if any(_is_a(cause, _TIMEOUTS) for cause in _chain(error)):
        return UpstreamTimeout("idle", idle_s, replica=replica)
    return BrokenStream("The cloud model's answer broke off before its end.", replica=replica)


def refusal(status: int, message: str, *, code: str, param: str, replica: str) -> Rejected:
    """A refusal of our own, in the shape of the provider's."""
    body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Rejected(
        status,
        ((b"content-type", b"application/json"),),
        orjson.dumps({"error": body}),
        replica=replica,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        original = getattr(one, "original_exception", None)
        waiting.append(original if isinstance(original, BaseException) else None)
        waiting.append(one.__cause__ or one.__context__)


def _is_a(error: BaseException, names: frozenset[str]) -> bool:
    """True for these classes and those derived from them; `names` are package.Class."""
    return any(
        f"{c.__module__.partition('.')[0]}.{c.__name__}" in names for c in type(error).__mro__
    )


def _is_midstream(error: BaseException) -> bool:
    return type(error).__name__ == "MidStreamFallbackError"


def _status(error: BaseException) -> int | None:
    try:
        status = int(getattr(error, "status_code", None) or 0)
    except (TypeError, ValueError):
        return None
    return status if 400 <= status < 600 else None


def _retry_after(causes: list[BaseException]) -> Headers:
    for cause in causes:
        response = getattr(cause, "response", None)
        for headers in (
            getattr(cause, "litellm_response_headers", None),
            getattr(response, "headers", None),
        ):
            if isinstance(headers, Mapping) and (value := headers.get("retry-after")):
                return ((b"retry-after", str(value).encode("latin-1", "ignore")),)
    return ()


def _body(error: BaseException, causes: list[BaseException], status: int) -> bytes:
    """OpenAI's error object: the provider's own where litellm kept it, else its message."""
    kept = next(
        (body for cause in causes if isinstance(body := getattr(cause, "body", None), Mapping)), {}
    )
    kept = kept["error"] if isinstance(kept.get("error"), Mapping) else kept
    made: dict[str, Any] = {
        "message": kept.get("message") or _message(error),
        "type": kept.get("type") or _type(status),
        "param": kept.get("param"),
        "code": kept.get("code"),
    }
    if type(error).__name__ == "ContextWindowExceededError":
        made["code"] = _OVERFLOW
    return orjson.dumps({"error": made}, default=str)


def _message(error: BaseException) -> str:
    message = getattr(error, "message", None)
    # What bears no status never came from a provider; its text may tell of the inside.
    if not isinstance(message, str) or _status(error) is None:
        return _UNKNOWN
    return _PREFIX.sub("", message) or _UNKNOWN


def _type(status: int) -> str:
    return "invalid_request_error" if status < 500 and status != 429 else "server_error"
