"""The cost of the prefix index: the shape of what is told, and that memory stays flat."""

from __future__ import annotations

import json
import random

import pytest

from tierway.bench.prefix_speed import growth, main


def test_the_figures_are_told_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--rounds", "3", "--prompts", "40"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hash"]["block"] > 0
    assert list(told["index"]) == ["8", "32"]
    for parts in told["index"].values():
        assert list(parts) == ["match", "again", "new"]
        assert all(0 < us["p50"] <= us["p99"] for us in parts.values())
    assert [mark["prompts"] for mark in told["memory"]] == list(range(4, 41, 4))


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--prompts", "20"]) == 0
    told = capsys.readouterr().out
    assert "match, 32 replicas" in told
    assert "prompts, no two alike" in told


def test_memory_is_flat_once_the_index_is_full() -> None:
    marks = growth(10_000, random.Random(0), room=250)
    assert marks[-1]["blocks"] == pytest.approx(2000, rel=0.02)
    assert marks[-1]["bytes"] < 1.3 * marks[1]["bytes"]
    assert marks[-1]["told_bytes"] == pytest.approx(marks[-1]["bytes"], rel=0.35)


def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--prompts", "0"])
    assert ended.value.code == 2
    assert "a whole number from 1" in capsys.readouterr().err
