"""What makes two calls the same: the exact digest and the partition of a call.

    partition = blake2b-128 of canonical JSON of [version, wire family, who, namespace, names,
                documents' id, kind, every field that can change the answer, with the text of
                the last user turn cut out]
    exact     = blake2b-128 of partition + the text that was cut out, each piece with its length

So everything but the wording of the last question is compared by digest and only the wording
by meaning: another history, system prompt, tool, tenant or sampling setting is another
partition, in which a semantic search never looks. Both digests come from one serialisation.

Canonical JSON is orjson with sorted keys, over parsed values: order of keys, white space and
escapes do not matter; `1`, `1.0` and `true` stay three different values, `1.0`, `1.00` and
`1e0` are one, and so are integers beyond 64 bits that round to the same double. A field is
compared as given: leaving out a default and spelling it out are two keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import orjson

from tierway.policies.cacheability import Scope
from tierway.policies.errors import CacheError
from tierway.policies.types import CacheControl, Call

VERSION = 1
"""Part of every key: raised when the meaning of a key changes, so that old entries are missed."""

FIELDS: Mapping[str, Literal["identity", "transport", "model"]] = {
    # Who asks: `Call.user` carries it, and `scope` decides whether it counts.
    "user": "identity",
    "safety_identifier": "identity",
    # How it travels: the answer's text is the same.
    "stream": "transport",
    "stream_options": "transport",
    "metadata": "transport",  # its user_id is identity and already in Call.user
    "store": "transport",
    "service_tier": "transport",
    "prompt_cache_key": "transport",
    "prompt_cache_options": "transport",
    "prompt_cache_retention": "transport",
    "timeout": "transport",
    "request_timeout": "transport",
    "stream_timeout": "transport",
    "request_id": "transport",
    "session_id": "transport",
    "priority": "transport",
    "stream_interval": "transport",
    "tierway": "transport",
    "cache": "transport",
    # What may answer stands in `names`.
    "model": "model",
}
"""Top-level body fields that are not in the key; every other field, known or not, is."""

_FAMILIES = {"messages": "chat"}
_QUOTES_PROMPT = ("echo", "prompt_logprobs", "return_token_ids", "return_prompt_text")
_PLAIN_PART = {"type": "text"}


@dataclass(frozen=True, slots=True)
class Ignore:
    """Text that may differ within one partition: cut from system or from user texts."""

    where: Literal["system", "user"]
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The digests of a call, 16 bytes each, and the question to match by meaning.

    `semantic` is False where only the exact digest may find an entry; `why_not` is then a
    short constant and `question` is empty.
    """

    exact: bytes
    partition: bytes
    question: str
    semantic: bool
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class _Cut:
    """The fields with the question taken out (`texts`), or whole with the reason why."""

    kind: Literal["question", "query", "whole"]
    fields: Mapping[str, Any]
    texts: tuple[str, ...] = ()
    why_not: str = ""


def fingerprint(
    call: Call, *, names: str, scope: Scope = "tenant", ignore: Sequence[Ignore] = ()
) -> Fingerprint:
    """Digests a call. `names` is the requested name with the revisions of all it can reach.

    Raises CacheError for a body that is no JSON (lone surrogates, integers over 64 bits).
    """
    kept = {name: value for name, value in call.body.items() if name not in FIELDS}
    cut = _cut(call, _without(kept, ignore) if ignore else kept)
    head = [
        VERSION,
        _FAMILIES.get(call.wire, call.wire),
        None if scope == "shared" else call.tenant,
        call.user if scope == "user" else None,
        call.controls.namespace,
        names,
        call.controls.cache.context_id,
        cut.kind,
    ]
    try:
        canonical = orjson.dumps([head, cut.fields], option=orjson.OPT_SORT_KEYS)
        partition = blake2b(canonical, digest_size=16).digest()
        exact = _exact(partition, cut.texts)
    except (TypeError, ValueError) as error:
        raise CacheError(f"The request cannot be made a cache key: {error}") from error
    return Fingerprint(
        exact, partition, "\n".join(cut.texts), semantic=not cut.why_not, why_not=cut.why_not
    )


def _exact(partition: bytes, texts: tuple[str, ...]) -> bytes:
    digest = blake2b(partition, digest_size=16)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _cut(call: Call, kept: Mapping[str, Any]) -> _Cut:
    if call.wire == "embeddings":
        return _Cut("whole", kept, why_not="embeddings")
    if isinstance(kept.get("n"), int) and kept["n"] > 1:
        return _Cut("whole", kept, why_not="n")
    if any(kept.get(name) is not None and kept[name] is not False for name in _QUOTES_PROMPT):
        # The answer repeats the prompt or its tokens: another wording has another answer.
        return _Cut("whole", kept, why_not="quotes-prompt")
    if (logprobs := kept.get("logprobs")) is not None and logprobs is not False:
        # How likely the tokens were depends on every word before them.
        return _Cut("whole", kept, why_not="logprobs")
    if call.wire == "completions":
        return _cut_prompt(kept, call.controls.cache)
    return _cut_messages(kept, call.controls.cache)


def _cut_prompt(kept: Mapping[str, Any], control: CacheControl) -> _Cut:
    prompt = kept.get("prompt")
    if not isinstance(prompt, str):
        return _Cut("whole", kept, why_not="prompt-list")
    if kept.get("suffix"):
        # Text to fill a gap with is fixed by both sides of it, not by a question.
        return _Cut("whole", kept, why_not="suffix")
    if not prompt.strip():
        return _Cut("whole", kept, why_not="empty")
    kind, texts, shape = _narrow((prompt,), None, control)
    return _Cut(kind, {**kept, "prompt": shape}, texts)


def _cut_messages(kept: Mapping[str, Any], control: CacheControl) -> _Cut:
    messages = kept.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, Mapping) or last.get("role") != "user":
        return _Cut("whole", kept, why_not="not-user")
    parts = _texts(last.get("content"))
    if parts is None:
        return _Cut("whole", kept, why_not="media")
    texts, shape = parts
    if not "".join(texts).strip():
        return _Cut("whole", kept, why_not="empty")
    kind, texts, shape = _narrow(texts, shape, control)
    turns = [*kept["messages"][:-1], {**last, "content": shape}]
    return _Cut(kind, {**kept, "messages": turns}, texts)


def _texts(content: Any) -> tuple[tuple[str, ...], Any] | None:
    """The texts of a content and what is left of it without them, None if not text only.

    What is left is None for a plain string and for one plain part, which mean the same,
    else the parts without their text: their number and further keys stay in the partition.
    """
    if content is None or isinstance(content, str):
        return (content or "",), None
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    shape: list[dict[str, Any]] = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type") != "text":
            return None
        texts.append(text)
        shape.append({k: v for k, v in part.items() if k not in ("text", "cache_control")})
    return tuple(texts), None if shape == [_PLAIN_PART] else shape


def _narrow(
    texts: tuple[str, ...], shape: Any, control: CacheControl
) -> tuple[Literal["question", "query"], tuple[str, ...], Any]:
    """Puts the client's `query` in place of the turn it stands in.

    `context_id` names the rest of the turn, the documents; without one the rest itself, the
    turn with the query cut out of it, stays in the partition.
    """
    query = control.query
    if not query:
        return "question", texts, shape
    if control.context_id:
        return "query", (query,), None
    return "query", (query,), [shape, [text.split(query) for text in texts]]


def _without(kept: Mapping[str, Any], rules: Sequence[Ignore]) -> Mapping[str, Any]:
    """The fields with the rules' matches cut from messages and from a completion's prompt."""
    patterns = {
        where: [rule.pattern for rule in rules if rule.where == where]
        for where in ("system", "user")
    }
    cleaned = dict(kept)
    if isinstance(messages := kept.get("messages"), list):
        cleaned["messages"] = [_clean_message(message, patterns) for message in messages]
    if isinstance(prompt := kept.get("prompt"), str):
        cleaned["prompt"] = _clean(prompt, patterns["user"])
    return cleaned


def _clean_message(message: Any, patterns: Mapping[str, list[re.Pattern[str]]]) -> Any:
    role = message.get("role") if isinstance(message, Mapping) else None
    found = patterns.get("system" if role == "developer" else str(role))
    if not found:
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [_clean_part(part, found) for part in content]}
    return {**message, "content": _clean(content, found)}


def _clean_part(part: Any, patterns: list[re.Pattern[str]]) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _clean(part["text"], patterns)}


def _clean(text: Any, patterns: list[re.Pattern[str]]) -> Any:
    if isinstance(text, str):
        for pattern in patterns:
            text = pattern.sub("", text)
    return text
