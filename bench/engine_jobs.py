"""What travels through a simulated engine: Work asked for, the Job made of it, the Totals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tierway.bench.engine_kv import Block

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a request costs.

    `keys` holds one key for each full block of prompt and output together; each stands for
    all tokens up to the block's end (a shorter list leaves the rest unshared). `output_tokens`
    may be 0 (an embedding). `stall_after` is the token after which the request sits in its
    slot until it is resumed or aborted (0: it never gets one).
    """

    prompt_tokens: int
    output_tokens: int
    keys: Sequence[Hashable] = ()
    finish: FinishReason = "stop"
    stall_after: int | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the engine; read by callers, written by the engine only.

    `token_s` is when the newest token came, `previous_s` the one before it. `reason` is None
    until the job is over. `cached_tokens` were found in the prefix cache at first admission.
    With `milestones` only the first token and the end are told to `on_token`.
    """

    work: Work
    arrived_s: float
    on_token: Callable[[Job], None] | None = None
    milestones: bool = False
    admitted_s: float | None = None
    first_token_s: float | None = None
    token_s: float | None = None
    previous_s: float | None = None
    finished_s: float | None = None
    reason: FinishReason | None = None
    resumed: bool = False
    cached_tokens: int = 0
    generated: int = 0
    computed: int = 0
    preemptions: int = 0
    committed: int = 0
    blocks: list[Block] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Prompt tokens and tokens generated so far; those past `computed` wait for a step."""
        return self.work.prompt_tokens + self.generated

    @property
    def stalled(self) -> bool:
        after = self.work.stall_after
        return after is not None and not self.resumed and self.generated >= after

    @property
    def told(self) -> Callable[[Job], None] | None:
        """Who is to hear of what happened just now."""
        if self.milestones and self.generated != 1 and self.reason is None:
            return None
        return self.on_token


@dataclass(slots=True)
class Totals:
    """Counts since the start. `computed_prompt_tokens` is what the prefix cache did not save;
    `busy_s` the time spent in steps."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    busy_s: float = 0.0
    finished: dict[FinishReason, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )
