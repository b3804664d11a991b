"""Finds somebody to answer a call: ask the policy, send, next replica, next tier, cloud.

Only the first byte decides: until an upstream's first real token is there, a failure that speaks
of the replica and not of the request sends the call to the next candidate; afterwards nothing is
replayed. Each candidate is tried once a call. The policy set is read anew at every attempt, so
work that waits obeys a switch, and one attempt never mixes two.

The first attempt goes straight; tenacity drives the rest (its machinery costs more than a relay,
and most calls need one attempt). Retries share a budget over all calls, so that a bad night is
not made worse by its own retries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception, stop_never, wait_none

from tierway.policies.errors import GatewayError, NoCapacity, Refused, Rejected, UpstreamError
from tierway.policies.protocols import Answer, Clock, Upstream
from tierway.policies.resilience import RetryBudget
from tierway.policies.types import (
    Call,
    Head,
    Model,
    Source,
    TierDecision,
    Trace,
    Usage,
)
from tierway.router.balancer import Balancer, Choice, Look
from tierway.router.lease import Lease

_OVERFLOW = b"context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Ladder:
    """Which steps a call may take when its first choice fails."""

    other_replica: bool = True
    other_tier: bool = True
    cloud: bool = True


class Dispatcher:
    """`upstreams` maps a replica's id (a cloud model's name) to its Upstream; `message_status` is
    what a client gets when nobody can answer. `note` hears of each call and the model it is for."""

    def __init__(
        self,
        balancer: Balancer,
        upstreams: Mapping[str, Upstream],
        *,
        clock: Clock,
        budget: RetryBudget,
        ladder: Ladder | None = None,
        message_status: int = 503,
        note: Callable[[Call, Model], None] | None = None,
    ) -> None:
        self.balancer, self.upstreams = balancer, upstreams
        self.clock, self.budget = clock, budget
        self.ladder = ladder or Ladder()
        self._message_status = message_status
        self.note = note
        self.sequences: Counter[str] = Counter()

    async def open(self, call: Call, decision: TierDecision, trace: Trace) -> Answer:
        """The answer of the first candidate that gives one. Raises what the last one said:
        Rejected and timeouts as they are, NoCapacity when nobody could be reached."""
        search = _Search(self, call, decision, trace)
        self.budget.record_request(self.clock())
        search.advance()
        try:
            return await search.attempt()
        except UpstreamError as error:
            if not search.goes_on(error):
                raise self._final(error) from error
        try:
            return await self._retrying(search)(search.attempt)
        except UpstreamError as error:
            raise self._final(error) from error

    async def open_once(self, call: Call, decision: TierDecision, trace: Trace) -> Answer:
        """One attempt, for what the gateway asks for itself: no retry, and nothing that lets
        clients retry more often. Raises as `open` does."""
        search = _Search(self, call, decision, trace)
        search.advance()
        try:
            return await search.attempt()
        except UpstreamError as error:
            raise self._final(error) from error

    def no_capacity(self, message: str, *, attempted: bool = True) -> NoCapacity:
        return NoCapacity(message, status=self._message_status, attempted=attempted)

    def _final(self, error: UpstreamError) -> GatewayError:
        """What the client is told once nobody is left to ask."""
        if isinstance(error, Refused):
            return self.no_capacity("No replica or cloud model could be reached.")
        return error

    def _retrying(self, search: _Search) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception(search.goes_on),
            stop=stop_never,  # `goes_on` ends it: candidates, budget and deadline are finite
            wait=wait_none(),
            reraise=True,
        )

    async def aclose(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.aclose()


@dataclass(frozen=True, slots=True)
class _Target:
    tier: str
    model: Model
    choice: Choice


class _Search:
    """One call's walk over the candidates of its decision."""

    def __init__(
        self, dispatcher: Dispatcher, call: Call, decision: TierDecision, trace: Trace
    ) -> None:
        self._dispatcher, self._call = dispatcher, call
        self._decision, self._trace = decision, trace
        self._step = 0
        self._tried: set[str] = set()
        self._sequences: dict[str, int] = {}
        self._target: _Target | None = None
        self._looks: dict[str, Look] = {}

    def advance(self) -> bool:
        """Picks the next candidate; False when there is none left."""
        plan = self._decision.plan
        while self._step < len(plan):
            if self._step == 0 or self._may_leave_tier(self._step):
                for model in plan[self._step].models:
                    choice = self._rank(plan[self._step].tier, model)
                    if choice:
                        self._target = _Target(plan[self._step].tier, model, choice)
                        return True
            self._step += 1
        self._target = None
        return False

    async def attempt(self) -> Answer:
        """Sends the call to the picked candidate."""
        target, self._target = self._target, None
        if target is None:
            raise self._dispatcher.no_capacity(
                "No replica or cloud model can take this request now.", attempted=False
            )
        dispatcher = self._dispatcher
        lease = await dispatcher.balancer.take(target.choice)
        self._tried.add(lease.replica)
        self._note_choice(target.choice, lease.replica)
        try:
            source = Source(
                target.tier, target.model.name, lease.replica, self._decision.probabilities
            )
            answer = await dispatcher.upstreams[lease.replica].open(self._call, source)
        except BaseException as error:
            lease.finish(error)
            raise
        lease.first_token()
        self._note(target, lease.replica)
        return LeasedAnswer(answer, lease)

    def goes_on(self, error: BaseException) -> bool:
        """True when `error` allows another attempt and there is somebody left to ask."""
        if not isinstance(error, UpstreamError):
            return False
        dispatcher = self._dispatcher
        now = dispatcher.clock()
        if now >= self._call.deadline_s or not self._step_over(error) or not self.advance():
            return False
        if not dispatcher.budget.take(now):
            return False
        self._trace.retries.append(_reason(error))
        return True

    def _step_over(self, error: UpstreamError) -> bool:
        if isinstance(error, Rejected) and error.status == 400 and _OVERFLOW in error.body:
            self._step += 1  # the prompt is too long for this tier's window, not for the next
            return True
        if not error.retryable:
            return False
        if not self._dispatcher.ladder.other_replica:
            self._step += 1
        return True

    def _may_leave_tier(self, step: int) -> bool:
        ladder = self._dispatcher.ladder
        cloud = all(model.cloud for model in self._decision.plan[step].models)
        return ladder.cloud if cloud else ladder.other_tier

    def _rank(self, tier: str, model: Model) -> Choice:
        balancer = self._dispatcher.balancer
        look = self._looks.get(model.name)
        if look is None:
            look = self._looks[model.name] = balancer.look(self._call, model)
            if self._dispatcher.note is not None:
                self._dispatcher.note(self._call, model)
        return balancer.rank(
            tier,
            (model.name,),
            look,
            tried=frozenset(self._tried),
            sequence=self._sequence(tier),
        )

    def _sequence(self, tier: str) -> int:
        """The call's number in its tier: one for all its attempts, or a turn-taking policy
        would fall into step with a replica that always fails."""
        if tier not in self._sequences:
            self._sequences[tier] = self._dispatcher.sequences[tier]
            self._dispatcher.sequences[tier] += 1
        return self._sequences[tier]

    def _note_choice(self, choice: Choice, replica: str) -> None:
        trace = self._trace
        trace.attempts += 1
        chosen = next(one for one in choice.ranking.candidates if one.replica == replica)
        trace.balance, trace.policy = chosen.reasons, choice.ranking.policy
        trace.policy_version = choice.policy_version
        if choice.shadowed is not None:
            trace.shadow_policy = choice.shadowed.policy
            trace.shadow_replica = choice.shadowed.replica

    def _note(self, target: _Target, replica: str) -> None:
        trace = self._trace
        trace.tier, trace.model, trace.replica = target.tier, target.model.name, replica
        if self._step > 0:
            trace.degraded = "cloud" if target.model.cloud else "other_tier"
        elif trace.attempts > 1:
            trace.degraded = "other_replica"


class LeasedAnswer:
    """An answer together with the slot it holds."""

    __slots__ = ("_answer", "_ended", "_error", "_lease")

    def __init__(self, answer: Answer, lease: Lease) -> None:
        self._answer, self._lease = answer, lease
        self._error: BaseException | None = None
        self._ended = False

    @property
    def head(self) -> Head:
        return self._answer.head

    @property
    def source(self) -> Source:
        return self._answer.source

    @property
    def usage(self) -> Usage | None:
        return self._answer.usage

    async def read(self) -> bytes:
        try:
            chunk = await self._answer.read()
        except GatewayError as error:
            self._error = error
            raise
        if not chunk:
            self._ended = True
            self._lease.finish(None, self._answer.usage)
        return chunk

    async def aclose(self) -> None:
        try:
            await self._answer.aclose()
        finally:
            # Closed before its end without a fault: the client left.
            left = None if self._ended else asyncio.CancelledError()
            self._lease.finish(self._error or left)


def _reason(error: UpstreamError) -> str:
    if isinstance(error, Rejected):
        return "overload" if error.overload else "status"
    return type(error).__name__.lower()
