"""Joins small calls into one: embeddings and short completions for engines that take lists.

An engine reads a list of prompts in one batch and answers once, where each call of its own costs it
a request and the gateway another. Calls that differ in nothing but their text (model, parameters,
tenant) wait up to `wait_s` for each other. Each gets back exactly its own part: its items, counted
from 0, and its share of the usage, by the lengths of the texts, the shares adding up to what the
engine reported. A joined call that is rejected is asked again one by one, as one text may be at
fault; any other failure is that of all. Who leaves takes nobody with them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import orjson

from tierway.policies.errors import BrokenStream, Rejected, UpstreamTimeout
from tierway.policies.protocols import Answer, Clock, Upstream
from tierway.policies.types import Call, Head, Source, Usage
from tierway.router.upstreams import WholeAnswer

_FIELDS = {"embeddings": "input", "completions": "prompt"}
_ITEMS = {"embeddings": "data", "completions": "choices"}
_BYTES_PER_TOKEN = 4
_JSON_HEAD = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class JoinRules:
    """At most `max_items` texts in one call; a text of more than `max_prompt_tokens` (by its bytes,
    four to a token) goes alone."""

    max_items: int = 32
    wait_s: float = 0.005
    max_prompt_tokens: int = 512


@dataclass(slots=True, eq=False)
class _Member:
    call: Call
    source: Source
    texts: list[Any]
    done: asyncio.Future[WholeAnswer | None]


class _Batch:
    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def items(self) -> int:
        return sum(len(member.texts) for member in self.members)


class JoiningUpstream:
    """An Upstream around another one."""

    def __init__(self, inner: Upstream, rules: JoinRules, *, clock: Clock) -> None:
        self._inner, self._rules, self._clock = inner, rules, clock
        self._open: dict[bytes, _Batch] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def open(self, call: Call, source: Source) -> Answer:
        texts = self._joinable(call)
        if texts is None:
            return await self._inner.open(call, source)
        member = _Member(call, source, texts, asyncio.get_running_loop().create_future())
        self._enter(member)
        left_s = call.deadline_s - self._clock()
        try:
            async with asyncio.timeout(None if math.isinf(left_s) else left_s):
                answer = await member.done
        except TimeoutError as cause:
            total_s = call.deadline_s - call.arrived_s
            raise UpstreamTimeout("total", total_s, replica=source.replica) from cause
        return answer if answer is not None else await self._inner.open(call, source)

    async def aclose(self) -> None:
        for task in self._sent:
            task.cancel()
        await asyncio.gather(*self._sent, return_exceptions=True)
        await self._inner.aclose()

    def _joinable(self, call: Call) -> list[Any] | None:
        """The texts of a call that may be joined."""
        field = _FIELDS.get(call.wire)
        if field is None or call.stream or call.body.get("n", 1) != 1:
            return None
        given = call.body.get(field)
        texts: list[Any] = list(given) if _is_list_of_texts(given) else [given]
        longest = max((_size(text) for text in texts), default=0)
        if not longest or longest > self._rules.max_prompt_tokens * _BYTES_PER_TOKEN:
            return None
        return texts if len(texts) < self._rules.max_items else None

    def _enter(self, member: _Member) -> None:
        key = _key(member.call)
        batch = self._open.get(key)
        if batch is not None and batch.items + len(member.texts) > self._rules.max_items:
            self._send(key, batch)
            batch = None
        if batch is None:
            batch = self._open[key] = _Batch()
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(self._rules.wait_s, self._send, key, batch)
        batch.members.append(member)
        if batch.items >= self._rules.max_items:
            self._send(key, batch)

    def _send(self, key: bytes, batch: _Batch) -> None:
        if self._open.get(key) is batch:
            del self._open[key]
        if batch.timer is not None:
            batch.timer.cancel()
            batch.timer = None
        members = [member for member in batch.members if not member.done.done()]
        if len(members) == 1:
            members[0].done.set_result(None)
        elif members:
            task = asyncio.get_running_loop().create_task(self._ask(members))
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

    async def _ask(self, members: Sequence[_Member]) -> None:
        try:
            answer = await self._inner.open(_joined(members), members[0].source)
            try:
                document = _parsed(await _whole(answer), answer.source.replica)
            finally:
                await answer.aclose()
            parts = _split(document, members, answer)
        except Rejected:
            _tell(members, lambda done: done.set_result(None))
        except asyncio.CancelledError:
            _tell(members, lambda done: done.cancel())
            raise
        except BaseException as error:  # it is each caller's, whatever it is
            failure = error
            _tell(members, lambda done: done.set_exception(failure))
        else:
            for member, part in zip(members, parts, strict=True):
                if not member.done.done():
                    member.done.set_result(part)


def _tell(
    members: Sequence[_Member], act: Callable[[asyncio.Future[WholeAnswer | None]], object]
) -> None:
    for member in members:
        if not member.done.done():
            act(member.done)


def _is_list_of_texts(given: Any) -> TypeGuard[list[Any]]:
    """A list of texts or of lists of token ids; a flat list of ids is one text."""
    return isinstance(given, list) and bool(given) and not isinstance(given[0], int)


def _size(text: Any) -> int:
    """Bytes, of token ids those they stand for; 0 for what is neither."""
    if isinstance(text, str):
        return len(text.encode())
    whole = isinstance(text, list) and all(isinstance(one, int) for one in text)
    return _BYTES_PER_TOKEN * len(text) if whole else 0


def _key(call: Call) -> bytes:
    """Calls of one key differ in their texts only; token ids and text do not mix."""
    field = _FIELDS[call.wire]
    rest = {name: value for name, value in call.body.items() if name != field}
    given = call.body[field]
    first = given[0] if _is_list_of_texts(given) else given
    kind = "text" if isinstance(first, str) else "ids"
    return orjson.dumps([call.wire, call.tenant, kind, rest], option=orjson.OPT_SORT_KEYS)


def _joined(members: Sequence[_Member]) -> Call:
    first = members[0].call
    texts = [text for member in members for text in member.texts]
    body = {**first.body, _FIELDS[first.wire]: texts}
    deadline_s = max(member.call.deadline_s for member in members)
    return replace(first, raw=orjson.dumps(body), body=body, deadline_s=deadline_s)


async def _whole(answer: Answer) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


def _parsed(raw: bytes, replica: str) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BrokenStream("The upstream's answer is no JSON object.", replica=replica)
    return document


def _split(
    document: Mapping[str, Any], members: Sequence[_Member], answer: Answer
) -> list[WholeAnswer]:
    """Each member's part. Raises BrokenStream where there are more or fewer items than texts."""
    wire = members[0].call.wire
    items = document.get(_ITEMS[wire])
    counts = [len(member.texts) for member in members]
    ordered = isinstance(items, list) and [one.get("index") for one in items]
    if ordered != list(range(sum(counts))):
        text = "The upstream's answer to joined calls does not have an item for each text."
        raise BrokenStream(text, replica=answer.source.replica)
    assert isinstance(items, list)
    usages = _usages(document.get("usage"), members, items)
    parts, start = [], 0
    for member, count, usage in zip(members, counts, usages, strict=True):
        own = [{**one, "index": at} for at, one in enumerate(items[start : start + count])]
        start += count
        told = {**document, _ITEMS[wire]: own, **({"usage": usage} if usage else {})}
        head = Head(200, _JSON_HEAD, answer.head.wire, False)
        parts.append(WholeAnswer(head, member.source, orjson.dumps(told), _usage(usage)))
    return parts


def _usages(
    reported: Any, members: Sequence[_Member], items: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    if not isinstance(reported, Mapping):
        return [{} for _ in members]
    asked = [sum(map(_size, member.texts)) for member in members]
    prompts = shares(int(reported.get("prompt_tokens", 0)), asked)
    if "completion_tokens" not in reported:
        return [{"prompt_tokens": one, "total_tokens": one} for one in prompts]
    said, start = [], 0
    for member in members:
        own = items[start : start + len(member.texts)]
        start += len(member.texts)
        said.append(sum(1 + len(str(one.get("text", ""))) for one in own))
    outputs = shares(int(reported["completion_tokens"]), said)
    return [
        {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        for read, made in zip(prompts, outputs, strict=True)
    ]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole numbers by weight, adding up to it: the largest remainders get what is
    left over."""
    whole = sum(weights) or len(weights)
    exact = [total * (weight if sum(weights) else 1) / whole for weight in weights]
    found = [int(one) for one in exact]
    order = sorted(range(len(weights)), key=lambda at: found[at] - exact[at])
    for at in order[: total - sum(found)]:
        found[at] += 1
    return found


def _usage(told: Mapping[str, Any]) -> Usage | None:
    if not told:
        return None
    return Usage(told["prompt_tokens"], told.get("completion_tokens", 0), reported=told)
