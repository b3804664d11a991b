"""The prefix index at work: through the Balancer, from a call to what its usage teaches."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes import FakeClock, make_call
from tierway.policies.errors import Refused, Rejected
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Ask, Call, Model, Tier, Usage
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.prefixes import PrefixIndex
from tierway.router.prompts import PromptLearner, hearing
from tierway.router.ratio import TokenRatios
from tierway.router.replica import ReplicaSpec

MODEL = Model("m", "small", served_name="served")
SYSTEM = "You are a careful assistant of a large house. " * 60


@dataclass
class Stand:
    """A balancer over `size` replicas named a, b, ... of one model."""

    size: int = 2
    policy: str = "llm"
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        names = "abcdefgh"[: self.size]
        self.fleet = Fleet(
            [ReplicaSpec(name, "m", "small", "") for name in names], clock=self.clock
        )
        self.index, self.ratios = PrefixIndex(), TokenRatios()
        self.balancer = Balancer(
            self.fleet,
            PolicyHolder(PolicySet.build([Tier("small", 0, "7b", (MODEL,), policy=self.policy)])),
            clock=self.clock,
            draw=random.Random(3).random,
            prefixes=self.index,
            ratios=self.ratios,
            learners=(PromptLearner(self.index, self.ratios),),
        )

    def look(self, call: Call, model: Model = MODEL) -> Look:
        return self.balancer.look(call, model)

    def take(self, call: Call, *, sequence: int = 0) -> Lease:
        choice = self.balancer.rank("small", ("m",), self.look(call), sequence=sequence)
        return asyncio.run(self.balancer.take(choice))

    def serve(self, call: Call, usage: Usage | None = None, error: Any = None) -> str:
        lease = self.take(call)
        lease.first_token()
        lease.finish(error, usage)
        self.clock.advance(1.0)
        return lease.replica

    def cached(self, call: Call) -> dict[str, int]:
        """What the policy is told that replicas hold of a call's prompt."""
        return dict(self.balancer.rank("small", ("m",), self.look(call)).ask.cached)


def chat(*said: tuple[str, str], session: str = "s") -> Call:
    messages = [{"role": role, "content": text} for role, text in said]
    call = make_call(said[-1][1], messages=messages)
    return replace(call, session=session)


def usage(tokens: int, cached: int | None = None) -> Usage:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return Usage(tokens, 10, cached or 0, {"prompt_tokens": tokens, **details})


def test_a_look_has_blocks_and_how_many_tokens_they_are() -> None:
    stand = Stand()
    call = chat(("system", SYSTEM), ("user", "Hello"))
    look = stand.look(call)
    assert look.prompt_tokens == call.ask.text_bytes // 4
    assert look.block_tokens == 128.0
    assert len(look.blocks) == call.ask.text_bytes // 512


def test_a_cloud_model_has_no_cache_that_we_could_reach() -> None:
    stand = Stand()
    look = stand.look(chat(("user", SYSTEM)), replace(MODEL, cloud=True))
    assert look.blocks == ()
    assert look.prompt_tokens > 1


def test_two_models_of_one_name_on_engines_do_not_meet() -> None:
    stand = Stand()
    call = chat(("user", SYSTEM))
    assert stand.look(call).blocks != stand.look(call, replace(MODEL, served_name="x")).blocks


def test_without_an_index_nothing_is_hashed() -> None:
    stand = Stand()
    bare = Balancer(
        stand.fleet, stand.balancer.policies, clock=stand.clock, draw=random.Random(0).random
    )
    assert bare.look(chat(("user", SYSTEM)), MODEL).blocks == ()


def test_who_was_given_a_prompt_holds_it_from_dispatch_on() -> None:
    stand = Stand()
    call = chat(("system", SYSTEM), ("user", "Hello"))
    assert stand.cached(call) == {}
    lease = stand.take(call)
    held = len(stand.look(call).blocks) * 128
    assert stand.cached(call) == {lease.replica: held}
    lease.finish(Rejected(500, b"", ()))
    again = stand.take(call)
    assert again.work.prefill_tokens == again.work.prompt_tokens - held


@pytest.mark.parametrize("kind", ["chat", "agent", "completions"])
def test_the_next_turn_goes_where_the_last_one_was(kind: str) -> None:
    """Without a session key, with a message without content, and for a plain prompt."""
    stand = Stand(size=8)
    draw = random.Random(1)

    def turn(session: int, number: int) -> Call:
        text = f"{session} " + "".join(
            f"turn {n} of {session}: " + random.Random(f"{session}/{n}").randbytes(900).hex()
            for n in range(number + 1)
        )
        if kind == "completions":
            body = {"model": "m", "prompt": text}
            ask = Ask((), text, text_bytes=len(text))
            return replace(make_call(), wire="completions", body=body, ask=ask)
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        said: list[dict[str, Any]] = [{"role": "user", "content": text}]
        if kind == "agent":
            said += [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "ok"}]
        call = make_call(text)
        return replace(call, body={"model": "m", "messages": said})

    homes: dict[int, set[str]] = {}
    for number in range(5):
        for session in draw.sample(range(16), 16):
            homes.setdefault(session, set()).add(stand.serve(turn(session, number)))
    assert sum(len(home) for home in homes.values()) <= 20
    assert len(set.union(*homes.values())) == 8


def test_a_common_system_prompt_binds_nobody() -> None:
    """Known trouble elsewhere: all that share a head end on one replica. 200 calls one after
    the other, eight replicas; affinity starts behind what everybody shares."""
    stand = Stand(size=8)
    served = Counter(
        stand.serve(
            chat(("system", SYSTEM), ("user", f"{n} " + "why? " * 100), session=str(n)),
        )
        for n in range(200)
    )
    assert max(served.values()) <= 2 * 200 / 8
    call = chat(("system", SYSTEM), ("user", "new"))
    ask = stand.balancer.rank("small", ("m",), stand.look(call)).ask
    assert 0 < ask.common_tokens == len(SYSTEM) // 512 * 128


def test_a_session_leaves_a_dead_owner_for_good() -> None:
    stand = Stand(size=3)
    said = [("system", SYSTEM), ("user", "first " * 200)]
    owner = stand.serve(chat(*said))
    stand.fleet.report_health(owner, alive=False)
    said += [("assistant", "yes " * 100), ("user", "second " * 200)]
    home = stand.serve(chat(*said))
    assert home != owner
    stand.fleet.report_health(owner, alive=True)
    for turn in range(3):
        said += [("assistant", "yes " * 100), ("user", f"{turn} " * 200)]
        assert stand.serve(chat(*said)) == home


def test_a_replica_where_nobody_listens_has_lost_its_cache() -> None:
    stand = Stand()
    call = chat(("user", SYSTEM))
    owner = stand.serve(call)
    assert stand.cached(call)[owner] > 0
    stand.serve(call, error=Refused("The upstream could not be reached."))
    assert stand.cached(call).get(owner, 0) == 0


def test_the_index_has_the_room_that_the_engine_tells() -> None:
    stand = Stand(size=1)
    stand.fleet.update_facts("a", Facts(kv_capacity_tokens=640, read_s=stand.clock()))
    call = chat(("user", SYSTEM))
    stand.serve(call)
    assert stand.cached(call) == {"a": 512}  # the end of the prompt takes a block's place


def test_bytes_per_token_come_from_usage() -> None:
    stand = Stand()
    call = chat(("user", SYSTEM))
    for _ in range(60):
        stand.serve(call, usage(call.ask.text_bytes // 3))
    look = stand.look(call)
    assert look.prompt_tokens == pytest.approx(call.ask.text_bytes / 3, rel=0.02)
    assert look.block_tokens == pytest.approx(512 / 3, rel=0.02)
    chinese = chat(("user", "请告诉我" * 300))
    assert stand.look(chinese).prompt_tokens == chinese.ask.text_bytes // 4


def test_pictures_teach_nothing_about_text() -> None:
    stand = Stand()
    call = chat(("user", SYSTEM))
    call = replace(call, ask=replace(call.ask, media=("image",)))
    for _ in range(20):
        stand.serve(call, usage(call.ask.text_bytes))
    assert stand.look(call).block_tokens == 128.0


def test_hits_that_the_engine_does_not_give_get_no_bonus() -> None:
    """The engine's blocks have 784 tokens, 240 are shared, so none of them is ever cached."""
    stand = Stand(size=1)
    shared = ("system", "s" * 960)
    for n in range(30):
        stand.serve(chat(shared, ("user", f"{n} hi")), usage(250, cached=0))
    call = chat(shared, ("user", "last"))
    assert stand.balancer.rank("small", ("m",), stand.look(call)).held["a"] > 0
    assert stand.cached(call)["a"] == 0
    assert stand.take(call).work.prefill_tokens == stand.look(call).prompt_tokens


def test_an_engine_that_restarts_is_forgotten_by_its_answers() -> None:
    stand = Stand(size=1)
    sessions = [chat(("user", f"{n} " + SYSTEM)) for n in range(8)]
    for call in sessions:
        stand.serve(call, usage(700, cached=0))
    for call in sessions:
        stand.serve(call, usage(700, cached=688))
    assert all(stand.cached(call) for call in sessions)
    for call in sessions[:4]:
        stand.serve(call, usage(700, cached=0))
    assert not any(stand.cached(call) for call in sessions[4:])


def test_an_engine_that_never_tells_is_believed() -> None:
    stand = Stand(size=1)
    call = chat(("user", SYSTEM))
    for _ in range(20):
        stand.serve(call, usage(700))
    assert stand.cached(call)["a"] == pytest.approx(700, rel=0.1)


def test_embeddings_pass_without_blocks() -> None:
    stand = Stand()
    body = {"model": "m", "input": SYSTEM}
    call = replace(make_call(), wire="embeddings", body=body)
    assert stand.look(call).blocks == ()
    assert stand.serve(call, usage(10)) in "ab"


def test_many_that_ask_about_one_new_document_at_once_are_no_lost_cache() -> None:
    """None of them finds what the first of them has only begun to read."""
    stand = Stand(size=1)
    before = chat(("user", "Another conversation. " + SYSTEM))
    stand.serve(before, usage(900, 0))
    held = stand.cached(before)
    calls = [chat(("system", "A document. " + SYSTEM), ("user", f"Q {n}")) for n in range(8)]
    leases = [stand.take(call) for call in calls]
    for lease in leases:
        lease.first_token()
    for lease in leases:
        lease.finish(None, usage(lease.work.prompt_tokens, 0))
    assert stand.cached(before) == held
    assert stand.cached(calls[0])["a"] > 500
    for call in calls[:5]:  # but what was read long ago and is not there any more is lost
        stand.serve(call, usage(900, 0))
    assert stand.cached(before) == {}


def test_placements_of_other_gateways_count_for_replicas_that_are_ours_too() -> None:
    stand = Stand()
    on_placed = hearing(stand.index, stand.fleet)
    call = chat(("user", SYSTEM))
    for replica in ("b", "theirs"):
        on_placed(replica, stand.look(call).blocks)
    assert list(stand.cached(call)) == ["b"]
    assert list(stand.index.stats().blocks) == ["b"]
