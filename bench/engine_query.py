"""What a client asks of a simulated engine: OpenAI bodies read into a Query, and the answer.

Only what changes tokens, timing or shape is read; other fields are accepted and ignored.
Directives (`[[answer 40]]`, `[[tool]]`, `[[fault:...]]`) count in the newest user turn only,
so that a conversation's history does not repeat them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from tierway.bench.engine import FinishReason
from tierway.bench.engine_embeddings import DIMENSIONS
from tierway.bench.engine_text import answer_tokens, filled_schema, natural_length, tokenise

_ANSWER = re.compile(r"\[\[answer (\d{1,7})\]\]")
_MEDIA_TOKENS = 256
_MAX_CHOICES = 16


class BadQuery(Exception):
    """A request that the engine refuses, in OpenAI's terms."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tokens` is the prompt as the model sees it, chat template included."""

    question: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """`function` is the tool to call instead of talking, `schema` the JSON schema that the
    answer must fill. A chat has one prompt."""

    wire: Literal["chat", "completions"]
    prompts: tuple[Prompt, ...]
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    function: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """An answer before it is generated; the tokens of a tool call are its arguments'."""

    tokens: tuple[str, ...]
    finish: FinishReason


def load(raw: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadQuery(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadQuery("the body must be a JSON object")
    return body


def chat_query(body: Mapping[str, Any]) -> Query:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadQuery("messages: a list with at least one message is required", param="messages")
    turns = [_turn(message, index) for index, message in enumerate(messages)]
    question = next((text for role, text in reversed(turns) if role == "user"), "")
    tools = body.get("tools")
    head = f"<|tools|>{orjson.dumps(tools).decode()}\n" if tools else ""
    template = head + "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in turns)
    tokens = tuple(tokenise(template + "<|im_start|>assistant\n"))
    asked = turns[-1][0] == "user" and "[[tool]]" in question
    return _query(body, "chat", (Prompt(question, tokens),), _function(body, asked))


def completion_query(body: Mapping[str, Any]) -> Query:
    prompt: Any = body.get("prompt")
    many = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    prompts = tuple(_completion_prompt(one) for one in (prompt if many else [prompt]))
    return _query(body, "completions", prompts, None)


def plan(query: Query, prompt: Prompt, *, model: str, seed: int, choice: int, room: int) -> Planned:
    """The answer to one prompt, at most `room` tokens long."""
    text = "".join(prompt.tokens)
    cap = room if query.max_tokens is None else min(room, query.max_tokens)
    schema = query.schema if query.function is None else query.function.get("parameters", {})
    if schema is not None:
        tokens = tokenise(filled_schema(schema, prompt.question))
        return Planned(tuple(tokens[:cap]), "stop" if len(tokens) <= cap else "length")
    wanted = _ANSWER.search(prompt.question)
    count = max(1, int(wanted[1])) if wanted else natural_length(text, seed)
    count = cap if query.ignore_eos else max(count, query.min_tokens)
    tokens = answer_tokens(model, text, prompt.question, min(count, cap + 1), choice)[:cap]
    finish: FinishReason = "length" if query.ignore_eos or count > cap else "stop"
    return _stopped(query.stop, tokens) or Planned(tuple(tokens), finish)


def prompt_room(query: Query, max_model_len: int) -> int:
    """Tokens left for an answer; BadQuery when prompt and answer do not fit the context."""
    longest = max(len(prompt.tokens) for prompt in query.prompts)
    asked = longest + (query.max_tokens or 1)
    if asked > max_model_len:
        raise BadQuery(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {asked} tokens ({longest} in the messages, {asked - longest} in the "
            "completion). Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
            param="messages" if query.wire == "chat" else "prompt",
        )
    return max_model_len - longest


def embedding_inputs(body: Mapping[str, Any]) -> list[str]:
    """The texts of an embeddings request; token lists become texts that stand for them."""
    given = body.get("input")
    if isinstance(given, list) and given and not isinstance(given[0], int):
        texts = given
    else:
        texts = [given]
    if not given or not all(_is_text(text) for text in texts):
        raise BadQuery("input: a text, or a list of texts or tokens is required", param="input")
    return [text if isinstance(text, str) else " ".join(map(str, text)) for text in texts]


def embedding_dimensions(body: Mapping[str, Any]) -> int:
    return _number(body, "dimensions", 1, 4096) or DIMENSIONS


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)
    )


def _query(
    body: Mapping[str, Any],
    wire: Literal["chat", "completions"],
    prompts: tuple[Prompt, ...],
    function: Mapping[str, Any] | None,
) -> Query:
    options = body.get("stream_options")
    stop = body.get("stop") or []
    name = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    return Query(
        wire=wire,
        prompts=prompts,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        choices=_number(body, "n", 1, _MAX_CHOICES) or 1,
        # The old completions API answers 16 tokens unless told otherwise.
        max_tokens=_number(body, name, 1) or (16 if wire == "completions" else None),
        min_tokens=_number(body, "min_tokens", 0) or 0,
        ignore_eos=body.get("ignore_eos") is True,
        stop=tuple(filter(None, [stop] if isinstance(stop, str) else map(str, stop))),
        function=function,
        schema=_schema(body.get("response_format")),
        salt=str(body.get("cache_salt") or ""),
    )


def _number(body: Mapping[str, Any], name: str, least: int, most: int = 10**9) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        allowed = f"from {least}" + (f" to {most}" if most < 10**9 else "")
        raise BadQuery(f"{name} = {value!r}: allowed is a whole number {allowed}", param=name)
    return value


def _turn(message: Any, index: int) -> tuple[str, str]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadQuery("a message is an object with a role", param=f"messages[{index}]")
    content = message.get("content")
    calls = message.get("tool_calls")
    text = orjson.dumps(calls).decode() if calls else ""
    if isinstance(content, list):
        text += "".join(_part(part) for part in content)
    elif content is not None:
        text += str(content)
    return message["role"], text


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return "<|media|>" * _MEDIA_TOKENS


def _completion_prompt(prompt: Any) -> Prompt:
    if isinstance(prompt, str) and prompt:
        return Prompt(prompt, tuple(tokenise(prompt)))
    if _is_text(prompt) and prompt:
        return Prompt("", tuple(f"<{token}>" for token in prompt))
    raise BadQuery("prompt: a text, or a list of texts or tokens is required", param="prompt")


def _function(body: Mapping[str, Any], asked: bool) -> Mapping[str, Any] | None:
    """The function to call: the one that is named, or the first when one is wanted."""
    choice = body.get("tool_choice")
    tools = body.get("tools")
    if choice == "none" or not isinstance(tools, list):
        return None
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    usable = [one for one in functions if isinstance(one, Mapping) and one.get("name")]
    if isinstance(choice, Mapping):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, Mapping) else None
        usable = [one for one in usable if one["name"] == name]
        if not usable:
            raise BadQuery(f"tool_choice names no tool: {name!r}", param="tool_choice")
        return usable[0]
    return usable[0] if usable and (asked or choice == "required") else None


def _schema(wanted: Any) -> Mapping[str, Any] | None:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "json_object":
        return {"properties": {"answer": {"type": "string"}}}
    if kind != "json_schema":
        return None
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _stopped(stop: tuple[str, ...], tokens: list[str]) -> Planned | None:
    text = "".join(tokens)
    places = [place for word in stop if (place := text.find(word)) >= 0]
    return Planned(tuple(tokenise(text[: min(places)])), "stop") if places else None
