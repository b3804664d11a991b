"""The report: every table of the page about the cache's decisions, from one file of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierway.bench.cache_report import main, table
from tierway.cache.embedders import ScriptedEmbedder


def write(path: Path) -> str:
    """Questions about ten rivers, each in two writings, and each beside its neighbour."""
    names = ["Nile", "Rhine", "Volga", "Loire", "Tagus", "Indus", "Congo", "Niger", "Amur", "Elbe"]
    lines = []
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        asked = f"How long is the {name}?"
        lines.append({"a": asked, "b": f"how long is the {name}", "same": True})
        lines.append({"a": asked, "b": f"How long is the {other}?", "same": False})
    text = "".join(json.dumps({**line, "source": "own", "lang": "en"}) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return str(path)


def near_all(text: str) -> list[float]:
    return [1.0, 0.001 * len(text)]


def test_the_report_has_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embedder = ScriptedEmbedder({}, otherwise=near_all)
    assert main(["--pairs", write(tmp_path / "p.jsonl"), "--made", "2"], embedder) == 0
    told = capsys.readouterr().out
    assert "| source own | 20 | " in told
    assert "| all, cosine 0.95 | 20 | 100.0 % | 20 | 10 | 50.0 % (" in told
    for name in ("dense_en", "natural_en"):
        assert f"| {name}: " in told
    assert "| **Tierway** | " in told
    assert "| negation | 2 | 0.0 % | 2 | 0.0 % |" in told
    assert "Best recall over all error budgets" in told


def test_wrong_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pairs", str(tmp_path / "none")], ScriptedEmbedder({})) == 1
    assert "--pairs" in capsys.readouterr().err


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [(1, "x")]) == "| a | b |\n| --- | --- |\n| 1 | x |"
