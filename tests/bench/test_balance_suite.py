"""The balancer's suite: which loads there are, what is checked, and what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tierway.bench.balance_cases import cases, missing, shortened
from tierway.bench.balance_runs import TraceLoad
from tierway.bench.balance_suite import contestants, main, markdown, targets
from tierway.bench.balance_targets import BASELINES, OURS, Rows, Verdict, verdicts

NOWHERE = Path("nowhere")


def _row(ttft_s: float, speed: float = 100.0, **more: Any) -> dict[str, Any]:
    return {
        "ttft_s": {"mean": ttft_s, "p50": ttft_s, "p99": ttft_s},
        "tpot_s": {"mean": 0.01, "p50": 0.01, "p99": 0.01},
        "output_tokens_per_s": speed,
        "kv_hit_ratio": 0.5,
        "work_max_over_mean": 1.0,
        "busy_max_over_mean": 1.0,
        "requests_max_over_mean": 1.0,
        "goodput": 1.0,
        **more,
    }


def _rows(ours: dict[str, Any], **others: dict[str, Any]) -> Rows:
    return {
        **{name: _row(1.0) for name in (*BASELINES, "oracle", "pooled")},
        OURS: ours,
        **others,
    }


def _of(checks: list[Verdict], target: str) -> Verdict:
    return next(check for check in checks if check.target.startswith(target))


def test_there_is_every_kind_of_load() -> None:
    known = cases(NOWHERE)
    assert len(known) > 20
    assert {named.case.gateways for named in known.values()} == {1, 4, 16}
    assert {len(named.case.gpus) for named in known.values()} == {2, 3, 4, 8}
    assert any(named.case.perturb and not named.case.slowdowns for named in known.values())
    assert known["agents-saturated"].case.load != known["agents"].case.load
    assert sum(named.quick for named in known.values()) == 5


def test_every_load_has_its_targets() -> None:
    mixed = {"share_to_fastest": {"top_tenth": 0.6, "all": 0.5, "speed": 0.5}}
    for name in cases(NOWHERE):
        found = {name: _rows(_row(0.3, 300.0, **mixed))}
        one, _, last = name.rpartition("-")
        if last == "gateways":
            found[f"{one.rpartition('-')[0]}-1-gateways"] = found[name]
        assert verdicts(found) or name.endswith("-1-gateways"), name


def test_short_forms_are_short() -> None:
    known = cases(NOWHERE)
    assert all(shortened(named).seeds == 1 for named in known.values())
    load = shortened(known["chat"]).case.load
    assert isinstance(load, TraceLoad)
    assert load.limit == 500
    names = [one.name for one in contestants(shortened(known["chat"]))]
    assert len(names) < len(contestants(known["chat"]))
    assert OURS in names


def test_first_tokens_are_compared_with_the_plain_policies() -> None:
    checks = verdicts({"five-turn-3": _rows(_row(0.55))})
    assert [check.met for check in checks] == [False, True, True]
    assert _of(checks, "TTFT over round_robin").value == pytest.approx(0.55)


def test_the_best_baseline_is_found_among_those_with_old_gauges_only() -> None:
    found = {
        "chat": _rows(
            _row(0.84),
            xor_prefix=_row(0.8),
            weighted_scorers_fresh=_row(0.1),
            oracle=_row(0.8),
            pooled=_row(0.1, kv_hit_ratio=0.6),
        )
    }
    checks = verdicts(found)
    best = _of(checks, "TTFT over the best baseline")
    assert best.target.endswith("(xor_prefix)")
    assert best.met
    assert _of(checks, "TTFT over oracle").met
    hits = _of(checks, "hit ratio")
    assert hits.value == pytest.approx(0.5 / 0.6)
    assert not hits.met


def test_saturated_loads_are_judged_by_throughput() -> None:
    checks = verdicts({"documents-saturated": _rows(_row(9.0, 150.0), xor_prefix=_row(1.0, 170.0))})
    assert [check.met for check in checks] == [False, True]
    assert checks[0].target.endswith("xor_prefix")


def test_gateways_are_compared_with_one() -> None:
    found = {
        "chat-1-gateways": _rows(_row(1.0)),
        "chat-4-gateways": _rows(_row(1.02)),
        "chat-16-gateways": _rows(_row(1.2)),
    }
    assert [check.met for check in verdicts(found)] == [True, False]


def test_tables_say_what_was_not_reached() -> None:
    named = cases(NOWHERE)["five-turn-3"]
    rows = _rows(_row(0.9, ci95={"ttft_s": {"mean": 0.05}}), random=_row(0.8))
    told = markdown(named, rows)
    assert "| **random** | 800.0 |" in told
    assert f"| {OURS} | 900.0 ± 50.0 |" in told
    judged = targets(verdicts({"five-turn-3": rows}))
    assert "Targets: 1 of 3 met" in judged
    assert "| at most 0.5 | **no** |" in judged


def test_a_part_of_the_suite_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "trickle,documents", "--quick", "--json", "--traces", "nowhere"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["cases"]) == ["trickle"]
    assert told["targets"][0]["target"] == "requests_max_over_mean"
    assert "documents-saturated" in told["left_out"]
    assert "nowhere" in missing(cases(NOWHERE)["documents"])


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "five-turns"]) == 2
    assert "known are five-turn-2" in capsys.readouterr().err
