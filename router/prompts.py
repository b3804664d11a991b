"""What the end of a call teaches about prompts: bytes per token, and what was really cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tierway.policies.errors import Refused
from tierway.policies.types import Usage
from tierway.policies.usage import reported_cached
from tierway.router.balancer import Placed
from tierway.router.fleet import Fleet
from tierway.router.learner import Learner
from tierway.router.lease import Lease
from tierway.router.prefixes import PrefixIndex
from tierway.router.ratio import TokenRatios


class PromptLearner(Learner):
    """A Learner. Give the Balancer the same `prefixes` and `ratios`."""

    def __init__(self, prefixes: PrefixIndex, ratios: TokenRatios) -> None:
        self._prefixes, self._ratios = prefixes, ratios

    def on_end(
        self,
        placed: Placed,
        lease: Lease,
        now: float,
        error: BaseException | None,
        usage: Usage | None,
    ) -> None:
        if type(error) is Refused:  # nobody listens there: what comes back comes back empty
            self._prefixes.forget(lease.replica)
        if error is not None or usage is None or usage.input_tokens <= 0:
            return
        look = placed.look
        if look.prompt_bytes:
            self._ratios.learn(placed.view.model, look.kind, look.prompt_bytes, usage.input_tokens)
        held, reported = min(placed.held_tokens, usage.input_tokens - 1), reported_cached(usage)
        # What is held may be a prompt that was itself waiting to be read, as when many ask about
        # one new document at once: then less was there than will be, and nothing was lost.
        if (reported or 0) >= held or placed.view.prefill_tokens <= 0:
            self._prefixes.correct(lease.replica, held, reported)


def hearing(prefixes: PrefixIndex, fleet: Fleet) -> Callable[[str, Sequence[int]], None]:
    """Takes in what other gateways sent where; replicas that only they have are not kept, or
    their names would add up as fleets change."""

    def on_placed(replica: str, blocks: Sequence[int]) -> None:
        if replica in fleet:
            prefixes.insert(replica, blocks)

    return on_placed
