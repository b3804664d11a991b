"""What no balancer can know, to measure the distance to it.

oracle   the least of [pending + (1 + L) * own uncached prompt tokens] in seconds, plus a
         little for each request running and 20 s for the share of KV memory above 0.9; with
         the engines' real cache contents, lengths of answers and speeds. L is 3 or 8,
         whichever does better on a load: neither does on all.
pooled   one replica with the memory and the speed of the whole fleet: what there is to reuse
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tierway.bench.profiles import Profile
from tierway.bench.rivals import Known, Seen
from tierway.policies.physics import pace

ORACLES = {"oracle_3": 3.0, "oracle_8": 8.0}
ORACLE, POOLED = "oracle", "pooled"
_RUNNING_S = 0.02
_KV_FULL, _KV_FULL_S = 0.9, 20.0


@dataclass(frozen=True, slots=True)
class Oracle:
    """`prefill_s` of each replica. Time scales with a replica's speed; the surcharge for what
    is not cached is in seconds of the mean replica, or slow ones would bind most."""

    surcharge: float
    prefill_s: tuple[float, ...]
    exact = True

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        mean_s = sum(self.prefill_s) / len(self.prefill_s)
        asked, costs = seen.asked, []
        for one, promised_s in zip(known, self.prefill_s, strict=True):
            token_s = promised_s * one.engine().slowdown
            own = asked.prompt_tokens - one.cached_tokens(asked)
            capacity = one.engine().profile.kv_capacity_tokens
            use = (one.context_tokens + asked.prompt_tokens + asked.output_tokens) / capacity
            costs.append(
                (one.pending_tokens + own) * token_s
                + self.surcharge * own * mean_s
                + _RUNNING_S * one.requests * token_s / mean_s
                + _KV_FULL_S * max(0.0, use - _KV_FULL)
            )
        return min(range(len(costs)), key=costs.__getitem__)


def oracle(name: str, profiles: Sequence[Profile]) -> Oracle:
    """The oracle of that name before engines of these profiles."""
    paces = [pace(made.model, made.gpu, made.gpus) for made in profiles]
    return Oracle(ORACLES[name], tuple(one.prefill_s for one in paces))


def pooled(profiles: Sequence[Profile]) -> Profile:
    """One profile with the memory of all of them; its engine should run as many times as fast."""
    first, count = profiles[0], len(profiles)
    capacity = sum(made.kv_capacity_tokens for made in profiles)
    return replace(
        first,
        blocks=capacity // first.block_tokens,
        max_model_len=capacity,
        sequences=first.sequences * count,
        batched_tokens=first.batched_tokens * count,
    )
