"""The learner of a replica's pace, against replicas whose true pace it does not know."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from fakes import FakeClock

from tierway.policies.latency import forecast
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Model, Pace, Tier, Usage
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.fleet import Fleet
from tierway.router.pace import PaceLearner
from tierway.router.replica import ReplicaSpec

PRIOR = Pace(prefill_s=1e-4, first_s=0.02, step_s=0.01, request_s=0.001)


class Rig:
    """One replica that answers one call after the other, exactly at its true pace."""

    def __init__(self, true: Pace) -> None:
        self.clock, self.true = FakeClock(), true
        spec = ReplicaSpec("m@a:1", "m", "small", "")
        self.fleet = Fleet([spec], clock=self.clock)
        self.learner = PaceLearner(self.fleet, {spec.id: PRIOR})
        tier = Tier("small", 0, "7b", (Model("m", "small"),))
        self.balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=self.clock,
            draw=lambda: 0.0,
            learners=[self.learner],
        )
        self.random = random.Random(3)

    @property
    def pace(self) -> Pace:
        return self.fleet.view("m@a:1").pace

    def answer(self, tokens: int = 1000, output: int = 50, *, stream: bool = True) -> None:
        look = Look("s", tokens, output, stream=stream)
        choice = self.balancer.rank("small", ["m"], look)
        lease = asyncio.run(self.balancer.take(choice))
        truth = forecast(choice.ask, replace(choice.views[0], pace=self.true))
        noise = self.random.uniform(0.9, 1.1)
        self.clock.advance(truth.ttft_s * noise)
        lease.first_token()
        self.clock.advance(truth.step_s * (output - 1) * noise)
        lease.finish(None, Usage(tokens, output))


def test_a_replica_starts_with_what_its_gpu_promises() -> None:
    assert Rig(PRIOR).pace == PRIOR


def test_what_a_gpu_promises_may_become_known_before_the_first_call_but_not_after() -> None:
    rig, promised = Rig(PRIOR), replace(PRIOR, step_s=0.005)
    rig.learner.promise("m@a:1", promised)
    assert rig.pace == promised
    rig.answer()
    learnt = rig.pace
    rig.learner.promise("m@a:1", PRIOR)
    assert rig.pace == learnt


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_true_pace_is_found_within_some_answers(factor: float) -> None:
    true = replace(
        PRIOR, prefill_s=PRIOR.prefill_s * factor, step_s=0.01 * factor, request_s=0.001 * factor
    )
    rig = Rig(true)
    for _ in range(40):
        rig.answer(rig.random.choice([200, 2000, 8000]))
    assert rig.pace.step_s == pytest.approx(true.step_s, rel=0.15)
    assert rig.pace.prefill_s == pytest.approx(true.prefill_s, rel=0.25)
    assert max(rig.learner.errors("m@a:1")) < 0.2


def test_a_slowdown_is_known_after_a_dozen_answers() -> None:
    rig = Rig(PRIOR)
    for _ in range(100):
        rig.answer()
    rig.true = Pace(3e-4, 0.06, 0.03, 0.003)
    for _ in range(12):
        rig.answer()
    assert rig.pace.step_s == pytest.approx(0.03, rel=0.2)


def test_answers_that_tell_nothing_teach_nothing() -> None:
    rig = Rig(Pace(1e-2, 1.0, 1.0, 1.0))
    for _ in range(5):
        rig.answer(stream=False)
    lease = asyncio.run(rig.balancer.take(rig.balancer.rank("small", ["m"], Look("s", 10))))
    lease.finish(asyncio.CancelledError())
    assert rig.pace == PRIOR


def test_prompts_of_others_are_not_taken_for_slowness() -> None:
    rig = Rig(PRIOR)
    look = Look("s", 1000, 50)
    lease = asyncio.run(rig.balancer.take(rig.balancer.rank("small", ["m"], look)))
    rig.clock.advance(0.12)
    lease.first_token()
    other = asyncio.run(rig.balancer.take(rig.balancer.rank("small", ["m"], Look("t", 9000, 50))))
    rig.clock.advance(0.9 + 49 * 0.0105)
    lease.finish(None, Usage(1000, 50))
    other.finish(asyncio.CancelledError())
    assert rig.pace.step_s == pytest.approx(0.01, rel=0.05)


class Trickle:
    """Three replicas, a trickle of calls that the policy places, and one slow spell of `c`."""

    def __init__(self, slow: float, until_s: float) -> None:
        self.clock, self._slow, self._until_s = FakeClock(), slow, until_s
        self._began_s = self.clock()
        specs = [ReplicaSpec(name, "m", "small", "") for name in "abc"]
        self.fleet = Fleet(specs, clock=self.clock)
        tier = Tier("small", 0, "7b", (Model("m", "small"),))
        self.balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=self.clock,
            draw=random.Random(1).random,
            learners=[PaceLearner(self.fleet, dict.fromkeys("abc", PRIOR))],
        )

    def serve(self, seconds: float) -> dict[str, int]:
        """Calls one by one for so long; how many each replica got."""
        got = dict.fromkeys("abc", 0)
        end_s = self.clock() + seconds
        while self.clock() < end_s:
            choice = self.balancer.rank("small", ["m"], Look(f"s{self.clock()}", 1000, 50))
            lease = asyncio.run(self.balancer.take(choice))
            spell = lease.replica == "c" and self.clock() - self._began_s < self._until_s
            factor = self._slow if spell else 1.0
            self.clock.advance(0.12 * factor)
            lease.first_token()
            self.clock.advance(0.5 * factor)
            lease.finish(None, Usage(1000, 50))
            got[lease.replica] += 1
        return got


@pytest.mark.parametrize("slow", [3.0, 10.0, 30.0])
def test_a_replica_that_was_slow_for_a_while_gets_its_share_again(slow: float) -> None:
    made = Trickle(slow, until_s=60.0)
    spell = made.serve(60.0)
    assert spell["c"] < 0.2 * sum(spell.values())
    made.serve(180.0)
    after = made.serve(120.0)
    assert 0.25 < after["c"] / sum(after.values()) < 0.42


def test_a_replica_that_stays_slow_is_only_asked_now_and_then() -> None:
    made = Trickle(10.0, until_s=1e9)
    made.serve(300.0)
    got = made.serve(600.0)
    assert 1 <= got["c"] < 0.05 * sum(got.values())
