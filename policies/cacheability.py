"""May this call be looked up, stored or joined, for how long, and may this answer be kept?

Request directives follow RFC 9111, section 5.2.1:

- `no-cache`: nothing stored may answer, what comes back is stored. Joining an identical call
  in flight is out too, since that call began before this one.
- `no-store`: "a cache MUST NOT store any part of either this request or any response to it";
  section 5.2.1.5 adds that answering it from what is stored already is allowed. So it is
  looked up, never stored, and shares no upstream call, whose answer others would store.
- `only-if-cached`: looked up; without a hit the caller answers 504. Nothing is sent upstream.
- `max-age=N`: only answers at most N seconds old. `max-age=0` is `no-cache`.

A client may shorten a time to live, never lengthen it. How the directives are read stands in
cache_control.py, what the key of an entry is made of in cache/keys.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tierway.policies.context import concerns
from tierway.policies.personal import Personal
from tierway.policies.refusals import refuses
from tierway.policies.types import CacheControl, Call, WireName

Mode = Literal["serve", "observe", "off"]
Scope = Literal["tenant", "user", "shared"]

_TEXTS = ("content", "reasoning", "reasoning_content")
AS_ASKED: frozenset[str] = frozenset({"", "other_replica"})
"""Steps of degradation whose answer is still of the tier that was to give it."""
CACHED_WIRES: frozenset[str] = frozenset({"chat", "completions", "messages", "embeddings"})


@dataclass(frozen=True, slots=True)
class TtlRule:
    """Calls that `matches` live at most `ttl_s`, and accept no answer older than that; with 0
    they are neither looked up, stored nor joined."""

    ttl_s: float
    matches: Callable[[Call], bool]


@dataclass(frozen=True, slots=True)
class CacheRules:
    mode: Mode = "serve"
    scope: Scope = "tenant"
    ttl_s: float = 86400.0
    ttl_rules: tuple[TtlRule, ...] = ()
    max_temperature: float = 1.0
    store_tool_calls: bool = False
    personal: Personal = field(default_factory=Personal)
    max_turns: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cache may do for one call.

    `serve` is False in observe mode: a hit is counted, not served. `join` means sharing one
    upstream call with identical ones, in either role. `reason` is a short constant naming
    the first thing that was ruled out, "" when nothing was. `max_age_s` bounds the age of
    an answer that may be served, None where its own time to live is enough. `scope` is who
    may share the answer; `personal` tells that it is its asker's own. A conversation of more human
    turns than `max_turns` is not matched by meaning; what else is not, exact_only.py says.
    """

    lookup: bool
    store: bool
    join: bool
    reason: str = ""
    ttl_s: float = 0.0
    max_age_s: float | None = None
    serve: bool = True
    only_if_cached: bool = False
    scope: Scope = "tenant"
    personal: bool = False
    max_turns: int | None = None


def lookup(call: Call, rules: CacheRules) -> Plan:
    """Decides before anything is looked up; pure but for the rules' own `matches`."""
    control = call.controls.cache
    # Where a query stands for the turn, the rest of the turn may speak of the asker too.
    personal = concerns(call, rules.personal) or (
        control.query is not None and rules.personal(call.ask.question)
    )
    scope: Scope = "user" if personal else rules.scope
    out = _ruled_out(call, rules) or _nameless(call, rules, scope)
    limits = () if out else [rule.ttl_s for rule in rules.ttl_rules if rule.matches(call)]
    if out or 0 in limits:
        return Plan(False, False, False, out or "ttl-rule", only_if_cached=control.only_if_cached)
    ttl_s = min([rules.ttl_s, *limits, *_given(control.ttl_s)])
    max_age_s = min([*limits, *_given(control.max_age_s)], default=None)
    fresh = control.no_cache or control.max_age_s == 0
    quiet = control.no_store or control.only_if_cached
    return Plan(
        lookup=not fresh,
        store=not quiet and ttl_s > 0,
        join=not fresh and not quiet and rules.mode == "serve",
        reason=_reason(control, ttl_s),
        ttl_s=ttl_s,
        max_age_s=max_age_s,
        serve=rules.mode == "serve",
        only_if_cached=control.only_if_cached,
        scope=scope,
        personal=personal,
        max_turns=rules.max_turns,
    )


def storable(answer: Mapping[str, Any], wire: WireName, *, tool_calls: bool = False) -> str | None:
    """Why a complete OpenAI-shaped answer must not be stored, None when it may be.

    Kept are finished answers of plain text. Tool calls act in the world, so they are kept only
    where the operator says `tool_calls`; a refusal or an answer cut short is worth asking
    again, several choices were asked for to differ.
    """
    if answer.get("error"):
        return "error"
    if wire == "embeddings":
        return None if answer.get("data") else "empty"
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        return "choices"
    choice: Mapping[str, Any] = choices[0]
    said: Any = {"content": choice.get("text")} if wire == "completions" else choice.get("message")
    if tool_calls and wire != "completions" and calls_tools(answer):
        return _unfit_calls(said, choice.get("finish_reason"))
    return _unfit(said, choice.get("finish_reason"))


def calls_tools(answer: Mapping[str, Any]) -> bool:
    """Whether an answer asks for tools: such a one is never found by meaning, since another
    wording may well want other arguments."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return False
    said = choices[0].get("message")
    return isinstance(said, Mapping) and bool(said.get("tool_calls"))


def _unfit_calls(said: Mapping[str, Any], finish: Any) -> str | None:
    """As `_unfit`, for an answer of tool calls: whole ones of functions, with arguments."""
    calls = said["tool_calls"]
    whole = isinstance(calls, list) and all(map(_is_whole, calls))
    if not whole or said.get("function_call") or said.get("audio"):
        return "tool-calls"
    if said.get("refusal") or finish == "content_filter":
        return "refusal"
    # A function that the client forced ends with "stop" in OpenAI's own API.
    if finish not in ("tool_calls", "stop"):
        return "unfinished"
    return None if all(isinstance(said.get(name) or "", str) for name in _TEXTS) else "shape"


def _is_whole(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not call.get("id") or not function.get("name"):
        return False
    arguments = function.get("arguments")
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        return False


def _unfit(said: Any, finish: Any) -> str | None:
    if not isinstance(said, Mapping):
        return "shape"
    if said.get("tool_calls") or said.get("function_call"):
        return "tool-calls"
    if said.get("refusal") or finish == "content_filter":
        return "refusal"
    if said.get("audio"):
        return "audio"
    if finish != "stop":
        return "unfinished"
    if not all(isinstance(said.get(name) or "", str) for name in _TEXTS):
        return "shape"
    text = (said.get("content") or "").strip()
    if refuses(text):
        return "refusal"
    return None if text else "empty"


def _ruled_out(call: Call, rules: CacheRules) -> str:
    body = call.body
    if rules.mode == "off":
        return "off"
    if call.wire not in CACHED_WIRES:
        return "wire"
    if _number(body.get("n")) > 1:
        return "n"
    if _number(body.get("temperature")) > rules.max_temperature:
        return "temperature"
    modalities = body.get("modalities")
    if body.get("audio") or (isinstance(modalities, list) and "audio" in modalities):
        return "audio"
    return ""


def _nameless(call: Call, rules: CacheRules, scope: Scope) -> str:
    """Why a call without a user has no place in the cache: all who give no name would share one
    user's answers, and what is asked about oneself has one answer per user."""
    if call.user or scope != "user":
        return ""
    return "no-user" if rules.scope == "user" else "personal"


def _reason(control: CacheControl, ttl_s: float) -> str:
    if control.no_cache:
        return "no-cache"
    if control.max_age_s == 0:
        return "max-age"
    if control.no_store:
        return "no-store"
    if control.only_if_cached:
        return "only-if-cached"
    return "" if ttl_s > 0 else "ttl"


def _number(value: Any) -> float:
    """A sampling setting as the engines read it: some take "2" for 2. Else 0."""
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0


def _given(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)
