"""Several gateways before one fleet: what each believes, and calls placed through its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierway.cache.redis_link import RedisLink
from tierway.policies.protocols import SharedState
from tierway.policies.sharing import Offer
from tierway.policies.types import Cost, Counts, Work
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.replica import ReplicaSpec
from tierway.router.shared_redis import RedisState

WORK = Work(100, 80, 50)
EVEN = Cost(0.0, 1.0)


def fleet_of(count: int, clock: Callable[[], float] = time.monotonic) -> Fleet:
    specs = [ReplicaSpec(f"m@h{n}:1", "m", "small", "") for n in range(count)]
    return Fleet(specs, clock=clock)


def total(fleet: Fleet, replica: str) -> Counts:
    """What a gateway believes to be in flight there, over all gateways."""
    view = fleet.view(replica)
    return Counts(
        view.inflight,
        view.inflight_tokens,
        view.prefill_tokens,
        view.output_tokens,
        view.context_tokens,
    )


def offer(fleet: Fleet, replica: str, cost: Cost = EVEN, work: Work = WORK) -> Offer:
    """As a policy offers it that sees `fleet` now."""
    known = total(fleet, replica)
    base = cost.base_s + cost.request_s * known.requests
    priced = Cost(base, cost.request_s, cost.prefill_token_s, cost.output_token_s)
    return Offer(replica, work, priced, known)


@dataclass
class Member:
    """A gateway: its state, its fleet, and what it has in flight."""

    state: SharedState
    fleet: Fleet
    leases: list[Lease] = field(default_factory=list)
    heard: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    async def place(self, replicas: Sequence[str], draw: float = 0.0, work: Work = WORK) -> str:
        """Ranks, chooses and takes a slot, as the balancer does."""
        offers = [offer(self.fleet, replica, work=work) for replica in replicas]
        place = await self.state.pick(offers, draw)
        self.leases.append(self.fleet.lease(replicas[place], work))
        return replicas[place]

    async def die(self) -> None:
        """Ends without a word to anybody."""
        assert isinstance(self.state, RedisState)
        self.state._up = False
        await self.state.aclose()

    async def refresh(self) -> None:
        assert isinstance(self.state, RedisState)
        await self.state.refresh()

    def finish(self) -> None:
        while self.leases:
            self.leases.pop().finish()


def over_redis(
    url: str,
    number: int = 0,
    *,
    replicas: int = 4,
    name: str = "test",
    hurry_s: float = 2.0,
    **more: float,
) -> Member:
    """A gateway that shares through this Redis; not started. A busy machine has the time."""
    fleet = fleet_of(replicas)
    link = RedisLink(url, clock=time.monotonic, draw=lambda: 0.5, timeout_s=hurry_s, patience_s=2.0)
    heard: list[tuple[str, tuple[int, ...]]] = []
    state = RedisState(
        link,
        fleet,
        name=name,
        gateway=f"gateway-{number}",
        clock=time.monotonic,
        on_placed=lambda replica, blocks: heard.append((replica, tuple(blocks))),
        **more,
    )
    return Member(state, fleet, heard=heard)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Polls until the condition holds; False when the time is over."""
    until_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(0.005)
    return True
