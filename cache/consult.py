"""Asking for a second opinion: deadline, bound, memory and what the answer amounts to.

Candidates that no word rules out and whose probability falls just short of serving are put
before a SecondOpinion. Whatever goes wrong there is a miss, counted; the request goes on as if
nobody had been asked. An opinion on two texts is kept (under a digest, so that no text outlives
its entry here), or a question that is asked often in other words than the stored one would cost a
call every time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from tierway.cache.entry_table import Held
from tierway.cache.upkeep import Faults
from tierway.policies.protocols import Clock, SecondOpinion

Outcome = Literal["accepted", "refused", "failed", "slow", "busy"]

OnOpinion = Callable[[float, float, str, str], None]
"""Hears of every new opinion: (the verifier's probability, the opinion, language, tenant)."""

_PAIRS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class OpinionRules:
    """`accept` is the probability from which on a hit is served, `at_most` how many candidates
    of one lookup are put forward, `at_once` how many lookups may be waiting for an opinion."""

    timeout_s: float = 0.4
    at_most: int = 1
    accept: float = 0.9
    at_once: int = 8


@dataclass(frozen=True, slots=True)
class Doubt:
    """A candidate in doubt. `probability` is the verifier's, which `serves_alone` where no judge
    can be asked."""

    held: Held
    cosine: float
    probability: float
    serves_alone: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """What asking came to: the candidate to serve, if any. `seconds` were spent on it."""

    outcome: Outcome
    chosen: Doubt | None
    seconds: float


class Consultation:
    """`clock` is monotonic seconds. `listener`, once set, hears of every new opinion."""

    def __init__(
        self, opinion: SecondOpinion, rules: OpinionRules, *, faults: Faults, clock: Clock
    ) -> None:
        self._opinion, self._rules = opinion, rules
        self._faults, self._clock = faults, clock
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._waiting = 0
        self.listener: OnOpinion | None = None

    async def ask(
        self,
        question: str,
        doubts: Sequence[Doubt],
        *,
        language: str,
        tenant: str,
        max_error_rate: float | None,
        until_s: float,
    ) -> Advice:
        """The best of the likeliest doubts that the judge accepts. Who asks for a lower error
        rate gets only what the judge is so sure of. Nothing is asked past `until_s`."""
        began_s = self._clock()
        likeliest = sorted(doubts, key=lambda doubt: doubt.probability, reverse=True)
        likeliest = likeliest[: self._rules.at_most]
        opinions = self._recall(question, likeliest)
        fresh = [doubt for doubt in likeliest if doubt.held.question not in opinions]
        if fresh:
            given = await self._judge(question, fresh, until_s)
            if isinstance(given, str):
                return Advice(given, None, self._clock() - began_s)
            for doubt, opinion in zip(fresh, given, strict=True):
                opinions[doubt.held.question] = opinion
                self._learn(question, doubt, opinion, language, tenant)
        best = max(likeliest, key=lambda doubt: opinions[doubt.held.question])
        accept = max(self._rules.accept, 1.0 - (max_error_rate or 1.0))
        seconds = self._clock() - began_s
        if opinions[best.held.question] < accept:
            return Advice("refused", None, seconds)
        return Advice("accepted", best, seconds)

    def _recall(self, question: str, doubts: Sequence[Doubt]) -> dict[str, float]:
        """Stored question -> opinion, where there is one already."""
        found: dict[str, float] = {}
        for doubt in doubts:
            pair = _pair(question, doubt.held.question)
            if pair in self._known:
                self._known.move_to_end(pair)
                found[doubt.held.question] = self._known[pair]
        return found

    async def _judge(
        self, question: str, doubts: Sequence[Doubt], until_s: float
    ) -> Sequence[float] | Literal["failed", "slow", "busy"]:
        """One opinion a doubt, or what went wrong (counted)."""
        if self._waiting >= self._rules.at_once:
            self._faults.add("second-opinion-busy")
            return "busy"
        left_s = min(self._rules.timeout_s, until_s - self._clock())
        self._waiting += 1
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                given = await self._opinion.judge(
                    [(question, doubt.held.question) for doubt in doubts]
                )
        except TimeoutError:
            self._faults.add("second-opinion-slow")
            return "slow"
        except Exception as error:  # border: a judge may be anybody's code
            self._faults.add("second-opinion", error)
            return "failed"
        finally:
            self._waiting -= 1
        if len(given) != len(doubts) or not all(0.0 <= opinion <= 1.0 for opinion in given):
            self._faults.add("second-opinion")
            return "failed"
        return given

    def _learn(
        self, question: str, doubt: Doubt, opinion: float, language: str, tenant: str
    ) -> None:
        self._known[_pair(question, doubt.held.question)] = opinion
        if len(self._known) > _PAIRS_KEPT:
            self._known.popitem(last=False)
        if self.listener is not None:
            self.listener(doubt.probability, opinion, language, tenant)


def _pair(question: str, stored: str) -> bytes:
    texts = f"{len(question)}:{question}{stored}".encode("utf-8", "surrogatepass")
    return blake2b(texts, digest_size=16).digest()
