"""The actor: one replica at a time, each illness once, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from fakes import FakeClock

from tierway.policies.errors import CacheError, Refused
from tierway.policies.maintenance import MaintenanceRules, Restarts
from tierway.policies.types import Work
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.maintenance import Maintainer, MendError
from tierway.router.replica import ReplicaSpec

RULES = MaintenanceRules(
    threshold=0.7, for_s=5.0, cooldown_s=600.0, drain_timeout_s=30.0, health_timeout_s=60.0
)


class Claims:
    """The one claim; `away` where nobody can be asked."""

    def __init__(self, fleet: Fleet, who: str = "me") -> None:
        self.fleet, self.who = fleet, who
        self.holder: tuple[str, str] | None = None
        self.away = False
        self.claims = 0

    async def claim(self, replica: str, reason: str, ttl_s: float) -> bool:
        if self.away:
            raise CacheError("Redis is away.")
        if self.holder not in (None, (self.who, replica)):
            return False
        self.holder = self.who, replica
        self.claims += 1
        self.fleet.set_draining(replica, True)
        return True

    async def release(self, replica: str) -> None:
        self.holder = None
        if replica in self.fleet:
            self.fleet.set_draining(replica, False)


class Stand:
    """A fleet of three in which time passes only by sleeping; `action` restarts at once."""

    def __init__(self, rules: MaintenanceRules = RULES, *, dry_run: bool = False) -> None:
        self.clock = FakeClock()
        specs = [ReplicaSpec(name, "m", "small", f"http://{name}") for name in "abc"]
        self.fleet = Fleet(specs, clock=self.clock)
        self.claims = Claims(self.fleet)
        self.actions: list[tuple[str, str]] = []
        self.fault: str = ""
        self.comes_back = True
        self.each_second: Callable[[], None] = lambda: None
        self.wall_s = 1e9
        self.maintainer = Maintainer(
            self.fleet,
            self.claims,
            self.action,
            rules,
            wall=lambda: self.wall_s,
            sleep=self.sleep,
            dry_run=dry_run,
        )
        self.fleet.follow(self.maintainer)
        for name in "abc":
            self.tell(name, 1000.0)

    def tell(self, name: str, started_s: float) -> None:
        self.fleet.update_facts(name, Facts(running=0, waiting=0, process_start_s=started_s))

    async def action(self, spec: ReplicaSpec, reason: str) -> None:
        self.actions.append((spec.id, reason))
        assert self.fleet.view(spec.id).unavailable_reason == "draining"
        if self.fault:
            raise MendError(self.fault)
        if self.comes_back:
            self.tell(spec.id, 5000.0 + len(self.actions))
            self.fleet.set_pressure(spec.id, 0.0)

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.each_second()
        await asyncio.sleep(0)

    def ill(self, *names: str, index: float | None = 0.9) -> None:
        for name in names:
            self.fleet.set_pressure(name, index)

    def look(self, times: int = 10) -> None:
        async def main() -> None:
            for _ in range(times):
                await self.maintainer.look()
                await self.sleep(1.0)

        asyncio.run(main())

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(one.replica, one.outcome) for one in self.maintainer.history]


def test_what_is_ill_long_enough_is_mended_once() -> None:
    stand = Stand()
    stand.ill("b")
    stand.look(5)
    assert stand.actions == []
    stand.look(60)
    assert stand.actions == [("b", "memory pressure")]
    assert stand.outcomes == [("b", "mended")]
    assert stand.fleet.view("b").available
    assert stand.claims.holder is None


def test_one_after_the_other_and_never_below_the_minimum() -> None:
    stand = Stand()
    stand.ill("a", "b", "c")
    fewest: list[int] = []
    stand.each_second = lambda: fewest.append(
        sum(view.available for view in stand.fleet.snapshot(("m",)))
    )
    stand.look(60)
    assert sorted(name for name, _ in stand.actions) == ["a", "b", "c"]
    assert min(fewest) == 2


def test_it_waits_for_what_is_in_flight_but_not_for_ever() -> None:
    stand = Stand()
    leases: list[Lease] = [stand.fleet.lease("b", Work(1, 1, 1))]
    seen: list[tuple[float, int]] = []
    began_s = stand.clock()
    stand.each_second = lambda: seen.append((stand.clock() - began_s, len(stand.actions)))
    stand.ill("b")
    stand.look(8)
    mended_at_s = next(at_s for at_s, count in seen if count)
    assert mended_at_s >= RULES.for_s + RULES.drain_timeout_s
    leases[0].finish()
    assert stand.outcomes == [("b", "mended")]


def test_an_action_that_fails_gives_the_replica_back_and_backs_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    stand = Stand()
    stand.fault = "the hook answered 500"
    stand.ill("b")
    stand.look(60)
    assert len(stand.actions) == 1
    assert stand.outcomes == [("b", "failed")]
    assert stand.fleet.view("b").available
    assert "the hook answered 500" in caplog.text
    assert caplog.text.count("cooldown_s is 600") == 1


def test_one_that_does_not_come_back_is_told_as_ill() -> None:
    stand = Stand()
    stand.comes_back = False
    stand.ill("b")
    stand.look(8)
    assert stand.outcomes == [("b", "ill")]
    assert stand.claims.claims > RULES.health_timeout_s / 10  # it kept its claim alive


def test_an_engine_that_does_not_tell_its_start_must_go_and_come_back() -> None:
    stand = Stand()
    for name in "abc":
        stand.fleet.remove(name)
        stand.fleet.add(ReplicaSpec(name, "m", "small", f"http://{name}", engine="generic"))
    stand.comes_back = False
    steps = iter([True] * 5 + [False] * 5 + [True] * 100)

    def health() -> None:
        if stand.actions:
            stand.fleet.report_health("b", alive=next(steps))

    stand.each_second = health
    stand.ill("b")
    stand.look(8)
    assert stand.outcomes == [("b", "mended")]


def test_another_gateway_that_mends_is_left_to_it() -> None:
    stand = Stand()
    stand.claims.holder = ("other", "a")
    stand.ill("b")
    stand.look(20)
    assert stand.actions == []


def test_without_shared_state_nothing_is_mended() -> None:
    stand = Stand()
    stand.claims.away = True
    stand.ill("b")
    with pytest.raises(CacheError):
        stand.look(20)
    assert stand.actions == []
    assert stand.fleet.view("b").available


def test_dry_run_only_tells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stand = Stand(dry_run=True)
    stand.ill("b")
    stand.look(20)
    assert stand.actions == []
    assert caplog.text.count("b is to be mended (memory pressure) and is not: dry_run is on") == 1


def test_somebody_may_ask_for_it() -> None:
    stand = Stand()
    spec = stand.fleet.spec("c")
    assert spec is not None
    assert asyncio.run(stand.maintainer.ask(spec)) == ""
    stand.look(3)
    assert stand.actions == [("c", "asked for")]
    for name in "ab":
        stand.fleet.lease(name, Work(1, 1, 1)).finish(Refused("down"))
        stand.fleet.report_health(name, alive=False)
    assert "only 0 others" in asyncio.run(stand.maintainer.ask(spec))


def test_a_restart_that_is_due_comes_to_each_once() -> None:
    rules = MaintenanceRules(
        most_per_hour=9, health_timeout_s=60.0, restarts=Restarts(at_s=0.0, for_s=86_400.0)
    )
    stand = Stand(rules)
    stand.wall_s = 10 * 86_400.0
    for name in "abc":
        stand.tell(name, 9 * 86_400.0)

    async def restart(spec: ReplicaSpec, reason: str) -> None:
        stand.actions.append((spec.id, reason))
        stand.tell(spec.id, 10 * 86_400.0 + 5.0)

    stand.maintainer._action = restart
    stand.look(40)
    assert sorted(stand.actions) == [(name, "restart is due") for name in "abc"]


def test_one_that_leaves_while_it_is_mended_is_let_go() -> None:
    stand = Stand()
    stand.comes_back = False
    stand.each_second = lambda: (stand.actions and stand.fleet.remove("b")) or None
    stand.ill("b")
    stand.look(10)
    assert stand.claims.holder is None
    assert "b" not in stand.fleet
