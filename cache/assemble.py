"""A finished stream's bytes -> the one complete OpenAI object it stands for, or None.

Deltas are joined as the OpenAI SDK joins them: texts are appended, tool calls merged by their
index (later pieces may leave out `id`), logprobs lists concatenated, the last usage counts.
Of top-level fields the first value that is not empty is kept. What this module does not know
how to join it does not guess: one unknown delta field and the stream is not kept at all.

Not carried: members that are null or empty, `obfuscation`, comments, the chunks' borders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import orjson

_TOP_SKIPPED = frozenset({"choices", "usage", "object", "obfuscation", "error"})
_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
_CHOICE_LAST = frozenset(
    {
        "stop_reason",  # vLLM
        "matched_stop",  # SGLang
        "native_finish_reason",  # OpenRouter
        "content_filter_results",  # Azure
        "prompt_logprobs",
        "prompt_token_ids",
    }
)
_CHOICE_LISTS = frozenset({"token_ids"})


def assemble(stream: bytes, wire: Literal["chat", "completions"]) -> dict[str, Any] | None:
    """The complete object of a stream up to its `[DONE]`.

    None when it would not be faithful: no `[DONE]`, no finish reason, a malformed line, an
    error, several choices, a field this module cannot join.
    """
    merged = _Merged(chat=wire == "chat")
    try:
        for payload in _payloads(stream):
            if payload.startswith(b"[DONE]"):
                return merged.answer()
            merged.add(orjson.loads(payload))
    except (_Unfaithful, orjson.JSONDecodeError):
        return None
    return None


class _Unfaithful(Exception):
    """Something in the stream would be lost or changed by joining it."""


def _payloads(stream: bytes) -> Iterator[bytes]:
    """The data of each server-sent event; several data lines of one event are one."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in stream:
        stream = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for block in stream.split(b"\n\n"):
        if block.startswith(b"data:") and b"\n" not in block:
            yield block[5:].strip()
        elif block:
            yield from _data(block.split(b"\n"))


def _data(lines: list[bytes]) -> Iterator[bytes]:
    data = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name == b"event" and value.strip() == b"error":
            raise _Unfaithful
        if name == b"data":
            data.append(value.removeprefix(b" "))
    if data:
        yield b"\n".join(data).strip()


class _Merged:
    """What has been joined so far; `add` and `answer` raise _Unfaithful."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._top: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, _ToolCall] = {}
        self._function: _ToolCall | None = None
        self._logprobs: dict[str, list[Any] | None] | None = None
        self._finish: str | None = None
        self._extra: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, dict) or chunk.get("error"):
            raise _Unfaithful
        for name, value in chunk.items():
            if name not in _TOP_SKIPPED and not self._top.get(name):
                self._top[name] = value
        if (usage := chunk.get("usage")) is not None:
            self._usage = _typed(usage, dict)
        choices = _typed(chunk.get("choices") or [], list)
        if len(choices) > 1:
            raise _Unfaithful
        for choice in choices:
            self._add_choice(_typed(choice, dict))

    def _add_choice(self, choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if value is None:
                continue
            if name == "delta" and self._chat:
                self._add_delta(_typed(value, dict))
            elif name == "text" and not self._chat:
                self._texts.setdefault("text", []).append(_typed(value, str))
            elif name == "finish_reason":
                self._finish = _typed(value, str) or self._finish
            elif name == "logprobs":
                self._add_logprobs(_typed(value, dict))
            elif name in _CHOICE_LAST:
                self._extra[name] = value
            elif name in _CHOICE_LISTS:
                self._extra.setdefault(name, []).extend(_typed(value, list))
            elif (name == "index" and value != 0) or (name != "index" and not _empty(value)):
                raise _Unfaithful

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if value is None:
                continue
            if name in _TEXTS:
                self._texts.setdefault(name, []).append(_typed(value, str))
            elif name == "tool_calls":
                for piece in _typed(value, list):
                    self._add_call(_typed(piece, dict))
            elif name == "function_call":
                self._function = self._function or _ToolCall()
                self._function.add_function(_typed(value, dict))
            elif name == "role":
                if value not in ("assistant", ""):
                    raise _Unfaithful
            elif not _empty(value):
                raise _Unfaithful

    def _add_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index")
        if not isinstance(index, int):
            raise _Unfaithful
        self._calls.setdefault(index, _ToolCall()).add(piece)

    def _add_logprobs(self, logprobs: dict[str, Any]) -> None:
        joined = self._logprobs = {} if self._logprobs is None else self._logprobs
        for name, value in logprobs.items():
            if value is None:
                joined.setdefault(name, None)
            elif joined.get(name) is None:
                joined[name] = _typed(value, list)
            else:
                joined[name] += _typed(value, list)

    def answer(self) -> dict[str, Any]:
        if not self._finish:
            raise _Unfaithful
        said: dict[str, Any] = {"text": self._text("text") or ""}
        if self._chat:
            said = {"message": self._message()}
        end = {"logprobs": self._logprobs, "finish_reason": self._finish}
        answer = {
            **self._top,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [{"index": 0, **said, **end, **self._extra}],
        }
        return answer if self._usage is None else {**answer, "usage": self._usage}

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text("content")}
        message["refusal"] = self._text("refusal") or None
        for name in ("reasoning", "reasoning_content"):
            if text := self._text(name):
                message[name] = text
        if self._calls:
            message["tool_calls"] = [self._calls[index].done() for index in sorted(self._calls)]
        if self._function:
            message["function_call"] = self._function.function()
        if not message["content"] and (self._calls or self._function or message["refusal"]):
            # Streams open with an empty content; the complete object has none then.
            message["content"] = None
        return message

    def _text(self, name: str) -> str | None:
        pieces = self._texts.get(name)
        return None if pieces is None else "".join(pieces)


class _ToolCall:
    def __init__(self) -> None:
        self._id = self._type = self._name = ""
        self._arguments: list[str] = []

    def add(self, piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            if name == "id":
                # A second call at the same index would be glued to the first.
                self._id = _same(self._id, value)
            elif name == "type":
                self._type = _same(self._type, value)
            elif name == "function" and value is not None:
                self.add_function(_typed(value, dict))
            elif name not in ("index", "function") and not _empty(value):
                raise _Unfaithful

    def add_function(self, function: dict[str, Any]) -> None:
        for name, value in function.items():
            if name == "name":
                self._name = _same(self._name, value)
            elif name == "arguments" and value is not None:
                self._arguments.append(_typed(value, str))
            elif name != "arguments" and not _empty(value):
                raise _Unfaithful

    def function(self) -> dict[str, Any]:
        if not self._name:
            raise _Unfaithful
        return {"name": self._name, "arguments": "".join(self._arguments)}

    def done(self) -> dict[str, Any]:
        if not self._id:
            raise _Unfaithful
        return {"id": self._id, "type": self._type or "function", "function": self.function()}


def _same(before: str, value: Any) -> str:
    """A name that comes once or is repeated; one that changes cannot be joined."""
    if not value:
        return before
    if before and value != before:
        raise _Unfaithful
    return str(_typed(value, str))


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise _Unfaithful
    return value


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")
