"""Runs of the balancing benchmark: what is asked for as plain values, so that another process can
take a part of it, and the figures that come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from tierway.bench.balance_figures import Figures, Slo, figures, over_seeds
from tierway.bench.balance_fleet import ProductGateway, fleet_profile
from tierway.bench.balance_rig import Rig, Slowdown, VirtualClock
from tierway.bench.engine import Engine
from tierway.bench.engine_clock import EngineClock
from tierway.bench.hub import MemoryHub
from tierway.bench.loads import LOOK_TOKENS, Load, TurnPlan, Turns
from tierway.bench.loads_traces import TRACE_TOKENS, Recorded, read_trace, replayed
from tierway.bench.profiles import BLOCK_TOKENS, Profile, perturbed
from tierway.bench.rivals import RIVALS, RivalGateway
from tierway.bench.rivals_oracle import ORACLE, ORACLES, POOLED, oracle, pooled
from tierway.policies.physics import pace
from tierway.policies.registry import POLICIES
from tierway.router.shared import TICK_S

SLO = Slo(ttft_s=2.0, tpot_s=0.05)

_TRACE_PAGING = 128  # tokens; traces tell of 512 at once, and coarse pages are quicker
_WEIGHTED = ("weighted_least_request",)


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """A trace file as an open loop, `scale` times as fast."""

    path: str
    scale: float = 1.0
    jitter_ms: float = 0.0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy by name with its options."""

    name: str
    policy: str
    options: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One load on one fleet. `gpus` names the GPU of each replica; `perturb` is by how much, at
    most, the coefficients of each engine differ from what everybody believes."""

    load: TurnPlan | TraceLoad
    gpus: tuple[str, ...]
    model: str = "8b"
    slo: Slo = SLO
    poll_s: float = 1.0
    gateways: int = 1
    perturb: float = 0.0
    slowdowns: tuple[Slowdown, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    case: Case
    contestant: Contestant
    seed: int


def measure(
    case: Case,
    contestants: Sequence[Contestant],
    seeds: int,
    *,
    jobs: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Figures]:
    """The figures of every contestant over the seeds 0, 1, ... on the same loads. `progress` is
    told how many runs are done."""
    asked = [one for named in contestants for one in _expanded(named)]
    tasks = [Task(case, one, seed) for seed in range(seeds) for one in asked]
    found: dict[tuple[str, int], Figures] = {}
    for task, told in _each(tasks, jobs):
        found[task.contestant.name, task.seed] = told
        progress(len(found))
    told_of = {
        one.name: over_seeds([found[one.name, seed] for seed in range(seeds)]) for one in asked
    }
    return {one.name: _best([told_of[part.name] for part in _expanded(one)]) for one in contestants}


def _expanded(one: Contestant) -> list[Contestant]:
    """The oracle stands for the better of several."""
    return [Contestant(name, name) for name in ORACLES] if one.policy == ORACLE else [one]


def _best(rows: Sequence[Figures]) -> Figures:
    return min(rows, key=lambda row: float(row["ttft_s"]["mean"]))


def _each(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Figures]]:
    """The tasks as they are done."""
    if jobs < 2:
        for task in tasks:
            yield task, run(task)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run, task): task for task in tasks}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def run(task: Task) -> Figures:
    """One run of one contestant; the same task gives the same figures, decision times apart."""
    case, clock = task.case, VirtualClock()
    load, look_tokens = _load(case.load, task.seed)
    engines, believed = _engines(task)
    hub = MemoryHub(clock) if case.gateways > 1 else None
    gateways = [
        _gateway(task, number, engines, believed, clock, look_tokens, hub)
        for number in range(case.gateways)
    ]
    rig = Rig(
        clock,
        engines,
        gateways,
        _draw(task.seed, "gateway"),
        poll_s=case.poll_s,
        slowdowns=[change for change in case.slowdowns if change.replica < len(believed)],
        repeated=[] if hub is None else [(TICK_S, hub.tick)],
    )
    done = rig.run(load)
    if left := sum(gateway.left_over for gateway in gateways):
        raise RuntimeError(f"{task.contestant.name}: {left} requests still count as in flight")
    return figures(done, case.slo)


def _engines(task: Task) -> tuple[EngineClock, list[Profile]]:
    """The engines of a case, and the profiles that gateways believe they have."""
    case = task.case
    paging = _TRACE_PAGING if isinstance(case.load, TraceLoad) else BLOCK_TOKENS
    believed = [fleet_profile(case.model, gpu).paged(paging) for gpu in case.gpus]
    draw = _draw(task.seed, "physics")
    real = [perturbed(made, draw, case.perturb) if case.perturb else made for made in believed]
    if task.contestant.policy == POOLED:
        return EngineClock([Engine(pooled(real), speed=len(real))]), [pooled(believed)]
    return EngineClock([Engine(made) for made in real]), believed


def _gateway(
    task: Task,
    number: int,
    engines: EngineClock,
    believed: Sequence[Profile],
    clock: VirtualClock,
    look_tokens: int,
    hub: MemoryHub | None,
) -> ProductGateway | RivalGateway:
    contestant, draw = task.contestant, _draw(task.seed, f"policy {number}")
    if contestant.policy in POLICIES:
        return ProductGateway(
            engines,
            contestant.policy,
            dict(contestant.options),
            clock=clock,
            draw=draw,
            believed=believed,
            look_tokens=look_tokens,
            weights=_weights(believed) if contestant.policy in _WEIGHTED else None,
            hub=hub,
        )
    if contestant.policy in ORACLES:
        real = [engine.profile for engine in engines.engines]
        return RivalGateway(oracle(contestant.policy, real), engines, draw=draw)
    made = RIVALS["session_hash" if contestant.policy == POOLED else contestant.policy]
    return RivalGateway(made(len(believed)), engines, draw=draw)


def _load(plan: TurnPlan | TraceLoad, seed: int) -> tuple[Load, int]:
    """The load of a seed, and the length of its blocks as gateways see them."""
    draw = _draw(seed, "load")
    if isinstance(plan, TurnPlan):
        return Turns.drawn(plan, draw), LOOK_TOKENS
    trace = _trace(plan.path, plan.limit)
    look_tokens = TRACE_TOKENS if any(one.blocks for one in trace) else LOOK_TOKENS
    return replayed(trace, draw, scale=plan.scale, jitter_ms=plan.jitter_ms), look_tokens


@lru_cache(maxsize=2)
def _trace(path: str, limit: int | None) -> Sequence[Recorded]:
    return read_trace(Path(path), limit)


def _weights(profiles: Sequence[Profile]) -> list[float]:
    """What an operator would write down for unequal GPUs: how fast a lone request decodes."""
    paces = [pace(made.model, made.gpu, made.gpus).step_s for made in profiles]
    return [min(paces) / one for one in paces]


def _draw(seed: int, use: str) -> random.Random:
    """Random numbers of one use, so that a policy that draws more sees no other load."""
    return random.Random(f"{use} {seed}")
