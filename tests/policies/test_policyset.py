from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import InTurn
from tierway.policies.policyset import Change, PolicySet
from tierway.policies.registry import POLICIES
from tierway.policies.types import Tier


def tier(name: str, policy: str = "llm", plain: str = "least_request", **options: float) -> Tier:
    return Tier(name, 0, "7b", (), policy=policy, plain_policy=plain, options=options)


def names(policies: PolicySet) -> dict[str, str]:
    return {name: policies.for_tier(name).name for name in policies.tiers}


def test_the_switch_puts_every_tier_on_its_plain_policy_and_back() -> None:
    policies = PolicySet.build([tier("small"), tier("large", "consistent_hash", "round_robin")])
    assert names(policies) == {"small": "llm", "large": "consistent_hash"}
    plain = policies.with_llm_aware(False)
    assert names(plain) == {"small": "least_request", "large": "round_robin"}
    assert names(plain.with_llm_aware(True)) == names(policies)
    assert [policies.version, plain.version] == [1, 2]


def test_a_change_is_a_new_set_and_leaves_the_old_one_alone() -> None:
    old = PolicySet.build([tier("small"), tier("large")], version=7)
    new = old.with_policy("small", "llm", {"surcharge": 8})
    assert new.version == 8
    assert new.tiers["small"].options == {"surcharge": 8}
    assert new.for_tier("large") is old.for_tier("large")
    assert new.for_tier("small") != old.for_tier("small")
    assert old.version == 7
    with pytest.raises(FrozenInstanceError):
        old.version = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        old.tiers["x"] = old.tiers["small"]  # type: ignore[index]


def test_a_change_while_switched_off_waits_for_the_switch() -> None:
    off = PolicySet.build([tier("small")], llm_aware=False)
    changed = off.with_policy("small", "random")
    assert names(changed) == {"small": "least_request"}
    assert names(changed.with_llm_aware(True)) == {"small": "random"}


@pytest.mark.parametrize(
    ("where", "name", "options", "fault"),
    [
        ("small", "lmm", {}, r"tiers\.small\.policy = 'lmm': did you mean llm"),
        ("small", "llm", {"bogus": 1}, r"tiers\.small\.options\.bogus = 1"),
        ("huge", "llm", {}, r"tiers\.huge: no such tier; known: small"),
    ],
)
def test_a_bad_change_is_refused(
    where: str, name: str, options: dict[str, int], fault: str
) -> None:
    policies = PolicySet.build([tier("small")])
    with pytest.raises(ConfigError, match=fault):
        policies.with_policy(where, name, options)
    assert names(policies) == {"small": "llm"}


def test_a_bad_set_is_refused_whole_with_all_its_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        PolicySet.build([tier("small", bogus=1.0), tier("medium"), tier("large", plain="nope")])
    assert [fault.split(" ")[0] for fault in caught.value.faults] == [
        "tiers.small.options.bogus",
        "tiers.large.plain_policy",
    ]


def test_policies_of_others_come_with_a_larger_registry() -> None:
    mine = {**POLICIES, "mine": lambda options: Policy("mine", InTurn())}
    policies = PolicySet.build([tier("small", "mine")], registry=mine)
    assert names(policies) == {"small": "mine"}
    assert names(policies.with_policy("small", "llm").with_policy("small", "mine")) == {
        "small": "mine"
    }


def test_a_shadow_is_set_and_ended_and_the_policy_in_force_stays() -> None:
    policies = PolicySet.build([tier("small"), tier("large")])
    shadowed = policies.with_shadow("small", "llm", {"surcharge": 8})
    assert shadowed.for_tier("small") is policies.for_tier("small")
    assert shadowed.tiers["small"].shadow is not None
    assert shadowed.tiers["small"].shadow_options == {"surcharge": 8}
    assert shadowed.tiers["large"] is policies.tiers["large"]
    ended = shadowed.with_shadow("small", None)
    assert (ended.tiers["small"].shadow, ended.version) == (None, 3)
    with pytest.raises(ConfigError, match=r"tiers\.small\.shadow_policy = 'lmm'"):
        policies.with_shadow("small", "lmm")
    with pytest.raises(ConfigError, match=r"tiers\.small\.shadow_options\.bogus"):
        policies.with_shadow("small", "llm", {"bogus": 1})


def test_a_tier_knows_the_version_that_last_changed_it() -> None:
    policies = PolicySet.build([tier("small"), tier("large")], version=4)
    changed = policies.with_llm_aware(False).with_policy("small", "random")
    assert {name: one.since for name, one in changed.tiers.items()} == {"small": 6, "large": 4}


def test_changes_that_come_together_are_one_version_or_none() -> None:
    policies = PolicySet.build([tier("small"), tier("large")])
    changes = [
        Change("small", "policy", "random"),
        Change("small", "plain_policy", "round_robin"),
        Change("large", "shadow_policy", "power_of_two"),
    ]
    changed = policies.with_changes(changes)
    assert changed.version == 2
    assert names(changed) == {"small": "random", "large": "llm"}
    assert names(changed.with_llm_aware(False)) == {
        "small": "round_robin",
        "large": "least_request",
    }
    with pytest.raises(ConfigError) as caught:
        policies.with_changes(
            [*changes, Change("small", "policy", "x"), Change("large", "plain_policy", "y")]
        )
    assert [fault.split(" ")[0] for fault in caught.value.faults] == [
        "tiers.small.policy",
        "tiers.large.plain_policy",
    ]


swaps = st.lists(
    st.one_of(
        st.tuples(st.just("aware"), st.booleans()),
        st.tuples(
            st.sampled_from(["policy", "shadow_policy"]),
            st.sampled_from(["small", "large", "none"]),
            st.sampled_from([*sorted(POLICIES), "nothing"]),
            st.sampled_from([{}, {"surcharge": 2}, {"bogus": 1}]),
        ),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(swaps=swaps)
def test_whatever_is_switched_the_set_is_whole_and_versions_rise(swaps: list[Any]) -> None:
    current = PolicySet.build([tier("small"), tier("large")])
    for kind, *rest in swaps:
        before = current
        try:
            if kind == "aware":
                current = current.with_llm_aware(rest[0])
            elif kind == "policy":
                current = current.with_policy(*rest)
            else:
                current = current.with_shadow(*rest)
        except ConfigError:
            assert current is before
        else:
            assert current.version == before.version + 1
        assert set(current.tiers) == {"small", "large"}
        assert set(names(current).values()) <= set(POLICIES)
