"""The semantic cache: what to keep, what to find again, and how it goes away.

Looking up is `Lookup` (cache/lookup.py), writing behind the requests `Upkeep` (cache/upkeep.py).
Nothing here fails a request: a slow encoder, a broken store or an odd body is a miss with a
reason, counted. A semantic hit is not copied to the exact digest of its asker: one wrong hit
would become many.

An entry lives until `expires_at`, absolute, never refreshed by hits; it stays a while longer in
memory for the case that the whole fleet is down (`find_stale`).
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from tierway.cache.consult import Consultation, OpinionRules
from tierway.cache.entry_table import Held
from tierway.cache.holding import Holding
from tierway.cache.journal import Journal
from tierway.cache.keys import Fingerprint
from tierway.cache.lessons import MARK, Lessons
from tierway.cache.lookup import Found, Hit, Limits, Lookup, Serves
from tierway.cache.remote import Elsewhere, Remote
from tierway.cache.replay import as_stored
from tierway.cache.store import Selection
from tierway.cache.upkeep import Faults, Job, Upkeep
from tierway.policies.cacheability import Plan
from tierway.policies.context import is_conversation
from tierway.policies.equivalence import MAX_ERROR_RATE, Equivalence
from tierway.policies.errors import CacheError
from tierway.policies.exact_only import why_exact_only
from tierway.policies.protocols import (
    CacheStore,
    Clock,
    Embedder,
    Entry,
    SecondOpinion,
    StoreSize,
    VectorIndex,
)
from tierway.policies.types import Call, Source

_PARTITIONS_KNOWN = 100_000


class SemanticCache:
    """`wall` is seconds since the epoch, `clock` monotonic seconds. Without an embedder the cache
    is exact only; with an `opinion`, candidates in doubt are put before it (cache/consult.py);
    with `elsewhere` this process does not hold everything and asks there for the rest."""

    def __init__(
        self,
        store: CacheStore,
        *,
        embedder: Embedder | None,
        index: VectorIndex,
        equivalence: Equivalence,
        wall: Clock,
        limits: Limits | None = None,
        opinion: SecondOpinion | None = None,
        opinion_rules: OpinionRules | None = None,
        clock: Clock = time.monotonic,
        faults: Faults | None = None,
        lessons: Lessons | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        limits = limits or Limits()
        self.lessons = lessons or Lessons(MAX_ERROR_RATE, wall)
        self._store, self._wall = store, wall
        self._partitions: OrderedDict[bytes, None] = OrderedDict()
        self.faults = faults or Faults()
        self.consultation = (
            Consultation(opinion, opinion_rules or OpinionRules(), faults=self.faults, clock=clock)
            if opinion is not None
            else None
        )
        self._holding = Holding(index, entries=limits.entries, answers_bytes=limits.answers_bytes)
        self._upkeep = Upkeep(
            store,
            self._holding,
            embedder,
            self.faults,
            wall,
            encode_deadline_s=limits.batch_deadline_s,
            store_bytes=limits.store_bytes,
            partial=elsewhere is not None,
        )
        self._lookup = Lookup(
            store,
            self._holding,
            embedder=embedder,
            index=index,
            equivalence=equivalence,
            faults=self.faults,
            wall=wall,
            limits=limits,
            used=self._upkeep.eviction.used,
            consultation=self.consultation,
            lessons=self.lessons,
            remote=Remote(elsewhere, self._holding, self.faults) if elsewhere else None,
        )
        self.journal.listen(MARK, self.lessons.take)

    async def start(self) -> None:
        """Takes in what the store holds, for some seconds at most, then keeps up with it; what
        is not in yet by then is missed until it is."""
        await self._upkeep.start()

    async def taken_in(self) -> None:
        """Returns when everything that the store held at the start is in."""
        await self._upkeep.taken_in()

    async def aclose(self) -> None:
        """Writes what is queued, then ends; the store stays open."""
        await self._upkeep.aclose()

    async def settled(self) -> None:
        """Returns when everything kept so far has its vector and is in the store."""
        await self._upkeep.settled()

    def __len__(self) -> int:
        return len(self._holding)

    def questions(self, most: int) -> list[str]:
        """The questions of a few entries that are held."""
        return self._holding.questions(most)

    @property
    def journal(self) -> Journal:
        """The notes that all gateways of the store share."""
        return self._upkeep.journal

    @property
    def size(self) -> StoreSize | None:
        """What the store held when it was last measured, seconds ago."""
        return self._upkeep.eviction.size

    @property
    def encoder(self) -> str | None:
        """The id of the encoder in use; None for an exact cache."""
        return self._lookup.encoder

    def languages(self) -> list[str]:
        """Those in which questions are matched by meaning."""
        return self._lookup.languages()

    @property
    def counts(self) -> Counter[str]:
        """Faults by part."""
        return self.faults.counts

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
        return await self._lookup.find(call, mark, plan, serves, opinions=opinions)

    async def find_stale(self, mark: Fingerprint) -> Hit | None:
        """The exact answer even though its time is over."""
        return await self._lookup.find_stale(mark)

    def keep(
        self,
        call: Call,
        mark: Fingerprint,
        plan: Plan,
        source: Source,
        answer: Mapping[str, Any],
        found: Found | None,
        *,
        exact_only: bool = False,
    ) -> str:
        """Stores an answer: at once for exact lookups here, in the background for the rest.

        Returns the entry's id. `found` is what the lookup before came to. With `exact_only`
        the answer is never found by meaning.
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
        wants_vector = not exact_only and self._wants_vector(call, mark, plan)
        vector = found.vector if found is not None and not exact_only else None
        self._upkeep.submit(Job(entry, wants_vector, vector))
        return entry.id

    def exactly(self, exact: bytes) -> Held | None:
        """The entry of a digest, expired or not."""
        return self._holding.exactly(exact)

    async def holds(self, entry_id: str) -> bool:
        """Whether there is such an entry, here or in the store. Raises CacheError."""
        return entry_id in self._holding or await self._store.get(entry_id) is not None

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

    async def purge(self, chosen: Selection) -> int:
        """Deletes what was chosen, here at once and everywhere within a second, whether it is
        stored or not; how many entries went. Raises CacheError as `delete` does."""
        count = await self._upkeep.purge.run(chosen)
        await self._upkeep.eviction.measure()
        return count

    def _wants_vector(self, call: Call, mark: Fingerprint, plan: Plan) -> bool:
        """A conversation's partition gets vectors only once it is seen twice: most are never
        seen again."""
        seen = mark.partition in self._partitions
        self._partitions[mark.partition] = None
        self._partitions.move_to_end(mark.partition)
        while len(self._partitions) > _PARTITIONS_KNOWN:
            self._partitions.popitem(last=False)
        wanted = mark.semantic and (seen or not is_conversation(call))
        wanted = wanted and not why_exact_only(call, max_turns=plan.max_turns)
        return wanted and self._lookup.fits(mark.question)
