"""Learns how fast each replica really is, from the first and the last token of every answer.

A replica starts with the pace that its GPU and model promise (policies/physics.py). Three
factors correct it: of the time per prompt token, of what a first token takes beside its prompt,
and of a step. Each answer gives two ratios of seen to predicted time; their logarithms move the
factors by `rate`, the ratio of reading that of its larger part: the prompt or the rest. The rate
rises while errors keep one sign, so that a replica that slows down is known after a dozen
answers, and noise moves little.

Reading is timed from one first token to the next, so that waiting in a queue is not taken for
slowness. Tokens between the first and the last also wait for the prompts of others; those are
taken out by what was sent to the replica meanwhile, and answers that waited mostly for them are
left out.

A replica that was found slow gets little or nothing, and so could never show that it is not slow
any more: it may have been warming up, or throttling. While it has nothing in flight, what was
learnt therefore fades to its mean of all times, by half in FADE_HALF_LIFE_S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tierway.policies.latency import forecast, step_s
from tierway.policies.types import Pace, ReplicaView, Usage
from tierway.router.balancer import Placed
from tierway.router.fleet import Fleet
from tierway.router.follower import Follower
from tierway.router.learner import Learner
from tierway.router.lease import Lease
from tierway.router.replica import Given, ReplicaSpec

_RATE = 0.08
_FASTEST_RATE = 0.5
_WIDEST = 3.0  # one answer counts as at most 20 times too slow or too fast
_FACTOR_RANGE = 6.0  # a factor stays between 1/400 and 400
_KV_FULL = 0.9
_DOUBT_AFTER_S = 10.0
FADE_HALF_LIFE_S = 20.0
_SURE_AFTER = 20  # answers, until the mean of all times counts for half
_SHORTEST_ANSWER = 8  # tokens; the gaps of fewer say little


@dataclass(slots=True)
class _Factor:
    """The logarithm of a correction. `bias` follows the sign of recent errors, `total` is the
    sum of all logarithms so far."""

    log: float = 0.0
    bias: float = 0.0
    seen: int = 0
    total: float = 0.0

    def learn(self, log_ratio: float, share: float) -> None:
        error = max(-_WIDEST, min(log_ratio, _WIDEST))
        self.seen += 1
        self.bias += 0.25 * share * (error - self.bias)
        early = 1.0 / (1.0 + self.seen)
        rate = min(_FASTEST_RATE, _RATE + early + 0.6 * abs(self.bias))
        self.log = max(-_FACTOR_RANGE, min(self.log + rate * share * error, _FACTOR_RANGE))
        self.total += self.log

    def fade(self, kept: float) -> None:
        """Keeps this share of what is off the mean of all times."""
        mean = self.total / (self.seen + _SURE_AFTER)
        self.log = mean + kept * (self.log - mean)
        self.bias *= kept


@dataclass(slots=True)
class _Learnt:
    """`read` uncached prompt tokens and pairs have brought first tokens since `since_s`. At
    `told_s` it last said anything."""

    prior: Pace
    prefill: _Factor = field(default_factory=_Factor)
    first: _Factor = field(default_factory=_Factor)
    step: _Factor = field(default_factory=_Factor)
    since_s: float = 0.0
    read: Given = (0, 0.0)
    ttft_error: float = 0.0
    tpot_error: float = 0.0
    answers: int = 0
    told_s: float = 0.0

    def fade(self, kept: float) -> None:
        for factor in (self.prefill, self.first, self.step):
            factor.fade(kept)

    def pace(self) -> Pace:
        prior, step = self.prior, math.exp(self.step.log)
        return Pace(
            prefill_s=prior.prefill_s * math.exp(self.prefill.log),
            first_s=prior.first_s * math.exp(self.first.log),
            step_s=prior.step_s * step,
            request_s=prior.request_s * step,
            context_s=prior.context_s * step,
            pair_s=prior.pair_s * math.exp(self.prefill.log),
        )


class PaceLearner(Follower, Learner):
    """Teaches `fleet` the pace of its replicas. `priors` by replica id; those left out start
    with the default Pace."""

    def __init__(self, fleet: Fleet, priors: Mapping[str, Pace]) -> None:
        self._fleet, self._priors = fleet, priors
        self._learnt: dict[str, _Learnt] = {}
        self._faded_s = fleet.clock()
        fleet.follow(self)

    def on_join(self, spec: ReplicaSpec) -> None:
        self._fleet.set_pace(spec.id, self._of(spec.id).prior)

    def on_leave(self, spec: ReplicaSpec) -> None:
        self._learnt.pop(spec.id, None)

    def on_restart(self, spec: ReplicaSpec) -> None:
        """It may be another engine, on another machine."""
        prior = self._of(spec.id).prior
        self._learnt[spec.id] = _Learnt(prior)
        self._fleet.set_pace(spec.id, prior)

    def errors(self, replica: str) -> tuple[float, float]:
        """Mean relative errors of late: (first token, seconds per token)."""
        learnt = self._of(replica)
        return learnt.ttft_error, learnt.tpot_error

    def promise(self, replica: str, prior: Pace) -> None:
        """What its GPU promises, told only now: where calls have taught something it is too
        late."""
        learnt = self._of(replica)
        if learnt.answers == 0 and learnt.ttft_error == 0.0:
            self._learnt[replica] = _Learnt(prior)
            self._fleet.set_pace(replica, prior)

    def _of(self, replica: str) -> _Learnt:
        learnt = self._learnt.get(replica)
        if learnt is None:
            learnt = self._learnt[replica] = _Learnt(self._priors.get(replica, Pace()))
        return learnt

    def on_first_token(self, placed: Placed, lease: Lease, now: float) -> None:
        self._fade(now)
        learnt = self._of(lease.replica)
        learnt.told_s = now
        if not placed.look.stream:
            return  # the whole answer came at once
        found = forecast(placed.ask, placed.view)
        seen_s = max(1e-6, now - lease.taken_s)
        learnt.ttft_error += 0.1 * (abs(found.ttft_s - seen_s) / seen_s - learnt.ttft_error)
        if learnt.read[0] == 0:
            learnt.since_s = max(learnt.since_s, lease.taken_s)
        tokens, pairs = learnt.read
        learnt.read = tokens + lease.work.prefill_tokens, pairs + lease.work.prefill_pairs
        if now - learnt.since_s > found.first_s / 4:
            self._learn_service(learnt, placed, now)
            self._fleet.set_pace(lease.replica, learnt.pace())

    def _fade(self, now: float) -> None:
        """Once a second at most: doubts what is known of replicas that have been idle."""
        elapsed_s = now - self._faded_s
        if elapsed_s < 1.0:
            return
        self._faded_s, kept = now, 0.5 ** (elapsed_s / FADE_HALF_LIFE_S)
        for name, learnt in self._learnt.items():
            idle = now - learnt.told_s > _DOUBT_AFTER_S and not self._fleet.own(name).requests
            if idle and learnt.prefill.seen + learnt.step.seen:
                learnt.fade(kept)
                self._fleet.set_pace(name, learnt.pace())

    def _learn_service(self, learnt: _Learnt, placed: Placed, now: float) -> None:
        """What was read since the last first token, or since it was sent if that was later,
        and the time it took: queues do not enter. A replica out of KV memory shows the end of
        other requests and not its pace."""
        pace = placed.view.pace
        read_s, seen_s = pace.read_s(*learnt.read), now - learnt.since_s
        learnt.read, learnt.since_s = (0, 0.0), now
        if _kv_full(placed.view) or _kv_full(self._fleet.view(placed.view.id)):
            return
        said_s = pace.first_s + read_s
        log_ratio = math.log(max(1e-6, seen_s) / said_s)
        share = read_s / said_s
        if share >= 0.5:
            learnt.prefill.learn(log_ratio, share)
        else:  # short prompts tell little of the time of a token, however many they are
            learnt.first.learn(log_ratio, 1.0 - share)

    def on_end(
        self,
        placed: Placed,
        lease: Lease,
        now: float,
        error: BaseException | None,
        usage: Usage | None,
    ) -> None:
        self._fade(now)
        tokens = usage.output_tokens if usage is not None and error is None else 0
        if lease.first_s is None or not placed.look.stream or tokens < _SHORTEST_ANSWER:
            return
        learnt = self._of(lease.replica)
        learnt.told_s = now
        view = self._fleet.view(lease.replica)
        others = (placed.view.inflight + view.inflight) / 2 + placed.view.unseen
        context = (placed.view.context_tokens + view.context_tokens) / 2 + lease.work.prompt_tokens
        given = self._fleet.given(lease.replica)
        tokens_since, pairs_since = (
            now_ - then for now_, then in zip(given, lease.given_at_first, strict=True)
        )
        pace = view.pace
        seen_s = max(1e-7, (now - lease.first_s) / (tokens - 1))
        waits_s = pace.read_s(tokens_since, pairs_since) / (tokens - 1)
        step = step_s(pace, others, context + tokens / 2)
        said_s = step + waits_s
        learnt.answers += 1
        learnt.tpot_error += 0.1 * (abs(said_s - seen_s) / seen_s - learnt.tpot_error)
        if step > 0.5 * said_s:
            learnt.step.learn(math.log(seen_s / said_s), step / said_s)
            self._fleet.set_pace(lease.replica, learnt.pace())


def _kv_full(view: ReplicaView) -> bool:
    capacity = view.kv_capacity_tokens
    reserved = view.context_tokens / capacity if capacity else 0.0
    return max(reserved, view.kv_usage or 0.0) > _KV_FULL
