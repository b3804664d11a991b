"""Made near misses: enough of each kind, in words of their own, and refused by the rules."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tierway.bench.labelled import Pair, read_pairs
from tierway.bench.made_misses import KINDS, made_misses, main
from tierway.bench.made_pairs import made_pairs
from tierway.policies.equivalence import relation_of, veto
from tierway.policies.questions import features

PAIRS = made_misses()


def told_apart(pair: Pair) -> bool:
    """By the words alone, the cosine being no evidence between near misses."""
    a, b = features(pair.a), features(pair.b)
    return bool(veto(a, b)) or relation_of(a, b) != "equal"


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
    fitted = {line[side] for line in made_pairs() for side in "ab"}
    assert fitted.isdisjoint(text for pair in PAIRS for text in (pair.a, pair.b))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_near_misses_are_told_apart_by_their_words(language: str) -> None:
    served: dict[str, list[Pair]] = defaultdict(list)
    total: Counter[str] = Counter()
    for pair in PAIRS:
        # The case of a literal (`\\s`, `\\S`) is the benchmark's to count: words are folded.
        by_case = pair.a.lower() == pair.b.lower()
        if pair.lang == language and not pair.same and not by_case:
            total[pair.kind] += 1
            if not told_apart(pair):
                served[pair.kind].append(pair)
    for kind in KINDS:
        assert len(served[kind]) <= 0.02 * total[kind], (kind, served[kind][:5])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_another_writing_of_the_same_is_not_refused(language: str) -> None:
    pairs = [pair for pair in PAIRS if pair.lang == language and pair.kind == "format"]
    kept = [pair for pair in pairs if not veto(features(pair.a), features(pair.b))]
    assert len(kept) >= 0.8 * len(pairs)


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
