"""The answers of a simulated engine in OpenAI's shapes, laid out as vLLM writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice. `text` holds the arguments when it is a tool call."""

    index: int
    text: str
    finish: str
    tool: ToolCall | None = None


class Chunks:
    """Renders one answer: as events, or as one object."""

    def __init__(
        self, wire: Literal["chat", "completions"], *, id: str, created: int, model: str
    ) -> None:
        self._chat = wire == "chat"
        kind = "chat.completion" if self._chat else "text_completion"
        self._whole = {"id": id, "object": kind, "created": created, "model": model}
        event = {**self._whole, "object": "chat.completion.chunk" if self._chat else kind}
        self._head = b"data: " + orjson.dumps(event)[:-1] + b',"choices":['

    def role(self, index: int) -> bytes:
        """What stands before the first token; nothing in the completions wire."""
        if not self._chat:
            return b""
        return self._delta(index, b'{"role":"assistant","content":""}')

    def token(self, index: int, text: str) -> bytes:
        quoted = orjson.dumps(text)
        if self._chat:
            return self._delta(index, b'{"content":' + quoted + b"}")
        return self._event(index, b'"text":' + quoted, b"null")

    def tool_head(self, index: int, tool: ToolCall) -> bytes:
        """The only event of a tool call with its id and name."""
        function = {"name": tool.name, "arguments": ""}
        call = {"id": tool.id, "type": "function", "index": 0, "function": function}
        return self._delta(index, orjson.dumps({"tool_calls": [call]}))

    def tool_token(self, index: int, text: str) -> bytes:
        call = {"index": 0, "function": {"arguments": text}}
        return self._delta(index, orjson.dumps({"tool_calls": [call]}))

    def finish(self, index: int, reason: str) -> bytes:
        member = b'"delta":{}' if self._chat else b'"text":""'
        return self._event(index, member, orjson.dumps(reason) + b',"stop_reason":null')

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return self._head + b'],"usage":' + orjson.dumps(usage) + b"}\n\n"

    def broken(self) -> bytes:
        """An event whose JSON breaks off."""
        return self._head + b'{"index":0,"delt\n\n'

    def whole(self, choices: Sequence[Choice], usage: Mapping[str, Any]) -> bytes:
        made = [self._choice(choice) for choice in choices]
        return orjson.dumps({**self._whole, "choices": made, "usage": usage})

    def _delta(self, index: int, delta: bytes) -> bytes:
        return self._event(index, b'"delta":' + delta, b"null")

    def _event(self, index: int, member: bytes, finish: bytes) -> bytes:
        return b'%b{"index":%d,%b,"logprobs":null,"finish_reason":%b}]}\n\n' % (
            self._head,
            index,
            member,
            finish,
        )

    def _choice(self, choice: Choice) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": choice.finish, "stop_reason": None}
        if not self._chat:
            return {"index": choice.index, "text": choice.text, **end}
        message: dict[str, Any] = {"role": "assistant", "content": choice.text}
        if choice.tool is not None:
            function = {"name": choice.tool.name, "arguments": choice.text}
            call = {"id": choice.tool.id, "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return {"index": choice.index, "message": message, **end}


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> bytes:
    """An OpenAI error; without a `code` it carries the status, as vLLM's do."""
    kinds = {404: "NotFoundError", 429: "rate_limit_error"}
    default = "invalid_request_error" if status < 500 else "InternalServerError"
    kind = kinds.get(status, default)
    error = {"message": message, "type": kind, "param": param, "code": code or status}
    return orjson.dumps({"error": error})
