"""Pair by pair: is the answer stored for `a` served to `b`, and should it be?

Each pair is asked of the real cache in a partition of its own, so the top figures are those of a
gateway's default configuration. The sweep over the error budget, the reliability table and the
baselines use the same cosines (the index's own) and the same features. All peers' rules are one
cut on the cosine; "best cut" is the one that a seer of these very labels would choose.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tierway.bench.cache_rig import Rig, Setting
from tierway.bench.labelled import Outcome, Pair, pair_figures, quantiles, share
from tierway.bench.vectors import Remembered
from tierway.cache.index import Arena
from tierway.cache.lookup import Found
from tierway.policies.equivalence import Equivalence, veto
from tierway.policies.questions import Features, features

CUTS = (0.80, 0.85, 0.90, 0.95)
VETOED_CUT = 0.95
TARGETS = (0.01, 0.02)
BUDGETS = tuple(round(0.0005 * 1.115**step, 6) for step in range(64))  # 0.0005 to 0.47
LOOSEST = 0.5
BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
TIMED = 200
_MAY_COMPARE = ("uncalibrated", "encoder")  # found no vector for other reasons than the text's
_AT_ONCE = 500  # fewer than the cache's queue takes


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair with all that was decided about it.

    `found` is what the cache said; `cosine` is None where a text does not fit the encoder;
    `veto` the word rule that refuses it. `probability` is the verdict's at the loosest budget,
    `budget` the smallest of BUDGETS at which it is served without a second opinion (None: at
    none of them).
    """

    pair: Pair
    found: Found
    took_s: float
    cosine: float | None
    veto: str
    probability: float
    budget: float | None

    @property
    def served(self) -> bool:
        return self.found.hit is not None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.served, self.pair.same)


async def judge_pairs(
    pairs: Sequence[Pair], embedder: Remembered, setting: Setting
) -> list[Judged]:
    """Asks the cache and the decision about every pair; `embedder` is started."""
    await embedder.learn([text for pair in pairs for text in (pair.a, pair.b)])
    found = await _ask_cache(pairs, embedder, setting)
    cosines = await _cosines(pairs, embedder)
    loose = setting.equivalence(LOOSEST)
    known: dict[str, Features] = {}
    for pair in pairs:
        for text in (pair.a, pair.b):
            known.setdefault(text, features(text))
    return [
        _judged(pair, *asked, cosine, (known[pair.b], known[pair.a]), loose, embedder.id)
        for pair, asked, cosine in zip(pairs, found, cosines, strict=True)
    ]


async def _ask_cache(
    pairs: Sequence[Pair], embedder: Remembered, setting: Setting
) -> list[tuple[Found, float]]:
    rig = Rig(embedder, setting)
    await rig.start()
    try:
        results = []
        for at in range(0, len(pairs), _AT_ONCE):
            group = pairs[at : at + _AT_ONCE]
            for number, pair in enumerate(group):
                rig.keep(pair.a, str(at + number))
            await rig.cache.settled()
            for number, pair in enumerate(group):
                began = time.perf_counter()
                found = await rig.find(pair.b, str(at + number))
                results.append((found, time.perf_counter() - began))
        return results
    finally:
        await rig.aclose()


async def _cosines(pairs: Sequence[Pair], embedder: Remembered) -> list[float | None]:
    """As the index tells them: the stored vector in int8, the asked one in full."""
    arena = Arena(embedder.dim)
    cosines: list[float | None] = []
    for number, pair in enumerate(pairs):
        if not (embedder.fits(pair.a) and embedder.fits(pair.b)):
            cosines.append(None)
            continue
        stored, asked = await embedder.encode([pair.a, pair.b])
        arena.add(b"pair", number, stored)
        cosines.append(arena.search(b"pair", asked, 1)[0][1])
        arena.remove(number)
    return cosines


def _judged(
    pair: Pair,
    found: Found,
    took_s: float,
    cosine: float | None,
    sides: tuple[Features, Features],
    loose: Equivalence,
    encoder: str,
) -> Judged:
    bare = Judged(pair, found, took_s, cosine, veto(*sides), 0.0, None)
    if cosine is None or (found.vector is None and found.reason not in _MAY_COMPARE):
        return bare  # never compared by meaning, whatever the budget
    verdict = loose.judge(*sides, cosine, encoder)
    judged = replace(bare, probability=verdict.probability)

    def serves(budget: float) -> bool:
        return loose.judge(*sides, cosine, encoder, max_error_rate=budget).serve

    return replace(judged, budget=_smallest(serves)) if verdict.serve else judged


def _smallest(serves: Callable[[float], bool]) -> float | None:
    """A larger budget serves whatever a smaller one does, so halving finds the first."""
    low, high = 0, len(BUDGETS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(BUDGETS[middle]) else (middle + 1, high)
    return BUDGETS[low] if low < len(BUDGETS) else None


# ---- the report ------------------------------------------------------------------------------


def report(judged: Sequence[Judged], *, target: float, trained_on: Iterable[str]) -> dict[str, Any]:
    """The JSON of `tierway bench cache --pairs` without its times."""
    figures = pair_figures([each.outcome for each in judged])
    left_out = [each for each in judged if each.pair.source not in set(trained_on)]
    return {
        **figures,
        "precision": round(1 - figures["false_hit_rate"], 4),
        "by_source": _by(judged, lambda each: each.pair.source),
        "by_lang": _by(judged, lambda each: each.pair.lang),
        "by_kind": _by(judged, lambda each: each.pair.kind),
        "by_lang_kind": _by(
            judged, lambda each: each.pair.kind and f"{each.pair.lang} {each.pair.kind}"
        ),
        "at_error": {str(limit): at_error(judged, limit)["recall"] for limit in TARGETS},
        "at_error_reached": {str(limit): at_error(judged, limit) for limit in TARGETS},
        "left_out": {
            **pair_figures([each.outcome for each in left_out]),
            "by_lang": _by(left_out, lambda each: each.pair.lang),
            "by_source": _by(left_out, lambda each: each.pair.source),
        },
        "baselines": baselines(judged, target),
    }


def _by(judged: Sequence[Judged], key: Callable[[Judged], str]) -> dict[str, Any]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for each in judged:
        if name := key(each):
            groups[name].append(each.outcome)
    return {name: pair_figures(outcomes) for name, outcomes in sorted(groups.items())}


def at_error(judged: Sequence[Judged], limit: float) -> dict[str, Any]:
    """The best recall over all budgets at which at most `limit` of the served are wrong."""
    best: dict[str, Any] = {"recall": 0.0, "max_error_rate": None, "served": 0, "wrong": 0}
    same = sum(each.pair.same for each in judged)
    for budget in BUDGETS:
        served = [each for each in judged if each.budget is not None and each.budget <= budget]
        wrong = sum(not each.pair.same for each in served)
        recall = share(len(served) - wrong, same)
        if served and wrong <= limit * len(served) and recall > best["recall"]:
            best = {
                "recall": recall,
                "max_error_rate": budget,
                "served": len(served),
                "wrong": wrong,
            }
    return best


def baselines(judged: Sequence[Judged], target: float) -> dict[str, Any]:
    """What the peers' rules come to on the same pairs with the same vectors."""

    def figures(serves: Callable[[Judged], bool]) -> dict[str, Any]:
        return pair_figures([Outcome(serves(each), each.pair.same) for each in judged])

    made = {"exact": figures(lambda each: each.pair.a == each.pair.b)}
    for cut in CUTS:
        made[f"cosine {cut:.2f}"] = figures(partial(_above, cut))
    made[f"cosine {VETOED_CUT:.2f} with vetoes"] = figures(
        lambda each: _cosine(each) >= VETOED_CUT and not each.veto
    )
    best = best_cut(judged, target)
    cut = math.inf if best is None else best
    made[f"best cut at {target}"] = {"cosine": best, **figures(partial(_above, cut))}
    return made


def _cosine(each: Judged) -> float:
    return -1.0 if each.cosine is None else each.cosine


def _above(cut: float, each: Judged) -> bool:
    return _cosine(each) >= cut


def best_cut(judged: Sequence[Judged], target: float) -> float | None:
    """The cut of most recall that keeps the target on these labels; None where none does."""
    best, wrong = None, 0
    ordered = sorted(judged, key=_cosine, reverse=True)
    for number, each in enumerate(ordered, start=1):
        wrong += not each.pair.same
        last_of_its_cosine = number == len(ordered) or _cosine(ordered[number]) < _cosine(each)
        if last_of_its_cosine and each.cosine is not None and wrong <= target * number:
            best = each.cosine
    return best


def reliability(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """By bins of the probability: pairs, how many of them differ, hits and wrong hits. Pairs
    that a veto or a rule of the look-up keeps out have no probability."""
    rows = []
    for low, high in zip(BINS, (*BINS[1:], 1.0001), strict=True):
        held = [
            each
            for each in judged
            if not each.veto and each.found.vector is not None and low <= each.probability < high
        ]
        if held:
            hits = [each for each in held if each.served]
            rows.append(
                {
                    "from": low,
                    "to": min(high, 1.0),
                    "pairs": len(held),
                    "different": sum(not each.pair.same for each in held),
                    "mean_probability": round(
                        sum(each.probability for each in held) / len(held), 4
                    ),
                    "share_same": share(sum(each.pair.same for each in held), len(held)),
                    "hits": len(hits),
                    "wrong": sum(not each.pair.same for each in hits),
                }
            )
    return rows


def lost_to_vetoes(judged: Sequence[Judged], cosine: float) -> dict[str, Any]:
    """`same` pairs at or above the cosine that a veto refuses, by source, and which vetoes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for each in judged:
        if each.pair.same and _cosine(each) >= cosine:
            groups[each.pair.source].append(each.veto)
    return {
        source: {
            "n": len(found),
            "lost": sum(map(bool, found)),
            "share": share(sum(map(bool, found)), len(found)),
            "vetoes": {name: found.count(name) for name in sorted(set(found)) if name},
        }
        for source, found in sorted(groups.items())
    }


def times(judged: Sequence[Judged]) -> dict[str, float]:
    """Milliseconds of wall clock a lookup took, the vector being at hand."""
    return quantiles([each.took_s * 1e3 for each in judged])


def hits(judged: Sequence[Judged]) -> list[Mapping[str, Any]]:
    """What was served, to read by eye, wrong ones first."""
    served = sorted((each for each in judged if each.served), key=lambda each: each.pair.same)
    return [
        {
            "right": each.pair.same,
            "asked": each.pair.b,
            "stored": each.pair.a,
            "reason": each.found.reason,
            "cosine": round(_cosine(each), 4),
            "probability": round(each.probability, 4),
            "source": each.pair.source,
            "lang": each.pair.lang,
            **({"kind": each.pair.kind} if each.pair.kind else {}),
        }
        for each in served
    ]


async def timed_lookups(
    pairs: Sequence[Pair], embedder: Remembered, setting: Setting
) -> dict[str, float]:
    """Milliseconds of wall clock of whole lookups, one at a time, encoding included."""
    step = max(1, len(pairs) // TIMED)
    some = [pair for pair in pairs[::step] if embedder.fits(pair.a) and embedder.fits(pair.b)]
    rig = Rig(embedder.inner, setting)
    await rig.start()
    try:
        took = []
        for number, pair in enumerate(some[:TIMED]):
            rig.keep(pair.a, str(number))
            await rig.cache.settled()
            began = time.perf_counter()
            await rig.find(pair.b, str(number))
            took.append(1e3 * (time.perf_counter() - began))
        return quantiles(took)
    finally:
        await rig.aclose()
