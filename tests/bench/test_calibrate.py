"""Calibration: cuts keep their target, files round-trip, wrong use is named."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from tierway.bench.calibrate import Scored, cut, main, read_pairs, wilson
from tierway.bench.made_pairs import made_pairs
from tierway.cache.embedders import ScriptedEmbedder
from tierway.policies.equivalence import Calibration, Equivalence, features, relation_of, veto


def hashed(text: str) -> list[float]:
    """All texts near each other, so that the rules decide and the cut is the lowest pair."""
    digest = hashlib.sha256(text.encode()).digest()
    return [10.0, digest[0] / 255, digest[1] / 255]


def embedder(**options: object) -> ScriptedEmbedder:
    return ScriptedEmbedder({}, dim=3, otherwise=hashed, **options)  # type: ignore[arg-type]


def pairs(right: int, wrong: int, cosine: float) -> list[Scored]:
    return [Scored("en", "equal", "", cosine, at < right) for at in range(right + wrong)]


def test_wilson_interval() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(2, 66)
    assert (round(low, 4), round(high, 4)) == (0.0083, 0.1039)
    assert wilson(0, 100)[0] == 0.0
    assert wilson(100, 100)[1] == pytest.approx(1.0)


def test_the_cut_is_the_lowest_that_keeps_the_target() -> None:
    found = cut(pairs(200, 0, 0.95) + pairs(20, 1, 0.9) + pairs(10, 30, 0.8), 0.02)
    assert found is not None
    assert (found["cosine"], found["served"], found["wrong"]) == (0.9, 221, 1)


def test_no_cut_where_the_target_or_the_evidence_is_missing() -> None:
    assert cut(pairs(90, 10, 0.95), 0.02) is None
    assert cut(pairs(29, 0, 0.95), 0.05) is None
    assert cut([], 0.02) is None


def test_pairs_of_one_cosine_stand_or_fall_together() -> None:
    assert cut(pairs(200, 0, 0.9) + pairs(0, 20, 0.9), 0.02) is None


def test_made_pairs_are_fixed_labelled_and_told_apart_by_the_rules() -> None:
    lines = made_pairs()
    assert lines == made_pairs()
    assert len(lines) > 2500
    for language in ("en", "zh"):
        ours = [line for line in lines if line["lang"] == language]
        equal = [
            line
            for line in ours
            if not veto(a := features(line["a"]), b := features(line["b"]))
            and relation_of(a, b) == "equal"
        ]
        assert all(line["same"] for line in equal)
        assert len(equal) > 0.7 * sum(line["same"] for line in ours)


def test_the_file_it_writes_is_a_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cuts.json"
    extra = tmp_path / "pairs.jsonl.gz"
    line = {"a": "What is rust?", "b": "what is rust", "same": True, "source": "own", "lang": "en"}
    with gzip.open(extra, "wt") as file:
        file.write(json.dumps(line) + "\n")
    argv = ["--pairs", str(extra), "--measure", str(extra), "--out", str(out), "--json"]
    assert main(argv, embedder()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["data"] == ["made", "own"]
    assert printed["measured"]["by_source"]["own"]["recall"] == 1.0
    stored = json.loads(out.read_text())
    assert "measured" not in stored
    judge = Equivalence([Calibration.parse(stored)])
    assert judge.judge("What is rust?", "what is rust", 0.999, "scripted").serve


def test_wrong_use_and_failures_have_their_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"a": "x"}\n')
    assert main(["--pairs", str(bad)], embedder()) == 2
    assert "bad.jsonl:1" in capsys.readouterr().err
    assert main(["--pairs", str(tmp_path / "none")], embedder()) == 2
    assert main(["--target", "0.9"], embedder()) == 2
    assert main([], ScriptedEmbedder({})) == 1
    bad.write_text('{"a": "x", "b": "y", "same": true, "source": "s"}\n')
    assert main(["--pairs", str(bad), "--no-made"], embedder()) == 1
    assert "encoder scripted" in capsys.readouterr().out


def test_sources_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        "".join(json.dumps({"a": "x", "b": "y", "same": 1, "source": s}) + "\n" for s in "pq")
    )
    assert [pair["source"] for pair in read_pairs(file, frozenset("q"))] == ["q"]
    assert len(read_pairs(file)) == 2
