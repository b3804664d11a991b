"""The simulated engine against published figures, and the shape of its load curve."""

from __future__ import annotations

import itertools
import json

import pytest

from tierway.bench.engine_anchors import PUBLISHED, loaded, lone, throughput
from tierway.bench.engine_check import main, report


@pytest.mark.parametrize("case", [case for case in PUBLISHED if case[1] > 1024])
def test_saturated_throughput_is_near_the_published(
    case: tuple[str, int, int, float],
) -> None:
    found = throughput(*case)
    assert found.published == case[3]
    assert abs(found.error) < 0.15


def test_a_lone_request_takes_about_as_long_as_published() -> None:
    totals = [row for row in lone() if row.low == row.high]
    assert len(totals) == 2
    for row in totals:
        assert row.simulated == pytest.approx(row.low, rel=0.15)


def test_a_lone_token_is_of_the_published_order() -> None:
    for row in lone():
        assert row.low / 2 < row.simulated < 1.15 * row.high


def test_times_rise_slowly_up_to_the_knee_and_then_with_the_load() -> None:
    one, some, many = (loaded("8b-a100", callers) for callers in (1, 32, 128))
    assert one.tpot_ms_p50 < some.tpot_ms_p50 < 2 * one.tpot_ms_p50
    assert some.ttft_ms_p50 < 3 * one.ttft_ms_p50
    assert many.tpot_ms_p50 > 2 * some.tpot_ms_p50
    rates = [row.output_tokens_per_s for row in (one, some, many)]
    assert all(after > 1.5 * before for before, after in itertools.pairwise(rates))
    assert many.preemptions == 0


def test_a_small_gpu_makes_callers_wait_for_memory() -> None:
    some, many = (loaded("8b-a10", callers) for callers in (32, 128))
    assert many.preemptions > 0
    assert many.ttft_ms_p50 > 50 * some.ttft_ms_p50
    assert many.output_tokens_per_s < 1.5 * some.output_tokens_per_s


def test_the_command_prints_json_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "lone", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["lone"]
    assert set(found["lone"][0]) == {"name", "low", "high", "simulated"}
    assert main(["--only", "lone"]) == 0
    assert "8b-h100 per token" in capsys.readouterr().out


def test_the_report_tells_every_row() -> None:
    throughputs = [
        {"gpu": "h200", "input_tokens": 1000, "output_tokens": 1000}
        | {"published": 2587.0, "simulated": 2732.0, "error": 0.056}
    ]
    loads = [
        {"profile": "8b-a10", "callers": 32, "ttft_ms_p50": 105.0, "ttft_ms_p99": 355.0}
        | {"tpot_ms_p50": 52.2, "output_tokens_per_s": 591.0, "preemptions": 0}
    ]
    text = report({"throughput": throughputs, "load": loads})
    assert "published   2587  simulated   2732  +6 %" in text
    assert "8b-a10         32      105 /     355    52.2     591      0" in text
