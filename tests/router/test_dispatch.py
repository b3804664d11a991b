from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from fakes import FakeAnswer, FakeClock, ScriptedUpstream, make_call

from tierway.policies.errors import (
    BrokenStream,
    NoCapacity,
    Refused,
    Rejected,
    UpstreamTimeout,
)
from tierway.policies.policyset import PolicySet
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import Call, Model, Tier, TierDecision, TierPlan, Trace
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.dispatch import Dispatcher, Ladder
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec

MODELS = {
    "small": Model("s", "small"),
    "large": Model("l", "large"),
    "cloud": Model("c", "cloud", cloud=True),
}


class Bench:
    """A dispatcher over scripted upstreams: `small` has two replicas, `large` one."""

    def __init__(
        self,
        *,
        ladder: Ladder | None = None,
        share: float = 1.0,
        floor: float = 10.0,
        policy: str = "round_robin",
    ) -> None:
        specs = [
            ReplicaSpec("s@a:1", "s", "small", "http://a:1"),
            ReplicaSpec("s@b:1", "s", "small", "http://b:1"),
            ReplicaSpec("l@a:1", "l", "large", "http://a:2"),
            ReplicaSpec("c", "c", "cloud", ""),
        ]
        tiers = [
            Tier(name, rank, "7b", (model,), policy=policy)
            for rank, (name, model) in enumerate(MODELS.items())
        ]
        self.clock = FakeClock()
        self.fleet = Fleet(specs, clock=self.clock)
        self.upstreams = {spec.id: ScriptedUpstream(FakeAnswer([b"ok"])) for spec in specs}
        self.holder = PolicyHolder(PolicySet.build(tiers))
        self.dispatcher = Dispatcher(
            Balancer(self.fleet, self.holder, clock=self.clock, draw=lambda: 0.0),
            self.upstreams,
            clock=self.clock,
            budget=RetryBudget(share, floor),
            ladder=ladder,
        )

    def script(self, replica: str, *items: Any) -> None:
        self.upstreams[replica].script = list(items)

    def asked(self) -> dict[str, int]:
        return {name: len(up.calls) for name, up in self.upstreams.items() if up.calls}

    def idle(self) -> bool:
        return not any(self.fleet.inflight().values())


def plan(*tiers: str) -> TierDecision:
    return TierDecision(tuple(TierPlan(name, (MODELS[name],)) for name in tiers), "test")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


async def send(
    bench: Bench, tiers: Sequence[str] = ("small",), call: Call | None = None
) -> tuple[bytes, Trace]:
    trace = Trace("r")
    answer = await bench.dispatcher.open(call or make_call(), plan(*tiers), trace)
    body = await answer.read()
    assert await answer.read() == b""
    await answer.aclose()
    return body, trace


def test_what_the_gateway_asks_for_itself_gets_one_attempt_and_earns_no_retries() -> None:
    async def main() -> None:
        bench = Bench(share=1.0, floor=0.0)
        bench.script("s@a:1", Rejected(500, (), b""), FakeAnswer([b"ok"]))
        trace = Trace("r")
        with pytest.raises(Rejected):
            await bench.dispatcher.open_once(make_call(), plan("small"), trace)
        answer = await bench.dispatcher.open_once(make_call(), plan("small"), trace)
        assert await answer.read() == b"ok"
        await answer.aclose()
        assert bench.asked() == {"s@a:1": 1, "s@b:1": 1}
        assert bench.dispatcher.budget.take(bench.clock()) is False
        assert bench.idle()

    run(main)


def test_asking_once_says_when_nobody_is_there() -> None:
    async def main() -> None:
        bench = Bench()
        bench.script("s@a:1", Refused("no"))
        with pytest.raises(NoCapacity):
            await bench.dispatcher.open_once(make_call(), plan("small"), Trace("r"))
        for replica in ("s@a:1", "s@b:1"):
            bench.fleet.set_draining(replica, True)
        with pytest.raises(NoCapacity):
            await bench.dispatcher.open_once(make_call(), plan("small"), Trace("r"))
        assert bench.asked() == {"s@a:1": 1}

    run(main)


def test_a_good_answer_takes_one_attempt() -> None:
    async def main() -> None:
        bench = Bench()
        body, trace = await send(bench)
        assert (body, trace.attempts, trace.tier, trace.replica) == (b"ok", 1, "small", "s@a:1")
        assert (trace.degraded, trace.policy, trace.policy_version) == ("", "round_robin", 1)
        assert bench.idle()

    run(main)


@pytest.mark.parametrize(
    "error",
    [
        Refused("no"),
        Rejected(500, (), b""),
        Rejected(429, ((b"retry-after", b"7"),), b""),
        UpstreamTimeout("first_token", 1),
        BrokenStream("half"),
    ],
)
def test_before_the_first_token_another_replica_answers(error: Exception) -> None:
    async def main() -> None:
        bench = Bench()
        bench.script("s@a:1", error)
        body, trace = await send(bench)
        assert (body, trace.attempts, trace.replica) == (b"ok", 2, "s@b:1")
        assert trace.degraded == "other_replica"
        assert bench.idle()

    run(main)


def test_a_bad_request_is_tried_once_and_passed_on() -> None:
    async def main() -> None:
        bench = Bench()
        bench.script("s@a:1", Rejected(400, (), b"why"))
        with pytest.raises(Rejected) as caught:
            await send(bench, ["small", "large"])
        assert (caught.value.status, caught.value.body) == (400, b"why")
        assert bench.asked() == {"s@a:1": 1}

    run(main)


def test_a_prompt_too_long_for_one_tier_goes_to_the_next() -> None:
    async def main() -> None:
        bench = Bench()
        too_long = Rejected(400, (), b'{"error":{"code":"context_length_exceeded"}}')
        bench.script("s@a:1", too_long)
        _, trace = await send(bench, ["small", "large"])
        assert (trace.tier, trace.attempts, trace.degraded) == ("large", 2, "other_tier")

    run(main)


def test_the_ladder_replica_tier_cloud() -> None:
    async def main() -> None:
        bench = Bench()
        for replica in ("s@a:1", "s@b:1", "l@a:1"):
            bench.script(replica, Refused("no"))
        _, trace = await send(bench, ["small", "large", "cloud"])
        assert (trace.tier, trace.replica, trace.degraded) == ("cloud", "c", "cloud")
        assert (trace.attempts, trace.retries) == (4, ["refused"] * 3)
        assert bench.asked() == {"s@a:1": 1, "s@b:1": 1, "l@a:1": 1, "c": 1}

    run(main)


@pytest.mark.parametrize(
    ("ladder", "asked"),
    [
        (Ladder(other_replica=False), ["s@a:1", "l@a:1", "c"]),
        (Ladder(other_tier=False), ["s@a:1", "s@b:1", "c"]),
        (Ladder(cloud=False), ["s@a:1", "s@b:1", "l@a:1"]),
        (Ladder(False, False, False), ["s@a:1"]),
    ],
)
def test_steps_of_the_ladder_can_be_left_out(ladder: Ladder, asked: list[str]) -> None:
    async def main() -> None:
        bench = Bench(ladder=ladder)
        for replica in bench.upstreams:
            bench.script(replica, Rejected(500, (), b""))
        with pytest.raises(Rejected):
            await send(bench, ["small", "large", "cloud"])
        assert sorted(bench.asked()) == sorted(asked)
        assert bench.idle()

    run(main)


def test_nobody_to_be_reached_is_no_capacity_with_a_time_to_come_back() -> None:
    async def main() -> None:
        bench = Bench()
        for replica in bench.upstreams:
            bench.script(replica, Refused("no"))
        for _ in range(2):  # the second time every breaker is open
            with pytest.raises(NoCapacity) as caught:
                await send(bench, ["small", "large"])
            assert caught.value.retry_after_s
        assert bench.asked() == {"s@a:1": 1, "s@b:1": 1, "l@a:1": 1}

    run(main)


def test_an_overload_everywhere_is_passed_on_with_its_retry_after() -> None:
    async def main() -> None:
        bench = Bench()
        for replica in ("s@a:1", "s@b:1"):
            bench.script(replica, Rejected(429, ((b"retry-after", b"7"),), b""))
        with pytest.raises(Rejected) as caught:
            await send(bench)
        assert (caught.value.status, caught.value.retry_after_s) == (429, 7)

    run(main)


def test_retries_end_with_the_budget() -> None:
    async def main() -> None:
        bench = Bench(share=0.0, floor=0.2)  # two retries in ten seconds
        bench.script("s@a:1", Rejected(500, (), b""))
        bench.script("s@b:1", Rejected(500, (), b""))
        for _ in range(6):
            with pytest.raises(Rejected):
                await send(bench)
        assert sum(bench.asked().values()) == 6 + 2

    run(main)


def test_no_attempt_is_made_past_the_deadline() -> None:
    async def main() -> None:
        bench = Bench()
        call = make_call()
        object.__setattr__(call, "deadline_s", bench.clock.now + 5)

        async def late(_: Call) -> FakeAnswer:
            bench.clock.advance(6)
            raise Refused("too late")

        bench.script("s@a:1", late)
        with pytest.raises(NoCapacity):
            await send(bench, call=call)
        assert bench.asked() == {"s@a:1": 1}

    run(main)


def test_a_client_that_leaves_frees_the_slot_and_blames_nobody() -> None:
    async def main() -> None:
        bench = Bench()
        waiting = asyncio.Event()

        async def never(_: Call) -> FakeAnswer:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

        bench.script("s@a:1", never)
        task = asyncio.create_task(send(bench))
        await waiting.wait()
        assert bench.fleet.inflight()["s@a:1"] == 1
        task.cancel()
        await asyncio.wait({task})
        assert bench.idle()
        assert bench.fleet.totals("s@a:1") == (0, 0)

    run(main)


def test_after_the_first_token_nothing_is_replayed_and_the_replica_is_blamed() -> None:
    async def main() -> None:
        bench = Bench()
        bench.script("s@a:1", FakeAnswer([b"a", BrokenStream("cut")], stream=True))
        answer = await bench.dispatcher.open(make_call(), plan("small"), Trace("r"))
        assert await answer.read() == b"a"
        with pytest.raises(BrokenStream):
            await answer.read()
        await answer.aclose()
        await answer.aclose()
        assert bench.asked() == {"s@a:1": 1}
        assert bench.fleet.totals("s@a:1") == (0, 1)
        assert bench.idle()

    run(main)


def test_a_stream_closed_midway_frees_its_slot() -> None:
    async def main() -> None:
        bench = Bench()
        upstream = FakeAnswer([b"a", b"b"], stream=True)
        bench.script("s@a:1", upstream)
        answer = await bench.dispatcher.open(make_call(), plan("small"), Trace("r"))
        await answer.read()
        await answer.aclose()
        assert (upstream.closed, bench.idle()) == (1, True)
        assert bench.fleet.totals("s@a:1") == (0, 0)

    run(main)


def test_the_policy_is_read_at_each_attempt() -> None:
    async def main() -> None:
        bench = Bench()

        async def switch(_: Call) -> FakeAnswer:
            bench.holder.current = bench.holder.current.with_policy("small", "least_request", {})
            raise Refused("no")

        bench.script("s@a:1", switch)
        _, trace = await send(bench)
        assert (trace.policy, trace.policy_version) == ("least_request", 2)

    run(main)


def test_round_robin_does_not_fall_into_step_with_a_bad_replica() -> None:
    async def main() -> None:
        bench = Bench()
        bench.script("s@a:1", Rejected(503, (), b""))
        attempts = [(await send(bench))[1].attempts for _ in range(8)]
        assert attempts == [2, 1] * 4

    run(main)
