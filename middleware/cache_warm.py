"""Warming: answers known beforehand, and system prompts in the replicas' prefix caches.

A FAQ's line {"question", "answer"[, "model", "system", "tenant", "ttl_s"]} becomes the entry that
the request `messages = [system, user]` to `model` ("auto" where it is not named) would have left
behind: by the same codec, rules and fingerprint. Where tenants are configured and a line names
none it is stored for each of them. `ttl_s` may be longer than `cache.ttl_s`: these answers are
the operator's own word.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tierway.middleware.cache_lines import check_keys, number_of, read_lines, text_of
from tierway.middleware.parts import Parts
from tierway.middleware.wire import PATHS
from tierway.policies.errors import BadCall, GatewayError
from tierway.policies.types import Call, Source

_PATH = "/v1/chat/completions"
_BATCH = 256  # far below what may wait for its vector at once
_TEXTS = ("question", "answer", "model", "system", "tenant")
Step = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Faq:
    question: str
    answer: str
    model: str = "auto"
    system: str = ""
    tenant: str | None = None
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    system: str
    model: str | None = None


def faq_of(line: Mapping[str, Any]) -> Faq:
    """Raises ValueError naming the field."""
    check_keys(line, (*_TEXTS, "ttl_s"))
    for name in ("question", "answer"):
        if name not in line:
            raise ValueError(f"{name} missing")
    texts = {name: text_of(line, name) for name in _TEXTS if line.get(name) is not None}
    empty = [name for name, text in texts.items() if not text.strip()]
    if empty:
        raise ValueError(f"{empty[0]} must not be empty")
    ttl_s = None if line.get("ttl_s") is None else number_of(line, "ttl_s")
    if ttl_s is not None and ttl_s <= 0:
        raise ValueError("ttl_s must be above 0")
    return Faq(**texts, ttl_s=ttl_s)


def prompt_of(line: Mapping[str, Any]) -> Prompt:
    """Raises ValueError naming the field."""
    check_keys(line, ("system", "model"))
    if not isinstance(line.get("system"), str) or not line["system"].strip():
        raise ValueError("system must be a text that is not empty")
    model = line.get("model")
    if model is not None and not isinstance(model, str):
        raise ValueError("model must be a text")
    return Prompt(line["system"], model)


def checked(parts: Parts, path: Path) -> list[Faq]:
    """The file's lines, each held against the configuration. Raises OSError and BadLine."""
    known = {tenant.name for tenant in parts.settings.tenants}

    def parse(line: Mapping[str, Any]) -> Faq:
        faq = faq_of(line)
        if faq.tenant is not None and faq.tenant not in known:
            allowed = ", ".join(sorted(known)) or "none: leave it out"
            raise ValueError(f"tenant {faq.tenant!r} is not configured; there are {allowed}")
        try:
            parts.router.resolve(_call(faq.model, _messages(faq), faq.tenant or ""))
        except BadCall as error:
            raise ValueError(error.public) from error
        return faq

    return list(read_lines(path, parse))


def prompts_checked(parts: Parts, path: Path) -> list[Prompt]:
    """Raises OSError and BadLine."""
    known = sorted(_replicas_by_model(parts))

    def parse(line: Mapping[str, Any]) -> Prompt:
        prompt = prompt_of(line)
        if prompt.model is not None and prompt.model not in known:
            raise ValueError(
                f"model {prompt.model!r} has no replicas for chat; there are {', '.join(known)}"
            )
        return prompt

    return list(read_lines(path, parse))


async def warm(parts: Parts, faqs: Sequence[Faq], step: Step) -> dict[str, Any]:
    """Stores the answers; how many entries that made, and what the rules kept out and why."""
    tenants = [tenant.name for tenant in parts.settings.tenants] or [""]
    if parts.stage.rules.scope == "shared":
        tenants = tenants[:1]
    stored, skipped = 0, Counter[str]()
    for done, faq in enumerate(faqs, 1):
        for tenant in tenants if faq.tenant is None else [faq.tenant]:
            call = _call(faq.model, _messages(faq), tenant)
            answer = _completion(faq.model, faq.answer)
            reason = parts.pipeline.learn(call, answer, ttl_s=faq.ttl_s)
            if reason:
                skipped[reason] += 1
            else:
                stored += 1
        if done % _BATCH == 0 or done == len(faqs):
            await parts.stage.cache.settled()
        step(1)
    return {"stored": stored, "skipped": dict(skipped)}


async def prefill(parts: Parts, prompts: Sequence[Prompt], step: Step) -> dict[str, Any]:
    """Sends each system prompt once to each replica of its model, of every model where it names
    none, for one token. Replicas work side by side, each on one prompt at a time."""
    by_replica: dict[tuple[str, str], list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        for model, replicas in _replicas_by_model(parts).items():
            if prompt.model in (None, model):
                for replica in replicas:
                    by_replica[model, replica].append(prompt)
    faults: dict[str, str] = {}

    async def one(model: str, replica: str, asked: list[Prompt]) -> int:
        for done, prompt in enumerate(asked):
            try:
                await _ask_once(parts, model, replica, prompt.system)
            except GatewayError as error:
                faults[replica] = error.public
                step(len(asked) - done)
                return done
            step(1)
        return len(asked)

    sent = await asyncio.gather(*(one(*where, asked) for where, asked in by_replica.items()))
    return {"replicas": len(by_replica), "prefilled": sum(sent), "faults": faults}


def prefills(parts: Parts, prompts: Sequence[Prompt]) -> int:
    """How many requests `prefill` will send."""
    models = _replicas_by_model(parts)
    return sum(
        len(replicas)
        for prompt in prompts
        for model, replicas in models.items()
        if prompt.model in (None, model)
    )


def prefill_call(model: str, system: str, tenant: str = "") -> Call:
    """One token after a system prompt, so that it is read."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "."}]
    return _call(model, messages, tenant, max_tokens=1)


async def _ask_once(parts: Parts, model: str, replica: str, system: str) -> None:
    call = prefill_call(model, system)
    (tier,) = [tier.name for tier in parts.tiers if model in [m.name for m in tier.models]]
    upstream = parts.dispatcher.upstreams[replica]
    answer = await upstream.open(call, Source(tier, model, replica))
    try:
        while await answer.read():
            pass
    finally:
        await answer.aclose()


def _replicas_by_model(parts: Parts) -> dict[str, list[str]]:
    """Model -> ids of its replicas, of those that chat and run here."""
    chatting = {
        model.name
        for tier in parts.tiers
        for model in tier.models
        if model.kind == "chat" and not model.cloud
    }
    found: dict[str, list[str]] = defaultdict(list)
    for spec in parts.fleet.specs():
        if spec.model in chatting:
            found[spec.model].append(spec.id)
    return found


def _messages(faq: Faq) -> list[dict[str, str]]:
    system = [{"role": "system", "content": faq.system}] if faq.system else []
    return [*system, {"role": "user", "content": faq.question}]


def _call(model: str, messages: list[dict[str, str]], tenant: str, **fields: Any) -> Call:
    return PATHS[_PATH].parse(
        orjson.dumps({"model": model, "messages": messages, **fields}),
        {},
        request_id="warm",
        tenant=tenant,
        arrived_s=time.monotonic(),
        default_timeout_s=60.0,
    )


def _completion(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-warm",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
