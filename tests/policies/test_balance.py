from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import Best
from tierway.policies.registry import POLICIES, build_policy
from tierway.policies.types import BalanceAsk, ReplicaView

NAMES = sorted(POLICIES)


def view(name: str, **facts: object) -> ReplicaView:
    return ReplicaView(id=name, model="m", tier="small", **facts)  # type: ignore[arg-type]


def ask(session: str = "s", tokens: int = 500, sequence: int = 0, draw: float = 0.0) -> BalanceAsk:
    return BalanceAsk(session=session, prompt_tokens=tokens, sequence=sequence, draw=draw)


def first(name: str, question: BalanceAsk, views: Sequence[ReplicaView]) -> str:
    return build_policy(name, {}).rank(question, views).candidates[0].replica


facts = st.builds(
    dict,
    inflight=st.integers(-2, 50),
    inflight_tokens=st.integers(-2, 10**6),
    weight=st.floats(0, 100),
    available=st.booleans(),
    waiting=st.none() | st.integers(0, 100),
    running=st.none() | st.integers(0, 300),
    kv_usage=st.none() | st.floats(0, 1),
    facts_at_s=st.none() | st.floats(-20, 0),
    gpu_temperature_celsius=st.none() | st.floats(0, 120),
)
fleets = st.lists(facts, min_size=1, max_size=6).map(
    lambda rows: [view(f"r{i}", **row) for i, row in enumerate(rows)]
)
asks = st.builds(
    BalanceAsk,
    session=st.sampled_from(["", "a", "对话", "\ud800"]),
    prompt_tokens=st.integers(0, 200_000),
    sequence=st.integers(0, 10**9),
    draw=st.floats(0, 1, exclude_max=True),
    tried=st.frozensets(st.sampled_from(["r0", "r1"])),
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(fleet=fleets, question=asks, seed=st.integers(0, 999))
def test_a_ranking_holds_what_every_policy_promises(
    name: str, fleet: list[ReplicaView], question: BalanceAsk, seed: int
) -> None:
    policy = build_policy(name, {})
    ranking = policy.rank(question, fleet)
    shuffled = random.Random(seed).sample(fleet, len(fleet))
    assert policy.rank(question, shuffled) == ranking
    chosen = [candidate.replica for candidate in ranking.candidates]
    barred = {item.id for item in fleet if not item.available or item.id in question.tried}
    assert sorted(chosen) == sorted({item.id for item in fleet} - barred)
    assert {replica for replica, _ in ranking.excluded} == barred
    for candidate in ranking.candidates:
        assert all(0.0 <= score <= 1.0 for score in [candidate.score, *candidate.reasons.values()])


def test_what_is_left_out_is_told_with_its_reason() -> None:
    fleet = [
        view("open", available=False, unavailable_reason="breaker open"),
        view("gone", available=False),
        view("tried"),
        view("free"),
    ]
    question = replace(ask(), tried=frozenset({"tried", "open"}))
    ranking = build_policy("llm", {}).rank(question, fleet)
    assert [candidate.replica for candidate in ranking.candidates] == ["free"]
    assert dict(ranking.excluded) == {
        "open": "breaker open",
        "gone": "unavailable",
        "tried": "tried",
    }
    assert ranking.policy == "llm"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_available_gives_no_candidates(name: str) -> None:
    policy = build_policy(name, {})
    assert policy.rank(ask(), [view("a", available=False)]).candidates == ()
    assert policy.rank(ask(), []).candidates == ()


def test_round_robin_takes_turns() -> None:
    fleet = [view("c"), view("a"), view("b")]
    picks = [first("round_robin", ask(sequence=n), fleet) for n in range(6)]
    assert picks == ["a", "b", "c", "a", "b", "c"]


def test_random_follows_the_draw_and_the_weights() -> None:
    fleet = [view("a", weight=3.0), view("b"), view("never", weight=0.0)]
    draws = [n / 400 for n in range(400)]
    picks = Counter(first("random", ask(draw=draw), fleet) for draw in draws)
    assert picks == {"a": 300, "b": 100}


@pytest.mark.parametrize("name", ["least_request", "random"])
def test_ties_spread_evenly_in_first_and_in_second_place(name: str) -> None:
    fleet = [view(f"r{n}") for n in range(4)]
    policy = build_policy(name, {})
    draws = [n / 1200 for n in range(1200)]
    orders = [policy.rank(ask(draw=draw), fleet).candidates for draw in draws]
    assert Counter(order[0].replica for order in orders) == {f"r{n}": 300 for n in range(4)}
    pairs = Counter((order[0].replica, order[1].replica) for order in orders)
    assert len(pairs) == 12
    assert all(abs(count - 100) <= 1 for count in pairs.values())


def test_least_request_takes_the_least_and_keeps_the_rest_in_order() -> None:
    fleet = [view("a", inflight=4), view("b", inflight=1), view("c", inflight=9)]
    ranking = build_policy("least_request", {}).rank(ask(), fleet)
    assert [candidate.replica for candidate in ranking.candidates] == ["b", "a", "c"]


def test_weighted_least_request_divides_the_load_by_weight() -> None:
    fleet = [view("big", weight=4.0, inflight=6), view("small", inflight=1), view("off", weight=0)]
    ranking = build_policy("weighted_least_request", {}).rank(ask(), fleet)
    assert [candidate.replica for candidate in ranking.candidates] == ["big", "small", "off"]


def test_two_choices_never_takes_the_worst_and_not_always_the_best() -> None:
    fleet = [view(f"r{load}", inflight=load) for load in range(4)]
    picks = Counter(first("power_of_two", ask(draw=n / 1200), fleet) for n in range(1200))
    assert picks["r3"] == 0
    assert [round(picks[f"r{load}"] / 200) for load in range(3)] == [3, 2, 1]


def test_a_count_below_zero_does_not_win_for_ever() -> None:
    fleet = [view("a", inflight=-5), view("b", inflight=0)]
    picks = {first("least_request", ask(draw=draw), fleet) for draw in (0.1, 0.9)}
    assert picks == {"a", "b"}


def test_a_replica_that_leaves_moves_only_its_own_sessions() -> None:
    fleet = [view(f"r{n}") for n in range(5)]
    sessions = [f"session-{n}" for n in range(400)]
    before = {key: first("consistent_hash", ask(key), fleet) for key in sessions}
    after = {key: first("consistent_hash", ask(key), fleet[:-1]) for key in sessions}
    assert {key for key in sessions if before[key] != after[key]} == {
        key for key in sessions if before[key] == "r4"
    }
    shares = Counter(before.values())
    assert max(shares.values()) < 1.35 * 400 / 5


def test_consistent_hash_follows_weights_and_spreads_calls_without_a_session() -> None:
    fleet = [view("big", weight=3.0), view("small"), view("off", weight=0.0)]
    picks = Counter(first("consistent_hash", ask(f"s{n}"), fleet) for n in range(800))
    assert picks["off"] == 0
    assert 0.70 < picks["big"] / 800 < 0.80
    drawn = {first("consistent_hash", ask("", draw=n / 50), fleet) for n in range(50)}
    assert drawn == {"big", "small"}


class Load:
    """A fleet whose counts follow the choices of a policy, as the gateways count them."""

    def __init__(self, count: int, policy: str = "llm") -> None:
        self.views = {f"r{n}": view(f"r{n}") for n in range(count)}
        self.policy = build_policy(policy, {})
        self.total: Counter[str] = Counter()

    def send(self, question: BalanceAsk) -> str:
        replica = self.policy.rank(question, list(self.views.values())).candidates[0].replica
        self._add(replica, 1, question.prompt_tokens)
        self.total[replica] += 1
        return replica

    def finish(self, replica: str, tokens: int) -> None:
        self._add(replica, -1, -tokens)

    def _add(self, replica: str, requests: int, tokens: int) -> None:
        old = self.views[replica]
        self.views[replica] = replace(
            old,
            inflight=old.inflight + requests,
            inflight_tokens=old.inflight_tokens + tokens,
        )


@pytest.mark.parametrize("sessions", [200, 1])
def test_one_shared_prompt_makes_no_hot_spot(sessions: int) -> None:
    load = Load(8)
    for n in range(200):
        load.send(ask(f"tail-{n % sessions}", tokens=2000, draw=n / 200))
    assert max(load.total.values()) <= 2 * 200 / 8


@pytest.mark.parametrize("name", NAMES)
def test_a_sequential_trickle_uses_every_replica(name: str) -> None:
    load = Load(2, name)
    rng = random.Random(1)
    for n in range(100):
        question = ask(f"session-{n % 10}", sequence=n, draw=rng.random())
        load.finish(load.send(question), question.prompt_tokens)
    assert min(load.total.values()) >= 20


def test_two_equal_workers_share_an_open_load() -> None:
    load = Load(2)
    rng = random.Random(7)
    running: list[str] = []
    for n in range(600):
        running.append(load.send(ask(f"u{n}", tokens=8000, draw=rng.random())))
        if len(running) > 10:
            load.finish(running.pop(0), 8000)
    assert 0.45 <= load.total["r0"] / 600 <= 0.55


def test_a_hot_or_light_replica_gets_less() -> None:
    pending = {"inflight": 5, "inflight_tokens": 20_000}
    cool = view("cool", gpu_temperature_celsius=84.0, **pending)
    hot = view("hot", gpu_temperature_celsius=95.0, **pending)
    light = view("light", weight=0.25, **pending)
    picks = {first("llm", ask(f"s{n}"), [cool, hot, light]) for n in range(20)}
    assert picks == {"cool"}


@dataclass(frozen=True)
class Wild:
    name: str = "wild"

    def score(self, question: BalanceAsk, views: Sequence[ReplicaView]) -> Sequence[float]:
        return [float("nan"), -5.0, 7.0][: len(views)]


def test_wild_scores_are_clamped() -> None:
    policy = Policy("wild", Best(), ((Wild(), 2.0),))
    ranking = policy.rank(ask(), [view("a"), view("b"), view("c")])
    assert ranking.candidates[0].replica == "c"
    assert sorted(candidate.score for candidate in ranking.candidates) == [0.0, 0.0, 1.0]


def test_unknown_policies_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean least_request\? known: consistent_hash"):
        build_policy("least_requests", {})


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("random", {"seed": 1}, "options.seed: random takes no options"),
        ("llm", {"surcharg": 1}, "did you mean surcharge"),
        ("llm", {"name": "x"}, "no such option"),
        ("llm", {"fresh_s": 0}, "above 0"),
        ("llm", {"fresh_s": float("nan")}, "must be a number"),
        ("llm", {"spread": True}, "must be a number"),
        ("llm", {"spread": "1"}, "must be a number"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        build_policy(name, options)


def test_options_take_effect() -> None:
    fleet = [view("a", recent_s=0.05), view("b", inflight=1)]
    assert first("llm", ask(tokens=10), fleet) == "a"
    worn = build_policy("llm", {"recent_weight": 100})
    assert worn.rank(ask(tokens=10), fleet).candidates[0].replica == "b"
