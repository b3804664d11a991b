"""The road of a request over scripted upstreams: cache, single flight, tiers, stale answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fakes import (
    JSON,
    Band,
    FakeAnswer,
    FakeClock,
    ScriptedUpstream,
    completion,
    make_call,
    plain_verifier,
    stream_of,
)

from tierway.cache.embedders import ScriptedEmbedder
from tierway.cache.index import Arena
from tierway.cache.lookup import Limits
from tierway.cache.memory_store import MemoryStore
from tierway.cache.opinion import ScriptedOpinion
from tierway.cache.semantic import SemanticCache
from tierway.middleware.pipeline import CacheStage, Pipeline
from tierway.policies.cacheability import CacheRules
from tierway.policies.equivalence import Equivalence, Verdict
from tierway.policies.errors import BadCall, CacheError, NoCapacity, Refused, Rejected
from tierway.policies.policyset import PolicySet
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import CacheControl, Call, Controls, Model, Tier, Trace, Usage
from tierway.router.balancer import Balancer, PolicyHolder
from tierway.router.dispatch import Dispatcher
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec
from tierway.router.route import RouteRules, TierRouter

FRANCE = "What is the capital of France?"
FRANCE_TOO = "What's France's capital?"
GERMANY = "What is the capital of Germany?"
VECTORS = {FRANCE: [1.0, 0.0], FRANCE_TOO: [1.0, 0.05], GERMANY: [1.0, 0.04]}
VERIFIER = plain_verifier()


class Scale:
    """A classifier that answers what it is told, by model class."""

    def __init__(self, **probabilities: float) -> None:
        self.probabilities = probabilities or {"7b": 0.9, "70b": 0.92}

    def classify(self, ask: Any, vector: Any) -> dict[str, float]:
        return self.probabilities


class Rig:
    """A whole pipeline with two tiers of one replica each."""

    def __init__(
        self, *, rules: CacheRules | None = None, embedder: Any = None, **options: Any
    ) -> None:
        self.small, self.medium = Model("s", "small"), Model("m", "medium")
        tiers = (
            Tier("small", 0, "7b", (self.small,)),
            Tier("medium", 1, "70b", (self.medium,)),
        )
        specs = [
            ReplicaSpec("s@a:1", "s", "small", "http://a:1"),
            ReplicaSpec("m@a:1", "m", "medium", "http://a:2"),
        ]
        self.clock, self.wall = FakeClock(), FakeClock(1_700_000_000.0)
        self.fleet = Fleet(specs, clock=self.clock)
        self.upstreams = {spec.id: ScriptedUpstream(whole()) for spec in specs}
        self.scale = Scale()
        self.router = TierRouter(
            tiers, self.scale, self.fleet, rules=RouteRules(), draw=lambda: 0.0
        )
        self.dispatcher = Dispatcher(
            Balancer(
                self.fleet, PolicyHolder(PolicySet.build(tiers)), clock=self.clock, draw=lambda: 0.0
            ),
            self.upstreams,
            clock=self.clock,
            budget=RetryBudget(),
        )
        self.embedder = embedder or ScriptedEmbedder(VECTORS, otherwise=lambda _: [0.0, 1.0])
        self.cache = SemanticCache(
            MemoryStore(),
            embedder=self.embedder,
            index=Arena(2),
            **{"equivalence": Equivalence([VERIFIER]), **options},
            wall=self.wall,
            limits=Limits(encode_deadline_s=0.05, batch_deadline_s=0.05),
        )
        self.pipeline = Pipeline(
            self.router,
            self.dispatcher,
            CacheStage(self.cache, rules or CacheRules()),
            clock=self.clock,
            wall=self.wall,
        )

    def script(self, *items: Any, replica: str = "s@a:1") -> None:
        self.upstreams[replica].script = list(items)

    def asked(self, replica: str = "s@a:1") -> int:
        return len(self.upstreams[replica].calls)

    async def ask(self, call: Call | str = FRANCE) -> tuple[bytes, Trace]:
        trace = Trace("r")
        answer = await self.pipeline.handle(
            make_call(call) if isinstance(call, str) else call, trace
        )
        chunks = []
        while chunk := await answer.read():
            chunks.append(chunk)
        await answer.aclose()
        await self.cache.settled()
        return b"".join(chunks), trace


def whole(text: str = "Paris.") -> FakeAnswer:
    return Fresh([orjson.dumps(completion(text))])


class Fresh(FakeAnswer):
    """An answer that can be given again and again."""

    def __init__(self, steps: list[Any], *, stream: bool = False) -> None:
        super().__init__(steps, stream=stream, usage=Usage(7, 2, reported={"prompt_tokens": 7}))
        self.script = list(steps)

    async def read(self) -> bytes:
        chunk = await super().read()
        if not chunk:
            self.steps = list(self.script)
        return chunk


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], rig: Rig | None = None) -> None:
    async def main() -> None:
        made = rig or Rig()
        await made.cache._store.start()
        await made.embedder.start()
        await made.cache.start()
        try:
            await asyncio.wait_for(test(made), 10)
        finally:
            await made.cache.aclose()

    asyncio.run(main())


def controlled(call: Call, **fields: Any) -> Call:
    return replace(call, controls=replace(Controls(), **fields))


def test_a_miss_then_an_exact_hit() -> None:
    async def main(rig: Rig) -> None:
        body, trace = await rig.ask()
        assert (trace.cache, trace.tier, trace.attempts) == ("miss", "small", 1)
        rig.wall.advance(5)
        again, hit = await rig.ask()
        assert (hit.cache, hit.similarity, hit.age_s, hit.replica) == ("hit", 1.0, 5.0, "cache")
        assert (hit.tier, hit.attempts, rig.asked()) == ("small", 0, 1)
        said = orjson.loads(again)
        assert said["usage"].pop("cached") is True
        assert said == orjson.loads(body)

    run(main)


def test_a_paraphrase_hits_and_a_near_miss_does_not() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(FRANCE)
        _, hit = await rig.ask(FRANCE_TOO)
        assert (hit.cache, rig.asked()) == ("semantic-hit", 1)
        assert hit.similarity == pytest.approx(0.9987, abs=2e-3)
        _, miss = await rig.ask(GERMANY)
        assert (miss.cache, miss.cache_reason) == ("miss", "replaced")

    run(main)


def test_a_semantic_hit_is_not_copied_under_the_new_wording() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(FRANCE)
        for _ in range(2):
            _, hit = await rig.ask(FRANCE_TOO)
            assert hit.cache == "semantic-hit"
        assert len(rig.cache) == 1

    run(main)


@pytest.mark.parametrize("as_stream", [True, False])
def test_what_came_in_one_form_is_replayed_in_the_other(as_stream: bool) -> None:
    async def main(rig: Rig) -> None:
        rig.script(Fresh(stream_of("Pa", "ris."), stream=True) if as_stream else whole())
        await rig.ask(make_call(stream=as_stream))
        body, trace = await rig.ask(make_call(stream=not as_stream))
        assert (trace.cache, rig.asked()) == ("hit", 1)
        if as_stream:
            said = orjson.loads(body)
            assert said["choices"][0]["message"]["content"] == "Paris."
            assert said["usage"]["prompt_tokens"] == 7
        else:
            assert body.endswith(b"data: [DONE]\n\n")
            assert b"Paris." in body

    run(main)


def test_an_entry_expires_when_its_time_is_over_and_not_later_for_hits() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask()
        rig.wall.advance(50_000)
        assert (await rig.ask())[1].cache == "hit"
        rig.wall.advance(50_000)
        assert (await rig.ask())[1].cache == "miss"
        assert rig.asked() == 2

    run(main)


@pytest.mark.parametrize(
    ("control", "first", "second"),
    [
        (CacheControl(no_store=True), "miss", "miss"),
        (CacheControl(no_cache=True), "bypass", "bypass"),
        (CacheControl(max_age_s=0), "bypass", "bypass"),
        (CacheControl(ttl_s=0), "miss", "miss"),
    ],
)
def test_directives_of_the_client(control: CacheControl, first: str, second: str) -> None:
    async def main(rig: Rig) -> None:
        call = controlled(make_call(), cache=control)
        assert (await rig.ask(call))[1].cache == first
        assert (await rig.ask(call))[1].cache == second
        assert rig.asked() == 2

    run(main)


def test_only_if_cached_never_goes_upstream() -> None:
    async def main(rig: Rig) -> None:
        call = controlled(make_call(), cache=CacheControl(only_if_cached=True))
        with pytest.raises(BadCall) as caught:
            await rig.ask(call)
        assert caught.value.status == 504
        await rig.ask()
        assert (await rig.ask(call))[1].cache == "hit"
        assert rig.asked() == 1

    run(main)


def test_observe_looks_up_and_never_serves() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask()
        _, trace = await rig.ask()
        assert (trace.cache, trace.cache_reason) == ("miss", "observed exact")
        assert rig.asked() == 2

    run(main, Rig(rules=CacheRules(mode="observe")))


def test_off_and_too_hot_bypass() -> None:
    async def off(rig: Rig) -> None:
        assert [(await rig.ask())[1].cache for _ in range(2)] == ["bypass", "bypass"]

    async def hot(rig: Rig) -> None:
        call = make_call(temperature=1.5)
        assert [(await rig.ask(call))[1].cache for _ in range(2)] == ["bypass", "bypass"]

    run(off, Rig(rules=CacheRules(mode="off")))
    run(hot)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "length"}]},
        {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"tool_calls": [{}]}, "finish_reason": "tool_calls"}]},
    ],
)
def test_what_is_not_a_finished_text_is_not_stored(answer: dict[str, Any]) -> None:
    async def main(rig: Rig) -> None:
        rig.script(Fresh([orjson.dumps(completion(**answer))]))
        await rig.ask()
        assert (await rig.ask())[1].cache == "miss"
        assert len(rig.cache) == 0

    run(main)


def test_an_answer_of_another_tier_than_chosen_is_not_stored() -> None:
    async def main(rig: Rig) -> None:
        rig.script(Refused("down"), whole())
        _, trace = await rig.ask()
        assert (trace.degraded, trace.tier, trace.cache) == ("other_tier", "medium", "miss")
        assert len(rig.cache) == 0
        assert (await rig.ask())[1].cache == "miss"
        assert (await rig.ask())[1].cache == "hit"

    run(main)


def test_a_stream_cut_midway_is_not_stored() -> None:
    async def main(rig: Rig) -> None:
        rig.script(Fresh(stream_of("Pa", "ris.")[:-1], stream=True))
        await rig.ask(make_call(stream=True))
        assert len(rig.cache) == 0

    run(main)


def test_the_dial_decides_whether_a_weak_tiers_answer_serves() -> None:
    async def main(rig: Rig) -> None:
        rig.scale.probabilities = {"7b": 0.5, "70b": 0.9}
        cheap = controlled(make_call(), quality=0.0)
        best = controlled(make_call(), quality=1.0)
        assert (await rig.ask(cheap))[1].tier == "small"
        _, trace = await rig.ask(best)
        assert (trace.cache, trace.cache_reason, trace.tier) == ("miss", "tier", "medium")
        assert (await rig.ask(cheap))[1].cache == "hit"

    run(main)


def test_identical_calls_in_flight_are_one_upstream_call() -> None:
    async def main(rig: Rig) -> None:
        gate = asyncio.Event()

        async def slow(_: Call) -> FakeAnswer:
            await gate.wait()
            return whole()

        rig.script(slow)
        asks = [asyncio.create_task(rig.ask()) for _ in range(20)]
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*asks)
        assert rig.asked() == 1
        assert sorted(trace.cache for _, trace in results) == ["miss"] + ["shared"] * 19
        assert {trace.tier for _, trace in results} == {"small"}
        assert len({body for body, _ in results}) == 1
        assert len(rig.pipeline.flights) == 0
        assert not any(rig.fleet.inflight().values())

    run(main)


def test_calls_with_another_dial_or_form_do_not_join() -> None:
    async def main(rig: Rig) -> None:
        gate = asyncio.Event()

        async def slow(call: Call) -> FakeAnswer:
            await gate.wait()
            return Fresh(stream_of("x"), stream=True) if call.stream else whole()

        rig.script(slow)
        calls = [make_call(), make_call(stream=True), controlled(make_call(), quality=0.1)]
        asks = [asyncio.create_task(rig.ask(call)) for call in calls]
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*asks)
        assert rig.asked() == 3

    run(main)


def test_when_the_fleet_is_gone_an_expired_answer_serves_as_stale() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask()
        rig.wall.advance(90_000)
        rig.script(Refused("gone"))
        rig.script(Refused("gone"), replica="m@a:1")
        body, trace = await rig.ask()
        assert (trace.cache, trace.degraded, trace.replica) == ("stale", "stale_cache", "cache")
        assert b"Paris." in body
        with pytest.raises(NoCapacity):
            await rig.ask("A question nobody asked before")

    run(main)


def test_a_bad_request_is_not_answered_from_the_past() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask()
        rig.wall.advance(90_000)
        rig.script(Rejected(400, JSON, b"{}"))
        with pytest.raises(Rejected):
            await rig.ask()

    run(main)


class BadEmbedder(ScriptedEmbedder):
    """Fails in the given way once it is told to."""

    def __init__(self, fault: str) -> None:
        super().__init__(VECTORS, otherwise=lambda _: [0.0, 1.0])
        self.fault, self.broken = fault, False

    async def encode(self, texts: Any) -> Any:
        if self.broken and self.fault == "raises":
            raise CacheError("no encoder")
        if self.broken and self.fault == "hangs":
            await asyncio.Event().wait()
        rows = await super().encode(texts)
        return rows * float("nan") if self.broken else rows


@pytest.mark.parametrize(
    ("fault", "counted"),
    [("raises", "encoder"), ("hangs", "encoder-slow"), ("nan", "encoder-not-finite")],
)
def test_known_fault_20_a_slow_or_broken_encoder_is_a_bypass_and_the_request_served(
    fault: str, counted: str
) -> None:
    embedder = BadEmbedder(fault)

    async def main(rig: Rig) -> None:
        await rig.ask(FRANCE)
        embedder.broken = True
        body, trace = await asyncio.wait_for(served(rig), 5)
        assert (trace.cache, trace.cache_reason) == ("bypass", "encoder")
        assert b"Paris." in body
        assert rig.cache.counts[counted] >= 1
        embedder.broken = False

    async def served(rig: Rig) -> tuple[bytes, Trace]:
        trace = Trace("r")
        answer = await rig.pipeline.handle(make_call(FRANCE_TOO), trace)
        body = await answer.read()
        assert await answer.read() == b""
        await answer.aclose()
        return body, trace

    run(main, Rig(embedder=embedder))


def test_known_fault_04_a_verifier_that_raises_is_no_hit() -> None:
    class Raising(Equivalence):
        def judge(self, *pair: Any, **more: Any) -> Verdict:
            raise RuntimeError("no verdict today")

    async def main(rig: Rig) -> None:
        rig.script(whole("Paris."), whole("Lutetia."))
        await rig.ask(FRANCE)
        body, trace = await rig.ask(FRANCE_TOO)
        assert b"Lutetia." in body
        assert (trace.cache, trace.cache_reason) == ("bypass", "fault")
        assert rig.cache.counts["lookup"] == 1

    run(main, Rig(equivalence=Raising([VERIFIER])))


def test_known_fault_35_a_store_that_fails_leaves_a_cache_in_memory() -> None:
    class Broken(MemoryStore):
        async def put(self, entry: Any) -> int:
            raise CacheError("read-only")

    async def main(rig: Rig) -> None:
        rig.cache._upkeep._store = Broken()
        await rig.ask()
        assert (await rig.ask())[1].cache == "hit"
        assert rig.cache.counts["store"] == 1

    run(main)


def test_a_deleted_entry_is_gone_at_once() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(FRANCE)
        _, hit = await rig.ask(FRANCE_TOO)
        assert await rig.cache.delete([hit.entry_id]) == 1
        assert (await rig.ask(FRANCE_TOO))[1].cache == "miss"
        assert await rig.cache.delete([hit.entry_id]) == 0

    run(main)


def test_tenants_users_and_namespaces_never_meet() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(make_call(tenant="a"))
        assert (await rig.ask(make_call(tenant="b")))[1].cache == "miss"
        assert (await rig.ask(controlled(make_call(tenant="a"), namespace="n")))[1].cache == "miss"
        assert (await rig.ask(make_call(tenant="a")))[1].cache == "hit"

    run(main)


@pytest.mark.parametrize("door", ["find", "keep"])
def test_no_fault_of_the_cache_fails_a_request(door: str) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    async def main(rig: Rig) -> None:
        setattr(rig.cache, door, broken)
        body, trace = await rig.ask()
        assert b"Paris." in body
        assert trace.cache == ("bypass" if door == "find" else "miss")
        assert sum(rig.cache.counts.values()) == 1

    run(main)


def test_a_put_that_was_overtaken_does_not_come_back_with_the_log() -> None:
    async def main(rig: Rig) -> None:
        fresh = controlled(make_call(), cache=CacheControl(no_cache=True))
        await rig.ask()
        _, old = await rig.ask()
        for _ in range(2):  # the second time, the log still holds the first one's put
            rig.wall.advance(1)
            await rig.ask(fresh)
            await rig.cache._upkeep.follow()
            _, new = await rig.ask()
            assert (new.cache, new.age_s) == ("hit", 0.0)
            assert new.entry_id != old.entry_id

    run(main)


def test_calls_of_other_limits_or_placement_do_not_share() -> None:
    async def main(rig: Rig) -> None:
        gate = asyncio.Event()

        async def slow(_: Call) -> FakeAnswer:
            await gate.wait()
            return whole()

        rig.script(slow)
        short = replace(make_call(), arrived_s=0.0, deadline_s=2000.0)
        calls = [make_call(), short, controlled(make_call(), placement="on_prem_only")]
        asks = [asyncio.create_task(rig.ask(call)) for call in calls]
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*asks)
        assert rig.asked() == 3

    run(main)


def test_what_is_asked_about_oneself_is_kept_apart_by_user() -> None:
    async def main(rig: Rig) -> None:
        mine = "What is my account balance?"
        await rig.ask(replace(make_call(mine), user="alice"))
        assert (await rig.ask(replace(make_call(mine), user="bob")))[1].cache == "miss"
        assert (await rig.ask(replace(make_call(mine), user="alice")))[1].cache == "hit"

    run(main)


def in_doubt(**options: Any) -> tuple[Rig, ScriptedOpinion]:
    """A rig where FRANCE_TOO stands at a cosine of 0.9 from FRANCE and a judge who knows."""
    opinion = ScriptedOpinion({(FRANCE_TOO, FRANCE): True}, before=tick)
    vectors = {FRANCE: [1.0, 0.0], FRANCE_TOO: [0.9, 0.436]}
    embedder = ScriptedEmbedder(vectors, otherwise=lambda _: [0.0, 1.0])
    rig = Rig(embedder=embedder, equivalence=Band(), opinion=opinion, **options)
    return rig, opinion


async def tick() -> None:
    await asyncio.sleep(0)


def test_a_second_opinion_is_told_and_timed_apart() -> None:
    rig, _ = in_doubt()

    async def main(rig: Rig) -> None:
        await rig.ask()
        body, trace = await rig.ask(FRANCE_TOO)
        assert orjson.loads(body)["choices"] == completion()["choices"]
        assert (trace.cache, trace.cache_reason) == ("semantic-hit", "second-opinion")
        assert (trace.second_opinion, trace.similarity) == (
            "accepted",
            pytest.approx(0.9, abs=0.01),
        )
        assert set(trace.stages_s) == {"cache", "second_opinion"}
        assert rig.asked() == 1
        _, plain = await rig.ask()
        assert (plain.second_opinion, set(plain.stages_s)) == ("", {"cache"})

    run(main, rig)


def test_nobody_is_asked_about_what_is_only_observed_or_explained() -> None:
    rig, opinion = in_doubt(rules=CacheRules(mode="observe"))

    async def observed(rig: Rig) -> None:
        await rig.ask()
        _, trace = await rig.ask(FRANCE_TOO)
        assert (trace.cache, trace.cache_reason) == ("miss", "below")

    run(observed, rig)
    assert opinion.asked == []
    rig, opinion = in_doubt()

    async def explained(rig: Rig) -> None:
        await rig.ask()
        assert not await rig.pipeline.would_hit(make_call(FRANCE_TOO), Trace("r"))

    run(explained, rig)
    assert opinion.asked == []
