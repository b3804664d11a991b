"""What the balancer is to reach, checked against measured figures: wins and losses alike.

Baselines are the plain policies and the rules of other balancers with gauges one second old;
those with fresh gauges and the bounds are shown, and count where a target names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tierway.bench.balance_figures import Figures
from tierway.bench.rivals import RIVALS
from tierway.bench.rivals_oracle import ORACLE, POOLED

OURS = "llm"
PLAIN = (
    "round_robin",
    "random",
    "least_request",
    "weighted_least_request",
    "power_of_two",
    "consistent_hash",
)
BASELINES = (*PLAIN, *(name for name in RIVALS if not name.endswith("_fresh")))
Rows = Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target on one case: `value` must be at most (or at least) `wanted`."""

    case: str
    target: str
    value: float
    wanted: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    def as_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "target": self.target,
            "value": self.value,
            "wanted": self.wanted,
            "at_most": self.at_most,
            "met": self.met,
        }


def verdicts(found: Mapping[str, Rows]) -> list[Verdict]:
    """All targets of the cases that were measured."""
    checks: list[Verdict] = []
    for name, rows in found.items():
        for begins, check in _CHECKS:
            if name.startswith(begins):
                checks += check(name, rows)
                break
    return checks + list(_gateways(found))


def _ttft(rows: Rows, name: str) -> float:
    return float(rows[name]["ttft_s"]["mean"])


def _ratio(name: str, rows: Rows, other: str, wanted: float) -> Verdict:
    value = _ttft(rows, OURS) / _ttft(rows, other)
    return Verdict(name, f"TTFT over {other}", value, wanted)


def _best_ttft(name: str, rows: Rows, wanted: float = 1.05) -> Verdict:
    best = min((one for one in rows if one in BASELINES), key=lambda one: _ttft(rows, one))
    value = _ttft(rows, OURS) / _ttft(rows, best)
    return Verdict(name, f"TTFT over the best baseline ({best})", value, wanted)


def _faster(name: str, rows: Rows, other: str, wanted: float) -> Verdict:
    value = rows[OURS]["output_tokens_per_s"] / rows[other]["output_tokens_per_s"]
    return Verdict(name, f"output tokens/s over {other}", value, wanted, at_most=False)


def _figure(name: str, rows: Rows, key: str, wanted: float) -> Verdict:
    return Verdict(name, key, float(rows[OURS][key]), wanted)


def _five_turn(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _ratio(name, rows, "round_robin", 0.50)
    yield _ratio(name, rows, "least_request", 0.60)
    yield _ratio(name, rows, "session_hash", 1.10)


def _off(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _ratio(name, rows, "round_robin", 0.50)
    yield _best_ttft(name, rows)
    yield _ratio(name, rows, ORACLE, 1.10)


def _mixed(name: str, rows: Rows) -> Iterator[Verdict]:
    wide = "h100" in name
    yield _faster(name, rows, "round_robin", 1.30)
    yield _faster(name, rows, "weighted_least_request", 1.05 if wide else 1.0)
    yield _ratio(name, rows, "round_robin", 0.50)
    yield _figure(name, rows, "busy_max_over_mean", 1.30)
    share = rows[OURS]["share_to_fastest"]
    yield Verdict(
        name,
        "heaviest tenth on the fastest GPUs over their share of speed",
        share["top_tenth"] / share["speed"],
        1.0,
        at_most=False,
    )


def _trace(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _ratio(name, rows, ORACLE, 1.10)
    yield _best_ttft(name, rows)
    if POOLED in rows:
        value = rows[OURS]["kv_hit_ratio"] / rows[POOLED]["kv_hit_ratio"]
        yield Verdict(name, "hit ratio over the pooled bound", value, 0.90, at_most=False)
    if name in ("chat", "documents"):
        yield _figure(name, rows, "work_max_over_mean", 1.25)


def _saturated(name: str, rows: Rows) -> Iterator[Verdict]:
    best = max(
        (one for one in rows if one in BASELINES), key=lambda one: rows[one]["output_tokens_per_s"]
    )
    yield _faster(name, rows, best, 0.90)
    wanted = {"documents": 1.45, "chat": 1.15, "agents": 2.8}[name.split("-")[0]]
    yield _faster(name, rows, "round_robin", wanted)


def _even(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _best_ttft(name, rows)


def _hot(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _best_ttft(name, rows)
    yield _figure(name, rows, "requests_max_over_mean", 1.25)


def _trickle(name: str, rows: Rows) -> Iterator[Verdict]:
    yield _figure(name, rows, "requests_max_over_mean", 1.5)


def _gateways(found: Mapping[str, Rows]) -> Iterator[Verdict]:
    for load in ("five-turn", "chat"):
        one = found.get(f"{load}-1-gateways")
        for count, wanted in ((4, 1.03), (16, 1.10)):
            rows = found.get(f"{load}-{count}-gateways")
            if one is not None and rows is not None:
                value = _ttft(rows, OURS) / _ttft(one, OURS)
                yield Verdict(f"{load}-{count}-gateways", "TTFT over one gateway", value, wanted)


def _nothing(name: str, rows: Rows) -> Iterator[Verdict]:
    return iter(())


_GATEWAYS = tuple(
    f"{load}-{count}-gateways" for load in ("five-turn", "chat") for count in (1, 4, 16)
)
_CHECKS: tuple[tuple[str, Callable[[str, Rows], Iterator[Verdict]]], ...] = (
    *((name, _nothing) for name in _GATEWAYS),
    ("five-turn-perturbed", _off),
    ("five-turn-throttled", _off),
    ("five-turn", _five_turn),
    ("unequal", _off),
    ("mixed", _mixed),
    *((f"{name}-saturated", _saturated) for name in ("chat", "documents", "agents")),
    *((name, _trace) for name in ("chat", "documents", "agents")),
    ("no-prefixes", _even),
    ("hot-prompt", _hot),
    ("trickle", _trickle),
)
"""By the beginning of a case's name; the first that fits."""
