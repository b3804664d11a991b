"""Made near misses: enough of each kind, in words of their own, and refused by the cache."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tierway.bench.cache_bench import main as bench
from tierway.bench.labelled import read_pairs
from tierway.bench.made_misses import KINDS, made_misses, main
from tierway.bench.made_pairs import made_pairs

PAIRS = made_misses()


def test_there_are_three_hundred_of_each_kind_and_language() -> None:
    count = Counter((pair.lang, pair.kind) for pair in PAIRS)
    for language in ("en", "zh"):
        assert all(count[language, kind] >= 300 for kind in KINDS)
        assert count[language, "format"] >= 100
        assert count[language, "reword"] >= 200
    assert len({frozenset((pair.a, pair.b)) for pair in PAIRS}) == len(PAIRS)
    assert all(pair.a != pair.b for pair in PAIRS)
    assert all(pair.same == (pair.kind in ("format", "reword")) for pair in PAIRS)


def test_they_are_the_same_for_a_seed_and_none_is_calibrated_on() -> None:
    assert made_misses() == PAIRS
    assert made_misses(seed=1) != PAIRS
    assert set(Counter((pair.lang, pair.kind) for pair in made_misses(at_most=7)).values()) == {7}
    fitted = {line[side] for line in made_pairs() for side in "ab"}
    assert fitted.isdisjoint(text for pair in PAIRS for text in (pair.a, pair.b))


def test_the_script_writes_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "misses.jsonl.gz"
    assert main(["--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{len(PAIRS)} pairs\n"
    assert read_pairs(out) == PAIRS
    plain = tmp_path / "misses.jsonl"
    assert main(["--out", str(plain)]) == 0
    assert set(json.loads(plain.read_text().splitlines()[0])) == {
        "a", "b", "same", "source", "lang", "kind",
    }  # fmt: skip
    assert main(["--out", str(tmp_path / "none" / "x.jsonl")]) == 2


def test_the_cache_refuses_near_misses_and_serves_other_writings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The quick form of the benchmark, with the encoder that is built in."""
    assert bench(["--made", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["by_lang_kind"]
    for language in ("en", "zh"):
        rows = [found[f"{language} {kind}"] for kind in KINDS]
        assert sum(row["served_different"] for row in rows) <= 0.02 * sum(row["n"] for row in rows)
        assert found[f"{language} format"]["recall"] >= 0.5  # of twelve: 0.8 of all
