"""What gateways before the same replicas tell each other: the case of one gateway alone.

With `state.backend: memory` there is nobody to share with, and the first of a ranking is taken
as it stands. Over several gateways see shared_redis.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tierway.policies.sharing import Offer
from tierway.policies.types import StateStatus

HURRY_S = 0.05
"""What a request waits for the shared state at most: a hundred round trips in a data centre."""
PATIENCE_S = 1.0
"""What is waited for behind the requests."""
REFRESH_S = 0.1
"""How often a gateway says again what it has in flight, and hears the others. In overload
sixteen gateways with counts of up to half a second ago found a quarter less in KV caches
(bench/balance_bench.py, the conversation trace)."""
ROW_TTL_S = 5.0
"""How long a gateway counts that says no more."""
TICK_S = 0.1
"""How often placements are exchanged."""


class MemoryState:
    """A SharedState that costs nothing: its `pick` never suspends and looks at no offer."""

    async def start(self) -> None:
        pass

    async def pick(self, offers: Iterable[Offer], draw: float) -> int:
        return 0

    def placed(self, replica: str, blocks: Sequence[int]) -> None:
        pass

    def status(self) -> StateStatus:
        return StateStatus("memory")

    async def aclose(self) -> None:
        pass
