"""Pickers of the balancer: from scored replicas to the order in which they are tried.

All of them get the replicas in one canonical order (sorted by id), so no choice depends on
how the fleet lists them. Randomness is the one number `ask.draw`: it is spent like the digits
of a mixed-radix number, each step taking what it needs and handing on the rest, which gives
every order the same share of the draws (for up to about 18 replicas; beyond that only the
far end of the order is no longer random).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tierway.policies.types import BalanceAsk, ReplicaView

Scored = Sequence[tuple[ReplicaView, float]]

_LAST_DRAW = 1.0 - 2.0**-53
_TIE_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Best:
    """Highest score first; equal scores (to nine digits) are spread by the draw."""

    name = "best"

    def order(self, ask: BalanceAsk, scored: Scored) -> list[int]:
        keys = [round(score, _TIE_DIGITS) for _, score in scored]
        ranked = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        if len(set(keys)) == len(keys):
            return ranked
        groups = (list(group) for _, group in groupby(ranked, key=lambda index: keys[index]))
        return [index for group in groups for index in _shuffled(group, ask.draw)]


@dataclass(frozen=True, slots=True)
class TwoChoices:
    """Power of two choices (Mitzenmacher 2001): of two drawn replicas the better one first."""

    name = "two_choices"

    def order(self, ask: BalanceAsk, scored: Scored) -> list[int]:
        drawn = _shuffled(list(range(len(scored))), ask.draw)
        return sorted(drawn[:2], key=lambda index: -scored[index][1]) + drawn[2:]


@dataclass(frozen=True, slots=True)
class InTurn:
    """Round robin: the replica at `ask.sequence`, then the ones after it."""

    name = "in_turn"

    def order(self, ask: BalanceAsk, scored: Scored) -> list[int]:
        count = len(scored)
        return [(ask.sequence + step) % count for step in range(count)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random order without looking at scores; a replica's share is that of its weight."""

    name = "drawn"

    def order(self, ask: BalanceAsk, scored: Scored) -> list[int]:
        left = [index for index, (view, _) in enumerate(scored) if view.weight > 0.0]
        idle = [index for index, (view, _) in enumerate(scored) if view.weight <= 0.0]
        order: list[int] = []
        draw = ask.draw
        while left:
            at, draw = _weighted([scored[index][0].weight for index in left], draw)
            order.append(left.pop(at))
        return order + idle


def _shuffled(items: list[int], draw: float) -> list[int]:
    left, order = list(items), []
    while len(left) > 1:
        scaled = draw * len(left)
        at = min(int(scaled), len(left) - 1)
        draw = min(scaled - at, _LAST_DRAW)
        order.append(left.pop(at))
    return order + left


def _weighted(weights: Sequence[float], draw: float) -> tuple[int, float]:
    """The index the draw falls on, and the rest of the draw, again uniform in [0, 1)."""
    target = draw * sum(weights)
    for index, weight in enumerate(weights[:-1]):
        if target < weight:
            return index, min(target / weight, _LAST_DRAW)
        target -= weight
    return len(weights) - 1, min(max(target / weights[-1], 0.0), _LAST_DRAW)
