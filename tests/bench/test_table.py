"""The one table: each benchmark's JSON becomes rows, a failing one does not hide the others."""

from __future__ import annotations

import pytest

from tierway.bench.table import BENCHMARKS, Benchmark, Row, layout, main

KIND = {"n": 50, "recall": None, "served_different": 0}
MADE = {
    "by_lang_kind": {
        f"{language} {kind}": {**KIND, **more}
        for language in ("en", "zh")
        for kind, more in (
            ("number", {}),
            ("unit", {"served_different": 2}),
            ("format", {"recall": 0.9}),
            ("reword", {"recall": 0.25}),
        )
    }
}
SPEED = {
    "stages": {part: {"cpu_ms": {"p50": 0.1234}} for part in ("hash", "verify")},
    "search": [
        {
            "entries": 10_000,
            "partitions": 1,
            "callers": callers,
            "cpu_ms": {"p50": 0.5} if callers == 1 else {"mean": 0.6},
            "index_bytes_per_entry": 600.0,
            "entry_bytes": 140.0,
        }
        for callers in (1, 16)
    ],
}


def rows_of(kind: str, found: dict[str, object]) -> list[Row]:
    (benchmark,) = (one for one in BENCHMARKS if kind in one.full)
    return benchmark.rows(found)


def test_the_worst_kind_of_near_miss_is_told() -> None:
    rows = rows_of("--made", MADE)
    assert rows[0] == Row("near misses served, English, worst kind", "4.0", "%", "2 at most")
    assert [row.figure for row in rows] == ["4.0", "90", "25"] * 2


def test_a_lookup_is_told_by_its_parts() -> None:
    rows = rows_of("--speed", SPEED)
    assert [row.figure for row in rows] == ["0.123", "0.123", "0.500"]
    assert rows[-1].against == "740 bytes an entry"
    assert "search of 10,000 in 1 partitions" in layout(rows)


def test_a_failing_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Benchmark("tierway.bench.streams", (), lambda found: [], ("--bad",))
    assert main([], [broken]) == 1
    told = capsys.readouterr()
    assert "tierway.bench.streams failed" in told.err
    assert told.out.startswith("benchmark")


def test_a_choice_is_told_by_replicas_and_prompt() -> None:
    (benchmark,) = (one for one in BENCHMARKS if one.module.endswith(".decision"))
    spread = {"p50": 41.4, "p99": 99.6}
    row = {"name": "decision", "replicas": 8, "prompt_tokens": 200, "us": spread, "ratio": 4.04}
    (told,) = benchmark.rows({"rows": [row]})
    assert told == Row("choice of a replica, 8 replicas, 200 tokens", "41", "us CPU", told.against)
    assert told.against == "p99 100; 4.0 x a loop of 1000"


def test_the_simulated_engine_is_told_beside_what_was_published() -> None:
    (benchmark,) = (one for one in BENCHMARKS if one.module.endswith(".engine_check"))
    case = {"gpu": "h200", "input_tokens": 1000, "output_tokens": 1000}
    lone = {"name": "8b-h100 per token", "low": 10.0, "high": 15.0, "simulated": 8.81}
    found = {"throughput": [case | {"published": 2587.0, "simulated": 2732.0}], "lone": [lone]}
    rows = benchmark.rows(found)
    assert [row.figure for row in rows] == ["2732", "8.8"]
    assert [row.against for row in rows] == ["2587 published", "10 to 15 published"]
    assert benchmark.rows({"lone": [lone]}) == rows[1:]
