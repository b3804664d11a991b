"""How other balancers choose: their published rules and defaults, written anew and simplified.

They see what their originals see: their own counts, taken at dispatch, an approximate index of
blocks, gauges as old as the original's polling. Their versions of code are those described with
each. Read them as kinds of policy and not as the products: their retries, flow control and
learning are left out, and each speaks for its rule only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tierway.bench.engine import Engine
from tierway.bench.engine_clock import EngineClock
from tierway.bench.loads import Asked
from tierway.bench.rivals_index import BlockLru, Ring

_PREFIX_TOKENS = 256
_LRU_BLOCKS = 31_250
_TREE_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine's metrics page says."""

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0

    @classmethod
    def of(cls, engine: Engine) -> Gauges:
        return cls(engine.waiting, engine.running, engine.kv_usage)


@dataclass(slots=True)
class Known:
    """One replica as a rival's gateway knows it: what it sent there and has not ended
    (`pending_tokens` are uncached prompt tokens before their first token), the gauges it polled
    last, and the engine itself for those whose rule needs the truth."""

    engine: Callable[[], Engine]
    index: BlockLru
    requests: int = 0
    pending_tokens: int = 0
    context_tokens: int = 0
    gauges: Gauges = field(default_factory=Gauges)

    def cached_tokens(self, asked: Asked) -> int:
        """What the engine's cache really holds of the prompt, as events would tell it."""
        engine = self.engine()
        return engine.cached_tokens(asked.keys(engine.profile.block_tokens), asked.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Seen:
    """A request with the hashes of its prompt's blocks."""

    asked: Asked
    blocks: tuple[int, ...]


class Rival(Protocol):
    """`exact` rivals count pending tokens by what the engine's cache really holds."""

    @property
    def exact(self) -> bool: ...
    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int: ...


def _least(costs: Sequence[float], draw: random.Random) -> int:
    """The place of the least, ties at random."""
    best = min(costs)
    return draw.choice([place for place, cost in enumerate(costs) if cost == best])


class SessionHash:
    """A ring on the session alone (production-stack `session`, router `consistent_hash`)."""

    exact = False

    def __init__(self, replicas: int) -> None:
        self._ring = Ring(replicas)

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        return next(self._ring.walk(seen.asked.session))


class BoundedPrefixHash:
    """smg `prefix_hash`: a ring on the first 256 tokens, at most 1.25 times the mean load."""

    exact = False

    def __init__(self, replicas: int, bound: float = 1.25) -> None:
        self._ring, self._bound = Ring(replicas), bound

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        count = max(1, _PREFIX_TOKENS // seen.asked.text.look_tokens)
        key = str(seen.blocks[:count]) if seen.blocks else seen.asked.session
        most = self._bound * (sum(one.requests for one in known) + 1) / len(known)
        return next(
            place for place in self._ring.walk(key) if known[place].requests + 1 <= most + 1
        )


@dataclass(frozen=True, slots=True)
class CacheAware:
    """SGLang's `cache_aware`: by load where that is unequal, else the replica with the longest
    match above the threshold, else the least loaded (or, as it was, the one with the smallest
    tree). Defaults of the Python launcher 0.3/64/1.5, of the Rust library 0.5/32/1.1."""

    threshold: float
    beyond: int
    times: float
    smallest_tree: bool = False
    exact = False

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        loads = [one.requests for one in known]
        low, high = min(loads), max(loads)
        if high - low > self.beyond and high > self.times * low:
            return loads.index(low)
        blocks = seen.blocks
        matches = [one.index.match(blocks) for one in known]
        longest = max(matches)
        if blocks and longest / len(blocks) > self.threshold:
            return matches.index(longest)
        if self.smallest_tree:
            return _least([len(one.index) for one in known], draw)
        return loads.index(low)


@dataclass(frozen=True, slots=True)
class WeightedScorers:
    """llm-d's default profile: queue 2, KV utilisation 2, prefix 3, the highest score wins."""

    fresh: bool
    exact = False

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        gauges = [Gauges.of(one.engine()) if self.fresh else one.gauges for one in known]
        queues = [one.waiting for one in gauges]
        low, high = min(queues), max(queues)
        blocks = seen.blocks
        costs = []
        for one, gauge in zip(known, gauges, strict=True):
            queue = (high - gauge.waiting) / (high - low) if high > low else 1.0
            prefix = one.index.match(blocks) / len(blocks) if blocks else 0.0
            costs.append(-(2 * queue + 2 * (1 - gauge.kv_usage) + 3 * prefix))
        return _least(costs, draw)


@dataclass(frozen=True, slots=True)
class OverlapCost:
    """Dynamo's rule: weight * prefill blocks + decode blocks, the least, told by cache events.
    In tokens, as all blocks are equally long."""

    weight: float = 1.0
    exact = True

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        costs = []
        for one in known:
            own = seen.asked.prompt_tokens - one.cached_tokens(seen.asked)
            blocks = self.weight * (one.pending_tokens + own) + one.context_tokens
            costs.append(blocks)
        return _least(costs, draw)


class XorPrefix:
    """Higress `prefix_cache`: one table from the XOR of a conversation's segments to the replica
    that had it last; the walk ends at the first key nobody has. A match wins whatever the load;
    without one the fewest requests. Keys keep their XOR, so order and repeats do not count."""

    exact = False

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}

    def choose(self, seen: Seen, known: Sequence[Known], draw: random.Random) -> int:
        keys, key = [], 0
        for segment in seen.asked.segments:
            key ^= segment * 0x9E3779B97F4A7C15 & (1 << 64) - 1
            keys.append(key)
        found: int | None = None
        for key in keys:
            if key not in self._owner:
                break
            found = self._owner[key]
        chosen = _least([one.requests for one in known], draw) if found is None else found
        self._owner.update((key, chosen) for key in keys if key not in self._owner)
        return chosen


class RivalGateway:
    """One gateway of a rival: keeps its counts and its index, and asks its rule."""

    def __init__(self, rival: Rival, engines: EngineClock, *, draw: random.Random) -> None:
        self._rival, self._draw = rival, draw
        room = _TREE_BLOCKS if isinstance(rival, CacheAware) else _LRU_BLOCKS
        self._known = [
            Known(partial(engines.seen, number), BlockLru(room))
            for number in range(len(engines.engines))
        ]

    def send(self, asked: Asked, blocks: tuple[int, ...]) -> RivalTicket:
        place = self._rival.choose(Seen(asked, blocks), self._known, self._draw)
        known = self._known[place]
        if self._rival.exact:
            cached = known.cached_tokens(asked)
        else:
            cached = known.index.match(blocks) * asked.text.look_tokens
        known.index.insert(blocks)
        return RivalTicket(place, known, asked, max(1, asked.prompt_tokens - cached))

    @property
    def left_over(self) -> int:
        return sum(known.requests for known in self._known)

    def poll(self) -> None:
        for known in self._known:
            known.gauges = Gauges.of(known.engine())


class RivalTicket:
    __slots__ = ("_context", "_known", "_pending", "replica")

    def __init__(self, replica: int, known: Known, asked: Asked, pending: int) -> None:
        self.replica, self._known, self._pending = replica, known, pending
        self._context = asked.prompt_tokens + asked.output_tokens
        known.requests += 1
        known.pending_tokens += pending
        known.context_tokens += self._context

    def first_token(self) -> None:
        self._known.pending_tokens -= self._pending
        self._pending = 0

    def ended(self, cached_tokens: int) -> None:
        self.first_token()
        self._known.requests -= 1
        self._known.context_tokens -= self._context


RIVALS: Mapping[str, Callable[[int], Rival]] = {
    "session_hash": SessionHash,
    "bounded_prefix_hash": BoundedPrefixHash,
    "cache_aware_least_load": lambda _: CacheAware(0.3, 64, 1.5),
    "cache_aware_smallest_tree": lambda _: CacheAware(0.5, 32, 1.1, smallest_tree=True),
    "weighted_scorers_fresh": lambda _: WeightedScorers(fresh=True),
    "weighted_scorers": lambda _: WeightedScorers(fresh=False),
    "overlap_cost": lambda _: OverlapCost(),
    "xor_prefix": lambda _: XorPrefix(),
}
"""By name; made for a number of replicas. `weighted_scorers` sees gauges as old as the polling."""
