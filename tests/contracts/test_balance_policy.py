"""The contract of a BalancePolicy, over all that have a name."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.policyset import PolicySet
from tierway.policies.protocols import BalancePolicy
from tierway.policies.registry import POLICIES, build_policy
from tierway.policies.types import BalanceAsk, Model, ReplicaView, Tier

every = pytest.mark.parametrize(
    "policy", [build_policy(name, {}) for name in sorted(POLICIES)], ids=sorted(POLICIES)
)
unsure = st.none() | st.integers(0, 500)
views = st.lists(
    st.builds(
        ReplicaView,
        id=st.sampled_from([f"m@{letter}:1" for letter in "abcdef"]),
        model=st.just("m"),
        tier=st.just("small"),
        inflight=st.integers(0, 1000),
        inflight_tokens=st.integers(0, 10**7),
        weight=st.floats(0.01, 100),
        available=st.booleans(),
        unavailable_reason=st.just("breaker open"),
        waiting=unsure,
        running=unsure,
        kv_usage=st.none() | st.floats(0, 1),
        facts_at_s=st.none() | st.floats(-1e6, 0),
    ),
    max_size=6,
    unique_by=lambda view: view.id,
)
asks = st.builds(
    BalanceAsk,
    session=st.text(max_size=20),
    prompt_tokens=st.integers(1, 10**6),
    sequence=st.integers(0, 10**9),
    draw=st.floats(0, 1, exclude_max=True),
    tried=st.sets(st.sampled_from(["m@a:1", "m@b:1", "m@z:1"])).map(frozenset),
)


@every
@settings(max_examples=40)
@given(ask=asks, found=views)
def test_every_replica_is_ranked_or_left_out_with_a_reason(
    policy: BalancePolicy, ask: BalanceAsk, found: list[ReplicaView]
) -> None:
    ranking = policy.rank(ask, found)
    chosen = [candidate.replica for candidate in ranking.candidates]
    left_out = dict(ranking.excluded)
    assert sorted([*chosen, *left_out]) == sorted(view.id for view in found)
    fit = {view.id for view in found if view.available and view.id not in ask.tried}
    assert set(chosen) == fit
    assert all(left_out.values())
    assert ranking.policy == policy.name
    for candidate in ranking.candidates:
        assert 0.0 <= candidate.score <= 1.0
        assert all(0.0 <= part <= 1.0 for part in candidate.reasons.values())


@every
@settings(max_examples=40)
@given(ask=asks, found=views, seed=st.integers())
def test_the_order_in_which_replicas_are_given_does_not_matter(
    policy: BalancePolicy, ask: BalanceAsk, found: list[ReplicaView], seed: int
) -> None:
    mixed = random.Random(seed).sample(found, len(found))
    assert policy.rank(ask, mixed) == policy.rank(ask, found)


@every
def test_it_holds_no_state(policy: BalancePolicy) -> None:
    ask = BalanceAsk("s", 10, 7, 0.25)
    fleet = [ReplicaView(f"m@{letter}:1", "m", "small", inflight=3) for letter in "abc"]
    assert len({policy.rank(ask, fleet).candidates[0].replica for _ in range(5)}) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_set_builds_every_policy_under_its_name(name: str) -> None:
    tier = Tier("small", 0, "7b", (Model("m", "small"),), policy=name, plain_policy="random")
    made = PolicySet.build([tier])
    assert made.for_tier("small").name == name
    assert made.with_llm_aware(False).for_tier("small").name == "random"
