from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tierway.bench.train_router import apgr, curve, evaluate, main, read, train
from tierway.policies.complexity import Weights
from tierway.policies.features import text_features


def write(path: Path, count: int = 60) -> Path:
    """Easy lines that all classes answer, hard ones that only the strong do."""
    rows = []
    for n in range(count):
        hard = n % 2 == 0
        rows.append(
            {
                "prompt": f"Compute {n} + {n * n} = ? with x^{n}" if hard else f"Say hello, {n}",
                "source": "sums/a" if hard else "talk/b",
                "small": 0.1 if hard else 0.9,
                "medium": 0.6 if hard else 0.9,
                "large": 0.9 if n % 3 else None,
            }
        )
    rows.append({**rows[0], "source": "AlpacaEval2/koala"})
    text = "\n".join(map(json.dumps, rows))
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_a_curve_runs_from_all_weak_to_all_strong() -> None:
    order, weak, strong = np.arange(10.0), np.zeros(10), np.ones(10)
    assert curve(order, weak, strong) == pytest.approx(np.linspace(0.0, 1.0, 11))
    assert apgr(curve(order, weak, strong)) == pytest.approx(0.5)
    first_half = (order >= 5).astype(float)
    assert apgr(curve(order, weak, first_half)) == pytest.approx(0.75)


def test_lines_may_be_packed_and_some_sources_left_out(tmp_path: Path) -> None:
    packed = read(write(tmp_path / "a.jsonl.gz"), leave_out=("AlpacaEval",))
    plain = read(write(tmp_path / "a.jsonl"))
    assert len(plain.sources) == len(packed.sources) + 1
    assert set(packed.groups) == {"sums", "talk"}
    assert np.isnan(packed.scores[0, 2])


def test_the_fit_learns_what_the_weak_cannot_do_and_stays_monotone(tmp_path: Path) -> None:
    lines = read(write(tmp_path / "a.jsonl", 400), leave_out=("AlpacaEval",))
    weights = train(lines)
    hard = weights.probabilities(text_features("Compute 17 + 289 = ? with x^17"))
    easy = weights.probabilities(text_features("Say hello, 17"))
    assert hard["175b"] - hard["7b"] > easy["175b"] - easy["7b"] + 0.1
    assert min(min(step.weights) for step in weights.steps) >= 0.0
    report = evaluate(lines, weights)
    assert report["sets"]["all"]["apgr"] > 0.6
    assert sum(report["shares"]["0.5"].values()) == pytest.approx(1.0)


def test_the_command_writes_weights_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = write(tmp_path / "a.jsonl"), tmp_path / "weights.json"
    assert main(["--data", str(data), "--out", str(out), "--eval", str(data)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("set ")
    assert "quality 0.5" in printed
    assert main(["--eval", str(data), "--weights", str(out)]) == 0
    assert capsys.readouterr().out == printed
    assert Weights.load(out).steps[0].bias != 0.0
    with pytest.raises(SystemExit):
        main(["--data", str(data)])
