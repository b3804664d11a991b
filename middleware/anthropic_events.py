"""A chat stream as the events of the Anthropic wire, as its chunks come.

Order: message_start, then per block content_block_start, deltas and content_block_stop, then
message_delta (stop reason, cumulative usage) and message_stop. Tool arguments pass as
`input_json_delta` as they come. Usage is known at the end, so message_start says 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tierway.middleware.anthropic_answer import (
    decoded,
    first_choice,
    list_of,
    message_head,
    object_of,
    stop_of,
    usage_of,
)
from tierway.policies.errors import BrokenStream


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
        self._call = ("", "")  # index and id of the call it tells
        self._called: set[str] = set()  # indices and ids of all calls told
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
        chunk = decoded(payload)
        if not self._started:
            self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        choice = first_choice(chunk)
        if choice is not None:
            self._delta(object_of(choice.get("delta")))
            if choice.get("finish_reason"):
                self._choice = choice
        return None

    def _start(self, chunk: Mapping[str, Any]) -> None:
        self._started = True
        message = {
            **message_head(chunk),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(chunk.get("usage")),
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
        for call in map(object_of, list_of(delta.get("tool_calls"))):
            self._tool_delta(call, object_of(call.get("function")))

    def _tool_delta(self, call: Mapping[str, Any], function: Mapping[str, Any]) -> None:
        index, given = f"#{call.get('index')}", call.get("id")
        id_ = given if isinstance(given, str) and given else None
        # Some engines number every call 0, and some repeat the id: another id is another call.
        goes_on = self._block == "tool_use" and self._call[0] == index
        if not goes_on or id_ not in (None, self._call[1]):
            self._open_tool(index, id_, function.get("name"))
        if function.get("arguments"):
            self._say_delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _open_tool(self, index: str, id_: str | None, name: Any) -> None:
        # A block that was stopped cannot go on, so calls that take turns cannot be told.
        if not name or (id_ or index) in self._called:
            raise BrokenStream("The upstream's tool calls are mixed up.")
        self._called |= {index, id_ or index}
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
        reason, sequence = stop_of(self._choice, self._stops, bool(self._called), self._refused)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        self._say("message_delta", delta=delta, usage=usage_of(self._usage))
        self._say("message_stop")

    def _say_delta(self, delta: Mapping[str, Any]) -> None:
        self._say("content_block_delta", index=self._index, delta=delta)

    def _say(self, event: str, **fields: Any) -> None:
        data = orjson.dumps({"type": event, **fields})
        self._out.append(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")
