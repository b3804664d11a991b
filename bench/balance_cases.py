"""The loads that the balancer is judged on, by name; `balance_targets.py` says what must hold.

Trace loads stand before eight engines of a 70B class on four H100 each, at a speed at which round
robin and least request keep up, or nearly; saturated they come 3 times as fast (agents 6 times).
Everything else is an 8B class on single GPUs. Documents come back late in their trace, so that
all of it is replayed; of the others as much as shows what the whole does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tierway.bench.balance_rig import Slowdown
from tierway.bench.balance_runs import Case, TraceLoad
from tierway.bench.loads import TurnPlan

_EIGHT = ("h100x4",) * 8
_QUICK_REQUESTS = 500


@dataclass(frozen=True, slots=True)
class Named:
    """A case with its title; `few` measures only what its targets compare with."""

    name: str
    title: str
    case: Case
    few: bool = False
    quick: bool = False
    seeds: int = 2


def cases(traces: Path) -> Mapping[str, Named]:
    """All of them; the traces are looked for in that folder."""
    made = [*_turns(), *_mixed(), *_traces(traces), *_small(), *_gateways(traces)]
    return {one.name: one for one in made}


def shortened(named: Named) -> Named:
    """Coarse but quick: one seed, and no more than some hundred requests."""
    load = named.case.load
    if isinstance(load, TraceLoad):
        load = replace(load, limit=min(load.limit or _QUICK_REQUESTS, _QUICK_REQUESTS))
    return replace(named, case=replace(named.case, load=load), seeds=1, few=True)


def missing(named: Named) -> str:
    """Why the case cannot run here, or nothing."""
    load = named.case.load
    if isinstance(load, TraceLoad) and not Path(load.path).is_file():
        return f"no file {load.path}"
    return ""


def _turns() -> list[Named]:
    five = [
        Named(
            f"five-turn-{count}",
            f"60 conversations of 5 turns, 20 users, {count} x A100",
            Case(TurnPlan(), ("a100",) * count),
            quick=count == 3,
            seeds=5,
        )
        for count in (2, 3, 8)
    ]
    perturbed = Named(
        "five-turn-perturbed",
        "the same on 3, every engine up to 30 % off in each coefficient",
        Case(TurnPlan(), ("a100",) * 3, perturb=0.3),
        few=True,
        seeds=5,
    )
    throttled = Named(
        "five-turn-throttled",
        "the same on 3, one of which takes 3 times as long from second 60 on",
        Case(TurnPlan(), ("a100",) * 3, slowdowns=(Slowdown(0, 60.0, 3.0),)),
        few=True,
        seeds=5,
    )
    return [*five, perturbed, throttled]


def _mixed() -> list[Named]:
    return [
        Named(
            f"mixed-{'-'.join(gpus)}",
            f"60 conversations of 5 turns, 20 users, {', '.join(gpus)}",
            Case(TurnPlan(), gpus),
            quick=gpus[0] == "h100",
            seeds=5,
        )
        for gpus in (("h100", "a100", "l40s"), ("a100", "a100", "a10"))
    ]


def _traces(folder: Path) -> list[Named]:
    chat = TraceLoad(
        str(folder / "mooncake_conversation_dev.jsonl.gz"), 0.7, jitter_ms=3000.0, limit=3000
    )
    documents = TraceLoad(str(folder / "mooncake_synthetic_dev.jsonl.gz"), 0.7)
    agents = TraceLoad(str(folder / "agentic_coding_dev.jsonl.gz"), 0.3, limit=1200)
    found = []
    for name, load, faster in (
        ("chat", chat, 3),
        ("documents", documents, 3),
        ("agents", agents, 6),
    ):
        case = Case(load, _EIGHT, "70b")
        fast = replace(case, load=replace(load, scale=faster * load.scale))
        off = replace(case, perturb=0.3)
        slow = replace(case, slowdowns=(Slowdown(0, 300.0, 3.0),))
        found += [
            Named(name, f"{name} trace at moderate load", case, quick=name == "chat"),
            Named(f"{name}-saturated", f"{name} trace {faster} times as fast", fast),
            Named(f"{name}-perturbed", f"{name} trace, engines up to 30 % off", off, few=True),
            Named(f"{name}-throttled", f"{name} trace, one engine 3 times slower", slow, few=True),
        ]
    azure = TraceLoad(str(folder / "azure2023_conv_dev.jsonl.gz"), 8.0, limit=3000)
    return [*found, Named("no-prefixes", "arrivals without prefixes", Case(azure, ("a100",) * 4))]


def _small() -> list[Named]:
    hot = TurnPlan(
        sessions=400,
        turns=1,
        prompt_tokens=300,
        output_tokens=150,
        concurrency=64,
        common_tokens=4000,
    )
    trickle = TurnPlan(sessions=60, turns=1, concurrency=1, output_tokens=100)
    slow = tuple(Slowdown(number, 0.0, 2.0) for number in (0, 1))
    return [
        Named(
            "hot-prompt",
            "one system prompt of 4,000 tokens in all requests, 64 users, 4 x A100",
            Case(hot, ("a100",) * 4),
            quick=True,
        ),
        Named(
            "trickle",
            "one short request at a time, 4 x A100",
            Case(trickle, ("a100",) * 4),
            quick=True,
        ),
        Named(
            "unequal",
            "60 conversations of 5 turns, two of 4 x A100 twice as slow as their GPU promises",
            Case(TurnPlan(), ("a100",) * 4, slowdowns=slow),
            few=True,
            seeds=5,
        ),
    ]


def _gateways(folder: Path) -> list[Named]:
    chat = TraceLoad(
        str(folder / "mooncake_conversation_dev.jsonl.gz"), 0.7, jitter_ms=3000.0, limit=3000
    )
    loads = (
        ("five-turn", Case(TurnPlan(), ("a100",) * 8), 5),
        ("chat", Case(chat, _EIGHT, "70b"), 2),
    )
    return [
        Named(
            f"{name}-{count}-gateways",
            f"{name}, {count} gateway{'s' if count > 1 else ''} with shared state",
            replace(case, gateways=count),
            few=True,
            seeds=seeds,
        )
        for name, case, seeds in loads
        for count in (1, 4, 16)
    ]
