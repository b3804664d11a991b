"""The Anthropic wire, `/v1/messages`: a request becomes a chat body, the answer comes back.

Errors have `{"type": "error", "error": {"type", "message"}, "request_id"}`, with the type that
belongs to the status. A refusal for load is 529 `overloaded_error` here where OpenAI has 503.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tierway.middleware.anthropic_answer import WholeMessage
from tierway.middleware.anthropic_events import MessageEvents
from tierway.middleware.anthropic_request import chat_body
from tierway.middleware.failures import Header, Report, reply, report
from tierway.middleware.openai import chat_ask
from tierway.middleware.request import decode_object, new_call
from tierway.policies.errors import GatewayError, NoCapacity, Overloaded, Rejected
from tierway.policies.types import Call, Head, WireName

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class AnthropicCodec:
    """See `wire.Codec` for the contract."""

    name: WireName = "messages"
    id_headers: tuple[bytes, ...] = (b"x-request-id", b"request-id")

    def parse(
        self,
        raw: bytes,
        headers: Mapping[bytes, bytes],
        *,
        request_id: str,
        tenant: str,
        arrived_s: float,
        default_timeout_s: float,
    ) -> Call:
        document = decode_object(raw)
        body = chat_body(document)
        return new_call(
            self.name,
            raw,
            body,
            chat_ask(body),
            headers=headers,
            document=document,
            request_id=request_id,
            tenant=tenant,
            arrived_s=arrived_s,
            default_timeout_s=default_timeout_s,
        )

    def error(self, error: GatewayError, request_id: str) -> tuple[int, list[Header], bytes]:
        told = _told(error)
        ids = [(name, request_id.encode()) for name in self.id_headers]
        return reply(error, told, _shape(told, request_id), _is_ours, ids)

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return b"event: error\ndata: " + _shape(_told(error), request_id) + b"\n\n"

    def renderer(self, call: Call, head: Head) -> MessageEvents | WholeMessage | None:
        if head.wire == "messages":
            return None
        stops = frozenset(call.body.get("stop") or ())
        return MessageEvents(stops) if head.stream else WholeMessage(stops)


def _told(error: GatewayError) -> Report:
    told = report(error)
    load = isinstance(error, Overloaded | NoCapacity | Rejected)
    return replace(told, status=529) if load and told.status == 503 else told


def _shape(told: Report, request_id: str) -> bytes:
    kind = _TYPES.get(told.status, "invalid_request_error" if told.status < 500 else "api_error")
    return orjson.dumps(
        {
            "type": "error",
            "error": {"type": kind, "message": told.message},
            "request_id": request_id,
        }
    )


def _is_ours(document: Mapping[str, Any]) -> bool:
    error = document.get("error")
    return (
        document.get("type") == "error"
        and isinstance(error, Mapping)
        and isinstance(error.get("message"), str)
    )
