"""System texts, turns and content blocks of a Messages request as chat messages.

Tool results become messages of their own. `is_error` goes into the result's text, the one place
where a chat model can see it. A single text becomes a plain string, several stay parts. Refused
are documents, files, citations, thinking, images in tool results and a prefilled last turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tierway.middleware.anthropic_checks import numbered, only, refused, string_of
from tierway.middleware.request import missing, wrong

_TOOL_ERROR = "Error: "


def system_messages(given: Any) -> list[dict[str, Any]]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    parts = [_text_part(block, f"system.{at}") for at, block in numbered(given, "system")]
    return [{"role": "system", "content": _content(parts)}] if parts else []


def chat_messages(given: Any) -> Iterable[dict[str, Any]]:
    if given is None:
        raise missing("messages")
    if not isinstance(given, list) or not given:
        raise wrong("messages", "a list that is not empty")
    for at, message in enumerate(given):
        where = f"messages.{at}"
        role = string_of(only(message, where, ("role", "content")), "role", where)
        content = message.get("content")
        if role not in ("user", "assistant"):
            raise wrong(f"{where}.role", "user or assistant")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "user":
            yield from _user_turn(content, f"{where}.content")
        else:
            yield _assistant_turn(content, f"{where}.content")
    if role == "assistant":
        raise refused(where, ": the last turn must be the user's")


def _user_turn(blocks: Any, where: str) -> Iterable[dict[str, Any]]:
    """Tool results become messages of their own; they stand before everything else."""
    parts: list[dict[str, Any]] = []
    for at, block in numbered(blocks, where):
        here = f"{where}.{at}"
        kind = _kind(block, here)
        if kind == "tool_result":
            if parts:
                raise wrong(here, "before the turn's other blocks, as a tool result")
            yield _tool_result(block, here)
        elif kind == "image":
            parts.append(_image_part(block, here))
        else:
            parts.append(_text_part(block, here))
    if parts:
        yield {"role": "user", "content": _content(parts)}


def _assistant_turn(blocks: Any, where: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for at, block in numbered(blocks, where):
        here = f"{where}.{at}"
        if _kind(block, here) == "tool_use":
            calls.append(_tool_call(block, here))
        elif calls:
            raise refused(here, ": a block behind a tool_use")
        else:
            parts.append(_text_part(block, here))
    turn: dict[str, Any] = {"role": "assistant", "content": _content(parts) if parts else None}
    return {**turn, "tool_calls": calls} if calls else turn


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text is a plain string, which every chat template takes."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _kind(block: Any, where: str) -> str:
    if not isinstance(block, Mapping):
        raise wrong(where, "an object")
    return string_of(block, "type", where)


def _text_part(block: Any, where: str) -> dict[str, Any]:
    kind = _kind(block, where)
    if kind != "text":
        raise refused(where, f": a block of type {kind[:40]!r}")
    only(block, where, ("type", "text"))
    return {"type": "text", "text": string_of(block, "text", where)}


def _image_part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    only(block, where, ("type", "source"))
    source, here = block.get("source"), f"{where}.source"
    kind = _kind(source, here)
    if kind == "base64":
        source = only(source, here, ("type", "media_type", "data"))
        url = (
            f"data:{string_of(source, 'media_type', here)};base64,{string_of(source, 'data', here)}"
        )
    elif kind == "url":
        url = string_of(only(source, here, ("type", "url")), "url", here)
    else:
        raise refused(here, f": a source of type {kind[:40]!r}")
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    only(block, where, ("type", "id", "name", "input"))
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise wrong(f"{where}.input", "an object")
    arguments = orjson.dumps(given).decode()
    return {
        "id": string_of(block, "id", where),
        "type": "function",
        "function": {"name": string_of(block, "name", where), "arguments": arguments},
    }


def _tool_result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    only(block, where, ("type", "tool_use_id", "content", "is_error"))
    given = block.get("content")
    if given is None or isinstance(given, str):
        parts = [{"type": "text", "text": given or ""}]
    else:
        here = f"{where}.content"
        parts = [_text_part(part, f"{here}.{at}") for at, part in numbered(given, here)]
    if block.get("is_error"):
        parts = [{"type": "text", "text": _TOOL_ERROR}, *parts]
        if len(parts) == 2:
            parts = [{"type": "text", "text": _TOOL_ERROR + parts[1]["text"]}]
    return {
        "role": "tool",
        "tool_call_id": string_of(block, "tool_use_id", where),
        "content": _content(parts) if parts else "",
    }
