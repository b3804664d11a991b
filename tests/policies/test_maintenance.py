"""When a replica may be taken out, and when a restart is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.maintenance import MaintenanceRules, Restarts, refusal
from tierway.policies.types import ReplicaView

DAY = 86_400.0
RULES = MaintenanceRules(min_available=2, cooldown_s=600.0, most_per_hour=2)


def views(available: int, out: int = 0) -> list[ReplicaView]:
    return [
        ReplicaView(str(n), "m", "small", available=n < available) for n in range(available + out)
    ]


def why_not(replicas: list[ReplicaView], now_s: float = 5000.0, **mended_s: float) -> str:
    known = {name.lstrip("r"): at_s for name, at_s in mended_s.items()}
    return refusal("0", replicas, RULES, mended_s=known, now_s=now_s)


def test_enough_others_must_be_available() -> None:
    assert why_not(views(3)) == ""
    assert "only 1 others are available" in why_not(views(2, out=5))


def test_the_same_one_waits_for_its_cooldown() -> None:
    assert "mended 599 s ago" in why_not(views(5), r0=4401.0)
    assert why_not(views(5), r0=4400.0) == ""


def test_no_more_than_so_many_in_an_hour() -> None:
    assert "2 were mended within an hour" in why_not(views(9), r1=4000.0, r2=4500.0)
    assert why_not(views(9), r1=1300.0, r2=4500.0) == ""


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4))
def test_never_below_the_minimum(available: int, out: int, least: int) -> None:
    rules = MaintenanceRules(min_available=least)
    replicas = views(available, out)
    for one in replicas:
        if not refusal(one.id, replicas, rules, mended_s={}, now_s=0.0):
            assert sum(view.available for view in replicas if view.id != one.id) >= least


THREE = Restarts(at_s=3 * 3600.0, for_s=3600.0)
NIGHT = 100 * DAY + 3 * 3600.0


@pytest.mark.parametrize(
    ("now_at", "started_at", "wanted"),
    [
        (NIGHT + 10.0, NIGHT - DAY, True),
        (NIGHT - 10.0, NIGHT - DAY - 50.0, False),
        (NIGHT + 3599.0, NIGHT - 1.0, True),
        (NIGHT + 3600.0, NIGHT - 1.0, False),
        (NIGHT + 100.0, NIGHT + 50.0, False),  # it was restarted within this window
        (NIGHT + 100.0, None, False),
    ],
)
def test_a_restart_is_due_once_in_its_window(
    now_at: float, started_at: float | None, wanted: bool
) -> None:
    assert THREE.due(now_at, started_at) is wanted


@given(st.integers(1, 30), st.integers(0, 400 * int(DAY)), st.integers(0, int(DAY) - 1))
def test_it_is_due_on_one_day_in_so_many(every: int, now_at: int, at_s: int) -> None:
    restarts = Restarts(at_s, for_s=DAY, every_days=every)
    days = [restarts.due(now_at + day * DAY + 2 * DAY, 0.0) for day in range(every)]
    assert sum(days) == 1
