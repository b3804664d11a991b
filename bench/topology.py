"""What zones and groups keep together, and what that costs, against a fleet without.

    python -m tierway.bench.topology [--seeds 3] [--json]

Two gateways, one in each of two zones, and eight simulated engines in virtual time, two groups of
two in each zone. Users keep to the gateway of their zone; gateways share counts and placements.
From 40 s on one engine is drained, so that its conversations must go elsewhere. Told is the share
of calls that stayed in the zone, and in a group that held a part of their prompt, with zones and
groups in the score and without, on the same load.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierway.bench.balance_fleet import Placed, ProductGateway, ProductTicket, fleet_profile
from tierway.bench.balance_rig import Rig, VirtualClock
from tierway.bench.engine import Engine
from tierway.bench.engine_clock import EngineClock
from tierway.bench.hub import MemoryHub
from tierway.bench.loads import Asked, TurnPlan, Turns
from tierway.router.shared import TICK_S

_DRAINED_S = 40.0
PLACES = tuple(
    Placed(zone=f"zone{number // 4}", group=f"group{number // 2}", fabric="nvlink")
    for number in range(8)
)
LOADS: Mapping[str, TurnPlan] = {
    "five-turn": TurnPlan(sessions=160, concurrency=40),
    "busy": TurnPlan(sessions=400, concurrency=200, output_tokens=400),
    "shared prompt": TurnPlan(sessions=160, turns=3, concurrency=60, common_tokens=2000),
}
CASES: Mapping[str, Mapping[str, float]] = {
    "without": {"zone_s": 0.0, "group_s": 0.0},
    "zones and groups": {},
}


@dataclass(frozen=True, slots=True)
class _ByZone:
    """Sends each conversation to the gateway of its user's zone."""

    gateways: Sequence[ProductGateway]

    def send(self, asked: Asked, blocks: tuple[int, ...]) -> ProductTicket:
        return self.gateways[int(asked.session) % len(self.gateways)].send(asked, blocks)

    def poll(self) -> None:
        for gateway in self.gateways:
            gateway.poll()


def run(load: str, options: Mapping[str, float], seed: int) -> dict[str, float]:
    clock, draw = VirtualClock(), random.Random(f"{load} {seed}")
    believed = [fleet_profile("8b", "a100") for _ in PLACES]
    engines = EngineClock([Engine(made) for made in believed])
    hub = MemoryHub(clock)
    gateways = [
        ProductGateway(
            engines,
            "llm",
            options,
            clock=clock,
            draw=draw,
            believed=believed,
            hub=hub,
            places=PLACES,
            zone=f"zone{number}",
        )
        for number in range(2)
    ]

    def drain() -> None:
        if clock() >= _DRAINED_S:
            for gateway in gateways:
                gateway.balancer.fleet.set_draining("model@gpu-00:8000", True)

    repeated = [(TICK_S, hub.tick), (1.0, drain)]
    rig = Rig(clock, engines, [_ByZone(gateways)], draw, repeated=repeated)
    done = rig.run(Turns.drawn(LOADS[load], draw))
    kinds: Counter[str] = Counter()
    for gateway in gateways:
        kinds.update(gateway.balancer.places)
    ttfts = sorted(sample.ttft_s for sample in done.samples)
    tokens = sum(sample.asked.output_tokens for sample in done.samples)
    return {
        "zone_kept": kinds["zone_kept"] / max(1, kinds["zone_kept"] + kinds["zone_crossed"]),
        "group_kept": kinds["group_kept"] / max(1, kinds["group_kept"] + kinds["group_left"]),
        "ttft_ms": 1000 * statistics.fmean(ttfts),
        "ttft_p99_ms": 1000 * ttfts[int(0.99 * len(ttfts))],
        "output_tokens_per_s": tokens / done.seconds,
    }


def measured(seeds: int) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for load in LOADS:
        for case, options in CASES.items():
            runs = [run(load, options, seed) for seed in range(seeds)]
            told = {key: statistics.fmean(one[key] for one in runs) for key in runs[0]}
            found.setdefault(load, {})[case] = told
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="topology", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    found = measured(given.seeds)
    print(json.dumps(found) if given.json else _table(found))
    return 0


def _table(found: Mapping[str, Any]) -> str:
    lines = [
        "| load | topology | in zone | in group | TTFT ms | p99 | tokens/s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {load} | {case} | {100 * one['zone_kept']:.0f} % | {100 * one['group_kept']:.0f} % "
        f"| {one['ttft_ms']:.1f} | {one['ttft_p99_ms']:.0f} | {one['output_tokens_per_s']:.0f} |"
        for load, cases in found.items()
        for case, one in cases.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
