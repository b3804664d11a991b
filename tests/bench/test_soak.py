"""The soak itself: what it does to machines, what it finds wrong, and a short one."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datastores import need_redis

from tierway.bench import soak, soak_checks
from tierway.bench.load_clients import Wrong
from tierway.bench.soak_checks import Watched
from tierway.bench.soak_clients import Lost, Tally, _streamed
from tierway.bench.soak_events import Trouble
from tierway.bench.soak_fleet import MODEL, PROFILES, Machine, SoakFleet
from tierway.bench.soak_mender import Mender


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def test_enough_machines_serve_whatever_happens(tmp_path: Path) -> None:
    async def main() -> None:
        fleet = SoakFleet(tmp_path / "fleet.json", seed=1, speed=20.0)
        await fleet.start()
        try:
            trouble = Trouble(fleet, random.Random(1), pause=at_once)
            for _ in range(40):
                await trouble.step()
                well = [one for one in fleet.serving if one.up and not one.fragments]
                assert len(well) >= 4
                told = json.loads((tmp_path / "fleet.json").read_text())[MODEL]
                assert [one["url"] for one in told] == [one.url for one in fleet.serving]
                for machine in fleet.machines:  # somebody mends
                    if machine.fragments and random.Random(machine.ill).random() < 0.5:
                        await machine.restart()
            assert set(trouble.counts) == {
                "join", "leave", "restart", "die", "move", "throttle", "fragment",
            }  # fmt: skip
        finally:
            await fleet.aclose()

    asyncio.run(main())


def test_a_machine_is_at_its_address_until_it_moves(tmp_path: Path) -> None:
    async def main() -> None:
        fleet = SoakFleet(tmp_path / "fleet.json", seed=1, speed=20.0)
        await fleet.start()
        try:
            machine = fleet.machines[3]
            before = machine.url
            await machine.restart()
            assert fleet.at(before) is machine
            await machine.move()
            assert fleet.at(before) is None
            assert machine.url != before
        finally:
            await fleet.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n', "Hi"),
        (b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n', Wrong),
        (b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: {"error":{}}\n\n', Wrong),
        (b': waiting\n\ndata: {"error":{}}\n\n', Lost),
    ],
)
def test_what_a_stream_was(raw: bytes, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert _streamed(raw) == wanted
    else:
        with pytest.raises(wanted):
            _streamed(raw)


def fleet_of(tmp_path: Path, *, ill: int = 0, mended: int = 0) -> SoakFleet:
    fleet = SoakFleet(tmp_path / "fleet.json", seed=0, speed=1.0)
    fleet.machines = [Machine("n", PROFILES[0], 0, 1.0, "a", port=8001, ill=ill, mended=mended)]
    return fleet


def test_what_is_lost_mended_twice_or_grows_is_found(tmp_path: Path) -> None:
    assert list(soak_checks._of_requests(Tally(answered=5))) == []
    lost = Tally(answered=5, lost=Counter({"Refused": 2}))
    assert "2 requests lost" in next(soak_checks._of_requests(lost))
    assert list(soak_checks._of_requests(Tally())) == ["no request was answered"]
    for ill, mended, wrong in ((1, 1, False), (1, 0, True), (1, 2, True), (0, 1, True)):
        fleet = fleet_of(tmp_path, ill=ill, mended=mended)
        assert bool(list(soak_checks._of_mending(fleet, Mender(fleet)))) is wrong
    steady = Watched(series=[400] * 9, memory_mib=[100.0, 300.0, 250.0] * 3)
    assert list(soak_checks._of_growth(steady)) == []
    grown = Watched(series=[400] * 9, memory_mib=[100.0 * n for n in range(9)])
    assert "grew" in next(soak_checks._of_growth(grown))


def test_traces_of_who_has_left_are_found(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    state = {
        "tiers": {"small": {"replicas": [{"id": "soak@h:8001"}]}},
        "prefixes": {"blocks": {"soak@h:8001": 1}},
    }
    page = b'tierway_replica_inflight{replica="soak@h:8001"} 0\n'
    assert list(soak_checks._of_gone(page, state, fleet)) == []
    gone = page + b'tierway_replica_inflight{replica="soak@h:9"} 0\n'
    assert "soak@h:9" in next(soak_checks._of_gone(gone, state, fleet))
    state["prefixes"]["blocks"] = {"soak@h:9": 3}
    assert "prefix index" in next(soak_checks._of_gone(page, state, fleet))


def test_a_short_soak_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    need_redis()
    arguments = ["--minutes", "0.1", "--every", "1", "--clients", "6", "--healthy", "--json"]
    assert soak.main(arguments) == 0, capsys.readouterr().out
    found = json.loads(capsys.readouterr().out)
    assert found["faults"] == []
    assert found["answered"] > 20
    assert sum(found["events"].values()) >= 2
