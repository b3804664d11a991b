"""What may be believed of a replica at this moment.

Facts that are too old are unknown, and what is unknown is taken to be as with the others on
average, so that silence never looks like idleness and never like overload.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tierway.policies.types import BalanceAsk, ReplicaView

RECENT_HALF_LIFE_S = 10.0
_LEAST_SPEED = 1e-3
_MOST_USE = 2.0


def engine_fresh(ask: BalanceAsk, view: ReplicaView, fresh_s: float) -> bool:
    return view.facts_at_s is not None and ask.now_s - view.facts_at_s <= fresh_s


def gpu_fresh(ask: BalanceAsk, view: ReplicaView, fresh_s: float) -> bool:
    return view.gpu_facts_at_s is not None and ask.now_s - view.gpu_facts_at_s <= fresh_s


def filled(found: Sequence[float | None], otherwise: float = 0.0) -> list[float]:
    """The values, the mean of the known ones for the others; `otherwise` where none is known."""
    known = [value for value in found if value is not None]
    if len(known) == len(found):
        return known
    mean = sum(known) / len(known) if known else otherwise
    return [mean if value is None else value for value in found]


def unseen(ask: BalanceAsk, views: Sequence[ReplicaView], fresh_s: float) -> list[float]:
    """Requests from elsewhere, by replica."""
    oldest = ask.now_s - fresh_s
    return filled(
        [
            view.unseen if view.facts_at_s is not None and view.facts_at_s >= oldest else None
            for view in views
        ]
    )


def kv_use(ask: BalanceAsk, view: ReplicaView, fresh_s: float) -> float | None:
    """The share of KV memory in use with this call, 0 to 2, None where nothing tells it: what
    the engine said of late and the prompts it has still to read, else what the gateways have in
    flight there."""
    capacity = view.kv_capacity_tokens
    if view.kv_usage is not None and engine_fresh(ask, view, fresh_s):
        cached = ask.cached.get(view.id, 0)
        more = view.prefill_tokens + max(0, ask.prompt_tokens - max(0, cached))
        use = view.kv_usage + (more / capacity if capacity else 0.0)
    elif capacity:
        use = (view.context_tokens + ask.prompt_tokens) / capacity
    else:
        return None
    return use if 0.0 <= use <= _MOST_USE else max(0.0, min(use, _MOST_USE))


def recent_s(ask: BalanceAsk, view: ReplicaView) -> float:
    """Predicted seconds of work given to it lately, faded by half every RECENT_HALF_LIFE_S."""
    if view.recent_s <= 0.0:
        return 0.0
    return view.recent_s * faded(ask.now_s - view.recent_at_s)


def faded(age_s: float) -> float:
    """What is left, as a share, of work given so long ago."""
    return float(0.5 ** (max(0.0, age_s) / RECENT_HALF_LIFE_S))


def weight(view: ReplicaView) -> float:
    """The operator's weight as a speed: finite and above 0."""
    return max(_LEAST_SPEED, view.weight) if math.isfinite(view.weight) else 1.0
