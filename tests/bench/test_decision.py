"""The cost of a decision: what is measured, and the shape of what is told."""

from __future__ import annotations

import json
import random

import pytest

from tierway.bench.decision import LONG_TOKENS, Prompts, balancer, main, measure


def test_the_figures_are_told_by_replicas_and_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--rounds", "5", "--long-rounds", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["replicas"], row["prompt_tokens"]) for row in rows] == [
        ("decision", 8, 200),
        ("whole", 8, 32_000),
        ("decision", 32, 200),
        ("whole", 32, 32_000),
    ]
    for row in rows:
        assert 0 < row["us"]["p50"] <= row["us"]["p99"]
        assert row["ratio"] > 0
        hashed = row["name"] == "whole"
        assert list(row["parts_us"]) == ["look"] * hashed + ["rank", "take"]


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--long-rounds", "1"]) == 0
    assert "whole, 32 replicas, 32,000 tokens" in capsys.readouterr().out


def test_each_round_is_one_decision() -> None:
    spent = measure(3, 50, 7)
    assert len(spent) == 7
    assert all(one.of(("rank", "take")) == pytest.approx(one.rank + one.take) for one in spent)


def test_prompts_are_long_alike_at_their_heads_and_never_twice_the_same() -> None:
    prompts = Prompts(LONG_TOKENS, random.Random(0))
    calls = [prompts.next() for _ in range(20)]
    assert all(
        abs(call.ask.text_bytes - 4 * LONG_TOKENS) < 0.01 * 4 * LONG_TOKENS for call in calls
    )
    assert len({call.ask.system for call in calls}) == 1
    assert len({call.ask.question for call in calls}) == len(calls)
    assert len({call.session for call in calls}) < len(calls)


def test_the_replicas_are_unequal_and_all_known() -> None:
    views = balancer(4, random.Random(0)).fleet.snapshot(("m",))
    assert len({view.pace for view in views}) == 4
    assert all(view.facts_at_s is not None and view.kv_usage is not None for view in views)


def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rounds", "0"])
    assert ended.value.code == 2
    assert "a whole number from 1" in capsys.readouterr().err
