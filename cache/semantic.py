"""The semantic cache: exact first, then by meaning inside one partition, evidence deciding.

Lookups touch only what this process holds and, for a text whose partition holds vectors, the
encoder; the store is asked for an answer that is not in memory. Nothing here fails a request: a
slow encoder, a broken store or an odd body is a miss with a reason, counted. A semantic hit is
not copied to the exact digest of its asker: one wrong hit would become many.

An entry lives until `expires_at`, absolute, never refreshed by hits; it stays a while longer in
memory for the case that the whole fleet is down (`find_stale`).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tierway.cache.holding import Held, Holding
from tierway.cache.keys import Fingerprint
from tierway.cache.replay import as_stored
from tierway.cache.upkeep import Faults, Job, Upkeep
from tierway.policies.cacheability import Plan
from tierway.policies.context import personal, self_contained
from tierway.policies.equivalence import Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.lexicon import language_of
from tierway.policies.protocols import CacheStore, Clock, Embedder, Entry, VectorIndex
from tierway.policies.questions import features
from tierway.policies.types import Call, Source, Usage
from tierway.policies.usage import usage_of

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

Serves = Callable[[str, Mapping[str, float]], bool]
"""Whether an answer of this tier, with these probabilities, satisfies the asker's dial."""

CANDIDATES = 8
LARGE_PARTITION = 16_384  # from here on a search goes through FAISS, off the loop
_PARTITIONS_KNOWN = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """`encode_deadline_s` is for a request that waits, `batch_deadline_s` for the vectors of
    what is stored behind the requests."""

    encode_deadline_s: float = 0.25
    batch_deadline_s: float = 10.0
    answers_bytes: int = 64 << 20
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
    """What a lookup came to: a hit, or why not; the vector, when the question was encoded."""

    hit: Hit | None
    reason: str
    vector: Vectors | None = None


class SemanticCache:
    """`wall` is seconds since the epoch. Without an embedder the cache is exact only."""

    def __init__(
        self,
        store: CacheStore,
        *,
        embedder: Embedder | None,
        index: VectorIndex,
        equivalence: Equivalence,
        wall: Clock,
        scope_is_user: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._store, self._embedder, self._index = store, embedder, index
        self._equivalence, self._wall = equivalence, wall
        self._scope_is_user = scope_is_user
        self._limits = limits or Limits()
        self._partitions: OrderedDict[bytes, None] = OrderedDict()
        self.faults = Faults()
        self._holding = Holding(
            index, entries=self._limits.entries, answers_bytes=self._limits.answers_bytes
        )
        self._upkeep = Upkeep(
            store,
            self._holding,
            embedder,
            self.faults,
            wall,
            encode_deadline_s=self._limits.batch_deadline_s,
        )

    async def start(self) -> None:
        """Takes in what the store holds, then keeps up with it."""
        await self._upkeep.start()

    async def aclose(self) -> None:
        """Writes what is queued, then ends; the store stays open."""
        await self._upkeep.aclose()

    async def settled(self) -> None:
        """Returns when everything kept so far has its vector and is in the store."""
        await self._upkeep.settled()

    def __len__(self) -> int:
        return len(self._holding)

    @property
    def counts(self) -> Counter[str]:
        """Faults by part."""
        return self.faults.counts

    async def find(self, call: Call, mark: Fingerprint, plan: Plan, serves: Serves) -> Found:
        """The answer that may serve this call, exact before semantic."""
        exact = self._holding.exactly(mark.exact)
        if exact is not None and self._live(exact, plan):
            if not serves(exact.source.tier, exact.source.probabilities):
                return Found(None, "tier")
            hit = await self._hit(exact, None)
            if hit is not None:
                return Found(hit, "exact")
        reason = self._no_semantics(call, mark)
        if reason:
            return Found(None, reason)
        return await self._find_similar(call, mark, plan, serves)

    async def find_stale(self, mark: Fingerprint) -> Hit | None:
        """The exact answer even though its time is over."""
        held = self._holding.exactly(mark.exact)
        return await self._hit(held, None) if held is not None else None

    def keep(
        self,
        call: Call,
        mark: Fingerprint,
        plan: Plan,
        source: Source,
        answer: Mapping[str, Any],
        found: Found | None,
    ) -> str:
        """Stores an answer: at once for exact lookups here, in the background for the rest.

        Returns the entry's id. `found` is what the lookup before came to.
        """
        now_at = self._wall()
        entry = Entry(
            id="e_" + os.urandom(10).hex(),
            exact=mark.exact,
            partition=mark.partition,
            wire="chat" if call.wire == "messages" else call.wire,
            question=mark.question,
            answer=as_stored(answer),
            tier=source.tier,
            model=source.model,
            probabilities=source.probabilities,
            tenant=call.tenant,
            user=call.user,
            namespace=call.controls.namespace,
            created_at=now_at,
            expires_at=now_at + plan.ttl_s,
            context_id=call.controls.cache.context_id or "",
        )
        self._holding.hold(entry)
        self._holding.answers.put(entry.id, entry.answer)
        wants_vector = self._wants_vector(call, mark)
        self._upkeep.submit(Job(entry, wants_vector, found.vector if found else None))
        return entry.id

    async def delete(self, entry_ids: Sequence[str]) -> int:
        """Deletes here at once, and everywhere by the log; the number that were there.

        Raises CacheError when the store could not be told: gone here, it would come back
        with the next start.
        """
        held = self._holding.delete(entry_ids)
        try:
            return max(held, await self._store.delete(entry_ids))
        except CacheError as error:
            self.faults.add("store", error)
            raise

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
        if held.usage is None:
            held.usage = usage_of(answer) or Usage()
        return Hit(held.id, answer, held.source, held.created_at, similarity, held.usage)

    async def _fetch(self, held: Held) -> bytes | None:
        try:
            entry = await self._store.get(held.id)
        except CacheError as error:
            self.faults.add("store", error)
            return None
        if entry is None:
            self._holding.drop(held.id)
            return None
        self._holding.answers.put(held.id, entry.answer)
        return entry.answer

    def _no_semantics(self, call: Call, mark: Fingerprint) -> str:
        """Why this call is not matched by meaning, "" when it is."""
        if self._embedder is None:
            return "exact-only"
        if not mark.semantic:
            return mark.why_not
        if not self._index.size(mark.partition):
            return "nothing-near"
        if not self._fits(mark.question):
            return "too-long"
        if _is_conversation(call) and not self_contained(mark.question):
            return "not-self-contained"
        if personal(mark.question) and not self._scope_is_user:
            return "personal"
        return ""

    async def _find_similar(
        self, call: Call, mark: Fingerprint, plan: Plan, serves: Serves
    ) -> Found:
        assert self._embedder is not None
        encoder = self._embedder.id
        floor = self._equivalence.floor(encoder, language_of(mark.question))
        if floor == math.inf:
            return Found(None, "uncalibrated")
        vector = await self._encode(mark.question)
        if vector is None:
            return Found(None, "encoder")
        near = [pair for pair in await self._search(mark.partition, vector) if pair[1] >= floor]
        asked = features(mark.question) if near else None
        why_not = "nothing-near"
        for key, cosine in near:
            held = self._holding.by_key(key)
            if held is None or asked is None or not self._live(held, plan):
                continue
            verdict = self._equivalence.judge(
                asked,
                held.features,
                cosine,
                encoder,
                max_error_rate=call.controls.max_error_rate,
            )
            if not verdict.serve:
                # What kept out the nearest is the answer to "why did this miss".
                why_not = verdict.reason if why_not == "nothing-near" else why_not
            elif not serves(held.source.tier, held.source.probabilities):
                why_not = "tier"
            elif (hit := await self._hit(held, cosine)) is not None:
                return Found(hit, verdict.reason, vector)
        return Found(None, why_not, vector)

    async def _search(self, partition: bytes, vector: Vectors) -> list[tuple[int, float]]:
        if self._index.size(partition) >= LARGE_PARTITION:
            return await asyncio.to_thread(self._index.search, partition, vector, CANDIDATES)
        return self._index.search(partition, vector, CANDIDATES)

    async def _encode(self, text: str) -> Vectors | None:
        """The text's vector, None (counted) when the encoder is too slow or fails."""
        assert self._embedder is not None
        try:
            async with asyncio.timeout(self._limits.encode_deadline_s):
                row: Vectors = (await self._embedder.encode([text]))[0]
        except TimeoutError:
            self.faults.add("encoder-slow")
            return None
        except Exception as error:  # border: an embedder may be anybody's code
            self.faults.add("encoder", error)
            return None
        if not np.isfinite(row).all():
            self.faults.add("encoder-not-finite")
            return None
        return row

    def _wants_vector(self, call: Call, mark: Fingerprint) -> bool:
        """A conversation's partition gets vectors only once it is seen twice: most are never
        seen again."""
        seen = mark.partition in self._partitions
        self._partitions[mark.partition] = None
        self._partitions.move_to_end(mark.partition)
        while len(self._partitions) > _PARTITIONS_KNOWN:
            self._partitions.popitem(last=False)
        wanted = mark.semantic and (seen or not _is_conversation(call))
        return wanted and self._embedder is not None and self._fits(mark.question)

    def _fits(self, text: str) -> bool:
        return self._embedder is not None and self._embedder.fits(text)


def _is_conversation(call: Call) -> bool:
    return any(turn.role == "assistant" for turn in call.ask.turns)
