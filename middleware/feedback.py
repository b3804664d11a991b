"""`POST /v1/tierway/feedback`: a tenant says whether an answer it got was right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from tierway.middleware.edge import ClientLeft, Receive
from tierway.middleware.reply import openai_error
from tierway.policies.errors import BadCall, GatewayError

if TYPE_CHECKING:
    from tierway.middleware.parts import Parts

_FIELDS = ("request_id", "correct")


async def take_mark(
    parts: Parts, headers: Mapping[bytes, bytes], receive: Receive
) -> tuple[int, dict[str, Any]] | None:
    """Status and body of the answer to a tenant's mark; None when the tenant has left."""
    try:
        return 200, await _marked(parts, headers, receive)
    except ClientLeft:
        return None
    except GatewayError as error:
        document = openai_error(error.type, error.public, code=error.code, param=error.param)
        return error.status, document


async def _marked(parts: Parts, headers: Mapping[bytes, bytes], receive: Receive) -> dict[str, Any]:
    tenant = parts.tenants.identify(headers)
    request_id, correct = read_mark(await parts.edge.body(receive, headers))
    feedback = parts.stage.feedback
    outcome = await feedback.mark(request_id, correct, tenant=tenant) if feedback else None
    if outcome is None:
        raise BadCall(
            f"No answer to a request {request_id!r} of yours is remembered here.",
            status=404,
            code="unknown_request",
            param="request_id",
        )
    return {"request_id": request_id, "correct": correct, **outcome.as_json()}


def read_mark(raw: bytes) -> tuple[str, bool]:
    """The body's request id and mark; raises BadCall naming the field that is wrong."""
    try:
        body = orjson.loads(raw)
    except ValueError as error:
        raise BadCall("The body must be a JSON object with request_id and correct.") from error
    if not isinstance(body, dict):
        raise BadCall("The body must be a JSON object with request_id and correct.")
    for name in body:
        if name not in _FIELDS:
            raise BadCall(f"Unknown field {name}: allowed are request_id, correct.", param=name)
    request_id, correct = body.get("request_id"), body.get("correct")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 128:
        raise BadCall(
            "request_id must be the x-request-id of an answer, at most 128 characters.",
            param="request_id",
        )
    if not isinstance(correct, bool):
        raise BadCall("correct must be true or false.", param="correct")
    return request_id, correct
