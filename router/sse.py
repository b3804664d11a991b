"""Server-sent events of the OpenAI wire, cut at event borders without parsing them.

A relayed stream is looked into at three points only: up to its first real token (until then
the call may still be tried elsewhere), at the usage chunk that the client did not ask for, and
at its end, where a missing `[DONE]` tells a cut from a finish. Everything between passes as the
bytes that came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from tierway.policies.errors import BrokenStream, Rejected

_DONE = b"[DONE]"
_BORDERS = (b"\n\n", b"\r\n\r\n")
_EVENT_BYTES = 4 << 20  # no event of an answer is longer; the bound of what is held back
_EMPTY_CHOICES = (b'"choices":[]', b'"choices": []')
_ERROR = (b'data: {"error"', b'data:{"error"')
_TOKEN_FIELDS = (
    "content",
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
)


class Framer:
    """Cuts a byte stream into blocks of whole events.

    The chunk that carries only usage (`choices: []`) stands in `usage_event` once it came; with
    `strip_usage` it is kept back. `done` turns true once `[DONE]` was seen. An error event ends
    the stream: what precedes it is returned, its object stands in `error`.
    """

    __slots__ = ("_rest", "_strip", "done", "error", "usage_event")

    def __init__(self, *, strip_usage: bool) -> None:
        self._rest = bytearray()
        self._strip = strip_usage
        self.done = False
        self.usage_event = b""
        self.error: Mapping[str, Any] | None = None

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that `chunk` completes, maybe none. Raises BrokenStream for an event
        that does not end within 4 MiB."""
        block = chunk
        if self._rest or not chunk.endswith(_BORDERS):
            block = self._completed(chunk)
            if not block:
                return b""
        if _DONE in block[-24:]:
            self.done = _ends_with_done(block)
        if _EMPTY_CHOICES[0] in block or _EMPTY_CHOICES[1] in block:
            block = self._without_usage(block)
        if _ERROR[0] in block or _ERROR[1] in block:
            block = self._up_to_error(block)
        return block

    def finish(self) -> bytes:
        """What is left at the end of the body: a last event may lack its blank line."""
        rest = bytes(self._rest)
        self._rest.clear()
        if _DONE in rest:
            self.done = _ends_with_done(rest)
        return rest if self.done else b""

    def _completed(self, chunk: bytes) -> bytes:
        """The events up to the last border, which ends in `chunk`; what follows is held back.
        Each byte is looked at once, so that a long event costs no more than a short one."""
        rest = self._rest
        searched = max(0, len(rest) - 3)  # a border of four bytes may have begun before
        rest += chunk
        cut = _last_border(rest, searched)
        if not cut:
            if len(rest) > _EVENT_BYTES:
                raise BrokenStream("The upstream sent an event that does not end.")
            return b""
        block = bytes(rest[:cut])
        del rest[:cut]
        return block

    def _up_to_error(self, block: bytes) -> bytes:
        kept = []
        for event in split_events(block):
            self.error = _error_in(event)
            if self.error is not None:
                self.done = False  # a `[DONE]` behind it makes no good answer of it
                break
            kept.append(event)
        return b"".join(kept)

    def _without_usage(self, block: bytes) -> bytes:
        kept = []
        for event in split_events(block):
            if _is_usage_only(event):
                self.usage_event = event
                if self._strip:
                    continue
            kept.append(event)
        return b"".join(kept)


def split_events(block: bytes) -> Iterator[bytes]:
    """The events of a block of whole events, each with the blank line that ends it."""
    start = 0
    while start < len(block):
        end = _first_border(block, start)
        yield block[start:end]
        start = end


def payloads(block: bytes) -> Iterator[bytes]:
    """The data of each event, comments and other fields left out."""
    for event in split_events(block):
        lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
        if lines:
            yield b"\n".join(lines)


def has_first_token(block: bytes) -> bool:
    """True when an event of the block carries content, or says that there will be none.

    Raises Rejected for an error event and BrokenStream for data that is not JSON: both come
    before any content, so the call can still go elsewhere.
    """
    return any(_is_token(payload) for payload in payloads(block))


def error_of(document: Any) -> Mapping[str, Any] | None:
    """The error object of a body that should have been an answer, or None."""
    if isinstance(document, dict):
        error = document.get("error")
        if isinstance(error, dict):
            return error
        if error:
            return {"message": str(error)}
        if document.get("object") == "error":
            return document
    return None


def rejection(error: Mapping[str, Any]) -> Rejected:
    """An upstream's error that came with status 200, as what it means."""
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return Rejected(
        status, ((b"content-type", b"application/json"),), orjson.dumps({"error": dict(error)})
    )


def _is_token(payload: bytes) -> bool:
    if payload.startswith(_DONE):
        return True
    try:
        document = orjson.loads(payload)
    except ValueError as cause:
        raise BrokenStream("The upstream sent an event that is not JSON.") from cause
    error = error_of(document)
    if error is not None:
        raise rejection(error)
    choices = document.get("choices") if isinstance(document, dict) else None
    return any(_carries(choice) for choice in choices or () if isinstance(choice, dict))


def _carries(choice: Mapping[str, Any]) -> bool:
    if choice.get("finish_reason") or choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(field) for field in _TOKEN_FIELDS)


def _is_usage_only(event: bytes) -> bool:
    for payload in payloads(event):
        try:
            document = orjson.loads(payload)
        except ValueError:
            return False
        return (
            isinstance(document, dict)
            and document.get("choices") == []
            and bool(document.get("usage"))
        )
    return False


def _error_in(event: bytes) -> Mapping[str, Any] | None:
    for payload in payloads(event):
        try:
            return error_of(orjson.loads(payload))
        except ValueError:
            return None
    return None


def _ends_with_done(block: bytes) -> bool:
    last = block.rstrip().rsplit(b"\n", 1)[-1]
    return last.startswith(b"data:") and last[5:].strip().startswith(_DONE)


def _last_border(block: bytearray, start: int) -> int:
    plain, crlf = block.rfind(b"\n\n", start), block.rfind(b"\r\n\r\n", start)
    return max(plain + 2 if plain >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def _first_border(block: bytes, start: int) -> int:
    plain, crlf = block.find(b"\n\n", start), block.find(b"\r\n\r\n", start)
    if crlf >= 0 and (plain < 0 or crlf < plain):
        return crlf + 4
    return plain + 2 if plain >= 0 else len(block)
