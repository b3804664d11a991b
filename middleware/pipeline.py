"""The road of a request, stage by stage: cache, single flight, tier, replica, cache again.

`handle` returns an answer whose first token is there; the edge reads it to its end. What may be
stored passes through a flight (cache/coalesce.py), which keeps the bytes for late askers and,
at the end, for the cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from tierway.cache.assemble import assemble
from tierway.cache.coalesce import Flights
from tierway.cache.feedback import Answered, Feedback
from tierway.cache.keys import Fingerprint, Ignore, fingerprint
from tierway.cache.lookup import Found, Hit
from tierway.cache.observer import Observer
from tierway.cache.replayed import replayed
from tierway.cache.semantic import SemanticCache
from tierway.policies.cacheability import AS_ASKED, CacheRules, Plan, calls_tools, lookup, storable
from tierway.policies.errors import (
    BadCall,
    CacheError,
    GatewayError,
    NoCapacity,
    UpstreamError,
    UpstreamTimeout,
)
from tierway.policies.protocols import Answer, Clock
from tierway.policies.types import Call, Trace, WireName
from tierway.router.dispatch import Dispatcher
from tierway.router.route import Pick, TierRouter

if TYPE_CHECKING:
    from tierway.middleware.shadow import Shadow

_BYPASS = Plan(lookup=False, store=False, join=False, reason="key")


@dataclass(slots=True)
class CacheStage:
    """The cache with the rules for using it, which may be switched while requests come and go:
    each reads them once. `store` names the kind of store in use."""

    cache: SemanticCache
    rules: CacheRules
    ignore: Sequence[Ignore] = ()
    serve_stale: bool = True
    store: str = "memory"
    feedback: Feedback | None = None
    replay_tokens_per_s: float | None = None
    observer: Observer | None = None
    shadow: Shadow | None = None


@dataclass(slots=True)
class _Lookup:
    """One call's dealings with the cache."""

    plan: Plan
    mark: Fingerprint
    found: Found | None = None


class Pipeline:
    """`wall` is seconds since the epoch, `clock` monotonic seconds."""

    def __init__(
        self,
        router: TierRouter,
        dispatcher: Dispatcher,
        stage: CacheStage,
        *,
        clock: Clock,
        wall: Clock = time.time,
        flights: Flights | None = None,
    ) -> None:
        self._router, self._dispatcher, self._stage = router, dispatcher, stage
        self._clock, self._wall = clock, wall
        self.flights = flights or Flights()

    async def handle(self, call: Call, trace: Trace) -> Answer:
        """An answer with its first token there. Raises GatewayError."""
        pick = self._router.resolve(call)  # a name that matches nothing is refused before all else
        began, came_at = self._clock(), self._wall()
        look = self._prepare(call, pick.names, trace)
        if look.plan.lookup:
            found = await self._find(call, look, trace)
            elsewhere_s = found.advice.seconds if found.advice is not None else 0.0
            trace.stage("cache", self._clock() - began - elsewhere_s)
            self._observe(call, pick.names, look, found)
            if found.hit is not None and look.plan.serve:
                replay = self._replay(call, found.hit, trace)
                if replay is not None:
                    self._remember(call, look, came_at, found.hit)
                    return replay
        if look.plan.only_if_cached:
            raise BadCall(
                "Nothing stored answers this request, and it asked for only-if-cached.",
                status=504,
                code="not_cached",
            )
        try:
            answer = await self._forward(call, pick, look, trace)
            self._remember(call, look, came_at)
            return answer
        except (NoCapacity, UpstreamError) as error:
            stale = await self._stale(look, error)
            replay = self._replay(call, stale, trace, stale=True) if stale else None
            if replay is None:
                raise
            self._remember(call, look, came_at, stale)
            return replay

    async def would_hit(self, call: Call, trace: Trace) -> bool:
        """Whether the cache would answer this call now; the trace says why."""
        pick = self._router.resolve(call)
        look = self._prepare(call, pick.names, trace)
        if not look.plan.lookup:
            return False
        found = await self._find(call, look, trace, opinions=False)
        if found.hit is None:
            return False
        trace.similarity, trace.entry_id = found.hit.similarity, found.hit.entry_id
        trace.cache = "hit" if found.hit.similarity is None else "semantic-hit"
        return look.plan.serve

    def learn(self, call: Call, answer: Mapping[str, Any], *, ttl_s: float | None = None) -> str:
        """Keeps an answer that nobody gave here, as if one of the call's models had: "", or the
        reason why the rules keep it out. `ttl_s` takes the place of the rules' own. Raises
        BadCall for a model that is nothing here."""
        pick = self._router.resolve(call)
        trace = Trace(request_id=call.id)
        look = self._prepare(call, pick.names, trace)
        if not (look.plan.lookup and look.plan.store):
            return trace.cache_reason or "not stored"
        if why_not := storable(answer, call.wire):
            return why_not
        plan = look.plan if ttl_s is None else replace(look.plan, ttl_s=ttl_s)
        self._stage.cache.keep(call, look.mark, plan, self._router.source(pick), answer, None)
        return ""

    def _remember(self, call: Call, look: _Lookup, came_at: float, hit: Hit | None = None) -> None:
        """Keeps in mind what was answered, for a mark that may come."""
        feedback, mark = self._stage.feedback, look.mark
        if feedback is None:
            return
        by_meaning = hit is not None and hit.similarity is not None and look.found is not None
        near = look.found.near if by_meaning and look.found else None
        answered = Answered(
            tenant=call.tenant,
            user=call.user,
            exact=mark.exact,
            partition=mark.partition,
            asked=mark.question if near else "",  # of others it is not needed, and may be long
            at=came_at,
            entry_id=hit.entry_id if hit else "",
            near=near,
        )
        feedback.remember(call.id, answered)
        if self._stage.shadow is not None and near is not None and hit is not None:
            self._stage.shadow.consider(call, mark.partition, mark.question, near, hit)

    def _observe(self, call: Call, names: str, look: _Lookup, found: Found) -> None:
        """Notes a lookup for the report; an exact hit has nothing to read in it."""
        observer = self._stage.observer
        if observer is None or (found.hit is not None and found.hit.similarity is None):
            return
        try:
            observer.saw(call, names, look.mark, look.plan, found)
        except Exception as error:  # border: no fault of the cache fails a request
            self._stage.cache.faults.add("observer", error)

    def _prepare(self, call: Call, names: str, trace: Trace) -> _Lookup:
        stage = self._stage
        rules = stage.rules
        plan = lookup(call, rules)
        trace.cache, trace.cache_reason = "bypass", plan.reason
        if not (plan.lookup or plan.store or plan.join):
            return _Lookup(plan, _NO_MARK)
        try:
            mark = fingerprint(call, names=names, scope=plan.scope, ignore=stage.ignore)
        except CacheError as error:
            stage.cache.faults.add("key", error)
            trace.cache_reason = error.public
            return _Lookup(_BYPASS, _NO_MARK)
        if plan.lookup:
            trace.cache = "miss"
        return _Lookup(plan, mark)

    async def _find(
        self, call: Call, look: _Lookup, trace: Trace, *, opinions: bool = True
    ) -> Found:
        serves = self._router.serves_for(call)
        # Nobody waits for an opinion on what will not be served.
        opinions = opinions and look.plan.serve
        try:
            found = await self._stage.cache.find(
                call, look.mark, look.plan, serves, opinions=opinions
            )
        except Exception as error:  # border: no fault of the cache fails a request
            self._stage.cache.faults.add("lookup", error)
            found = Found(None, "fault")
        look.found = found
        trace.cache_reason = found.reason
        if found.near is not None:
            trace.probability = found.near.probability
        if found.advice is not None:
            trace.second_opinion = found.advice.outcome
            trace.stage("second_opinion", found.advice.seconds)
        if found.reason in ("encoder", "fault"):
            trace.cache = "bypass"
        if found.hit is not None and not look.plan.serve:
            trace.cache_reason = f"observed {found.reason}"
            trace.observed = "hit" if found.hit.similarity is None else "semantic-hit"
            trace.similarity, trace.entry_id = found.hit.similarity, found.hit.entry_id
        return found

    async def _forward(self, call: Call, pick: Pick, look: _Lookup, trace: Trace) -> Answer:
        if not (look.plan.join or look.plan.store):
            return await self._open(call, pick, look, trace)
        share = await self.flights.take(
            self._flight_key(call, look),
            lambda: self._open(call, pick, look, trace),
            lambda answer, body: self._keep(call, look, answer, body, trace),
        )
        if not share.led:
            trace.cache = "shared"
            source = share.source
            trace.tier, trace.model, trace.replica = source.tier, source.model, source.replica
            trace.probabilities = source.probabilities
        return share

    def _flight_key(self, call: Call, look: _Lookup) -> bytes:
        if not look.plan.join:
            return os.urandom(16)  # stored, but shared with nobody
        # Those who share an answer share its limits: whoever leads must not bind the others.
        form = (
            call.stream,
            call.includes_usage,
            self._router.quality(call),
            self._router.placement(call),
            round(call.deadline_s - call.arrived_s, 3),
        )
        return look.mark.exact + repr(form).encode()

    async def ask_fleet(self, call: Call, trace: Trace) -> Answer:
        """A fresh answer, past the cache, which neither gives nor keeps it. Raises
        GatewayError."""
        decision = self._router.decide(call, self._router.resolve(call), None)
        return await self._dispatcher.open(call, decision, trace)

    async def _open(self, call: Call, pick: Pick, look: _Lookup, trace: Trace) -> Answer:
        began = self._clock()
        decision = self._router.decide(call, pick, look.found.vector if look.found else None)
        trace.route_reason, trace.excluded = decision.reason, decision.excluded
        trace.probabilities = decision.probabilities
        trace.stage("route", self._clock() - began)
        return await self._dispatcher.open(call, decision, trace)

    def _keep(self, call: Call, look: _Lookup, answer: Answer, body: bytes, trace: Trace) -> None:
        """Stores a complete answer if it is one that may be stored."""
        if not look.plan.store or answer.head.status != 200 or trace.degraded not in AS_ASKED:
            return
        cache = self._stage.cache
        try:
            complete = complete_answer(answer, body)
            if complete is None or self._unstorable(complete, answer.head.wire):
                return
            cache.keep(
                call,
                look.mark,
                look.plan,
                answer.source,
                complete,
                look.found,
                exact_only=calls_tools(complete),
            )
        except Exception as error:  # border: no fault of the cache fails a request
            cache.faults.add("keep", error)

    def _unstorable(self, answer: Mapping[str, Any], wire: WireName) -> str | None:
        return storable(answer, wire, tool_calls=self._stage.rules.store_tool_calls)

    async def _stale(self, look: _Lookup, error: GatewayError) -> Hit | None:
        plan = look.plan
        usable = self._stage.serve_stale and plan.lookup and plan.serve and plan.max_age_s is None
        if not usable or (isinstance(error, UpstreamError) and not _fleet_failed(error)):
            return None
        return await self._stage.cache.find_stale(look.mark)

    def _replay(self, call: Call, hit: Hit, trace: Trace, *, stale: bool = False) -> Answer | None:
        """The hit as an answer; None, counted, for an entry that cannot be rendered."""
        try:
            replay = replayed(call, hit, tokens_per_s=self._stage.replay_tokens_per_s)
        except CacheError as error:
            self._stage.cache.faults.add("entry", error)
            trace.cache_reason = "broken entry"
            return None
        if stale:
            trace.cache, trace.degraded = "stale", "stale_cache"
        else:
            trace.cache = "hit" if hit.similarity is None else "semantic-hit"
        source = hit.source
        trace.tier, trace.model, trace.replica = source.tier, source.model, source.replica
        trace.probabilities = source.probabilities
        trace.entry_id = hit.entry_id
        trace.similarity = 1.0 if hit.similarity is None else hit.similarity
        trace.age_s = max(0.0, self._wall() - hit.created_at)
        return replay


_NO_MARK = Fingerprint(b"", b"", "", semantic=False)


def complete_answer(answer: Answer, body: bytes) -> Mapping[str, Any] | None:
    """The answer as one object. Of a stream whose client did not ask for usage, the usage
    was kept back and is put in again."""
    head = answer.head
    if head.stream:
        made = assemble(body, "completions" if head.wire == "completions" else "chat")
        if made is not None and "usage" not in made and answer.usage is not None:
            made["usage"] = answer.usage.reported
        return made
    try:
        document = orjson.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _fleet_failed(error: UpstreamError) -> bool:
    """An upstream's word about the request itself is no failure of the fleet."""
    return error.retryable or isinstance(error, UpstreamTimeout)
