"""A fleet of simulated engines behind gateways, in virtual time, on one thread.

The loop knows what happens: a request comes, an engine tells of a first token or an end, somebody
looks at the engines' gauges (`poll_s`, as the product's pollers do), gateways talk to each other, a
replica slows down. It asks a gateway where each request goes; which gateway is drawn, as clients
spread over several.
Nothing waits, so a run is as long as its computation and is told wholly by its seed.

What becomes of every request is a `Sample`; what the engines did, the truth, is in their totals.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tierway.bench.engine import Engine, Job, Work
from tierway.bench.engine_clock import EngineClock
from tierway.bench.loads import Asked, Load


@dataclass(slots=True)
class VirtualClock:
    """Seconds that pass when the loop says so."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Ticket(Protocol):
    """A request that was sent to the replica of this number."""

    @property
    def replica(self) -> int: ...
    def first_token(self) -> None: ...
    def ended(self, cached_tokens: int) -> None: ...


class Gateway(Protocol):
    """Sends requests to engines; it has been told at its making which there are."""

    def send(self, asked: Asked, blocks: tuple[int, ...]) -> Ticket:
        """`blocks` are the prompt's hashes, as `Asked.blocks` gives them."""
        ...

    def poll(self) -> None:
        """Reads the gauges of all engines."""
        ...


@dataclass(slots=True)
class Sample:
    """One request; times are virtual seconds. `decision_s` is real CPU time of the choice,
    without the hashing of the prompt."""

    asked: Asked
    replica: int
    sent_s: float
    decision_s: float
    first_s: float | None = None
    ended_s: float | None = None
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return math.inf if self.first_s is None else self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for an answer of one."""
        if self.first_s is None or self.ended_s is None or self.asked.output_tokens < 2:
            return None
        return (self.ended_s - self.first_s) / (self.asked.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From `at_s` on, the steps of this replica take `factor` times as long."""

    replica: int
    at_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was: every request that ended, those no engine could hold, and the engines."""

    samples: tuple[Sample, ...]
    lost: int
    seconds: float
    engines: tuple[Engine, ...]


@dataclass(slots=True)
class Rig:
    """Runs one load once. `draw` is for the choice of a gateway only; `repeated` are things to
    do again and again, each with its period in seconds."""

    clock: VirtualClock
    engines: EngineClock
    gateways: Sequence[Gateway]
    draw: random.Random
    poll_s: float = 1.0
    slowdowns: Sequence[Slowdown] = ()
    repeated: Sequence[tuple[float, Callable[[], None]]] = ()
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _samples: list[Sample] = field(default_factory=list)
    _made: int = 0
    _open: int = 0
    _coming: int = 0
    _lost: int = 0

    def run(self, load: Load) -> Run:
        for change in self.slowdowns:
            self._at(change.at_s, partial(self.engines.slow_down, change.replica, change.factor))
        for number, gateway in enumerate(self.gateways):
            gateway.poll()
            first_s = self.poll_s * (number + 1) / len(self.gateways)
            self._at(first_s, partial(self._again, self.poll_s, gateway.poll))
        for period_s, act in self.repeated:
            self._at(period_s, partial(self._again, period_s, act))
        for at_s, asked in load.begin():
            self._expect(load, at_s, asked)
        while self._open or self._coming:
            self._step()
        engines = tuple(map(self.engines.seen, range(len(self.engines.engines))))
        return Run(tuple(self._samples), self._lost, self.clock.now_s, engines)

    def _step(self) -> None:
        """The next thing that happens; at one moment engines go before what comes to them."""
        engines_s = self.engines.next_s()
        if engines_s is not None and engines_s <= self._events[0][0]:
            self.clock.now_s = max(self.clock.now_s, engines_s)
            self.engines.run(engines_s)
            return
        at_s, _, act = heapq.heappop(self._events)
        self.clock.now_s = max(self.clock.now_s, at_s)
        self.engines.run(self.clock.now_s)
        act()

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (at_s, self._made, act))

    def _again(self, period_s: float, act: Callable[[], None]) -> None:
        act()
        self._at(self.clock.now_s + period_s, partial(self._again, period_s, act))

    def _expect(self, load: Load, at_s: float, asked: Asked) -> None:
        self._coming += 1
        self._at(at_s, lambda: self._send(load, asked))

    def _send(self, load: Load, asked: Asked) -> None:
        self._coming -= 1
        gateways = self.gateways
        gateway = gateways[self.draw.randrange(len(gateways))] if len(gateways) > 1 else gateways[0]
        blocks = asked.blocks()
        began_ns = time.thread_time_ns()
        ticket = gateway.send(asked, blocks)
        spent_s = (time.thread_time_ns() - began_ns) / 1e9
        sample = Sample(asked, ticket.replica, self.clock.now_s, spent_s)
        keys = asked.keys(self.engines.engines[ticket.replica].profile.block_tokens)
        work = Work(asked.prompt_tokens, asked.output_tokens, keys)
        try:
            self.engines.submit(ticket.replica, work, self._watch(load, sample, ticket))
        except ValueError:  # it would never fit there
            self._lost += 1
            ticket.ended(0)
            self._follow(load, asked)
            return
        self._open += 1

    def _watch(self, load: Load, sample: Sample, ticket: Ticket) -> Callable[[Job], None]:
        def on_token(job: Job) -> None:
            if sample.first_s is None:
                sample.first_s = self.clock.now_s
                ticket.first_token()
            if job.reason is not None:
                sample.ended_s, sample.cached_tokens = self.clock.now_s, job.cached_tokens
                self._samples.append(sample)
                self._open -= 1
                ticket.ended(job.cached_tokens)
                self._follow(load, sample.asked)

        return on_token

    def _follow(self, load: Load, asked: Asked) -> None:
        for at_s, following in load.ended(asked, self.clock.now_s):
            self._expect(load, at_s, following)
