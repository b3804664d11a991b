"""The fleet of a balancing benchmark: profiles by model and GPU, and the product's own gateway.

`ProductGateway` is what `tierway serve` builds, without HTTP: the real Fleet, Balancer, policies
and learners, on a virtual clock, told what the engines' gauges say. Only the hashing of prompts
is left out, as nothing here has text, so a look is made from the load's blocks.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tierway.bench.balance_rig import VirtualClock
from tierway.bench.engine_clock import EngineClock
from tierway.bench.hub import MemoryHub
from tierway.bench.loads import LOOK_TOKENS, Asked
from tierway.bench.profiles import Profile, profile
from tierway.policies.physics import pace
from tierway.policies.policyset import PolicySet
from tierway.policies.types import Model, Tier, Usage
from tierway.router.balancer import Balancer, Look, PolicyHolder
from tierway.router.facts import Facts
from tierway.router.fleet import Fleet
from tierway.router.lease import Lease
from tierway.router.pace import PaceLearner
from tierway.router.predict import LengthHint
from tierway.router.prefixes import PrefixIndex
from tierway.router.pressure import PressureWatch
from tierway.router.prompts import PromptLearner
from tierway.router.ratio import TokenRatios
from tierway.router.replica import ReplicaSpec

T = TypeVar("T")

_TIER, _MODEL = "tier", "model"
_LEAST_KV_TOKENS = 16_384
_COUNTS = (1, 2, 4, 8)


def fleet_profile(model: str, gpu: str) -> Profile:
    """An engine of `model` on as few of these GPUs as leave it a useful KV cache; `gpu` may name
    their number (`h100x4`). Prompts may be as long as its memory. ValueError for a name that is
    not known."""
    names = [f"{model}-{gpu}"]
    if "x" not in gpu:
        names += [f"{model}-{gpu}x{count}" for count in _COUNTS[1:]]
    found = []
    for name in names:
        try:
            found.append(profile(name))
        except ValueError:
            continue
    if not found:
        profile(names[0])  # says what is wrong
    made = next((one for one in found if one.kv_capacity_tokens >= _LEAST_KV_TOKENS), found[-1])
    return replace(made, max_model_len=made.kv_capacity_tokens)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a replica stands."""

    zone: str = ""
    group: str = ""
    fabric: str = ""


@dataclass(slots=True)
class ProductTicket:
    replica: int
    lease: Lease
    asked: Asked

    def first_token(self) -> None:
        self.lease.first_token()

    def ended(self, cached_tokens: int) -> None:
        usage = Usage(self.asked.prompt_tokens, self.asked.output_tokens, cached_tokens)
        self.lease.finish(None, usage)


class ProductGateway:
    """One gateway of the product before `engines`, with this policy for all of them. `believed`
    are the profiles that its operator believes in, by engine; gateways of one `hub` share their
    counts and placements; `places` tell where the engines stand, `zone` where it does."""

    def __init__(
        self,
        engines: EngineClock,
        policy: str,
        options: Mapping[str, Any],
        *,
        clock: VirtualClock,
        draw: random.Random,
        believed: Sequence[Profile],
        look_tokens: int = LOOK_TOKENS,
        weights: Sequence[float] | None = None,
        hub: MemoryHub | None = None,
        places: Sequence[Placed] | None = None,
        zone: str = "",
    ) -> None:
        self._engines = engines
        self._names = [f"model@gpu-{number:02}:8000" for number in range(len(believed))]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._clock, self._sent = clock, 0
        where = places or [Placed()] * len(believed)
        specs = [
            ReplicaSpec(
                name,
                _MODEL,
                _TIER,
                "",
                engine="vllm",
                weight=1.0 if weights is None else weights[number],
                gpu=believed[number].gpu.name,
                gpus=believed[number].gpus,
                zone=where[number].zone,
                group=where[number].group,
                fabric=where[number].fabric,
            )
            for number, name in enumerate(self._names)
        ]
        fleet = Fleet(specs, clock=clock)
        priors = {
            name: pace(made.model, made.gpu, made.gpus)
            for name, made in zip(self._names, believed, strict=True)
        }
        tier = Tier(_TIER, 0, "7b", (Model(_MODEL, _TIER),), policy=policy, options=dict(options))
        index = PrefixIndex()
        for name, made in zip(self._names, believed, strict=True):
            index.resize(name, made.kv_capacity_tokens // look_tokens)
        self.balancer = Balancer(
            fleet,
            PolicyHolder(PolicySet.build([tier])),
            clock=clock,
            draw=draw.random,
            prefixes=index,
            shared=None if hub is None else hub.join(fleet, index.insert),
            learners=(
                PaceLearner(fleet, priors),
                PromptLearner(index, TokenRatios()),
            ),
            zone=zone,
        )

    def learn(self, watch: PressureWatch) -> None:
        """Has the pressure of the engines' memory watched too."""
        self.balancer.fleet.follow(watch)
        self.balancer.learn(watch)

    def send(self, asked: Asked, blocks: tuple[int, ...]) -> ProductTicket:
        hint = LengthHint(_MODEL, asked.session, asked.prompt_tokens)
        look = Look(
            session=asked.session,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=self.balancer.lengths.expect(hint),
            blocks=blocks,
            block_tokens=float(asked.text.look_tokens),
            whole=asked.whole,
            previous=asked.previous,
            answered_tokens=asked.answered_tokens,
            hint=hint,
        )
        choice = self.balancer.rank(_TIER, (_MODEL,), look, sequence=self._sent)
        self._sent += 1
        lease = _ended(self.balancer.take(choice))
        return ProductTicket(self._numbers[lease.replica], lease, asked)

    def poll(self) -> None:
        for number, name in enumerate(self._names):
            engine = self._engines.seen(number)
            facts = Facts(
                waiting=engine.waiting,
                running=engine.running,
                kv_usage=engine.kv_usage,
                kv_capacity_tokens=engine.profile.kv_capacity_tokens,
                preemptions=engine.totals.preemptions,
                read_s=self._clock(),
            )
            self.balancer.fleet.update_facts(name, facts)

    @property
    def left_over(self) -> int:
        """Requests that still count as in flight."""
        return sum(self.balancer.fleet.inflight().values())


def _ended(waiting: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nobody."""
    try:
        waiting.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise RuntimeError("in virtual time nothing may be waited for")
