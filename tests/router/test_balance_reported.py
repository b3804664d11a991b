"""Reported faults of balancers, in their smallest form, before replicas in virtual time.

The numbers in the names are those of the table of reported faults. A replica here reads prompts
one after the other and gives the tokens of all its requests at one pace.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from fakes import FakeClock

from tierway.policies.policyset import PolicySet
from tierway.policies.types import Model, Pace, Tier, Usage, Work
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.pace import PaceLearner
from tierway.router.prefixes import PrefixIndex
from tierway.router.replica import ReplicaSpec

PACE = Pace(prefill_s=1e-4, first_s=0.02, step_s=0.01, request_s=0.0005)


@dataclass
class Fleeting:
    """Replicas by name and speed, 1 being that of PACE, behind the real balancer. All are
    believed to be of speed 1 at the start."""

    speeds: Mapping[str, float]
    policy: str = "llm"
    got: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    ttfts: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        specs = [ReplicaSpec(name, "m", "small", "") for name in self.speeds]
        self.fleet = Fleet(specs, clock=self.clock)
        tier = Tier("small", 0, "7b", (Model("m", "small"),), policy=self.policy)
        self.index = PrefixIndex()
        self.balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=self.clock,
            draw=random.Random(7).random,
            prefixes=self.index,
            learners=[PaceLearner(self.fleet, dict.fromkeys(self.speeds, PACE))],
        )
        self._busy_s = dict.fromkeys(self.speeds, 0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def first(self, look: Look) -> str:
        return self.balancer.rank("small", ["m"], look).ranking.candidates[0].replica

    def serve(self, looks: Iterable[Look], *, every_s: float) -> None:
        """Lets a call come every so many seconds, and serves all to their end."""
        for number, look in enumerate(looks):
            self._at(self.clock() + number * every_s, lambda look=look: self._come(look))
        while self._events:
            at_s, _, act = heapq.heappop(self._events)
            self.clock.advance(max(0.0, at_s - self.clock()))
            act()

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), act))

    def _come(self, look: Look) -> None:
        lease = asyncio.run(self.balancer.take(self.balancer.rank("small", ["m"], look)))
        name, now = lease.replica, self.clock()
        self.got[name] += 1
        self.work[name] += lease.work.prefill_tokens
        speed = self.speeds[name]
        read_s = lease.work.prefill_tokens * PACE.prefill_s / speed
        self._busy_s[name] = max(now, self._busy_s[name]) + read_s
        first_s = self._busy_s[name] + PACE.first_s / speed
        self.ttfts.setdefault(name, []).append(first_s - now)
        self._at(first_s, lease.first_token)
        usage = Usage(look.prompt_tokens, look.output_tokens)
        end_s = first_s + (look.output_tokens - 1) * PACE.step_s / speed
        self._at(end_s, lambda: lease.finish(None, usage))


def unique(tokens: int, number: int, output: int = 100) -> Look:
    """A call that has nothing in common with any other."""
    blocks = tuple(hash((number, at)) & (2**64 - 1) for at in range(tokens // 64))
    return Look(f"s{number}", tokens, output, blocks, block_tokens=64.0)


@pytest.mark.parametrize("policy", ["llm", "global_least_request", "predicted_latency"])
def test_balancer_fault_09_two_equal_replicas_get_the_same(policy: str) -> None:
    """litellm #37622: of two equal servers the first registered got nearly all."""
    made = Fleeting({"a": 1.0, "b": 1.0}, policy)
    made.serve((unique(8000, n) for n in range(300)), every_s=0.5)
    assert 0.45 < made.got["a"] / 300 < 0.55


@pytest.mark.parametrize("policy", ["llm", "prefix", "global_least_request"])
def test_balancer_fault_12_a_miss_goes_to_the_idle_one_and_not_to_the_smallest_tree(
    policy: str,
) -> None:
    """sglang #14305: what nobody held went to the worker that held least, however busy."""
    made = Fleeting({"busy": 1.0, "idle": 1.0}, policy)
    for number in range(3):
        made.fleet.lease("busy", Work(20_000, 20_000, 200))
        made.index.insert("busy", unique(20_000, number).blocks)
    for number in range(100, 200):
        made.index.insert("idle", unique(2_000, number).blocks)
    assert [made.first(unique(1_000, 1_000 + n)) for n in range(20)] == ["idle"] * 20


@pytest.mark.parametrize("policy", ["llm", "prefix"])
def test_balancer_fault_14_affinity_stays_among_the_least_loaded(policy: str) -> None:
    """sglang #32195: a skew of load dropped all affinity just when it was needed."""
    made = Fleeting(dict.fromkeys("abcd", 1.0), policy)
    look = unique(4_000, 1)
    for name, count in {"a": 100, "b": 31, "c": 30, "d": 30}.items():
        for _ in range(count):
            made.fleet.lease(name, Work(500, 0, 100))
    made.index.insert("b", look.blocks)
    assert made.first(look) == "b"
    made.index.insert("a", look.blocks)
    assert made.first(look) == "b"


def test_balancer_fault_24_unequal_boxes_give_first_tokens_alike() -> None:
    """llm-d #2201: equal counts to boxes whose speed differed; the slow one made all wait."""
    made = Fleeting({"fast": 1.0, "slow": 0.45})
    made.serve((unique(4_000, n) for n in range(600)), every_s=0.36)
    assert made.got["fast"] > 1.5 * made.got["slow"] > 0
    medians = [statistics.median(made.ttfts[name][100:]) for name in ("fast", "slow")]
    assert max(medians) < 2.3 * min(medians)  # a lone prompt takes 2.2 times as long there


@pytest.mark.parametrize("policy", ["llm", "global_least_request"])
def test_balancer_fault_25_small_and_huge_prompts_use_all_workers_evenly(policy: str) -> None:
    """llm-d #517, dynamo #7836: a count of requests is a poor load; two of five starved."""
    made = Fleeting(dict.fromkeys("abcde", 1.0), policy)
    draw = random.Random(5)
    sizes = [20_000 if draw.random() < 0.2 else 50 for _ in range(600)]
    made.serve((unique(size, n) for n, size in enumerate(sizes)), every_s=0.15)
    assert min(made.got[name] for name in "abcde") > 0.1 * 600
    mean = sum(made.work.values()) / 5
    assert max(made.work.values()) < 1.3 * mean
