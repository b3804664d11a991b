"""How litellm's exceptions read, with look-alikes: no litellm is imported here."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tierway.policies.errors import (
    BrokenStream,
    Refused,
    Rejected,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.router.cloud_errors import open_error, stream_error


class Foreign(Exception):
    """Has whatever attributes a test gives it."""

    def __init__(self, message: str = "", **attributes: Any) -> None:
        super().__init__(message)
        self.message = message
        vars(self).update(attributes)


class MidStreamFallbackError(Foreign):
    pass


TransportError = type("TransportError", (Exception,), {"__module__": "httpx._exceptions"})
ReadError = type("ReadError", (TransportError,), {"__module__": "httpx._exceptions"})
TimeoutException = type("TimeoutException", (TransportError,), {"__module__": "httpx._exceptions"})


def caused(error: Foreign, cause: BaseException) -> Foreign:
    error.__cause__ = cause
    return error


def opened(error: Exception) -> UpstreamError:
    found = open_error(error, replica="r", which="first_token", seconds=3.0)
    assert found.replica == "r"
    return found


def told(error: UpstreamError) -> dict[str, Any]:
    assert isinstance(error, Rejected)
    document: dict[str, Any] = orjson.loads(error.body)["error"]
    return document


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (ReadError(), Refused),
        (ConnectionResetError(), Refused),
        (TimeoutException(), UpstreamTimeout),
        (TimeoutError(), UpstreamTimeout),
        (ValueError(), Rejected),
    ],
)
def test_the_cause_goes_before_the_status(cause: Exception, kind: type[UpstreamError]) -> None:
    found = opened(caused(Foreign("x", status_code=500), caused(Foreign("y"), cause)))
    assert type(found) is kind


def test_an_overload_told_in_the_stream_keeps_its_status() -> None:
    overload = opened(MidStreamFallbackError("litellm.X: busy", status_code=529))
    assert isinstance(overload, Rejected)
    assert (overload.status, overload.overload) == (529, True)
    assert isinstance(opened(MidStreamFallbackError("cut", status_code=500)), BrokenStream)


@pytest.mark.parametrize("status", [None, "many", 200, 99])
def test_what_has_no_error_status_is_a_fault_without_its_text(status: Any) -> None:
    found = opened(Foreign("the path /srv/key.json", status_code=status))
    assert told(found)["message"] == "The cloud model failed to answer."
    assert (found.status, found.retryable) == (500, True)


@pytest.mark.parametrize(
    "message",
    [
        "litellm.RateLimitError: RateLimitError: OpenAIException - slow down",
        "litellm.BadRequestError: OpenAIException - slow down",
        "slow down",
    ],
)
def test_the_message_loses_the_names_of_litellms_classes(message: str) -> None:
    assert told(opened(Foreign(message, status_code=429)))["message"] == "slow down"


def test_the_providers_own_error_object_is_kept() -> None:
    own = {"message": "no", "type": "t", "param": "p", "code": "c"}
    for body in (own, {"error": own}):
        error = caused(Foreign("litellm", status_code=400), Foreign(body=body))
        assert told(opened(error)) == own


@pytest.mark.parametrize("where", ["litellm_response_headers", "response"])
def test_retry_after_is_found_in_the_chain(where: str) -> None:
    headers = {"retry-after": "7"}
    given: Any = headers if where == "litellm_response_headers" else Foreign(headers=headers)
    error = caused(Foreign("x", status_code=503), Foreign(**{where: given}))
    found = opened(error)
    assert found.retry_after_s == 7


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = Foreign("a", status_code=400), Foreign("b")
    first.__cause__, second.__cause__ = second, first
    assert opened(first).status == 400


def test_after_the_first_token_everything_is_a_broken_stream_but_silence() -> None:
    late = caused(MidStreamFallbackError("x", status_code=408), TimeoutException())
    silent = stream_error(late, replica="r", idle_s=9.0)
    assert isinstance(silent, UpstreamTimeout)
    assert silent.which == "idle"
    broken = stream_error(Foreign("x", status_code=429), replica="r", idle_s=9.0)
    assert isinstance(broken, BrokenStream)
