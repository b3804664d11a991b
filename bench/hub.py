"""Several gateways before one fleet, without a server between them, in whatever time there is.

`MemoryHub` does in one process what the script of router/shared_scripts.py does in Redis: a row
of absolute counts for each gateway, which expires; a choice over all rows in one step; a stream
of placements. `tick` stands for the background work of all gateways and is to be called at
least every `TICK_S` of the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tierway.policies.protocols import Clock
from tierway.policies.sharing import Offer, cheapest, plus, with_work
from tierway.policies.types import Counts, StateStatus
from tierway.router.fleet import Fleet
from tierway.router.shared import REFRESH_S, ROW_TTL_S, TICK_S

Placed = Callable[[str, Sequence[int]], None]
_NOTHING = Counts()


@dataclass(slots=True)
class _Row:
    """What one gateway said; each count is good until its time."""

    counts: dict[str, tuple[float, Counts]] = field(default_factory=dict)


class MemoryHub:
    """`refresh_s` is how often a gateway says again what it has in flight and hears the others,
    `delay_s` how long a placement takes to the other gateways, at least."""

    def __init__(
        self, clock: Clock, *, refresh_s: float = REFRESH_S, delay_s: float = TICK_S
    ) -> None:
        self.clock, self.refresh_s, self.delay_s = clock, refresh_s, delay_s
        self._rows: dict[str, _Row] = {}
        self._gateways: list[HubState] = []
        self._stream: deque[tuple[float, HubState, str, tuple[int, ...]]] = deque()

    def join(self, fleet: Fleet, on_placed: Placed | None = None) -> HubState:
        """The state of one more gateway, with a fleet of its own."""
        made = HubState(self, f"gateway-{len(self._gateways)}", fleet, on_placed)
        self._gateways.append(made)
        self._rows[made.name] = _Row()
        return made

    @property
    def living(self) -> int:
        return len(self._gateways)

    def tick(self) -> None:
        """Refreshes the gateways whose time has come, and delivers placements."""
        now = self.clock()
        for gateway in self._gateways:
            if now >= gateway.due_s:
                gateway.refresh()
        while self._stream and self._stream[0][0] <= now:
            _, sender, replica, blocks = self._stream.popleft()
            for gateway in self._gateways:
                if gateway is not sender and gateway.on_placed is not None:
                    gateway.on_placed(replica, blocks)

    def say(self, gateway: str, counts: Mapping[str, Counts]) -> None:
        """Puts these counts into the gateway's row."""
        until_s = self.clock() + ROW_TTL_S
        row = self._rows[gateway].counts
        for replica, found in counts.items():
            row[replica] = until_s, found

    def others(self, gateway: str, replica: str) -> Counts:
        """The living counts of all other gateways."""
        now, total = self.clock(), _NOTHING
        for name, row in self._rows.items():
            until_s, counts = row.counts.get(replica, (0.0, _NOTHING))
            if name != gateway and until_s > now and counts.requests:
                total = plus(total, counts)
        return total

    def send(self, sender: HubState, replica: str, blocks: Sequence[int]) -> None:
        self._stream.append((self.clock() + self.delay_s, sender, replica, tuple(blocks)))

    def drop(self, gateway: HubState) -> None:
        self._gateways.remove(gateway)
        del self._rows[gateway.name]


class HubState:
    """The SharedState of one gateway; see MemoryHub."""

    def __init__(
        self, hub: MemoryHub, name: str, fleet: Fleet, on_placed: Placed | None = None
    ) -> None:
        self.name, self.on_placed = name, on_placed
        self.due_s = 0.0
        self._hub, self._fleet = hub, fleet

    async def start(self) -> None:
        self.refresh()

    async def pick(self, offers: Iterable[Offer], draw: float) -> int:
        found = tuple(offers)
        if len(found) < 2:
            return 0
        mine = {offer.replica: self._fleet.own(offer.replica) for offer in found}
        others = {replica: self._hub.others(self.name, replica) for replica in mine}
        now = [plus(mine[offer.replica], others[offer.replica]) for offer in found]
        place = cheapest(found, now, draw)
        chosen = found[place]
        mine[chosen.replica] = with_work(mine[chosen.replica], chosen.work)
        self._hub.say(self.name, mine)
        self._fleet.set_others(others)
        return place

    def placed(self, replica: str, blocks: Sequence[int]) -> None:
        if blocks:
            self._hub.send(self, replica, blocks)

    def status(self) -> StateStatus:
        return StateStatus("memory", gateways=self._hub.living)

    async def aclose(self) -> None:
        self._hub.drop(self)

    def refresh(self) -> None:
        """Says all that is in flight here, and hears of the others."""
        replicas = [spec.id for spec in self._fleet.specs()]
        self._hub.say(self.name, {replica: self._fleet.own(replica) for replica in replicas})
        self._fleet.set_others(
            {replica: self._hub.others(self.name, replica) for replica in replicas}
        )
        self.due_s = self._hub.clock() + self._hub.refresh_s
