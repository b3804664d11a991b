"""The OpenAI wire: chat completions, completions and embeddings.

The Ask is read off the parsed body; the client's bytes go on as they are, so a field that is
not known here is no error. An answer in this wire needs no rendering either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tierway.middleware.failures import Header, Report, reply, report
from tierway.middleware.request import (
    decode_object,
    missing,
    model_of,
    new_call,
    stream_of,
    utf8_size,
    wrong,
)
from tierway.policies.errors import GatewayError
from tierway.policies.types import Ask, Call, Head, Turn, WireName

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}


@dataclass(frozen=True, slots=True)
class OpenAICodec:
    """One path of the OpenAI wire. See `wire.Codec` for the contract."""

    name: WireName
    read_ask: Callable[[Mapping[str, Any]], Ask]
    id_headers: tuple[bytes, ...] = (b"x-request-id",)

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
        body = decode_object(raw)
        model_of(body)
        if stream_of(body):
            _check_stream_options(body)
        return new_call(
            self.name,
            raw,
            body,
            self.read_ask(body),
            headers=headers,
            document=body,
            request_id=request_id,
            tenant=tenant,
            arrived_s=arrived_s,
            default_timeout_s=default_timeout_s,
        )

    def error(self, error: GatewayError, request_id: str) -> tuple[int, list[Header], bytes]:
        told = report(error)
        ids = [(name, request_id.encode()) for name in self.id_headers]
        return reply(error, told, orjson.dumps(_shape(told)), _is_ours, ids)

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return b"data: " + orjson.dumps(_shape(report(error))) + b"\n\n"

    def renderer(self, call: Call, head: Head) -> None:
        return None


def chat_ask(body: Mapping[str, Any]) -> Ask:
    """The Ask of a chat body. Raises BadCall naming the place of what makes no sense."""
    messages = body.get("messages")
    if messages is None:
        raise missing("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "a list that is not empty")
    turns = tuple([_turn(message, at) for at, message in enumerate(messages)])
    tools = body.get("tools") or body.get("functions")
    calls = [message["tool_calls"] for message in messages if message.get("tool_calls")]
    unsaid = sum(len(orjson.dumps(part)) for part in (tools, *calls) if part)
    return Ask(
        turns=turns,
        question=next((turn.text for turn in reversed(turns) if turn.role == "user"), ""),
        system="\n".join([turn.text for turn in turns if turn.role in ("system", "developer")]),
        has_tools=bool(tools),
        wants_json=_wants_json(body.get("response_format")),
        media=tuple(dict.fromkeys([kind for turn in turns for kind in turn.media])),
        max_tokens=_count(body.get("max_completion_tokens")) or _count(body.get("max_tokens")),
        text_bytes=unsaid + sum([utf8_size(turn.text) for turn in turns]),
    )


def completion_ask(body: Mapping[str, Any]) -> Ask:
    return _input_ask(body, "prompt", _wants_json(body.get("response_format")))


def embedding_ask(body: Mapping[str, Any]) -> Ask:
    return _input_ask(body, "input", False)


def _input_ask(body: Mapping[str, Any], field: str, wants_json: bool) -> Ask:
    """A text, texts, or token ids (which count as one byte each: a token is no less)."""
    given = body.get(field)
    if given is None:
        raise missing(field)
    if not isinstance(given, str | list) or (isinstance(given, list) and not given):
        raise wrong(field, "a string or a list that is not empty")
    parts = [given] if isinstance(given, str) else given
    texts = [part for part in parts if isinstance(part, str)]
    ids = sum(len(part) if isinstance(part, list) else not isinstance(part, str) for part in parts)
    turn = Turn("user", "\n".join(texts), parts=len(parts))
    return Ask(
        turns=(turn,),
        question=turn.text,
        wants_json=wants_json,
        max_tokens=_count(body.get("max_tokens")),
        text_bytes=utf8_size(turn.text) + ids,
    )


def _turn(message: Any, at: int) -> Turn:
    if not isinstance(message, dict):
        raise wrong(f"messages[{at}]", "an object")
    role = message.get("role")
    if role is None:
        raise missing(f"messages[{at}].role")
    if not isinstance(role, str) or not role:
        raise wrong(f"messages[{at}].role", "a string that is not empty")
    content = message.get("content")
    if isinstance(content, str):
        return Turn(role, content)
    if content is None:
        return Turn(role, "", parts=0)
    if not isinstance(content, list):
        raise wrong(f"messages[{at}].content", "a string, a list of parts, or null")
    return _flattened(role, content, f"messages[{at}].content")


def _flattened(role: str, parts: list[Any], where: str) -> Turn:
    texts: list[str] = []
    media: list[str] = []
    for at, part in enumerate(parts):
        kind = "text" if isinstance(part, str) else _part_type(part, f"{where}[{at}]")
        if kind not in _TEXT_PARTS:
            media.append(_MEDIA.get(kind, kind))
            continue
        text = part if isinstance(part, str) else part.get(_TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise wrong(f"{where}[{at}].{_TEXT_PARTS[kind]}", "a string")
        texts.append(text)
    return Turn(role, "\n".join(texts), tuple(media), len(parts))


def _part_type(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise wrong(where, "an object")
    kind = part.get("type")
    if not isinstance(kind, str) or not kind:
        raise wrong(f"{where}.type", "a string that is not empty")
    return kind


def _check_stream_options(body: Mapping[str, Any]) -> None:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise wrong("stream_options", "an object")


def _wants_json(response_format: Any) -> bool:
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    return kind in ("json_object", "json_schema")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _shape(told: Report) -> dict[str, Any]:
    return {
        "error": {
            "message": told.message,
            "type": told.type,
            "param": told.param,
            "code": told.code,
        }
    }


def _is_ours(document: Mapping[str, Any]) -> bool:
    error = document.get("error")
    if not isinstance(error, Mapping) or document.get("type") == "error":
        return False
    return isinstance(error.get("message"), str)
