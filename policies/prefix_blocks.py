"""Chained hashes of a prompt's leading blocks: equal hash, equal prompt up to that block's end.

An engine keeps the KV cache of a prompt by leading blocks, so prompts that begin alike share what
was computed. Without the engine's tokenizer and chat template a gateway cannot name those blocks,
but bytes that begin alike give tokens that begin alike. The bytes of a call are laid out as chat
templates do it: tool definitions, then turn by turn role and text; so a conversation keeps all
full blocks of its earlier turns. They are cut every BLOCK_BYTES and hashed with BLAKE2b (RFC 7693),
the digest of one block being the salt of the next. Same bytes, same hashes, in every process.

A next turn finds more than its blocks: the engine that wrote the answer holds the answer too. So
the digest of each whole prompt is told, and that of the prompt whose answer it goes on from, which
is the same bytes up to the newest assistant turn: it needs no session's name, and no answer's text.

What a block does not tell: whether an engine really holds it, see router/prefixes.py.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from tierway.policies.types import Call

BLOCK_BYTES = 512
"""About 128 tokens, eight blocks of vLLM. Half of it costs half as much again for a long prompt
(tierway.bench.prefix_speed), and finds 32 tokens more of each on average."""

MAX_BLOCKS = 1024
"""About 131,072 tokens; what stands behind them is not looked at."""

PromptKind = Literal["latin", "other", "ids"]
"""What a prompt is written in: ASCII text, text with other letters, or token ids."""

ID_BYTES = 4
"""Bytes that a token id takes among the bytes that are cut into blocks."""

_SAMPLE = 16384
_MAX_BYTES = BLOCK_BYTES * MAX_BLOCKS
_TURN, _CONTENT, _PART = "\x1e", "\x1f", "\x1d"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Prefix:
    """Hashes (64 bit) of a prompt: its full `blocks`, first block first, the `whole` of it, and
    the `previous` prompt, whose answer ends after `answered_bytes`; 0 where there is none."""

    blocks: tuple[int, ...] = ()
    whole: int = 0
    previous: int = 0
    answered_bytes: int = 0


def prompt_prefix(call: Call, seed: str) -> Prefix:
    """What a call's prompt shares with others.

    `seed` separates what must not meet: the served model, an adapter, a tenant's salt. A call
    without a prompt (embeddings) shares nothing; of a batch of prompts the first counts.
    """
    data, answer_at, answer_end = _prompt_bytes(call)
    if not data:
        return Prefix()
    full = min(len(data), _MAX_BYTES) // BLOCK_BYTES
    link = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    links = [link]
    for at in range(0, full * BLOCK_BYTES, BLOCK_BYTES):
        link = blake2b(data[at : at + BLOCK_BYTES], digest_size=8, salt=link).digest()
        links.append(link)
    blocks = struct.unpack(f"<{full}Q", b"".join(links[1:]))
    if len(data) >= _MAX_BYTES:
        return Prefix(blocks)
    previous = _end(data, answer_at, links) if answer_at else 0
    return Prefix(blocks, _end(data, len(data), links), previous, answer_end if answer_at else 0)


def _end(data: bytes, at: int, links: list[bytes]) -> int:
    """The digest of all bytes before `at`; never that of a full block."""
    full = at // BLOCK_BYTES
    rest = data[full * BLOCK_BYTES : at]
    digest = blake2b(rest, digest_size=8, salt=links[full], person=b"end").digest()
    return int.from_bytes(digest, "little")


def prompt_kind(call: Call) -> PromptKind:
    """Tells prompts apart that differ in bytes per token, by the newest question alone."""
    if call.wire == "completions" and _is_ids(_first(call.body.get("prompt"))):
        return "ids"
    return "latin" if call.ask.question.isascii() else "other"


def _prompt_bytes(call: Call) -> tuple[bytes, int, int]:
    """The bytes, and where the newest assistant turn begins and ends in them (0: none)."""
    if call.wire == "embeddings":
        return b"", 0, 0
    if call.wire == "completions":
        return _plain_prompt(_first(call.body.get("prompt"))), 0, 0
    pieces: list[str] = []
    size = answer_at = answer_end = 0
    for piece in _chat_pieces(call.body):
        if piece is _TURN:
            answer_end = answer_end or len(pieces)
        elif piece == "assistant" and pieces[-1] is _TURN:
            answer_at, answer_end = len(pieces) - 1, 0
        pieces.append(piece)
        size += len(piece)
        if size >= _MAX_BYTES:
            return _encoded(pieces), 0, 0
    if not answer_at:
        return _encoded(pieces), 0, 0
    before, answer = _encoded(pieces[:answer_at]), _encoded(pieces[answer_at : answer_end or None])
    rest = _encoded(pieces[answer_end:]) if answer_end else b""
    return before + answer + rest, len(before), len(before) + len(answer)


def _encoded(pieces: list[str]) -> bytes:
    return "".join(pieces).encode("utf-8", "surrogatepass")


def _plain_prompt(prompt: Any) -> bytes:
    if isinstance(prompt, str):
        return prompt[:_MAX_BYTES].encode("utf-8", "surrogatepass")
    if not _is_ids(prompt):
        return b""
    ids = prompt[: _MAX_BYTES // ID_BYTES]
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:  # no engine has such ids
        return b""


def _first(prompt: Any) -> Any:
    """The first prompt of a batch, else the prompt."""
    batch = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return prompt[0] if batch else prompt


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def _chat_pieces(body: Mapping[str, Any]) -> Iterator[str]:
    for name in ("tools", "functions", "documents"):
        if given := body.get(name):
            yield _encode(given)
    for message in body.get("messages") or ():
        if isinstance(message, Mapping):
            yield _TURN
            yield str(message.get("role"))
            yield _CONTENT
            yield from _content_pieces(message.get("content"))
            for name in ("tool_calls", "function_call"):
                if said := message.get(name):
                    yield _encode(said)


def _content_pieces(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else part
            yield text if isinstance(text, str) else _media(part)


def _media(part: Any) -> str:
    """Stands for a part that is not text; a picture can have megabytes."""
    digest = blake2b(digest_size=16)
    for text in _leaves(part):
        if len(text) > 2 * _SAMPLE:  # packed data that differs does so in its length or its ends
            text = f"{len(text)} {text[:_SAMPLE]}{text[-_SAMPLE:]}"
        digest.update(_PART.encode() + text.encode("utf-8", "surrogatepass"))
    return _PART + digest.hexdigest()


def _leaves(value: Any) -> Iterator[str]:
    """Keys and values in order; JSON is at most a few hundred levels deep here."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value if isinstance(value, str) else repr(value)
