from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tierway.policies.balance import Policy
from tierway.policies.errors import ConfigError
from tierway.policies.pickers import InTurn
from tierway.policies.policyset import PolicySet
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
        "tiers.large.policy",
    ]


def test_policies_of_others_come_with_a_larger_registry() -> None:
    mine = {**POLICIES, "mine": lambda options: Policy("mine", InTurn())}
    policies = PolicySet.build([tier("small", "mine")], registry=mine)
    assert names(policies) == {"small": "mine"}
    assert names(policies.with_policy("small", "llm").with_policy("small", "mine")) == {
        "small": "mine"
    }
