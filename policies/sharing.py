"""Choosing once more among the best replicas, with the counts of all gateways at hand.

A policy ranks with what its gateway knows of the others, which is up to a second old. Of its
best candidates it tells, beside a price, what the price rises by for what it did not know of:

    price = base + sum over requests, prefill and output tokens of (now - known) * slope

Whoever holds the counts of all gateways takes the least. `known` is what the policy saw, the
gateway's own counts included: between ranking and choosing its other calls may have been placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierway.policies.types import Cost, Counts, Work

OFFERED = 4
"""How many of a ranking are chosen from: the least loaded of a few is nearly the least of all."""

_STEPS_PER_S = 1e9  # prices that differ by less than this are equal


@dataclass(frozen=True, slots=True)
class Offer:
    """A replica that may take a call, which would be `work` there."""

    replica: str
    work: Work
    cost: Cost
    known: Counts


def price_s(offer: Offer, now: Counts) -> float:
    """What the offer costs with `now` in flight on its replica."""
    cost, known = offer.cost, offer.known
    return (
        cost.base_s
        + cost.request_s * (now.requests - known.requests)
        + cost.prefill_token_s * (now.prefill_tokens - known.prefill_tokens)
        + cost.output_token_s * (now.output_tokens - known.output_tokens)
    )


def cheapest(offers: Sequence[Offer], now: Sequence[Counts], draw: float) -> int:
    """The place of the least price, equal ones beginning where the draw falls; 0 for none."""
    count = len(offers)
    first = int(draw * count)
    keys = [round(price_s(*pair) * _STEPS_PER_S) for pair in zip(offers, now, strict=True)]
    return min(range(count), key=lambda at: (keys[at], (at - first) % count), default=0)


def plus(one: Counts, other: Counts) -> Counts:
    return Counts(
        one.requests + other.requests,
        one.prompt_tokens + other.prompt_tokens,
        one.prefill_tokens + other.prefill_tokens,
        one.output_tokens + other.output_tokens,
        one.context_tokens + other.context_tokens,
    )


def with_work(counts: Counts, work: Work) -> Counts:
    """`counts` with one more request."""
    return Counts(
        counts.requests + 1,
        counts.prompt_tokens + work.prompt_tokens,
        counts.prefill_tokens + work.prefill_tokens,
        counts.output_tokens + work.output_tokens,
        counts.context_tokens + work.context_tokens,
    )
