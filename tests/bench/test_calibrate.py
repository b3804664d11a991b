"""Calibration: what is fitted follows its pairs, files round-trip, wrong use is named."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from tierway.bench.calibrate import fit, main
from tierway.bench.made_pairs import made_pairs
from tierway.bench.verifier_prior import PRIORS
from tierway.cache.embedders import ScriptedEmbedder
from tierway.policies.equivalence import Equivalence, veto
from tierway.policies.evidence import COLUMNS
from tierway.policies.questions import features
from tierway.policies.verifier import Scale, Verifier

SPREAD = 0.3


def near(text: str) -> list[float]:
    """All texts near each other, the more so the more letters they share."""
    return [4.0, *(text.lower().count(letter) / len(text) for letter in "aeinost")]


def embedder() -> ScriptedEmbedder:
    return ScriptedEmbedder({}, dim=8, otherwise=near)


def evidence(size: int, **columns: float) -> np.ndarray:
    made = np.zeros((size, len(COLUMNS)))
    for name, value in columns.items():
        made[:, COLUMNS.index(name.replace("_", "-"))] = value
    return made


def test_without_pairs_the_prior_stands() -> None:
    found = fit(evidence(0), np.zeros(0), PRIORS["en"], spread=SPREAD)
    assert found.weights == pytest.approx(PRIORS["en"].weights)
    assert found.bias == pytest.approx(PRIORS["en"].bias)


def test_the_fit_follows_its_pairs_and_keeps_the_signs() -> None:
    rng = random.Random(3)
    values = evidence(2000, closeness=3.0, added=1.0)
    values[1000:, COLUMNS.index("added")] = 0.0
    same = np.array([rng.random() < (0.2 if at < 1000 else 0.9) for at in range(2000)], float)
    found = fit(values, same, PRIORS["en"], spread=SPREAD)
    assert found.probability(values[0]) == pytest.approx(0.2, abs=0.08)
    assert found.probability(values[-1]) == pytest.approx(0.9, abs=0.06)
    turned = fit(values, 1 - same, PRIORS["en"], spread=100.0)
    assert turned.weights[COLUMNS.index("added")] == 0.0


def test_an_encoder_of_other_cosines_moves_the_bias() -> None:
    """Where different questions stand at 0.95, that cosine proves nothing."""
    values = np.vstack([evidence(300, closeness=3.0), evidence(300, closeness=4.2)])
    same = np.array([0.0] * 300 + [1.0] * 300)
    found = fit(values, same, PRIORS["en"], spread=SPREAD)
    assert found.probability(values[0]) < 0.1
    assert found.probability(values[-1]) > 0.9


def test_made_pairs_are_fixed_labelled_and_seldom_lost_to_vetoes() -> None:
    lines = made_pairs()
    assert lines == made_pairs()
    assert len(lines) > 2500
    for language in ("en", "zh"):
        same = [line for line in lines if line["lang"] == language and line["same"]]
        lost = [line for line in same if veto(features(line["a"]), features(line["b"]))]
        assert len(lost) <= 0.03 * len(same)


def test_the_file_it_writes_is_a_verifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, extra = tmp_path / "made.npz", tmp_path / "pairs.jsonl.gz"
    line = {"a": "What is rust?", "b": "what is rust", "same": True, "source": "own", "lang": "en"}
    with gzip.open(extra, "wt") as file:
        file.write(json.dumps(line) + "\n")
    argv = ["--pairs", str(extra), "--made", "--out", str(out), "--json"]
    assert main(argv, embedder()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["data"] == "en: made, own; zh: made, own"
    assert printed["reached"]["en"]["false_hit_rate"] < 0.05
    assert set(printed["weights"]["en"]) == {*COLUMNS, "bias"}
    judge = Equivalence([Verifier.read(out)])
    assert judge.judge("What is rust?", "what is rust", 0.999, "scripted").serve
    assert not judge.judge("What is rust?", "Who found rust?", 0.999, "scripted").serve


def test_a_prior_can_be_written_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "made.npz"
    assert main(["--plain", "en,zh", "--out", str(out)], embedder()) == 0
    assert Verifier.read(out).scales == PRIORS
    assert main(["--plain", "en", "--languages", "en", "--out", str(out)], embedder()) == 0
    assert Verifier.read(out) == Verifier("scripted", {"en": PRIORS["en"]}, "en: prior")


def test_wrong_use_and_failures_have_their_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"a": "x"}\n')
    assert main(["--pairs", str(bad)], embedder()) == 2
    assert "bad.jsonl:1" in capsys.readouterr().err
    assert main(["--pairs", str(tmp_path / "none")], embedder()) == 2
    assert main(["--target", "0.9"], embedder()) == 2
    assert main(["--prior", "0"], embedder()) == 2
    assert "--prior 0.0: must be" in capsys.readouterr().err
    assert main([], ScriptedEmbedder({})) == 1
    bad.write_text('{"a": "x", "b": "y", "same": true, "source": "s"}\n')
    assert main(["--pairs", str(bad)], embedder()) == 1
    assert "too few pairs" in capsys.readouterr().out


def test_sources_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.jsonl"
    rows = [{"a": f"What is x{n}?", "b": f"what is x{n}", "same": n % 2} for n in range(120)]
    file.write_text(
        "".join(json.dumps({**row, "source": "pq"[at % 2]}) + "\n" for at, row in enumerate(rows))
    )
    argv = ["--pairs", str(file), "--json"]
    assert main([*argv, "--sources", "q"], embedder()) == 1
    assert main(argv, embedder()) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reached"]["en"]["n"] == 120


def test_a_scale_needs_all_its_weights() -> None:
    with pytest.raises(ValueError, match="must be"):
        Scale((1.0,), 0.0)
