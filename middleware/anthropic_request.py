"""A Messages request as a chat body: loss-free, or refused with the name of the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tierway.middleware.anthropic_checks import numbered, only, refused, string_of
from tierway.middleware.anthropic_turns import chat_messages, system_messages
from tierway.middleware.request import missing, model_of, stream_of, wrong

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
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(document: Mapping[str, Any]) -> dict[str, Any]:
    """The translation. Raises BadCall naming what is wrong or cannot be carried."""
    only(document, "", _CARRIED)
    body: dict[str, Any] = {
        "model": model_of(document),
        "messages": [
            *system_messages(document.get("system")),
            *chat_messages(document.get("messages")),
        ],
        "max_tokens": _max_tokens(document.get("max_tokens")),
    }
    body.update({key: document[key] for key in _SAME_NAME if document.get(key) is not None})
    if document.get("stop_sequences"):
        body["stop"] = _stop_sequences(document["stop_sequences"])
    if document.get("tools"):
        body["tools"] = [
            _tool(tool, f"tools.{at}") for at, tool in numbered(document["tools"], "tools")
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


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind not in (None, "custom"):
        raise refused(f"{where}.type", f": the server tool {str(kind)[:40]!r}")
    only(tool, where, ("type", "name", "description", "input_schema", "strict"))
    function = {"name": string_of(tool, "name", where)}
    if tool.get("input_schema") is None:
        raise missing(f"{where}.input_schema")
    names = (("description", "description"), ("input_schema", "parameters"), ("strict", "strict"))
    function |= {new: tool[old] for old, new in names if tool.get(old) is not None}
    return {"type": "function", "function": function}


def _tool_choice(given: Any) -> dict[str, Any]:
    only(given, "tool_choice", ("type", "name", "disable_parallel_tool_use"))
    kind = string_of(given, "type", "tool_choice")
    if kind == "tool":
        name = string_of(given, "name", "tool_choice")
        choice: Any = {"type": "function", "function": {"name": name}}
    elif kind in _TOOL_CHOICES:
        choice = _TOOL_CHOICES[kind]
    else:
        raise wrong("tool_choice.type", "auto, any, tool or none")
    alone = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") else {}
    return {"tool_choice": choice, **alone}


def _metadata(given: Any) -> dict[str, Any]:
    user_id = only(given, "metadata", ("user_id",)).get("user_id")
    return {} if user_id is None else {"user": string_of(given, "user_id", "metadata")}


def _output(given: Any) -> dict[str, Any]:
    only(given, "output_config", ("effort", "format"))
    body: dict[str, Any] = {}
    if given.get("effort") is not None:
        body["reasoning_effort"] = string_of(given, "effort", "output_config")
    if given.get("format") is not None:
        where = "output_config.format"
        wanted = only(given["format"], where, ("type", "schema"))
        if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), Mapping):
            raise wrong(where, "an object with type json_schema and a schema")
        schema = {"name": "answer", "schema": wanted["schema"], "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
