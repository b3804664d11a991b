"""Prompts through a cache that starts empty and stores on a miss: how often is a hit right?

An exact repeat of an earlier text is counted in `repeats` and in nothing else. `attainable` are
the prompts whose class was asked before; a hit is right when the class of what is served is the
prompt's. Rates are told per hit, which is what a user meets, and per request, which is what
vCache reports (arXiv 2502.03771); both bounded by 95 % Wilson intervals.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierway.bench.cache_rig import Rig, Setting
from tierway.bench.labelled import Prompt, interval, quantiles, share
from tierway.bench.vectors import Remembered
from tierway.policies.equivalence import veto
from tierway.policies.questions import Features, features

CUTS = (0.80, 0.85, 0.90, 0.95)
VETOED_CUT = 0.95
CANDIDATES = 8
SWEPT = tuple(round(0.8 + 0.005 * step, 3) for step in range(40))
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Step:
    """One prompt's fate. `served` is the number of the prompt whose answer came, None on a
    miss; `attainable`: its class was asked before; `repeat`: its text was."""

    prompt: Prompt
    served: int | None
    attainable: bool
    repeat: bool
    reason: str = ""
    cosine: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    prompts: Sequence[Prompt]
    steps: Sequence[Step]


async def replay(prompts: Sequence[Prompt], embedder: Remembered, setting: Setting) -> Replay:
    """Sends the prompts one by one through a real cache; `embedder` knows their vectors."""
    rig = Rig(embedder, setting)
    await rig.start()
    steps: list[Step] = []
    number_of: dict[str, int] = {}
    seen = _Seen()
    try:
        for number, prompt in enumerate(prompts):
            began = time.perf_counter()
            found = await rig.find(prompt.text)
            took_s = time.perf_counter() - began
            hit = found.hit
            if hit is None:
                number_of[rig.keep(prompt.text, found=found)] = number
                await rig.cache.settled()
            served = None if hit is None else number_of[hit.entry_id]
            cosine = None if hit is None else hit.similarity
            attainable, repeat = seen.add(prompt)
            steps.append(Step(prompt, served, attainable, repeat, found.reason, cosine, took_s))
    finally:
        await rig.aclose()
    return Replay(prompts, steps)


class _Seen:
    """What was asked before."""

    def __init__(self) -> None:
        self._classes: set[str] = set()
        self._texts: set[str] = set()

    def add(self, prompt: Prompt) -> tuple[bool, bool]:
        """Whether the class and whether the text was asked before this prompt."""
        known = prompt.class_ in self._classes, prompt.text in self._texts
        self._classes.add(prompt.class_)
        self._texts.add(prompt.text)
        return known


async def sweep(
    prompts: Sequence[Prompt], embedder: Remembered, setting: Setting, budgets: Sequence[float]
) -> list[dict[str, Any]]:
    """The same stream through a fresh cache for each error budget."""
    rows = []
    for budget in budgets:
        replayed = await replay(
            prompts, embedder, dataclasses.replace(setting, max_error_rate=budget)
        )
        counted = [step for step in replayed.steps if not step.repeat]
        rows.append({"max_error_rate": budget, **_figures(counted, prompts)})
    return rows


def report(replayed: Replay) -> dict[str, Any]:
    """The JSON of `tierway bench cache --stream` without its baselines."""
    counted = [step for step in replayed.steps if not step.repeat]
    repeats = [step for step in replayed.steps if step.repeat]
    prompts = replayed.prompts
    misses = Counter(step.reason for step in counted if step.served is None)
    by_source = sorted({step.prompt.source for step in counted})
    return {
        "n": len(counted),
        "repeats": len(repeats),
        "repeats_served": sum(step.served is not None for step in repeats),
        **_figures(counted, prompts),
        "last_half": _figures(counted[len(counted) // 2 :], prompts),
        "by_source": {
            source: _figures([step for step in counted if step.prompt.source == source], prompts)
            for source in by_source
        },
        "misses": dict(misses.most_common()),
        "decide_ms": quantiles([step.took_s * 1e3 for step in counted]),
    }


def _figures(steps: Sequence[Step], prompts: Sequence[Prompt]) -> dict[str, Any]:
    attainable = sum(step.attainable for step in steps)
    hit = [step for step in steps if step.served is not None]
    right = sum(_right(step, prompts) for step in hit)
    wrong = len(hit) - right
    return {
        "attainable": attainable,
        "hits": len(hit),
        "right": right,
        "wrong": wrong,
        "right_of_attainable": share(right, attainable),
        "wrong_per_hit": share(wrong, len(hit)),
        "wrong_per_hit_ci95": interval(wrong, len(hit)),
        "wrong_per_request": share(wrong, len(steps)),
        "wrong_per_request_ci95": interval(wrong, len(steps)),
    }


def _right(step: Step, prompts: Sequence[Prompt]) -> bool:
    return step.served is not None and prompts[step.served].class_ == step.prompt.class_


def labels(prompts: Sequence[Prompt]) -> dict[tuple[str, str], bool]:
    """All pairs that one answer serves, for a scripted judge."""
    classes: dict[str, set[str]] = defaultdict(set)
    for prompt in prompts:
        classes[prompt.class_].add(prompt.text)
    return dict.fromkeys(
        (pair for texts in classes.values() for pair in itertools.permutations(texts, 2)), True
    )


def hits(replayed: Replay) -> list[Mapping[str, Any]]:
    """What was served, to read by eye, wrong ones first; exact repeats left out."""
    served = [
        (step, replayed.prompts[step.served])
        for step in replayed.steps
        if step.served is not None and not step.repeat
    ]
    return [
        {
            "right": _right(step, replayed.prompts),
            "asked": step.prompt.text,
            "stored": stored.text,
            "reason": step.reason,
            "cosine": round(step.cosine, 4) if step.cosine is not None else None,
            "source": step.prompt.source,
            "lang": step.prompt.lang,
        }
        for step, stored in sorted(served, key=lambda each: _right(each[0], replayed.prompts))
    ]


# ---- the peers' rules on the same vectors ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Near:
    """Of one prompt the earlier prompts at or above the lowest cut, nearest first."""

    numbers: np.ndarray[Any, np.dtype[np.int64]]
    cosines: np.ndarray[Any, np.dtype[np.float32]]


async def baselines(
    prompts: Sequence[Prompt], embedder: Remembered, *, target: float
) -> dict[str, Any]:
    """Each rule with a store of its own: exact only, one cut on the cosine of the nearest (the
    defaults of the peers), the best such cut seen afterwards, and .95 with our vetoes."""
    near = await _neighbours(prompts, embedder)

    def figures(cut: float, accepts: Callable[[int, int], bool] | None = None) -> dict[str, Any]:
        return _figures(_replay_rule(prompts, near, cut, accepts), prompts)

    made: dict[str, Any] = {"exact": figures(np.inf)}
    made |= {f"cosine {cut:.2f}": figures(cut) for cut in CUTS}
    known: dict[str, Features] = {}

    def passes(asked: int, stored: int) -> bool:
        texts = prompts[asked].text, prompts[stored].text
        return not veto(*(known.setdefault(text, features(text)) for text in texts))

    made[f"cosine {VETOED_CUT:.2f} with vetoes"] = figures(VETOED_CUT, passes)
    made[f"best cut at {target}"] = _best(figures, target)
    return made


def _best(figures: Callable[[float], dict[str, Any]], target: float) -> dict[str, Any]:
    kept = [
        {"cosine": cut, **found}
        for cut in SWEPT
        if (found := figures(cut))["hits"] and found["wrong_per_hit"] <= target
    ]
    return max(kept, key=lambda row: row["right"], default={"cosine": None, **figures(np.inf)})


async def _neighbours(prompts: Sequence[Prompt], embedder: Remembered) -> list[_Near]:
    fit = [number for number, prompt in enumerate(prompts) if embedder.fits(prompt.text)]
    vectors = np.zeros((len(prompts), embedder.dim), np.float32)  # zeros: near to nothing
    if fit:
        vectors[fit] = await embedder.encode([prompts[number].text for number in fit])
    found = []
    for start in range(0, len(prompts), _ROWS):
        block = vectors[start : start + _ROWS] @ vectors[: start + _ROWS].T
        for offset, row in enumerate(block):
            earlier = row[: start + offset]
            numbers = np.flatnonzero(earlier >= min(CUTS))
            order = np.argsort(-earlier[numbers], kind="stable")
            found.append(_Near(numbers[order], earlier[numbers[order]]))
    return found


def _replay_rule(
    prompts: Sequence[Prompt],
    near: Sequence[_Near],
    cut: float,
    accepts: Callable[[int, int], bool] | None,
) -> list[Step]:
    """Serves the nearest stored prompt at or above the cut; with `accepts`, the first of the
    nearest few that it accepts. Repeats are answered exactly and left out."""
    stored = np.zeros(len(prompts), bool)
    seen = _Seen()
    steps = []
    for number, (prompt, around) in enumerate(zip(prompts, near, strict=True)):
        attainable, repeat = seen.add(prompt)
        if repeat:
            continue
        held = around.numbers[stored[around.numbers] & (around.cosines >= cut)]
        if accepts is None:
            chosen = held[:1].tolist()
        else:
            chosen = [one for one in held[:CANDIDATES].tolist() if accepts(number, one)][:1]
        served = chosen[0] if chosen else None
        stored[number] = served is None
        steps.append(Step(prompt, served, attainable, repeat=False))
    return steps
