"""A Messages request as a chat body: loss-free, or refused with the name of the field.

What has no place in a chat body is refused: thinking, server tools, documents, files, citations,
a prefilled assistant turn, images in tool results. Dropped is only what cannot change an answer:
`cache_control`, `service_tier`, switches at their defaults. `is_error` of a tool result goes into
its text, the one place where a chat model can see it. Texts of several blocks stay parts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tierway.middleware.request import missing, model_of, stream_of, wrong
from tierway.policies.errors import BadCall

_SAME_NAME = ("temperature", "top_p", "top_k")
_CARRIED = (
    *_SAME_NAME,
    "model",
    "messages",
    "max_tokens",
    "system",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "metadata",
    "output_config",
    "tierway",
    "cache",
)
_DROPPED = ("cache_control", "service_tier", "eager_input_streaming")
_DEFAULTS: Mapping[str, Any] = {
    "thinking": {"type": "disabled"},
    "speed": "standard",
    "defer_loading": False,
    "allowed_callers": ["direct"],
    "input_examples": [],
    "caller": {"type": "direct"},
    "citations": [],
    "transformations": {},
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TOOL_ERROR = "Error: "


def chat_body(document: Mapping[str, Any]) -> dict[str, Any]:
    """The translation. Raises BadCall naming what is wrong or cannot be carried."""
    _only(document, "", _CARRIED)
    body: dict[str, Any] = {
        "model": model_of(document),
        "messages": [*_system(document.get("system")), *_messages(document.get("messages"))],
        "max_tokens": _max_tokens(document.get("max_tokens")),
    }
    body.update({key: document[key] for key in _SAME_NAME if document.get(key) is not None})
    if document.get("stop_sequences"):
        body["stop"] = _stop_sequences(document["stop_sequences"])
    if document.get("tools"):
        body["tools"] = [
            _tool(tool, f"tools.{at}") for at, tool in _numbered(document["tools"], "tools")
        ]
    if document.get("tool_choice") is not None:
        body.update(_tool_choice(document["tool_choice"]))
    if document.get("metadata") is not None:
        body.update(_metadata(document["metadata"]))
    if document.get("output_config") is not None:
        body.update(_output(document["output_config"]))
    if stream_of(document):
        body.update(stream=True, stream_options={"include_usage": True})
    return body


def _only(given: Any, where: str, carried: Iterable[str]) -> Mapping[str, Any]:
    """`given` as an object that holds nothing but what is carried or makes no difference."""
    if not isinstance(given, Mapping):
        raise wrong(where, "an object")
    for key, value in given.items():
        harmless = key in _DROPPED or value is None or value == _DEFAULTS.get(key, ...)
        if key not in carried and not harmless:
            raise _refused(f"{where}.{key}".lstrip("."), _near(key, carried))
    return given


def _near(key: str, carried: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(carried), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _refused(where: str, more: str = "") -> BadCall:
    return BadCall(
        f"{where}: this cannot be carried to an OpenAI-shaped model{more}",
        param=where,
        code="unsupported_parameter",
    )


def _numbered(given: Any, where: str) -> Iterable[tuple[int, Any]]:
    if not isinstance(given, list):
        raise wrong(where, "a list")
    return enumerate(given)


def _string(given: Mapping[str, Any], key: str, where: str) -> str:
    value = given.get(key)
    if value is None:
        raise missing(f"{where}.{key}")
    if not isinstance(value, str):
        raise wrong(f"{where}.{key}", "a string")
    return value


def _max_tokens(given: Any) -> int:
    if given is None:
        raise missing("max_tokens")
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise wrong("max_tokens", "a whole number of at least 1")
    return given


def _stop_sequences(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise wrong("stop_sequences", "a list of strings")
    return given


def _system(given: Any) -> list[dict[str, Any]]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    parts = [_text_part(block, f"system.{at}") for at, block in _numbered(given, "system")]
    return [{"role": "system", "content": _content(parts)}] if parts else []


def _messages(given: Any) -> Iterable[dict[str, Any]]:
    if given is None:
        raise missing("messages")
    if not isinstance(given, list) or not given:
        raise wrong("messages", "a list that is not empty")
    for at, message in enumerate(given):
        where = f"messages.{at}"
        role = _string(_only(message, where, ("role", "content")), "role", where)
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
        raise _refused(where, ": the last turn must be the user's")


def _user_turn(blocks: Any, where: str) -> Iterable[dict[str, Any]]:
    """Tool results become messages of their own; they stand before everything else."""
    parts: list[dict[str, Any]] = []
    for at, block in _numbered(blocks, where):
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
    for at, block in _numbered(blocks, where):
        here = f"{where}.{at}"
        if _kind(block, here) == "tool_use":
            calls.append(_tool_call(block, here))
        elif calls:
            raise _refused(here, ": a block behind a tool_use")
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
    return _string(block, "type", where)


def _text_part(block: Any, where: str) -> dict[str, Any]:
    kind = _kind(block, where)
    if kind != "text":
        raise _refused(where, f": a block of type {kind[:40]!r}")
    _only(block, where, ("type", "text"))
    return {"type": "text", "text": _string(block, "text", where)}


def _image_part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    _only(block, where, ("type", "source"))
    source, here = block.get("source"), f"{where}.source"
    kind = _kind(source, here)
    if kind == "base64":
        source = _only(source, here, ("type", "media_type", "data"))
        url = f"data:{_string(source, 'media_type', here)};base64,{_string(source, 'data', here)}"
    elif kind == "url":
        url = _string(_only(source, here, ("type", "url")), "url", here)
    else:
        raise _refused(here, f": a source of type {kind[:40]!r}")
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    _only(block, where, ("type", "id", "name", "input"))
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise wrong(f"{where}.input", "an object")
    arguments = orjson.dumps(given).decode()
    return {
        "id": _string(block, "id", where),
        "type": "function",
        "function": {"name": _string(block, "name", where), "arguments": arguments},
    }


def _tool_result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    _only(block, where, ("type", "tool_use_id", "content", "is_error"))
    given = block.get("content")
    if given is None or isinstance(given, str):
        parts = [{"type": "text", "text": given or ""}]
    else:
        here = f"{where}.content"
        parts = [_text_part(part, f"{here}.{at}") for at, part in _numbered(given, here)]
    if block.get("is_error"):
        parts = [{"type": "text", "text": _TOOL_ERROR}, *parts]
        if len(parts) == 2:
            parts = [{"type": "text", "text": _TOOL_ERROR + parts[1]["text"]}]
    return {
        "role": "tool",
        "tool_call_id": _string(block, "tool_use_id", where),
        "content": _content(parts) if parts else "",
    }


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind not in (None, "custom"):
        raise _refused(f"{where}.type", f": the server tool {str(kind)[:40]!r}")
    _only(tool, where, ("type", "name", "description", "input_schema", "strict"))
    function = {"name": _string(tool, "name", where)}
    if tool.get("input_schema") is None:
        raise missing(f"{where}.input_schema")
    names = (("description", "description"), ("input_schema", "parameters"), ("strict", "strict"))
    function |= {new: tool[old] for old, new in names if tool.get(old) is not None}
    return {"type": "function", "function": function}


def _tool_choice(given: Any) -> dict[str, Any]:
    _only(given, "tool_choice", ("type", "name", "disable_parallel_tool_use"))
    kind = _string(given, "type", "tool_choice")
    if kind == "tool":
        name = _string(given, "name", "tool_choice")
        choice: Any = {"type": "function", "function": {"name": name}}
    elif kind in _TOOL_CHOICES:
        choice = _TOOL_CHOICES[kind]
    else:
        raise wrong("tool_choice.type", "auto, any, tool or none")
    alone = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") else {}
    return {"tool_choice": choice, **alone}


def _metadata(given: Any) -> dict[str, Any]:
    user_id = _only(given, "metadata", ("user_id",)).get("user_id")
    return {} if user_id is None else {"user": _string(given, "user_id", "metadata")}


def _output(given: Any) -> dict[str, Any]:
    _only(given, "output_config", ("effort", "format"))
    body: dict[str, Any] = {}
    if given.get("effort") is not None:
        body["reasoning_effort"] = _string(given, "effort", "output_config")
    if given.get("format") is not None:
        where = "output_config.format"
        wanted = _only(given["format"], where, ("type", "schema"))
        if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), Mapping):
            raise wrong(where, "an object with type json_schema and a schema")
        schema = {"name": "answer", "schema": wanted["schema"], "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
