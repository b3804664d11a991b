"""The one claim to mend, over gateways: drained everywhere, expiring with its holder."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admins import CONFIG, ENVIRON, FIRST, Admin, run
from config_cases import faults
from fakes import FakeClock

from tierway.middleware.build_overlay import Drains, OverlayClaims
from tierway.middleware.config import Settings
from tierway.middleware.overlay import MemoryOverlay, Overlay
from tierway.router.fleet import Fleet
from tierway.router.replica import ReplicaSpec


class Gateway:
    def __init__(self, name: str, store: MemoryOverlay, wall: FakeClock) -> None:
        specs = [ReplicaSpec(one, "m", "small", f"http://{one}") for one in "ab"]
        self.fleet, self.overlay = Fleet(specs, clock=FakeClock()), Overlay(store)
        self.fleet.follow(Drains(self.fleet, self.overlay))
        self.claims = OverlayClaims(self.overlay, gateway=name, wall=wall)

    @property
    def draining(self) -> set[str]:
        return {view.id for view in self.fleet.snapshot(["m"]) if not view.available}


def test_one_claim_at_a_time_drains_everywhere_and_ends() -> None:
    async def main() -> None:
        store, wall = MemoryOverlay(), FakeClock()
        here, there = Gateway("here", store, wall), Gateway("there", store, wall)
        assert await here.claims.claim("a", "ill", 20.0)
        await there.overlay.follow()
        assert here.draining == there.draining == {"a"}
        assert not await there.claims.claim("a", "ill", 20.0)
        assert not await there.claims.claim("b", "ill", 20.0)
        wall.advance(15.0)
        assert await here.claims.claim("a", "ill", 20.0)  # renewed
        wall.advance(15.0)
        assert not await there.claims.claim("b", "ill", 20.0)
        await there.claims.release("a")  # not its own
        assert here.draining == {"a"}
        await here.claims.release("a")
        await there.overlay.follow()
        assert here.draining == there.draining == set()
        assert await there.claims.claim("b", "ill", 20.0)

    asyncio.run(main())


def test_the_claim_of_one_that_died_expires() -> None:
    async def main() -> None:
        store, wall = MemoryOverlay(), FakeClock()
        here, there = Gateway("here", store, wall), Gateway("there", store, wall)
        await here.claims.claim("a", "ill", 20.0)
        await there.overlay.follow()
        wall.advance(19.0)
        await there.claims.expire()
        assert there.draining == {"a"}
        wall.advance(2.0)
        await there.claims.expire()
        assert there.draining == set()

    asyncio.run(main())


def test_of_many_at_once_one_has_it() -> None:
    async def main() -> None:
        store, wall = MemoryOverlay(), FakeClock()
        gateways = [Gateway(str(n), store, wall) for n in range(6)]
        claimed = await asyncio.gather(*(one.claims.claim("a", "x", 20.0) for one in gateways))
        assert sum(claimed) == 1

    asyncio.run(main())


def test_what_an_admin_call_drained_stays_drained_after_the_mending() -> None:
    async def main() -> None:
        one = Gateway("here", MemoryOverlay(), FakeClock())
        await one.overlay.put("draining", "a", True)
        await one.claims.claim("a", "ill", 20.0)
        await one.claims.release("a")
        assert one.draining == {"a"}

    asyncio.run(main())


def test_mending_by_call_needs_something_that_mends() -> None:
    async def main(admin: Admin) -> None:
        answer = await admin.http.post(f"/admin/replicas/{FIRST}/mend")
        assert answer.status_code == 409
        assert "fleet.maintenance.action is none" in answer.json()["error"]["message"]
        assert (await admin.http.post("/admin/replicas/nobody/mend")).status_code == 404
        state = (await admin.state())["maintenance"]
        assert state == {"configured": False, "mending": {}, "last": []}

    run(main)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"action": {"kind": "webhook"}}, "action.url: is required with kind: webhook"),
        ({"action": {"kind": "command"}}, "action.command: is required with kind: command"),
        (
            {"action": {"kind": "webhook", "url": "http://h", "command": ["x"]}},
            "command: goes with kind: command",
        ),
        ({"action": {"kind": "kubernetes", "workload": "job/x"}}, "deployment/NAME"),
        ({"restarts": {"mode": "on"}}, "needs fleet.maintenance.action"),
        ({"restarts": {"at": "25:00"}}, "a time of the day"),
        ({"threshold": 0}, "above 0"),
    ],
)
def test_wrong_settings_are_told(given: dict[str, Any], told: str) -> None:
    lines = faults({**CONFIG, "fleet": {"maintenance": given}}, ENVIRON)
    assert any(told in line for line in lines), lines


def test_a_whole_configuration_of_it() -> None:
    given = {
        "action": {"kind": "command", "command": ["restart.sh", "{node}"], "timeout_s": 30},
        "restarts": {"mode": "on", "at": "02:30", "every_days": 7},
    }
    settings = Settings.from_dict({**CONFIG, "fleet": {"maintenance": given}}, ENVIRON)
    assert settings.fleet.maintenance.restarts.at == "02:30"
