"""Prefills prompts on replicas that join, return or restart, before their first callers pay for it.

What is prefilled are the system prompts that the operator names, and those that calls shared most
of late: counted with the space-saving sketch (Metwally et al., 2005), which keeps `learn` counters
and gives the least of them to whatever is new. Texts stay in memory, are never logged, and one that
came under a tenant's cache salt is sent under that tenant's. Each costs one token on one replica,
one after the other, as the gateway's own call: it counts as in flight there and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tierway.policies.errors import GatewayError
from tierway.policies.protocols import Upstream
from tierway.policies.types import Call, Model, Source, Work
from tierway.router.balancer import Balancer
from tierway.router.follower import Follower
from tierway.router.replica import ReplicaSpec

logger = logging.getLogger(__name__)

_SHORTEST_CHARS = 512  # an engine reads less in the time of one step
_LONGEST_CHARS = 256 * 1024
_LEAST_COUNT = 3
_WAIT_S = 60.0
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Head:
    """A system prompt for a model; `tenant` is empty where its cache has no salt."""

    model: str
    tenant: str
    text: str


class Heads:
    """The most frequent system prompts of the calls so far; at most `learn` of them."""

    def __init__(self, learn: int) -> None:
        self._learn = learn
        self._counts: dict[Head, int] = {}

    def note(self, call: Call, model: Model) -> None:
        if not self._learn or model.cloud:
            return
        text = _system(call)
        if not _SHORTEST_CHARS <= len(text) <= _LONGEST_CHARS:
            return
        head = Head(model.name, call.tenant if model.cache_salt == "tenant" else "", text)
        count = self._counts.get(head)
        if count is None:
            count = 0
            if len(self._counts) >= self._learn:
                least = min(self._counts, key=self._counts.__getitem__)
                count = self._counts.pop(least)
        self._counts[head] = count + 1

    def most(self, model: str) -> list[Head]:
        """Those of a model that came a few times, the most frequent first."""
        found = [
            (count, head)
            for head, count in self._counts.items()
            if head.model == model and count >= _LEAST_COUNT
        ]
        return [head for _, head in sorted(found, key=lambda one: -one[0])]


class Prefetcher(Follower):
    """`make` gives the call that has a head read, for one token. `configured` are prompts by
    model. Begins with `start`: who is there already has been asked for long."""

    def __init__(
        self,
        balancer: Balancer,
        upstreams: Mapping[str, Upstream],
        models: Mapping[str, Model],
        make: Callable[[Head], Call],
        *,
        configured: Iterable[Head] = (),
        learn: int = 16,
    ) -> None:
        self._balancer, self._upstreams, self._models = balancer, upstreams, models
        self._make, self._configured = make, tuple(configured)
        self.heads = Heads(learn)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._started = False
        self.outcomes: Counter[str] = Counter()

    def start(self) -> None:
        self._balancer.fleet.follow(self)
        self._started = True

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_join(self, spec: ReplicaSpec) -> None:
        if self._started:
            self._begin(spec)

    def on_return(self, spec: ReplicaSpec) -> None:
        self._begin(spec)

    def on_restart(self, spec: ReplicaSpec) -> None:
        self._begin(spec)

    def on_leave(self, spec: ReplicaSpec) -> None:
        task = self._tasks.pop(spec.id, None)
        if task is not None:
            task.cancel()

    def wanted(self, model: str) -> list[Head]:
        """What a replica of the model should have read, the operator's first."""
        named = [head for head in self._configured if head.model == model]
        known = {head.text for head in named}
        return named + [head for head in self.heads.most(model) if head.text not in known]

    def _begin(self, spec: ReplicaSpec) -> None:
        self.on_leave(spec)
        heads = self.wanted(spec.model) if spec.url else []
        if heads:
            task = asyncio.get_running_loop().create_task(self._prefill(spec, heads))
            self._tasks[spec.id] = task

    async def _prefill(self, spec: ReplicaSpec, heads: list[Head]) -> None:
        try:
            await self._until_well(spec)
            for head in heads:
                await self._one(spec, head)
                self.outcomes["prefilled"] += 1
        except GatewayError as error:
            self.outcomes["failed"] += 1
            logger.info("%s was not prefilled: %s", spec.id, error.public)
        except TimeoutError:
            self.outcomes["failed"] += 1
            logger.info("%s was not prefilled: it did not come up in time", spec.id)
        except Exception:  # border: nobody waits for it
            self.outcomes["failed"] += 1
            logger.exception("%s was not prefilled", spec.id)

    async def _until_well(self, spec: ReplicaSpec) -> None:
        """Its health is asked for by others; what is drained or open is not sent to."""
        fleet = self._balancer.fleet
        for _ in range(int(_WAIT_S / _LOOK_S)):
            if fleet.view(spec.id).available:
                return
            await asyncio.sleep(_LOOK_S)
        raise TimeoutError

    async def _one(self, spec: ReplicaSpec, head: Head) -> None:
        model, call = self._models[head.model], self._make(head)
        look = self._balancer.look(call, model)
        lease = self._balancer.fleet.lease(spec.id, Work(look.prompt_tokens, look.prompt_tokens, 1))
        try:
            source = Source(spec.tier, model.name, spec.id)
            answer = await self._upstreams[spec.id].open(call, source)
            try:
                lease.first_token()
                while await answer.read():
                    pass
            finally:
                await answer.aclose()
        except BaseException as error:
            lease.finish(error)
            raise
        lease.finish(None)
        if self._balancer.prefixes is not None:
            self._balancer.prefixes.insert(spec.id, look.blocks)


def _system(call: Call) -> str:
    """The text of the first message where it is the system's; else empty."""
    messages = call.body.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    if not isinstance(first, Mapping) or first.get("role") not in ("system", "developer"):
        return ""
    content = first.get("content")
    return content if isinstance(content, str) else ""
