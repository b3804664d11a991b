from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierway.bench.lengths import main, measure
from tierway.bench.loads_traces import Recorded


def test_lengths_that_follow_the_prompt_are_foretold() -> None:
    rows = [Recorded(n, 100 << n % 3, 40 << 3 * (n % 3)) for n in range(600)]
    found = measure(rows)
    assert found.n == 600
    assert found.log_error < 0.1 < 1.0 < found.constant_log_error
    assert found.within_2 > 0.95 > found.constant_within_2
    assert found.tokens_ratio == pytest.approx(1.0, abs=0.1)


def test_it_reads_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    row = {"timestamp_ms": 0, "input_tokens": 10, "output_tokens": 20, "session": 1}
    trace.write_text("\n".join(json.dumps(row) for _ in range(5)))
    assert main(["--trace", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 5
    assert main(["--trace", str(trace)]) == 0
    assert "within_2" in capsys.readouterr().out


def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(json.dumps({"timestamp_ms": 0}))
    assert main(["--trace", str(trace)]) == 2
    assert "line 1" in capsys.readouterr().err
