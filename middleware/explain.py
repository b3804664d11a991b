"""What would happen to a request and why: the live code path, with nothing sent upstream."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from tierway.middleware.config import Settings
from tierway.middleware.parts import Parts
from tierway.middleware.wire import PATHS
from tierway.policies.errors import ConfigError, GatewayError
from tierway.policies.types import Call, Ranking, TierDecision, Trace
from tierway.router.balancer import Choice

_PATH = "/v1/chat/completions"


async def explain(parts: Parts, raw: bytes, *, path: str = _PATH) -> dict[str, Any]:
    """The fate of a request body on `path`. Raises what the request itself would raise."""
    trace = Trace(request_id="explain")
    call = PATHS[path].parse(
        raw,
        {},
        request_id=trace.request_id,
        tenant="",
        arrived_s=time.monotonic(),
        default_timeout_s=60.0,
    )
    hit = await parts.pipeline.would_hit(call, trace)
    decision = parts.router.decide(call, parts.router.resolve(call), None)
    choice = _choice(parts, call, decision)
    return {
        "cache": {
            "result": trace.cache,
            "reason": trace.cache_reason,
            "similarity": trace.similarity,
            "entry": trace.entry_id or None,
            "would_answer": hit,
        },
        "tier": decision.tier,
        "reason": decision.reason,
        "quality": decision.quality,
        "probabilities": {name: round(p, 4) for name, p in decision.probabilities.items()},
        "excluded": [{"name": name, "why": why} for name, why in decision.excluded],
        "plan": [
            {"tier": step.tier, "models": [model.name for model in step.models]}
            for step in decision.plan
        ],
        "replicas": _replicas(choice.ranking),
        "policy": choice.ranking.policy,
        "policy_version": choice.policy_version,
        "shadow": _shadow(choice),
    }


def _choice(parts: Parts, call: Call, decision: TierDecision) -> Choice:
    """The choice among the chosen tier's replicas, as the balancer makes it now."""
    models = decision.plan[0].models
    balancer = parts.dispatcher.balancer
    look = balancer.look(call, models[0])
    names = [model.name for model in models]
    return balancer.rank(decision.tier, names, look)


def _shadow(choice: Choice) -> dict[str, str] | None:
    shadowed = choice.shadowed
    return {"policy": shadowed.policy, "replica": shadowed.replica} if shadowed else None


def _replicas(ranking: Ranking) -> list[dict[str, Any]]:
    chosen = [
        {
            "replica": candidate.replica,
            "score": round(candidate.score, 4),
            "reasons": {name: round(score, 4) for name, score in candidate.reasons.items()},
        }
        for candidate in ranking.candidates
    ]
    return chosen + [{"replica": name, "excluded": why} for name, why in ranking.excluded]


def as_text(found: dict[str, Any]) -> str:
    """The explanation for a reader at a terminal."""
    cache = found["cache"]
    lines = [
        f"cache     {cache['result']} ({cache['reason'] or 'nothing stands against it'})",
        f"tier      {found['tier']} ({found['reason']}, quality {found['quality']:g})",
    ]
    if found["probabilities"]:
        shares = "  ".join(f"{name} {p:.2f}" for name, p in found["probabilities"].items())
        lines.append(f"answers well  {shares}")
    lines += [f"left out  {item['name']}: {item['why']}" for item in found["excluded"]]
    plan = " -> ".join(step["tier"] for step in found["plan"])
    lines.append(f"then      {plan}")
    for item in found["replicas"]:
        fate = f"score {item['score']:.3f}" if "score" in item else item["excluded"]
        lines.append(f"replica   {item['replica']}: {fate}")
    if found["shadow"]:
        lines.append(f"shadow    {found['shadow']['policy']}: {found['shadow']['replica']}")
    return "\n".join(lines)


def explain_main(
    settings: Settings | None, *, prompt: str | None, request: str | None, as_json: bool
) -> int:
    """The command: exit 0, 1 for a request that would be refused, 2 for a wrong use."""
    if request is None:
        messages = [{"role": "user", "content": prompt}]
        raw = orjson.dumps({"model": "auto", "messages": messages})
    else:
        try:
            raw = Path(request).read_bytes()
        except OSError as error:
            print(f"--request {request}: {error.strerror}", file=sys.stderr)
            return 2
    try:
        found = asyncio.run(_explain_once(settings, raw))
    except ConfigError as error:
        print(error.public, file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"refused with status {error.status}: {error.public}", file=sys.stderr)
        return 1
    print(orjson.dumps(found).decode() if as_json else as_text(found))
    return 0


async def _explain_once(settings: Settings | None, raw: bytes) -> dict[str, Any]:
    from tierway.middleware.build import build

    parts = await build(settings, os.environ, live=False)
    try:
        return await explain(parts, raw)
    finally:
        await parts.aclose()
