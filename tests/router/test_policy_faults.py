"""Faults of other balancers, before each policy that knows engines: real fleet, index and
Balancer, and replicas that read one prompt after the other, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.fakes import FakeClock
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Model, Pace, Tier
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

AWARE = ["global_least_request", "gpu", "llm", "predicted_latency", "prefix"]
every = pytest.mark.parametrize("policy", AWARE)
BLOCK = 64


@dataclass
class Served:
    """`tokens` are those that a replica had to read."""

    replica: str
    ttft_s: float
    tokens: int


@dataclass
class Rig:
    """Replicas named r0, r1, ... of these speeds. Each reads its prompts one after the other;
    an answer takes its tokens times a step more."""

    policy: str
    speeds: Sequence[float] = (1.0, 1.0)
    options: dict[str, float] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"r{n}" for n in range(len(self.speeds))]
        specs = [ReplicaSpec(name, "m", "small", "") for name in self.names]
        self.fleet, self.index = Fleet(specs, clock=self.clock), PrefixIndex()
        self.paces = {}
        for name, speed in zip(self.names, self.speeds, strict=True):
            pace = Pace(1e-4 / speed, 0.01, 0.01 / speed, 0.0002 / speed)
            self.paces[name] = pace
            self.fleet.set_pace(name, pace)
        tier = Tier("small", 0, "7b", (Model("m", "small"),), self.policy, options=self.options)
        self.draw = random.Random(11)
        self.balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=self.clock,
            draw=self.draw.random,
            prefixes=self.index,
        )
        self._free_s = dict.fromkeys(self.names, 0.0)
        self._due: list[tuple[float, int, str, Lease]] = []
        self._sent = 0

    def look(self, tokens: int, blocks: Sequence[int] = (), output: int = 100) -> Look:
        return Look("s", tokens, output, tuple(blocks), BLOCK)

    def take(self, look: Look) -> Lease:
        choice = self.balancer.rank("small", ("m",), look, sequence=self._sent)
        self._sent += 1
        return asyncio.run(self.balancer.take(choice))

    def send(self, look: Look) -> str:
        lease = self.take(look)
        name, pace = lease.replica, self.paces[lease.replica]
        begin_s = max(self.clock(), self._free_s[name])
        first_s = begin_s + pace.first_s + lease.work.prefill_tokens * pace.prefill_s
        self._free_s[name] = first_s
        ended_s = first_s + look.output_tokens * pace.step_s
        heapq.heappush(self._due, (first_s, 2 * self._sent, "first", lease))
        heapq.heappush(self._due, (ended_s, 2 * self._sent + 1, "end", lease))
        self.served.append(Served(name, first_s - self.clock(), lease.work.prefill_tokens))
        return name

    def run(self, until_s: float = float("inf")) -> None:
        """Lets what is in flight go on until then, or to its end."""
        while self._due and self._due[0][0] <= until_s:
            at_s, _, what, lease = heapq.heappop(self._due)
            self.clock.advance(max(0.0, at_s - self.clock()))
            lease.first_token() if what == "first" else lease.finish()
        if until_s < float("inf"):
            self.clock.advance(max(0.0, until_s - self.clock()))

    def arrive(self, per_s: float, look: Look) -> None:
        """The next call of an open loop."""
        self.run(self.clock() + self.draw.expovariate(per_s))
        self.send(look)

    def counts(self) -> Counter[str]:
        counts = Counter(dict.fromkeys(self.names, 0))
        counts.update(one.replica for one in self.served)
        return counts


def unique(count: int, draw: random.Random) -> list[int]:
    return [draw.getrandbits(63) for _ in range(count)]


@every
@pytest.mark.parametrize("per_s", [2.0, 30.0])
def test_balancer_fault_01_a_head_of_all_makes_no_hot_spot(policy: str, per_s: float) -> None:
    rig = Rig(policy, [1.0] * 8)
    head = unique(31, rig.draw)
    for _ in range(200):
        rig.arrive(per_s, rig.look(2100, [*head, *unique(1, rig.draw)]))
    assert max(rig.counts().values()) <= 2 * 200 / 8


@pytest.mark.parametrize("least", [64.0, 1000.0, 5000.0])
def test_balancer_fault_02_a_minimum_below_or_above_the_common_part(least: float) -> None:
    rig = Rig("prefix", [1.0] * 8, {"min_match_tokens": least})
    head = unique(31, rig.draw)
    for _ in range(200):
        rig.arrive(30.0, rig.look(2100, [*head, *unique(1, rig.draw)]))
    assert max(rig.counts().values()) <= 2 * 200 / 8


def test_balancer_fault_02_with_a_minimum_the_index_is_filled_all_the_same() -> None:
    rig = Rig("prefix", [1.0] * 8, {"min_match_tokens": 1000.0})
    histories = [unique(40, rig.draw) for _ in range(20)]
    first = [rig.send(rig.look(2600, history)) for history in histories]
    rig.run()
    again = [rig.send(rig.look(2700, [*history, 7])) for history in histories]
    assert again == first
    assert len(set(first)) == 8


@every
def test_balancer_fault_03_a_trickle_of_sessions_uses_both(policy: str) -> None:
    rig = Rig(policy)
    head, histories = unique(10, rig.draw), [unique(20, rig.draw) for _ in range(10)]
    for number in range(100):
        turn = number // 10
        history = histories[number % 10][: 2 * turn + 2]
        rig.send(rig.look(BLOCK * (10 + len(history)) + 20, [*head, *history]))
        rig.run()
    assert min(rig.counts().values()) >= 20


@every
def test_balancer_fault_09_two_equal_workers_share_long_prompts(policy: str) -> None:
    rig = Rig(policy)
    for _ in range(600):
        rig.arrive(2.0, rig.look(8000, unique(125, rig.draw)))
    assert 0.45 <= rig.counts()["r0"] / 600 <= 0.55


@every
def test_balancer_fault_12_a_miss_goes_to_the_idle_one_and_not_to_the_small_tree(
    policy: str,
) -> None:
    rig = Rig(policy)
    for _ in range(400):
        rig.index.insert("r1", unique(20, rig.draw))
    rig.fleet.set_draining("r1", True)
    for _ in range(4):
        rig.send(rig.look(20_000, unique(312, rig.draw)))
    rig.fleet.set_draining("r1", False)
    assert rig.send(rig.look(500, unique(7, rig.draw))) == "r1"


@every
def test_balancer_fault_14_skewed_load_leaves_affinity_to_those_with_little(policy: str) -> None:
    rig = Rig(policy, [1.0] * 4)
    history = unique(60, rig.draw)
    for name in ("r0", "r2"):
        rig.index.insert(name, history)
    for name in ("r1", "r2", "r3"):
        rig.fleet.set_draining(name, True)
    for _ in range(70):
        rig.send(rig.look(2000, unique(31, rig.draw)))
    for name in ("r1", "r2", "r3"):
        rig.fleet.set_draining(name, False)
    picks = {rig.take(rig.look(4000, history)).replica for _ in range(3)}
    assert picks == {"r2"}


@pytest.mark.parametrize("policy", ["global_least_request", "gpu", "llm", "predicted_latency"])
def test_balancer_fault_24_unequal_boxes_have_equal_medians(policy: str) -> None:
    rig = Rig(policy, [1.0, 0.45])
    for _ in range(1500):
        rig.arrive(11.0, rig.look(1000, unique(15, rig.draw), output=20))
    waits = {
        name: statistics.median(s.ttft_s for s in rig.served if s.replica == name)
        for name in rig.names
    }
    assert 0.6 <= waits["r0"] / waits["r1"] <= 1.67
    assert 0.55 <= rig.counts()["r0"] / 1500 <= 0.85


@every
def test_balancer_fault_24_no_tie_between_speeds_is_broken_by_name(policy: str) -> None:
    rig = Rig(policy, [1 / 5.6, 1.0])
    assert {
        rig.balancer.rank("small", ("m",), rig.look(1000)).ranking.candidates[0].replica
        for _ in range(20)
    } == {"r1"}


@every
def test_balancer_fault_25_short_and_long_prompts_are_no_equal_load(policy: str) -> None:
    rig = Rig(policy, [1.0] * 5)
    for _ in range(1000):
        tokens = rig.draw.choice([50, 50, 50, 20_000])
        rig.arrive(7.0, rig.look(tokens, unique(tokens // BLOCK, rig.draw)))
    read = Counter[str]()
    for one in rig.served:
        read[one.replica] += one.tokens
    assert len(read) == 5
    assert max(read.values()) <= 1.25 * sum(read.values()) / 5
