"""The tier of a call: names, dial, classifier and fleet brought together."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeClock, make_call

from tierway.policies.errors import BadCall
from tierway.policies.names import Aliases
from tierway.policies.types import Ask, Call, Controls, Model, Tier
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec
from tierway.router.route import RouteRules, TierRouter

SMALL = Model(
    "qwen", "small", served_name="Qwen/Qwen2.5", revision="r1", context_tokens=32768,
    capabilities=frozenset({"tools", "json"}),
)  # fmt: skip
LARGE = Model("llama", "large", context_tokens=131072)
CLOUD = Model("gpt", "cloud", cloud=True)
TIERS = (
    Tier("small", 0, "7b", (SMALL,)),
    Tier("large", 1, "175b", (LARGE,)),
    Tier("cloud", 2, "cloud", (CLOUD,)),
    Tier("empty", 3, "cloud", ()),
)
ALIASES: Aliases = {
    "prod": (("qwen", 95.0), ("gpt", 5.0)),
    "gpt-*": (("auto", 1.0),),
}


class Scale:
    """A classifier that says what it is told and counts how often it is asked."""

    def __init__(self, **probabilities: float) -> None:
        self.probabilities = probabilities or {"7b": 0.9, "175b": 0.95, "cloud": 0.96}
        self.asked: list[Any] = []

    def classify(self, ask: Ask, vector: Any) -> Mapping[str, float]:
        self.asked.append(vector)
        return self.probabilities


class Rig:
    def __init__(self, *, draw: float = 0.0, aliases: Aliases = ALIASES, **rules: Any) -> None:
        specs = [
            ReplicaSpec(model.name, model.name, model.tier, "") for model in (SMALL, LARGE, CLOUD)
        ]
        self.fleet = Fleet(specs, clock=FakeClock())
        self.scale, self.draw = Scale(), draw
        self.router = TierRouter(
            TIERS,
            self.scale,
            self.fleet,
            rules=RouteRules(aliases=aliases, **rules),
            draw=lambda: self.draw,
        )

    def tiers(self, call: Call, vector: Any = None) -> list[str]:
        decision = self.router.decide(call, self.router.resolve(call), vector)
        return [step.tier for step in decision.plan]


def controlled(call: Call, **fields: Any) -> Call:
    return replace(call, controls=Controls(**fields))


def test_auto_takes_the_cheapest_tier_that_answers_well_then_the_stronger() -> None:
    rig = Rig()
    assert rig.tiers(make_call(), vector="the vector") == ["small", "large", "cloud"]
    assert rig.scale.asked == ["the vector"]
    rig.scale.probabilities = {"7b": 0.2, "175b": 0.9, "cloud": 0.95}
    assert rig.tiers(make_call())[0] == "large"


@pytest.mark.parametrize(("quality", "tier"), [(0.0, "small"), (0.5, "large"), (1.0, "cloud")])
def test_the_dial_of_the_call_goes_before_the_configured_one(quality: float, tier: str) -> None:
    for rig, call in [
        (Rig(quality=0.0), controlled(make_call(), quality=quality)),
        (Rig(quality=quality), make_call()),
    ]:
        rig.scale.probabilities = {"7b": 0.5, "175b": 0.9, "cloud": 0.95}
        assert rig.router.quality(call) == quality
        assert rig.tiers(call)[0] == tier
        decision = rig.router.decide(call, rig.router.resolve(call), None)
        assert decision.quality == quality


def test_a_stored_answer_must_meet_the_askers_dial() -> None:
    rig = Rig()
    stored = {"small": 0.5, "large": 0.9, "cloud": 0.95}
    cheap = rig.router.serves_for(controlled(make_call(), quality=0.0))
    best = rig.router.serves_for(controlled(make_call(), quality=1.0))
    assert cheap("small", stored)
    assert not best("small", stored)
    assert best("cloud", stored)
    assert not cheap("a tier of last year", stored)


@pytest.mark.parametrize("name", ["small", "qwen", "Qwen/Qwen2.5"])
def test_a_name_pins_its_tier_and_asks_no_classifier(name: str) -> None:
    rig = Rig()
    assert rig.tiers(make_call(model=name))[0] == "small"
    assert rig.scale.asked == []


def test_an_alias_is_drawn_by_weight_and_a_pattern_may_lead_to_auto() -> None:
    assert Rig(draw=0.94).tiers(make_call(model="prod"))[0] == "small"
    assert Rig(draw=0.96).tiers(make_call(model="prod"))[0] == "cloud"
    rig = Rig()
    assert rig.router.resolve(make_call(model="gpt-4o")).target.auto
    assert len(rig.scale.asked) == 0


def test_an_unknown_name_is_refused_or_classified() -> None:
    call = make_call(model="nothing-like-it")
    with pytest.raises(BadCall) as caught:
        Rig().router.resolve(call)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "qwen" in caught.value.public
    assert Rig(unknown_model="auto").tiers(call)[0] == "small"


def test_the_tier_header_goes_before_the_name() -> None:
    call = controlled(make_call(model="qwen"), tier="large")
    assert Rig().tiers(call)[0] == "large"
    with pytest.raises(BadCall) as caught:
        Rig().router.resolve(controlled(make_call(), tier="huge"))
    assert (caught.value.status, caught.value.param) == (400, "x-tierway-tier")


def test_embeddings_are_not_classified() -> None:
    embedder = Model("bge", "small", kind="embedding")
    tiers, scale = (Tier("small", 0, "7b", (SMALL, embedder)),), Scale()
    fleet = Fleet([ReplicaSpec("bge", "bge", "small", "")], clock=FakeClock())
    router = TierRouter(tiers, scale, fleet, rules=RouteRules(), draw=lambda: 0.0)
    call = replace(make_call(), wire="embeddings")
    decision = router.decide(call, router.resolve(call), None)
    assert [model.name for step in decision.plan for model in step.models] == ["bge"]
    assert scale.asked == []


def test_a_tier_that_is_out_is_passed_over_while_another_is_up() -> None:
    rig = Rig()
    rig.fleet.set_draining("qwen", True)
    call = make_call()
    decision = rig.router.decide(call, rig.router.resolve(call), None)
    assert decision.tier == "large"
    assert ("small", "unavailable") in decision.excluded
    for name in ("llama", "gpt"):
        rig.fleet.set_draining(name, True)
    assert rig.tiers(call)[0] == "small"


@pytest.mark.parametrize(
    ("default", "tenants", "asked", "cloud"),
    [
        ("prefer_on_prem", None, None, True),
        ("on_prem_only", "prefer_cloud", "prefer_cloud", False),
        ("prefer_on_prem", "on_prem_only", "prefer_cloud", False),
        ("prefer_on_prem", None, "on_prem_only", False),
    ],
)
def test_on_prem_only_of_anybody_keeps_the_cloud_out(
    default: str, tenants: str | None, asked: str | None, cloud: bool
) -> None:
    placements = {"acme": tenants} if tenants else {}
    rig = Rig(placement=default, placements=placements)
    call = controlled(make_call(tenant="acme"), placement=asked)
    assert ("cloud" in rig.tiers(call)) is cloud


def test_the_names_for_the_key_hold_every_revision_that_may_answer() -> None:
    def names(**given: Any) -> str:
        call = make_call(model=given.get("model", "auto"))
        tier = given.get("tier")
        return Rig().router.resolve(controlled(call, tier=tier) if tier else call).names

    everything = names()
    assert "qwen@r1" in everything
    assert "llama@" in everything
    assert "llama@" not in names(model="qwen")
    assert names(model="prod").split("\x1e") == ["prod", "gpt@", "qwen@r1"]
    assert names(model="qwen", tier="large") != names(model="qwen", tier="cloud")


def test_the_names_do_not_depend_on_the_draw() -> None:
    low, high = (Rig(draw=draw).router.resolve(make_call(model="prod")) for draw in (0.0, 0.99))
    assert low.names == high.names
    assert low.target != high.target


def test_the_names_hold_the_rarest_target_and_only_those_of_the_aliases_that_fit() -> None:
    aliases = {
        "prod": (("qwen", 1e9), ("llama", 1e-9), ("gpt", 1.0)),
        "plain": (("llama", 1.0),),
        "x[1]": (("qwen", 1.0), ("gpt", 1.0)),
        "prod-*": (("gpt", 1.0), ("large", 1.0)),
    }
    router = Rig(aliases=aliases, unknown_model="auto").router

    def reached(model: str) -> list[str]:
        return router.resolve(make_call(model=model)).names.split("\x1e")[1:]

    assert reached("prod") == ["gpt@", "llama@", "qwen@r1"]
    assert reached("plain") == ["llama@"]
    assert reached("x[1]") == ["gpt@", "qwen@r1"]
    assert reached("prod-7") == ["gpt@", "llama@"]
    assert reached("other") == reached("auto") == ["gpt@", "llama@", "qwen@r1"]


def test_a_new_name_costs_about_as_much_as_a_known_one() -> None:
    router = Rig().router
    calls = [make_call(model=f"gpt-{number}") for number in range(200)]

    def spent_s() -> float:
        began = time.process_time()
        for call in calls:
            router.resolve(call)
        return time.process_time() - began

    assert spent_s() < 50 * spent_s()  # a draw for each share in a thousand takes hundreds


def test_long_names_are_not_kept() -> None:
    router = Rig(unknown_model="auto").router
    tracemalloc.start()
    try:
        for number in range(20):
            router.resolve(make_call(model=f"{number:0>1000000}"))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 5_000_000


def test_the_names_stay_right_after_more_names_than_are_kept() -> None:
    router = Rig(unknown_model="auto").router
    first = router.resolve(make_call(model="n0")).names
    for number in range(1, 1100):
        router.resolve(make_call(model=f"n{number}"))
    assert router.resolve(make_call(model="n0")).names == first


def test_cards_list_auto_tiers_models_and_plain_aliases_once() -> None:
    cards = {card["id"]: card for card in Rig().router.cards()}
    assert list(cards) == ["auto", "small", "large", "cloud", "qwen", "llama", "gpt", "prod"]
    assert cards["auto"]["context_window"] == 131072
    assert (cards["small"]["context_window"], cards["gpt"]["context_window"]) == (32768, None)
    assert cards["qwen"]["capabilities"] == ["json", "tools"]
    assert {card["object"] for card in cards.values()} == {"model"}
