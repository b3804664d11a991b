"""How soon the pressure index finds an engine whose memory fragments, and how often it errs.

    python -m tierway.bench.pressure [--seeds 5] [--threshold 0.5 --for 20] [--json]

The product's own Balancer, fleet and index before simulated engines in virtual time, polled once a
second. Healthy runs, from a trickle to overload, count false alarms by replica and hour. In the
others one replica of four loses memory from 60 s on, at a steady rate, until it has lost 60 %; told
is how long after it began the alarm came. The alarm is an index of `--threshold` or more for so
many seconds (`--for`): 0.5 and 20 for the line in the log, 0.7 and 60 for maintenance.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierway.bench.balance_fleet import ProductGateway, fleet_profile
from tierway.bench.balance_rig import Rig, VirtualClock
from tierway.bench.engine import Engine
from tierway.bench.engine_clock import EngineClock
from tierway.bench.loads import TurnPlan, Turns
from tierway.policies.pressure import Detector
from tierway.router.pressure import PressureWatch

RULE = (0.5, 20.0)
_ONSET_S = 60.0
_EVERY_S = 1.0
_ILL = 0

LOADS: Mapping[str, tuple[str, TurnPlan]] = {
    "trickle": ("a100", TurnPlan(sessions=200, turns=1, output_tokens=150, concurrency=1)),
    "five-turn": ("a100", TurnPlan(sessions=200, concurrency=20)),
    "busy": ("a100", TurnPlan(sessions=500, concurrency=120)),
    "long prompts": (
        "l40s",
        TurnPlan(sessions=120, turns=3, prompt_tokens=6000, output_tokens=300, concurrency=24),
    ),
    "overload": (
        "a10",
        TurnPlan(sessions=250, turns=2, prompt_tokens=800, output_tokens=500, concurrency=160),
    ),
    "uneven overload": (
        "a10",
        TurnPlan(sessions=400, turns=1, prompt_tokens=900, concurrency=160, spread=0.8),
    ),
}
RATES = (0.001, 0.005, 0.02)
"""Shares of the memory lost by second: all of the 60 % in ten minutes, two, and half of one."""


@dataclass(slots=True)
class Alarms:
    """When each replica's alarm rang, and for how many replica-seconds anybody listened."""

    clock: VirtualClock
    gateway: ProductGateway
    detectors: Sequence[Detector]
    at_s: dict[int, float] = field(default_factory=dict)
    rung: int = 0

    def listen(self) -> None:
        for number, detector in enumerate(self.detectors):
            was = detector.on
            view = self.gateway.balancer.fleet.view(f"model@gpu-{number:02}:8000")
            if detector.note(self.clock(), view.pressure) and not was:
                self.rung += 1
                self.at_s.setdefault(number, self.clock())


Rule = tuple[float, float]
"""The threshold, and for how many seconds."""


def run(load: str, seed: int, rule: Rule, rate: float = 0.0) -> dict[str, float]:
    """One run; `delay_s` where an ill engine was found, `false` alarms else."""
    gpu, plan = LOADS[load]
    clock, draw = VirtualClock(), random.Random(f"{load} {seed}")
    believed = [fleet_profile("8b", gpu) for _ in range(4)]
    engines = EngineClock([Engine(made) for made in believed])
    gateway = ProductGateway(engines, "llm", {}, clock=clock, draw=draw, believed=believed)
    gateway.learn(PressureWatch(gateway.balancer.fleet))
    alarms = Alarms(clock, gateway, [Detector(*rule) for _ in believed])

    def lose() -> None:
        if rate and clock() >= _ONSET_S:
            engines.engines[_ILL].lose_memory(rate * _EVERY_S)

    rig = Rig(
        clock,
        engines,
        [gateway],
        draw,
        repeated=[(_EVERY_S, lose), (_EVERY_S, alarms.listen)],
    )
    done = rig.run(Turns.drawn(plan, draw))
    found = {"seconds": done.seconds, "false": alarms.rung - (_ILL in alarms.at_s and rate > 0)}
    if rate and _ILL in alarms.at_s:
        found["delay_s"] = alarms.at_s[_ILL] - _ONSET_S
    return found


def measured(seeds: int, rule: Rule = RULE) -> dict[str, Any]:
    healthy = {load: [run(load, seed, rule) for seed in range(seeds)] for load in LOADS}
    ill = {
        f"{load}, {rate:g}/s": [run(load, seed, rule, rate) for seed in range(seeds)]
        for load in LOADS
        for rate in RATES
    }
    return {
        "healthy": {
            load: {
                "replica_hours": sum(4 * one["seconds"] for one in runs) / 3600,
                "false_alarms": sum(one["false"] for one in runs),
            }
            for load, runs in healthy.items()
        },
        "ill": {name: _told(runs) for name, runs in ill.items()},
    }


def _told(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    delays = [one["delay_s"] for one in runs if "delay_s" in one]
    return {
        "runs": len(runs),
        "found": len(delays),
        "median_delay_s": statistics.median(delays) if delays else None,
        "longest_delay_s": max(delays, default=None),
        "ran_s": statistics.mean(one["seconds"] for one in runs) - _ONSET_S,
        "false_alarms": sum(one["false"] for one in runs),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pressure", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=RULE[0])
    parser.add_argument("--for", dest="for_s", type=float, default=RULE[1], help="seconds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    found = measured(given.seeds, (given.threshold, given.for_s))
    print(json.dumps(found) if given.json else _table(found))
    return 0


def _table(found: Mapping[str, Any]) -> str:
    lines = ["| healthy load | replica-hours | false alarms |", "| --- | ---: | ---: |"]
    lines += [
        f"| {load} | {one['replica_hours']:.1f} | {one['false_alarms']} |"
        for load, one in found["healthy"].items()
    ]
    lines += [
        "",
        "| load, share lost by second | found | median delay | longest | watched | false alarms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {one['found']} of {one['runs']} | {_s(one['median_delay_s'])} "
        f"| {_s(one['longest_delay_s'])} | {_s(one['ran_s'])} | {one['false_alarms']} |"
        for name, one in found["ill"].items()
    ]
    return "\n".join(lines)


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
