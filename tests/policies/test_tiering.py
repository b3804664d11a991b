from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from fakes import make_call
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.errors import BadCall
from tierway.policies.names import resolve
from tierway.policies.tiering import cheapest, choose, serves
from tierway.policies.types import Ask, Call, Controls, Model, Tier, TierDecision, Turn

HARD = {"7b": 0.4, "70b": 0.7, "175b": 0.8, "cloud": 0.82}
EASY = {"7b": 0.8, "70b": 0.81, "175b": 0.82, "cloud": 0.82}


def model(name: str, tier: str, *capabilities: str, **more: Any) -> Model:
    return Model(name, tier, capabilities=frozenset(capabilities), **more)


SMALL = Tier("small", 0, "7b", (model("qwen-7b", "small", "json", context_tokens=8192),))
MEDIUM = Tier(
    "medium",
    1,
    "70b",
    (
        model("llama-70b", "medium", "tools", context_tokens=32768, served_name="meta/llama-70b"),
        model("qwen-72b", "medium", "tools", "json", context_tokens=131072),
    ),
)
LARGE = Tier("large", 2, "175b", (model("big", "large", "tools", "json", "vision"),))
CLOUD = Tier("cloud", 3, "cloud", (model("gpt", "cloud", "tools", "audio", cloud=True),))
TIERS = [MEDIUM, CLOUD, SMALL, LARGE]


def call(name: str = "auto", wire: str = "chat", tier: str | None = None, **facts: Any) -> Call:
    ask = Ask(turns=(Turn("user", "q"),), question="q", **facts)
    return Call(
        id="1",
        wire=wire,  # type: ignore[arg-type]
        raw=b"{}",
        body={},
        ask=ask,
        model=name,
        controls=Controls(tier=tier),
    )


def decide(request: Call, p: dict[str, float] | None = None, **more: Any) -> TierDecision:
    given_quality = more.pop("quality", 0.5)
    return choose(request, more.pop("tiers", TIERS), p or {}, quality=given_quality, **more)


def names(decision: TierDecision) -> list[str]:
    return [plan.tier for plan in decision.plan]


@pytest.mark.parametrize(
    ("p", "quality", "tier"),
    [
        (EASY, 0.5, "small"),
        (HARD, 0.5, "medium"),
        (HARD, 0.7, "large"),
        (HARD, 1.0, "cloud"),
        (HARD, 0.0, "small"),
        (EASY, 1.0, "large"),
    ],
)
def test_the_cheapest_tier_within_the_tolerance_is_chosen(
    p: dict[str, float], quality: float, tier: str
) -> None:
    decision = decide(call(), p, quality=quality)
    assert decision.tier == tier
    assert decision.reason == "classifier"
    assert decision.probabilities == {
        "small": p["7b"],
        "medium": p["70b"],
        "large": p["175b"],
        "cloud": p["cloud"],
    }


def test_the_plan_degrades_upwards_then_downwards_and_to_the_cloud_last() -> None:
    assert names(decide(call(), HARD)) == ["medium", "large", "small", "cloud"]
    assert names(decide(call(), HARD, quality=1.0)) == ["cloud", "large", "medium", "small"]


def test_without_probabilities_it_is_the_middle_tier() -> None:
    decision = decide(call())
    assert (decision.tier, decision.reason) == ("medium", "unclassified")
    assert decide(call(), tiers=[LARGE]).reason == "only-choice"


@pytest.mark.parametrize(
    ("name", "tier", "first", "reason"),
    [
        ("large", "large", "big", "pinned"),
        ("qwen-72b", "medium", "qwen-72b", "model"),
        ("meta/llama-70b", "medium", "llama-70b", "model"),
        ("prod", "small", "qwen-7b", "alias"),
        ("claude-3", "cloud", "gpt", "alias"),
    ],
)
def test_a_name_goes_where_it_is_served(name: str, tier: str, first: str, reason: str) -> None:
    aliases = {"prod": [("qwen-7b", 1.0)], "claude-*": [("cloud", 1.0)]}
    decision = decide(call(name), aliases=aliases)
    assert decision.tier == tier
    assert decision.plan[0].models[0].name == first
    assert decision.reason == reason
    assert decision.probabilities == {}
    assert not resolve(call(name), TIERS, aliases).auto


def test_a_pinned_model_comes_alone_and_its_neighbours_next() -> None:
    plan = decide(call("qwen-72b")).plan
    assert [m.name for m in plan[0].models] == ["qwen-72b"]
    assert (plan[1].tier, [m.name for m in plan[1].models]) == ("medium", ["llama-70b"])


def test_aliases_may_mean_auto_and_are_drawn_by_weight() -> None:
    aliases = {"gpt-*": [("auto", 1.0)], "prod": [("qwen-7b", 95.0), ("gpt", 5.0)]}
    assert resolve(call("gpt-4o"), TIERS, aliases).auto
    assert decide(call("gpt-4o"), HARD, aliases=aliases).reason == "classifier"
    drawn = [decide(call("prod"), aliases=aliases, draw=n / 200).tier for n in range(200)]
    assert Counter(drawn) == {"small": 190, "cloud": 10}


def test_an_alias_may_stand_in_front_of_a_model() -> None:
    aliases = {"qwen-7b": [("qwen-72b", 1.0)]}
    assert decide(call("qwen-7b"), aliases=aliases).plan[0].models[0].name == "qwen-72b"


@pytest.mark.parametrize("aliases", [{}, {"nope": [("gone", 1.0)]}])
def test_an_unknown_model_is_told_what_exists(aliases: dict[str, list[tuple[str, float]]]) -> None:
    with pytest.raises(
        BadCall, match=r"'nope' does not exist\. Available: auto, small, medium"
    ) as caught:
        decide(call("nope"), aliases=aliases)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "qwen-72b" in caught.value.public
    assert decide(call("nope"), HARD, aliases=aliases, unknown_model="auto").tier == "medium"


def test_the_tier_header_overrides_the_name() -> None:
    decision = decide(call("qwen-7b", tier="large"))
    assert (decision.tier, decision.reason) == ("large", "pinned")
    assert decide(call("qwen-7b", tier="auto"), HARD).reason == "classifier"
    with pytest.raises(BadCall, match="Tiers: small, medium, large, cloud") as caught:
        decide(call(tier="huge"))
    assert caught.value.status == 400


def test_a_long_conversation_goes_to_a_window_that_holds_it() -> None:
    decision = decide(call(text_bytes=3 * 17_000, max_tokens=1000), EASY)
    assert decision.tier == "medium"
    assert ("qwen-7b", "context window too small") in decision.excluded
    assert "small" not in names(decision)


def test_bytes_bound_the_tokens_from_above() -> None:
    wild = {"estimate_tokens": lambda ask: 10**9}
    assert decide(call(text_bytes=8000), EASY, **wild).tier == "small"
    assert decide(call(text_bytes=8000, max_tokens=500), EASY, **wild).tier == "medium"
    exact = {"estimate_tokens": lambda ask: 5000}
    assert decide(call(text_bytes=60_000), EASY, **exact).tier == "small"


@pytest.mark.parametrize(
    ("facts", "tiers", "lost"),
    [
        ({"has_tools": True}, {"medium", "large", "cloud"}, ("qwen-7b", "no tools")),
        ({"wants_json": True}, {"small", "medium", "large"}, ("gpt", "no json")),
        ({"media": ("image",)}, {"large"}, ("qwen-7b", "no vision")),
        ({"media": ("audio",)}, {"cloud"}, ("big", "no audio")),
    ],
)
def test_what_a_model_cannot_do_keeps_it_out(
    facts: dict[str, Any], tiers: set[str], lost: tuple[str, str]
) -> None:
    decision = decide(call(**facts), EASY)
    assert set(names(decision)) == tiers
    assert lost in decision.excluded
    assert set(decision.probabilities) == tiers


def test_data_that_must_stay_never_meets_the_cloud() -> None:
    decision = decide(call(), HARD, quality=1.0, placement="on_prem_only")
    assert names(decision) == ["large", "medium", "small"]
    with pytest.raises(BadCall, match="must stay on premise") as caught:
        decide(call("gpt"), placement="on_prem_only")
    assert caught.value.code == "placement"


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (call("small", text_bytes=100_000), "context_length_exceeded", "messages"),
        (call("small", has_tools=True), "unsupported_capability", "tools"),
        (call("small", media=("image",)), "unsupported_capability", "messages"),
        (call("gpt", wants_json=True), "unsupported_capability", "response_format"),
        (call("auto", media=("video",)), "unsupported_capability", "messages"),
        (call("auto", wire="embeddings"), "unsupported_kind", "model"),
    ],
)
def test_a_call_nobody_can_take_is_refused_with_the_reason(
    request_: Call, code: str, param: str
) -> None:
    with pytest.raises(BadCall) as caught:
        decide(request_, EASY)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_the_refusal_of_a_long_prompt_names_both_sizes() -> None:
    with pytest.raises(BadCall, match=r"about 33341 tokens .* 8192\."):
        decide(call("qwen-7b", text_bytes=100_000))


def test_tiers_that_are_out_are_passed_over_unless_nothing_is_left() -> None:
    decision = decide(call(), HARD, available={"small", "large", "cloud"})
    assert names(decision) == ["large", "small", "cloud"]
    assert ("medium", "unavailable") in decision.excluded
    assert decision.probabilities["medium"] == 0.7
    assert names(decide(call(), HARD, available=set())) == names(decide(call(), HARD))
    pinned = decide(call("medium"), available={"small"})
    assert names(pinned) == ["medium", "small"]


def test_embeddings_never_change_the_model() -> None:
    embedders = tuple(model(f"e{n}", "small", kind="embedding") for n in range(2))
    tiers = [replace(SMALL, models=(*SMALL.models, *embedders)), MEDIUM]
    decision = decide(call("auto", wire="embeddings"), tiers=tiers)
    assert [(p.tier, [m.name for m in p.models]) for p in decision.plan] == [("small", ["e0"])]
    assert decide(call("e1", wire="embeddings"), tiers=tiers).plan[0].models[0].name == "e1"
    assert decide(call("auto", wire="chat"), EASY, tiers=tiers).plan[0].models == SMALL.models


def test_completions_take_base_models_that_chat_does_not() -> None:
    base = Tier("base", 0, "7b", (model("base-7b", "base", kind="completion"),))
    assert decide(call("base", wire="completions"), tiers=[base]).tier == "base"
    with pytest.raises(BadCall, match="kind chat"):
        decide(call("base", wire="messages"), tiers=[base])


def test_an_answer_serves_askers_whose_dial_would_choose_no_stronger_tier() -> None:
    stored = {tier.name: HARD[tier.model_class] for tier in TIERS}
    assert [serves("medium", stored, TIERS, q) for q in (0.0, 0.5, 0.7, 1.0)] == [
        True,
        True,
        False,
        False,
    ]
    assert serves("cloud", stored, TIERS, 1.0)
    assert serves("small", {}, TIERS, 1.0)
    assert not serves("retired", stored, TIERS, 0.0)


shares = st.lists(st.floats(0, 1), min_size=4, max_size=4).map(sorted)


@given(shares, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_dial_never_chooses_a_weaker_tier(
    values: list[float], one: float, other: float
) -> None:
    ordered = sorted(TIERS, key=lambda tier: tier.rank)
    stored = {tier.name: value for tier, value in zip(ordered, values, strict=True)}
    low, high = (cheapest(TIERS, stored, quality) for quality in sorted((one, other)))
    assert low.rank <= high.rank
    assert serves(high.name, stored, TIERS, min(one, other))
    assert stored[cheapest(TIERS, stored, 1.0).name] == max(values)


def test_a_tier_without_models_is_named() -> None:
    tiers = [Tier("small", 0, "7b", (Model("s", "small"),)), Tier("large", 1, "175b", ())]
    with pytest.raises(BadCall, match="The tier large has no model") as caught:
        choose(make_call(model="large"), tiers, {}, quality=0.5)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(BadCall) as caught:
        choose(make_call(model="huge"), tiers, {}, quality=0.5)
    assert "large" not in caught.value.public
