"""A stored answer -> what a client reads on a hit: one JSON object, or a stream of events.

Identity and time of creation stay those of the stored answer; `usage` says `"cached": true`.
Events follow the OpenAI stream: role, reasoning, content in some pieces, refusal, tool calls,
the finish reason, usage if asked for, `[DONE]`. `assemble` (cache/assemble.py) turns them back
into the same object, save for members that are null or empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import orjson

from tierway.policies.errors import CacheError

MOST_PIECES = 16
LEAST_CHARACTERS = 8
"""A text is cut into at most so many pieces of at least so many characters: a client that
shows text as it comes has something to show, and a hit costs few events."""

_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_EVERY_CHUNK = ("id", "created", "model", "system_fingerprint", "service_tier")
_SAID = ("content", "reasoning", "reasoning_content", "refusal", "tool_calls")
_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef\U00020000-\U0003ffff"
_WORDS = re.compile(rf"\s*(?:[{_UNSPACED}]|[^\s{_UNSPACED}]{{1,12}})|\s+")
_SIMPLE_USAGE = re.compile(
    rb'\{"(?!cached")\w+":(?:\d+|null|\{[\w":,]*\})'
    rb'(?:,"(?!cached")\w+":(?:\d+|null|\{[\w":,]*\}))*\}\}'
)


def as_stored(answer: Mapping[str, Any]) -> bytes:
    """The bytes to keep of a complete answer: compact, usage last (see `fast_cached_json`)."""
    kept = {name: value for name, value in answer.items() if name != "usage"}
    if answer.get("usage") is not None:
        kept["usage"] = answer["usage"]
    return orjson.dumps(kept)


def as_json(answer: Mapping[str, Any]) -> bytes:
    """The whole body of a hit. An answer stored without usage reports zero tokens."""
    return orjson.dumps({**answer, "usage": _cached_usage(answer)})


def fast_cached_json(raw: bytes) -> bytes:
    """`as_json` of stored bytes, without parsing them where compact usage comes last.

    Raises CacheError for bytes that are no JSON object.
    """
    # `,"usage":{` is always a member's name: inside a JSON string its quotes were escaped. And
    # as its object is closed by the last but one brace, the member is the outermost object's.
    at = raw.rfind(b',"usage":{')
    if at > 0 and _SIMPLE_USAGE.fullmatch(raw, at + 9):
        return raw[:-2] + b',"cached":true}}'
    try:
        return as_json(orjson.loads(raw))
    except (TypeError, ValueError, AttributeError) as error:
        raise CacheError("A stored answer is no JSON object.") from error


def as_events(answer: Mapping[str, Any], *, include_usage: bool, fine: bool = False) -> list[bytes]:
    """The events of a chat or text completion of one choice, the last one `data: [DONE]`. With
    `fine` an event holds a word, or a character of a script without blanks.

    Raises CacheError for an object that is no such answer.
    """
    try:
        return list(_events(answer, include_usage=include_usage, fine=fine))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CacheError("A stored answer cannot be shown as a stream.") from error


def _events(answer: Mapping[str, Any], *, include_usage: bool, fine: bool) -> Iterator[bytes]:
    choice: Mapping[str, Any]
    (choice,) = answer["choices"]
    chat = "message" in choice
    steps = _chat_steps(choice, fine) if chat else _text_steps(choice, fine)
    kind = "chat.completion.chunk" if chat else "text_completion"
    every = {"object": kind, **{name: answer[name] for name in _EVERY_CHUNK if name in answer}}
    # The first chunk carries the fields of the answer that this module does not know.
    rest = {k: v for k, v in answer.items() if k not in ("object", "choices", "usage")}
    silent: dict[str, Any] = {"usage": None} if include_usage else {}
    head = orjson.dumps({**every, **rest, **silent})[:-1]
    later = orjson.dumps({**every, **silent})[:-1]
    for step in steps:
        body = orjson.dumps({"index": 0, "logprobs": None, "finish_reason": None, **step})
        yield b'data: %b,"choices":[%b]}\n\n' % (head, body)
        head = later
    if include_usage:
        last = {**every, "choices": [], "usage": _cached_usage(answer)}
        yield b"data: %b\n\n" % orjson.dumps(last)
    yield b"data: [DONE]\n\n"


def _cached_usage(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {**(answer.get("usage") or _NO_USAGE), "cached": True}


def _chat_steps(choice: Mapping[str, Any], fine: bool) -> Iterator[dict[str, Any]]:
    message: Mapping[str, Any] = choice["message"]
    logprobs: Mapping[str, Any] = choice.get("logprobs") or {}
    opening = {k: v for k, v in message.items() if k not in _SAID and v is not None}
    content = message.get("content")
    yield {"delta": {"role": "assistant", **opening, "content": content and ""}}
    yield from _reasoning_steps(message, fine)
    for name in ("content", "refusal"):
        entries = logprobs.get(name) or []
        tokens = [entry.get("token") for entry in entries]
        for piece, low, high in _spans(message.get(name) or "", tokens, fine):
            own = {"content": None, "refusal": None, name: entries[low:high]}
            yield {"delta": {name: piece}, "logprobs": own if entries else None}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield from _call_steps(index, call, fine)
    yield {"delta": {}, **_ending(choice)}


def _reasoning_steps(message: Mapping[str, Any], fine: bool) -> Iterator[dict[str, Any]]:
    names = [name for name in ("reasoning", "reasoning_content") if message.get(name)]
    for pieces in zip_longest(*(_pieces(message[name], fine) for name in names)):
        yield {"delta": {name: piece for name, piece in zip(names, pieces, strict=True) if piece}}


def _call_steps(index: int, call: Mapping[str, Any], fine: bool) -> Iterator[dict[str, Any]]:
    function: Mapping[str, Any] = call["function"]
    opening = {"index": index, **call, "function": {**function, "arguments": ""}}
    yield {"delta": {"tool_calls": [opening]}}
    for piece in _pieces(function["arguments"], fine):
        yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}}


def _text_steps(choice: Mapping[str, Any], fine: bool) -> Iterator[dict[str, Any]]:
    logprobs: Mapping[str, Any] = choice.get("logprobs") or {}
    for piece, low, high in _spans(choice.get("text") or "", logprobs.get("tokens") or [], fine):
        own = {k: v[low:high] if isinstance(v, list) else v for k, v in logprobs.items()}
        yield {"text": piece, "logprobs": own or None}
    yield {"text": "", **_ending(choice)}


def _ending(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What the last chunk carries: the finish reason and engines' own fields of the choice."""
    return {k: v for k, v in choice.items() if k not in ("index", "message", "text", "logprobs")}


def _pieces(text: str, fine: bool) -> list[str]:
    if fine:
        return _WORDS.findall(text)
    size = max(LEAST_CHARACTERS, -(-len(text) // MOST_PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _spans(text: str, tokens: list[str | None], fine: bool) -> Iterator[tuple[str, int, int]]:
    """Pieces of a text, each with the range of tokens that belongs to it.

    Cut between tokens where these spell the text; where they do not (tokens that are part
    of a character), all of them go with the first piece.
    """
    if tokens and all(tokens) and "".join(map(str, tokens)) == text:
        size = 1 if fine else -(-len(tokens) // MOST_PIECES)
        for low in range(0, len(tokens), size):
            high = min(low + size, len(tokens))
            yield "".join(map(str, tokens[low:high])), low, high
        return
    for at, piece in enumerate(_pieces(text, fine) or [""] * bool(tokens)):
        yield piece, 0, 0 if at else len(tokens)
