"""The benchmark of the pressure index: an ill engine is found, a healthy one is not."""

from __future__ import annotations

import pytest

from tierway.bench import pressure
from tierway.bench.engine import MOST_LOST, Engine, Work
from tierway.bench.loads import TurnPlan
from tierway.bench.profiles import profile


def test_an_engine_loses_memory_up_to_a_bound_and_goes_on() -> None:
    engine = Engine(profile("8b-a100"))
    engine.lose_memory(0.25)
    assert engine.kv_usage == pytest.approx(0.25, abs=0.001)
    engine.lose_memory(5.0)
    assert engine.kv_usage == pytest.approx(MOST_LOST, abs=0.001)
    job = engine.submit(Work(640, 4))
    while engine.begin() is not None:
        engine.finish()
    assert job.reason == "stop"


def test_the_ill_one_is_found_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TurnPlan(sessions=80, turns=3, output_tokens=800, concurrency=8)
    monkeypatch.setattr(pressure, "LOADS", {"short": ("a100", plan)})
    monkeypatch.setattr(pressure, "RATES", (0.02,))
    found = pressure.measured(1)
    assert found["healthy"]["short"]["false_alarms"] == 0
    (ill,) = found["ill"].values()
    assert (ill["found"], ill["false_alarms"]) == (1, 0)
    assert 20.0 < ill["median_delay_s"] < 60.0
    assert "1 of 1" in pressure._table(found)
