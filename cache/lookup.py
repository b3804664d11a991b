"""Looking an answer up: exact first, then by meaning inside one partition, evidence deciding.

A lookup touches what this process holds and, for a text whose partition holds vectors, the
encoder; the store is asked only for an answer that is not in memory, or, by a process that does
not hold everything, for what it does not hold (cache/remote.py). Nothing here raises for
trouble of the cache: it is a miss with a reason, counted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tierway.cache.consult import Advice, Consultation, Doubt
from tierway.cache.entry_table import Held
from tierway.cache.holding import Holding
from tierway.cache.keys import Fingerprint
from tierway.cache.lessons import Lessons, Near
from tierway.cache.remote import Remote
from tierway.cache.upkeep import Faults
from tierway.policies.cacheability import Plan
from tierway.policies.equivalence import Equivalence, Verdict
from tierway.policies.errors import CacheError
from tierway.policies.exact_only import why_exact_only
from tierway.policies.lexicon import language_of
from tierway.policies.protocols import CacheStore, Clock, Embedder, VectorIndex
from tierway.policies.questions import Features, features
from tierway.policies.types import Call, Source, Usage

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

Serves = Callable[[str, Mapping[str, float]], bool]
"""Whether an answer of this tier, with these probabilities, satisfies the asker's dial."""

CANDIDATES = 4
CANDIDATES_SEARCHED = 512  # so many are looked through where dead ones lie before the live
SURE = 0.998  # from here on the verifier is believed without a second opinion
LANGUAGES = ("en", "zh")  # those that language_of tells apart
LARGE_PARTITION = 16_384  # from here on a search goes through FAISS, off the loop


@dataclass(frozen=True, slots=True)
class Limits:
    """`encode_deadline_s` is for a request that waits, `batch_deadline_s` for the vectors of
    what is stored behind the requests, `store_bytes` the cap of the store."""

    encode_deadline_s: float = 0.25
    batch_deadline_s: float = 10.0
    answers_bytes: int = 64 << 20
    store_bytes: int = 4 << 30
    entries: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored answer that may serve. `similarity` is the cosine of a semantic hit."""

    entry_id: str
    answer: bytes
    source: Source
    created_at: float
    similarity: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup came to: a hit, or why not; the vector, when the question was encoded; the
    stored question that was hit by meaning or, on a miss, came nearest; what a second opinion
    was, when one was asked for."""

    hit: Hit | None
    reason: str
    vector: Vectors | None = None
    near: Near | None = None
    advice: Advice | None = None


class Lookup:
    """The reading half of the cache. `wall` is seconds since the epoch; `used` is told of
    each entry that is handed out."""

    def __init__(
        self,
        store: CacheStore,
        holding: Holding,
        *,
        embedder: Embedder | None,
        index: VectorIndex,
        equivalence: Equivalence,
        faults: Faults,
        wall: Clock,
        limits: Limits,
        used: Callable[[str], None],
        lessons: Lessons,
        consultation: Consultation | None = None,
        remote: Remote | None = None,
    ) -> None:
        self._store, self._holding = store, holding
        self._embedder, self._index, self._equivalence = embedder, index, equivalence
        self._faults, self._wall = faults, wall
        self._limits, self._used = limits, used
        self._lessons, self._consultation, self._remote = lessons, consultation, remote

    async def find(
        self,
        call: Call,
        mark: Fingerprint,
        plan: Plan,
        serves: Serves,
        *,
        opinions: bool = True,
    ) -> Found:
        """The answer that may serve this call, exact before semantic. With `opinions` False
        nobody is asked for a second one."""
        exact = await self._exactly(mark.exact, plan)
        if exact is not None:
            if not serves(exact.source.tier, exact.source.probabilities):
                return Found(None, "tier")
            hit = await self._hit(exact, None)
            if hit is not None:
                return Found(hit, "exact")
        reason = self._no_semantics(call, mark, plan)
        if not reason and self._remote and not await self._remote.any_in(mark.partition):
            reason = "nothing-near"
        if reason:
            return Found(None, reason)
        return await self._find_similar(call, mark, plan, serves, opinions=opinions)

    async def find_stale(self, mark: Fingerprint) -> Hit | None:
        """The exact answer even though its time is over."""
        held = self._holding.exactly(mark.exact)
        if held is None and self._remote is not None:
            held = await self._remote.exactly(mark.exact)
        return await self._hit(held, None) if held is not None else None

    async def _exactly(self, exact: bytes, plan: Plan) -> Held | None:
        held = self._holding.exactly(exact)
        if held is not None and self._live(held, plan):
            return held
        held = await self._remote.exactly(exact) if self._remote else None
        return held if held is not None and self._live(held, plan) else None

    def _live(self, held: Held, plan: Plan) -> bool:
        now_at = self._wall()
        young = plan.max_age_s is None or now_at - held.created_at <= plan.max_age_s
        return now_at < held.expires_at and young

    async def _hit(self, held: Held, similarity: float | None) -> Hit | None:
        answer = self._holding.answers.get(held.id)
        if answer is None:
            answer = await self._fetch(held)
        if answer is None:
            return None
        usage = self._holding.answers.usage(held.id, answer)
        self._used(held.id)
        return Hit(held.id, answer, held.source, held.created_at, similarity, usage)

    async def _fetch(self, held: Held) -> bytes | None:
        try:
            entry = await self._store.get(held.id)
        except CacheError as error:
            self._faults.add("store", error)
            return None
        if entry is None:
            self._holding.drop(held.id)
            return None
        self._holding.answers.put(held.id, entry.answer)
        return entry.answer

    def _no_semantics(self, call: Call, mark: Fingerprint, plan: Plan) -> str:
        """Why this call is not matched by meaning, "" when it is."""
        if self._embedder is None:
            return "exact-only"
        if not mark.semantic:
            return mark.why_not
        if call.controls.max_error_rate == 0:
            return "max-error-rate"
        if reason := why_exact_only(call, max_turns=plan.max_turns):
            return reason
        if self._remote is None and not self._index.size(mark.partition):
            return "nothing-near"
        if not self.fits(mark.question):
            return "too-long"
        return ""

    async def _find_similar(
        self, call: Call, mark: Fingerprint, plan: Plan, serves: Serves, *, opinions: bool
    ) -> Found:
        assert self._embedder is not None
        floor = self._equivalence.floor(self._embedder.id, language_of(mark.question))
        if floor == math.inf:
            return Found(None, "uncalibrated")
        vector = await self._encode(mark.question)
        if vector is None:
            return Found(None, "encoder")
        near = await self._near(mark.partition, vector, floor, plan)
        asked = features(mark.question) if near else None
        why_not, nearest, doubts = "nothing-near", None, list[Doubt]()
        asking = opinions and self._may_be_told(plan)
        for held, cosine in near:
            assert asked is not None
            verdict = self._judge(call, asked, held, cosine)
            pair = Near(held.id, held.question, cosine, verdict.probability, asked.language)
            verdict, nearest = self._heed(call, mark, pair, verdict), nearest or pair
            fits = serves(held.source.tier, held.source.probabilities)
            if fits and verdict.serve and asking and verdict.probability < SURE:
                # Where a judge is at hand, all but the surest is put before it.
                doubts.append(Doubt(held, cosine, verdict.probability, serves_alone=True))
            elif verdict.serve and not fits:
                why_not = "tier"
            elif verdict.serve and (hit := await self._hit(held, cosine)) is not None:
                return Found(hit, verdict.reason, vector, pair)
            elif not verdict.serve:
                # What kept out the nearest is the answer to "why did this miss".
                why_not = verdict.reason if why_not == "nothing-near" else why_not
                if verdict.uncertain and fits:
                    doubts.append(Doubt(held, cosine, verdict.probability))
        missed = Found(None, why_not, vector, nearest)
        if doubts and asking:
            return await self._consult(call, mark.question, doubts, missed)
        return missed

    def _heed(self, call: Call, mark: Fingerprint, pair: Near, verdict: Verdict) -> Verdict:
        """The verdict with what marks taught: only ever stricter. What the verifier is no
        longer trusted with is in doubt; a pair that was marked wrong is not even that."""
        if not (verdict.serve or verdict.uncertain):
            return verdict
        why_not = self._lessons.why_not(
            call.tenant, mark.partition, mark.question, pair, call.controls.max_error_rate
        )
        if why_not == "blocked" or (why_not and verdict.serve):
            doubtful = why_not != "blocked"
            return Verdict(False, why_not, verdict.probability, uncertain=doubtful)
        return verdict

    def _judge(self, call: Call, asked: Features, held: Held, cosine: float) -> Verdict:
        assert self._embedder is not None
        return self._equivalence.judge(
            asked,
            held.features,
            cosine,
            self._embedder.id,
            max_error_rate=call.controls.max_error_rate,
        )

    def _may_be_told(self, plan: Plan) -> bool:
        """What somebody asks about himself is between him and the model that he asked."""
        return self._consultation is not None and not plan.personal

    async def _consult(
        self, call: Call, question: str, doubts: Sequence[Doubt], missed: Found
    ) -> Found:
        assert self._consultation is not None
        advice = await self._consultation.ask(
            question,
            doubts,
            language=language_of(question),
            tenant=call.tenant,
            max_error_rate=call.controls.max_error_rate,
            until_s=call.deadline_s,
        )
        found = replace(missed, reason=f"second-opinion-{advice.outcome}", advice=advice)
        chosen, reason = advice.chosen, "second-opinion"
        if chosen is None and advice.outcome != "refused":
            # Without a judge the verifier's word counts, as it does where there is none.
            chosen = next((doubt for doubt in doubts if doubt.serves_alone), None)
            reason = "equivalent"
        hit = await self._hit(chosen.held, chosen.cosine) if chosen else None
        if chosen is None or hit is None:
            return found
        held, cosine, language = chosen.held, chosen.cosine, language_of(question)
        alone = reason == "equivalent"
        pair = Near(held.id, held.question, cosine, chosen.probability, language, judged=alone)
        return replace(found, hit=hit, reason=reason, near=pair)

    async def _near(
        self, partition: bytes, vector: Vectors, floor: float, plan: Plan
    ) -> list[tuple[Held, float]]:
        """The nearest entries that may still be served, with their cosines, best first. Those
        whose time is over stay in the index for a while and must not take the others' places."""
        k = CANDIDATES
        while True:
            near = await self._search(partition, vector, k, floor)
            live = [(held, cosine) for held, cosine in near if held and self._live(held, plan)]
            all_seen = len(near) < k or k >= CANDIDATES_SEARCHED
            if len(live) >= CANDIDATES or all_seen:
                return live[:CANDIDATES]
            k *= 4

    async def _search(
        self, partition: bytes, vector: Vectors, k: int, floor: float
    ) -> list[tuple[Held | None, float]]:
        """The k nearest that reach the floor, best first; None for one that is gone."""
        if self._remote is not None:
            return await self._remote.near(partition, vector, k, floor)
        if self._index.size(partition) >= LARGE_PARTITION:
            found = await asyncio.to_thread(self._index.search, partition, vector, k)
        else:
            found = self._index.search(partition, vector, k)
        return [(self._holding.by_key(key), cosine) for key, cosine in found if cosine >= floor]

    async def _encode(self, text: str) -> Vectors | None:
        """The text's vector, None (counted) when the encoder is too slow or fails."""
        assert self._embedder is not None
        try:
            async with asyncio.timeout(self._limits.encode_deadline_s):
                row: Vectors = (await self._embedder.encode([text]))[0]
        except TimeoutError:
            self._faults.add("encoder-slow")
            return None
        except Exception as error:  # border: an embedder may be anybody's code
            self._faults.add("encoder", error)
            return None
        if not np.isfinite(row).all():
            self._faults.add("encoder-not-finite")
            return None
        return row

    @property
    def encoder(self) -> str | None:
        return None if self._embedder is None else self._embedder.id

    def languages(self) -> list[str]:
        """The languages that the encoder is calibrated for."""
        floor, encoder = self._equivalence.floor, self.encoder
        return [name for name in LANGUAGES if encoder and floor(encoder, name) < math.inf]

    def fits(self, text: str) -> bool:
        """Whether there is an encoder, and the text fits its window."""
        return self._embedder is not None and self._embedder.fits(text)
