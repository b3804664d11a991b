"""Faults: their words, the directive in a prompt, the switch."""

from __future__ import annotations

from typing import Any

import pytest

from tierway.bench.faults import Fault, FaultSwitch, directive, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("500", Fault("status", 0, 500)),
        ("429 7", Fault("status", 7, 429)),
        ("503  2", Fault("status", 2, 503)),
        ("refuse", Fault("refuse")),
        ("hang", Fault("hang")),
        ("stall 5", Fault("stall", 5)),
        ("cut", Fault("cut", 0)),
        ("broken-json 5", Fault("broken-json", 5)),
        ("error-event 3", Fault("error-event", 3)),
        ("slow 0.5", Fault("slow", 0.5)),
    ],
)
def test_words(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    ["", "200", "600", "5000", "explode", "hang 3", "cut x", "cut -1", "slow nan", "cut 1 2"],
)
def test_a_wrong_word_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are a status") as caught:
        parse_fault(text)
    assert repr(text) in str(caught.value)


def test_a_prompt_may_ask_for_a_fault() -> None:
    assert directive("Hello [[fault:cut 5]] world [[fault:500]]") == Fault("cut", 5)
    assert directive("no [[answer 5]] fault: 500") is None
    with pytest.raises(ValueError, match="boom"):
        directive("[[fault:boom]]")


def test_the_switch_hits_everybody_until_turned_off() -> None:
    switch = FaultSwitch(0)
    assert switch.draw(inference=True) is None
    switch.set({"fault": "500"})
    assert [switch.draw(inference=True) for _ in range(3)] == [Fault("status", 0, 500)] * 3
    assert switch.state == {"fault": "500", "share": 1.0, "count": None, "scope": "inference"}
    switch.set({"fault": None})
    assert switch.draw(inference=True) is None
    assert switch.state == {"fault": None}


def test_a_count_runs_out() -> None:
    switch = FaultSwitch(0)
    switch.set({"fault": "hang", "count": 2})
    assert switch.draw(inference=True) == Fault("hang")
    assert switch.state["count"] == 1
    assert switch.draw(inference=True) == Fault("hang")
    assert switch.draw(inference=True) is None
    assert switch.state == {"fault": None}


def test_a_share_is_drawn_from_the_seed() -> None:
    def hits(seed: int) -> list[bool]:
        switch = FaultSwitch(seed)
        switch.set({"fault": "500", "share": 0.3})
        return [switch.draw(inference=True) is not None for _ in range(400)]

    assert hits(1) == hits(1) != hits(2)
    assert 80 < sum(hits(1)) < 160


def test_health_and_metrics_are_hit_in_scope_all_only() -> None:
    switch = FaultSwitch(0)
    switch.set({"fault": "refuse"})
    assert switch.draw(inference=False) is None
    switch.set({"fault": "refuse", "scope": "all"})
    assert switch.draw(inference=False) == Fault("refuse")


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault": "boom"},
        {"fault": "500", "share": 2},
        {"fault": "500", "share": True},
        {"fault": "500", "count": 0},
        {"fault": "500", "count": 1.5},
        {"fault": "500", "scope": "some"},
        {"fault": "500", "chance": 1},
    ],
)
def test_a_wrong_switch_changes_nothing(wrong: dict[str, Any]) -> None:
    switch = FaultSwitch(0)
    switch.set({"fault": "503 2", "count": 9})
    before = switch.state
    with pytest.raises(ValueError, match="allowed"):
        switch.set(wrong)
    assert switch.state == before


def test_troubles_of_the_gpus_stand_beside_a_fault() -> None:
    switch = FaultSwitch(0)
    assert (switch.throttle, switch.temperature_celsius) == (1.0, None)
    switch.set({"fault": "500", "count": 1, "throttle": 0.5, "temperature": 95})
    assert (switch.throttle, switch.temperature_celsius) == (0.5, 95.0)
    assert switch.draw(inference=True) is not None
    assert switch.draw(inference=True) is None  # the count ran out, the throttle did not
    assert switch.state == {"fault": None, "throttle": 0.5, "temperature": 95.0}
    switch.set({"temperature": 40})
    assert (switch.throttle, switch.temperature_celsius) == (1.0, 40.0)
    switch.set({})
    assert switch.state == {"fault": None}


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"throttle": 0}, "throttle = 0: allowed is a number from 0.01 to 1"),
        ({"throttle": True}, "throttle = True"),
        ({"temperature": "hot"}, "temperature = 'hot': allowed is a number from 0 to 150"),
        ({"fault": "500", "throttle": 3}, "throttle = 3"),
        ({"heat": 3}, "unknown key 'heat': allowed are fault, share, count, scope, throttle, temp"),
    ],
)
def test_a_wrong_trouble_changes_nothing(wanted: dict[str, Any], told: str) -> None:
    switch = FaultSwitch(0)
    switch.set({"throttle": 0.5})
    with pytest.raises(ValueError, match=told):
        switch.set(wanted)
    assert switch.state == {"fault": None, "throttle": 0.5}
