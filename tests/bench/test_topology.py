"""The benchmark of zones and groups: on the same load, more is kept with them than without."""

from __future__ import annotations

import pytest

from tierway.bench import topology
from tierway.bench.loads import TurnPlan


def test_zones_are_kept_and_a_drained_engine_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TurnPlan(sessions=40, turns=3, output_tokens=300, concurrency=16)
    monkeypatch.setattr(topology, "LOADS", {"short": plan})
    monkeypatch.setattr(topology, "_DRAINED_S", 5.0)
    cases = topology.measured(1)["short"]
    assert cases["zones and groups"]["zone_kept"] > 0.9 > cases["without"]["zone_kept"]
    assert cases["zones and groups"]["group_kept"] >= cases["without"]["group_kept"]
    assert "| short | without |" in topology._table({"short": cases})
