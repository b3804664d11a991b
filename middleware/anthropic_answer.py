"""Chat completions as Anthropic Messages, and the pieces that a stream's events share with them.

Reasoning is left out: a thinking block needs a signature that only its maker can give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tierway.policies.errors import BrokenStream

_STOP_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_LONGEST_MESSAGE = 500


class WholeMessage:
    """Renders a chat.completion object, once all of it is there."""

    __slots__ = ("_parts", "_stops")

    def __init__(self, stop_sequences: frozenset[str]) -> None:
        self._stops = stop_sequences
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        self._parts.append(chunk)
        return b""

    def finish(self) -> bytes:
        completion = decoded(b"".join(self._parts))
        choice = first_choice(completion)
        message = object_of(choice.get("message")) if choice else {}
        if choice is None or not message:
            raise BrokenStream("The upstream's answer has no message.")
        tools = [_tool_block(object_of(call)) for call in list_of(message.get("tool_calls"))]
        text = message.get("content") or message.get("refusal")
        reason, sequence = stop_of(choice, self._stops, bool(tools), bool(message.get("refusal")))
        return orjson.dumps(
            {
                **message_head(completion),
                "content": [*([{"type": "text", "text": text}] if text else ()), *tools],
                "stop_reason": reason,
                "stop_sequence": sequence,
                "usage": usage_of(completion.get("usage")),
            }
        )


def decoded(text: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise BrokenStream("The upstream's answer is not valid JSON.") from fault
    if not isinstance(document, dict):
        raise BrokenStream("The upstream's answer is not a JSON object.")
    error = document.get("error")
    if error:
        message = error.get("message") if isinstance(error, Mapping) else error
        raise BrokenStream(f"The upstream reported: {str(message)[:_LONGEST_MESSAGE]}")
    return document


def first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def object_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def message_head(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{str(answer.get('id', '')).removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": answer.get("model", ""),
    }


def _tool_block(call: Mapping[str, Any]) -> dict[str, Any]:
    function = object_of(call.get("function"))
    try:
        given = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise BrokenStream(
            "The model's tool arguments are no JSON object; max_tokens may have cut them short."
        )
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given}


def stop_of(
    choice: Mapping[str, Any], stops: frozenset[str], used_tool: bool, refused: bool
) -> tuple[str, str | None]:
    """Stop reason and sequence. vLLM tells the matched text in the choice's `stop_reason`."""
    finish, matched = choice.get("finish_reason"), choice.get("stop_reason")
    if refused:
        return "refusal", None
    if finish != "stop":
        return _STOP_REASONS.get(str(finish), "end_turn"), None
    if isinstance(matched, str) and matched in stops:
        return "stop_sequence", matched
    # A forced tool call finishes with "stop" in vLLM.
    return ("tool_use" if used_tool else "end_turn"), None


def usage_of(usage: Any) -> dict[str, Any]:
    """Anthropic counts what was read from a prefix cache apart from the other input."""
    given = object_of(usage)
    cached = _count(object_of(given.get("prompt_tokens_details")).get("cached_tokens"))
    counts = {
        "input_tokens": max(0, _count(given.get("prompt_tokens")) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(given.get("completion_tokens")),
    }
    return {**counts, "cached": True} if given.get("cached") else counts


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
