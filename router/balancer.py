"""The one place where a call becomes a choice of replica.

`look` gathers what is known of a call, once; `rank` asks the policy in force about a snapshot
of the fleet; `take` reserves a slot on the best of the ranking, over all gateways. Dispatch,
`explain` and the benchmarks all go through here, so that they cannot differ. What becomes of a
lease teaches the learners: see learner.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tierway.policies.cache_salt import prefix_seed
from tierway.policies.guard import PolicyFault
from tierway.policies.policyset import PolicySet
from tierway.policies.prefix_blocks import (
    BLOCK_BYTES,
    ID_BYTES,
    Prefix,
    PromptKind,
    prompt_kind,
    prompt_prefix,
)
from tierway.policies.protocols import Clock, SharedState
from tierway.policies.sharing import OFFERED, Offer
from tierway.policies.topology import kinds
from tierway.policies.types import (
    BalanceAsk,
    Call,
    Candidate,
    Counts,
    Model,
    Ranking,
    ReplicaView,
    Usage,
    Work,
)
from tierway.router.fleet import Fleet
from tierway.router.learner import Learner
from tierway.router.lease import Lease
from tierway.router.predict import PRIOR_TOKENS, LengthHint, LengthPredictor
from tierway.router.prefixes import Match, PrefixStats
from tierway.router.ratio import TokenRatios
from tierway.router.shadows import Shadowed, Shadows
from tierway.router.shared import MemoryState

logger = logging.getLogger(__name__)

_OUTPUT_TOKENS = 256
_NO_MATCH = Match({})
_TOLD_WHOLE = 1 / 8


@dataclass(slots=True)
class PolicyHolder:
    """The one place that names the policies in force; a swap is one assignment."""

    current: PolicySet


@dataclass(frozen=True, slots=True)
class Look:
    """What balancing knows of one call. `output_tokens` is what the answer is expected to
    have, `blocks` the chained hashes of the prompt's leading blocks of `block_tokens` each. It
    goes on from the answer to the prompt `previous`, which ends after `answered_tokens`; `whole`
    is what the next turn will call `previous` (see prefix_blocks.py; 0 for none).
    `prompt_bytes` are the bytes that `prompt_tokens` was estimated from, 0 where they would
    mislead (pictures)."""

    session: str
    prompt_tokens: int
    output_tokens: int = PRIOR_TOKENS
    blocks: tuple[int, ...] = ()
    block_tokens: float = 64.0
    whole: int = 0
    previous: int = 0
    answered_tokens: int = 0
    stream: bool = True
    kind: PromptKind = "latin"
    prompt_bytes: int = 0
    hint: LengthHint | None = None


class Prefixes(Protocol):
    """Which replica's KV cache holds which leading blocks; see prefixes.py."""

    def match(self, blocks: Sequence[int]) -> Match: ...
    def insert(self, replica: str, blocks: Sequence[int], tail: int = 0) -> None: ...
    def resize(self, replica: str, blocks: int) -> None: ...
    def trust(self, replica: str, tokens: int) -> float: ...
    def stats(self) -> PrefixStats: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """One call on one replica, as it was known when it was placed there; hands the course of
    its lease on to the learners. `held_tokens` of the prompt were in the replica's KV cache, as
    the prefix index has it, which `ask.cached` believes as far as it trusts the replica."""

    look: Look
    ask: BalanceAsk
    view: ReplicaView
    candidate: Candidate
    learners: Sequence[Learner]
    held_tokens: int = 0

    def on_first_token(self, lease: Lease, now: float) -> None:
        for learner in self.learners:
            try:
                learner.on_first_token(self, lease, now)
            except Exception:  # border: no request fails of what is learnt from it
                logger.exception("a learner failed: %s", type(learner).__name__)

    def on_end(
        self, lease: Lease, now: float, error: BaseException | None, usage: Usage | None
    ) -> None:
        for learner in self.learners:
            try:
                learner.on_end(self, lease, now, error, usage)
            except Exception:  # border: as above
                logger.exception("a learner failed: %s", type(learner).__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """A ranking with what it was made from; `held` as in Placed, by replica, and the leading
    blocks of it that are `matched`."""

    ranking: Ranking
    look: Look
    ask: BalanceAsk
    views: tuple[ReplicaView, ...]
    policy_version: int = 0
    shadowed: Shadowed | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    matched: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranking.candidates)

    @property
    def crowd(self) -> float:
        """One more than what the replicas have in flight on average."""
        return 1.0 + sum(max(0, view.inflight) for view in self.views) / len(self.views)

    def view(self, replica: str) -> ReplicaView:
        return next(view for view in self.views if view.id == replica)

    def work(self, replica: str) -> Work:
        """What the call would be there, but for what the replica has cached."""
        tokens = self.look.prompt_tokens
        cached = min(self.ask.cached.get(replica, 0), max(0, tokens - 1))
        return Work(tokens, tokens - cached, self.look.output_tokens)

    def news(self, replica: str) -> Sequence[int]:
        """What other gateways are told that the replica was sent: blocks that it is not known
        to hold with the one that they follow, and now and then all, lest the heads of
        conversations seem unused there."""
        if self.ask.draw < _TOLD_WHOLE:
            return self.look.blocks
        return self.look.blocks[max(0, self.matched.get(replica, 0) - 1) :]


class Balancer:
    """`draw` gives uniform numbers in [0, 1). Without `prefixes` no replica is believed to hold
    anything, without `shared` there is no other gateway. `zone` is the gateway's own, `places`
    count what became of zones and groups (policies/topology.py)."""

    def __init__(
        self,
        fleet: Fleet,
        policies: PolicyHolder,
        *,
        clock: Clock,
        draw: Callable[[], float],
        prefixes: Prefixes | None = None,
        ratios: TokenRatios | None = None,
        lengths: LengthPredictor | None = None,
        shared: SharedState | None = None,
        learners: Sequence[Learner] = (),
        zone: str = "",
    ) -> None:
        self.fleet, self.policies, self.prefixes = fleet, policies, prefixes
        self.ratios = ratios or TokenRatios()
        self.lengths = LengthPredictor() if lengths is None else lengths
        self.shared = shared or MemoryState()
        self.clock, self.draw = clock, draw
        self._learners = (self.lengths, *learners)
        self.shadows = Shadows()
        self.zone, self.places = zone, Counter[str]()

    def learn(self, learner: Learner) -> None:
        """`learner` hears of all calls from now on."""
        self._learners = (*self._learners, learner)

    def look(self, call: Call, model: Model) -> Look:
        """What is known of a call that is to go to `model`."""
        kind = prompt_kind(call)
        ratio = self.ratios.bytes_per_token(model.name, kind)
        prompt_tokens = max(1, int(call.ask.text_bytes / ratio))
        hint = LengthHint.of(call, model.name, prompt_tokens)
        prefix = Prefix()
        if self.prefixes is not None and not model.cloud:
            prefix = prompt_prefix(call, prefix_seed(call, model))
        return Look(
            session=call.session,
            prompt_tokens=prompt_tokens,
            output_tokens=0 if call.wire == "embeddings" else self.lengths.expect(hint),
            blocks=prefix.blocks,
            block_tokens=BLOCK_BYTES / (ID_BYTES if kind == "ids" else ratio),
            whole=prefix.whole,
            previous=prefix.previous,
            answered_tokens=int(prefix.answered_bytes / ratio),
            stream=call.stream,
            kind=kind,
            prompt_bytes=0 if call.ask.media else call.ask.text_bytes,
            hint=hint,
        )

    def rank(
        self,
        tier: str,
        models: Sequence[str],
        look: Look,
        *,
        tried: frozenset[str] = frozenset(),
        sequence: int = 0,
    ) -> Choice:
        """The order in which replicas of `models` should be tried, as the policy in force of
        the tier sees it now; falsy when none may take the call."""
        policies = self.policies.current
        views = self.fleet.snapshot(models)
        match = self.prefixes.match(look.blocks) if self.prefixes is not None else _NO_MATCH
        held = self._held(look, match)
        ask = self._ask(look, tried, sequence, held, int(match.common * look.block_tokens))
        if groups := _groups(views, ask):
            ask = replace(ask, groups=groups)
        ranking = self._ranking(policies, tier, ask, views)
        shadowed = self.shadows.ask(tier, policies.tiers[tier], ask, views, ranking)
        return Choice(ranking, look, ask, views, policies.version, shadowed, held, match.held)

    async def take(self, choice: Choice) -> Lease:
        """A slot on the best replica of a choice that has any, as all gateways see it now."""
        look, ask = choice.look, choice.ask
        place = await self.shared.pick(_offers(choice), ask.draw)
        best = choice.ranking.candidates[place]
        view, work = choice.view(best.replica), choice.work(best.replica)
        if choice.shadowed is not None:
            self.shadows.count(choice.shadowed)
        if ask.zone or ask.groups:
            self.places.update(kinds(ask, view))
        lease = self.fleet.lease(
            best.replica,
            work,
            cost_s=(best.ttft_s + best.tpot_s * look.output_tokens) / choice.crowd,
            ttft_s=best.ttft_s,
            read_by_s=None if look.stream else ask.now_s + best.ttft_s,
            watch=Placed(look, ask, view, best, self._learners, choice.held.get(best.replica, 0)),
        )
        if self.prefixes is not None:
            if view.kv_capacity_tokens:
                room = int(view.kv_capacity_tokens / look.block_tokens)
                self.prefixes.resize(best.replica, room)
            tail = 0 if look.previous else look.whole
            self.prefixes.insert(best.replica, look.blocks, tail)
            self.shared.placed(best.replica, choice.news(best.replica))
            if look.whole:
                self.prefixes.insert(best.replica, (look.whole,))
                self.shared.placed(best.replica, (look.whole,))
        return lease

    def _ranking(
        self, policies: PolicySet, tier: str, ask: BalanceAsk, views: Sequence[ReplicaView]
    ) -> Ranking:
        """The policy in force, or the tier's plain one where that fails."""
        policy = policies.for_tier(tier)
        try:
            return policy.rank(ask, views)
        except PolicyFault as fault:
            there = policies.tiers[tier]
            self.shadows.failed(tier, policy.name, there.since, fault)
            return there.plain.rank(ask, views)

    def _held(self, look: Look, match: Match) -> dict[str, int]:
        """Leading prompt tokens that each replica is known to have been given or to have made."""
        size = look.block_tokens
        held = {name: int(blocks * size) for name, blocks in match.held.items()}
        if self.prefixes is not None and look.previous:
            for name in self.prefixes.match((look.previous,)).held:
                held[name] = max(held.get(name, 0), look.answered_tokens)
        return held

    def _ask(
        self,
        look: Look,
        tried: frozenset[str],
        sequence: int,
        held: Mapping[str, int],
        common: int,
    ) -> BalanceAsk:
        cached: Mapping[str, int] = {}
        if self.prefixes is not None and held:
            trust = self.prefixes.trust
            cached = {name: int(tokens * trust(name, tokens)) for name, tokens in held.items()}
        return BalanceAsk(
            session=look.session,
            prompt_tokens=look.prompt_tokens,
            sequence=sequence,
            draw=self.draw(),
            tried=tried,
            output_tokens=look.output_tokens,
            cached=cached,
            common_tokens=common,
            now_s=self.clock(),
            zone=self.zone,
        )


def _groups(views: Sequence[ReplicaView], ask: BalanceAsk) -> frozenset[str]:
    """Of the replicas that hold a part of the prompt which is not everybody's."""
    if not ask.cached:
        return frozenset()
    least, cached = ask.common_tokens, ask.cached
    return frozenset(
        [view.group for view in views if view.group and cached.get(view.id, 0) > least]
    )


def _offers(choice: Choice) -> Iterator[Offer]:
    """The best candidates, as far as they have a cost."""
    for candidate in choice.ranking.candidates[:OFFERED]:
        if candidate.cost is None:
            return
        view = choice.view(candidate.replica)
        known = Counts(
            view.inflight,
            view.inflight_tokens,
            view.prefill_tokens,
            view.output_tokens,
            view.context_tokens,
        )
        yield Offer(candidate.replica, choice.work(candidate.replica), candidate.cost, known)
