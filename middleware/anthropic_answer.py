"""Chat answers in the Anthropic wire: a whole completion as a Message, a stream as its events.

Order of the events: message_start, then per block content_block_start, deltas and
content_block_stop, then message_delta (stop reason, cumulative usage) and message_stop. Tool
arguments pass as `input_json_delta` as they come. Reasoning is left out: a thinking block needs
a signature that only its maker can give. Usage is known at the end, so message_start says 0.
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
        completion = _decoded(b"".join(self._parts))
        choice = _first_choice(completion)
        message = choice.get("message") if choice else None
        if choice is None or not isinstance(message, Mapping):
            raise BrokenStream("The upstream's answer has no message.")
        tools = [_tool_block(call) for call in message.get("tool_calls") or ()]
        text = message.get("content") or message.get("refusal")
        reason, sequence = _stop(choice, self._stops, bool(tools), bool(message.get("refusal")))
        return orjson.dumps(
            {
                **_message_head(completion),
                "content": [*([{"type": "text", "text": text}] if text else ()), *tools],
                "stop_reason": reason,
                "stop_sequence": sequence,
                "usage": _usage(completion.get("usage")),
            }
        )


class MessageEvents:
    """Renders the server-sent events of a chat stream, whatever its chunks' borders."""

    __slots__ = (
        "_block",
        "_call",
        "_called",
        "_choice",
        "_done",
        "_fault",
        "_index",
        "_out",
        "_refused",
        "_rest",
        "_started",
        "_stops",
        "_usage",
    )

    def __init__(self, stop_sequences: frozenset[str]) -> None:
        self._stops = stop_sequences
        self._rest = b""
        self._out: list[bytes] = []
        self._started = self._done = self._refused = False
        self._block: str | None = None  # the type of the open block
        self._index = -1  # of the newest block
        self._call: tuple[Any, Any] = (None, None)  # index and id of the call it tells
        self._called: set[Any] = set()  # indices and ids of all calls told
        self._choice: Mapping[str, Any] = {}  # the one that brought the finish reason
        self._usage: Any = None
        self._fault: BrokenStream | None = None

    def feed(self, chunk: bytes) -> bytes:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return self._render(lines)

    def finish(self) -> bytes:
        lines, self._rest = [self._rest], b""
        out = self._render(lines)
        if self._fault is not None:
            raise self._fault
        if not self._done and not self._choice:
            raise BrokenStream("The upstream's answer broke off before its end.")
        self._close()
        return out + self._take()

    def _render(self, lines: list[bytes]) -> bytes:
        if self._fault is not None:
            raise self._fault
        try:
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())
        except BrokenStream as fault:
            if not self._out:
                raise
            self._fault = fault  # first what was good
        return self._take()

    def _take(self) -> bytes:
        out, self._out = b"".join(self._out), []
        return out

    def _event(self, payload: bytes) -> None:
        if self._done or not payload:
            return None
        if payload.startswith(b"[DONE]"):
            if not self._choice:
                raise BrokenStream("The upstream's answer ended without a finish reason.")
            return self._close()
        chunk = _decoded(payload)
        if not self._started:
            self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        choice = _first_choice(chunk)
        if choice is not None:
            self._delta(choice.get("delta") or {})
            if choice.get("finish_reason"):
                self._choice = choice
        return None

    def _start(self, chunk: Mapping[str, Any]) -> None:
        self._started = True
        message = {
            **_message_head(chunk),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(chunk.get("usage")),
        }
        self._say("message_start", message=message)

    def _delta(self, delta: Mapping[str, Any]) -> None:
        refusal = delta.get("refusal")
        self._refused = self._refused or bool(refusal)
        text = delta.get("content") or refusal
        if text:
            if self._block != "text":
                self._open({"type": "text", "text": ""})
            self._say_delta({"type": "text_delta", "text": text})
        for call in delta.get("tool_calls") or ():
            self._tool_delta(call, call.get("function") or {})

    def _tool_delta(self, call: Mapping[str, Any], function: Mapping[str, Any]) -> None:
        index, id_ = call.get("index"), call.get("id")
        # Some engines number every call 0, and some repeat the id: another id is another call.
        goes_on = self._block == "tool_use" and self._call[0] == index
        if not goes_on or (id_ and id_ != self._call[1]):
            self._open_tool(index, id_, function.get("name"))
        if function.get("arguments"):
            self._say_delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _open_tool(self, index: Any, id_: Any, name: Any) -> None:
        # A block that was stopped cannot go on, so calls that take turns cannot be told.
        if not name or (id_ or index) in self._called:
            raise BrokenStream("The upstream's tool calls are mixed up.")
        self._called |= {index, id_}
        self._call = (index, id_ or f"call_{self._index + 1}")
        self._open({"type": "tool_use", "id": self._call[1], "name": name, "input": {}})

    def _open(self, block: Mapping[str, Any]) -> None:
        self._stop_block()
        self._index += 1
        self._block = block["type"]
        self._say("content_block_start", index=self._index, content_block=block)

    def _stop_block(self) -> None:
        if self._block is not None:
            self._block = None
            self._say("content_block_stop", index=self._index)

    def _close(self) -> None:
        if self._done:
            return
        self._done = True
        self._stop_block()
        reason, sequence = _stop(self._choice, self._stops, bool(self._called), self._refused)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        self._say("message_delta", delta=delta, usage=_usage(self._usage))
        self._say("message_stop")

    def _say_delta(self, delta: Mapping[str, Any]) -> None:
        self._say("content_block_delta", index=self._index, delta=delta)

    def _say(self, event: str, **fields: Any) -> None:
        data = orjson.dumps({"type": event, **fields})
        self._out.append(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")


def _decoded(text: bytes) -> Mapping[str, Any]:
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


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _message_head(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{str(answer.get('id', '')).removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": answer.get("model", ""),
    }


def _tool_block(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        given = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError as fault:
        raise BrokenStream(
            "The model's tool arguments are not valid JSON; max_tokens may have cut them short."
        ) from fault
    name = function.get("name")
    return {"type": "tool_use", "id": call.get("id"), "name": name, "input": given}


def _stop(
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


def _usage(usage: Any) -> dict[str, Any]:
    """Anthropic counts what was read from a prefix cache apart from the other input."""
    given: Mapping[str, Any] = usage if isinstance(usage, Mapping) else {}
    details = given.get("prompt_tokens_details")
    cached = (details.get("cached_tokens") if isinstance(details, Mapping) else 0) or 0
    counts = {
        "input_tokens": max(0, (given.get("prompt_tokens") or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": given.get("completion_tokens") or 0,
    }
    return {**counts, "cached": True} if given.get("cached") else counts
