"""Many steps of a simulated engine at once, while nothing happens but tokens.

When every running request decodes and nobody can be admitted, each step gives one token to
each of n requests, and its time is affine in the sum of their contexts: k steps are an
arithmetic series. A leap ends before the step in which a request ends, stalls or finds no
block, so that all of these happen in a step of their own. Blocks are taken and filled in the
order in which single steps would do it: what is evicted, and what is findable, is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tierway.bench.engine_jobs import Job
from tierway.bench.engine_kv import BlockPool


@dataclass(frozen=True, slots=True)
class Leap:
    """At most `steps` steps of `jobs`: the first takes `first_s`, each next one `more_s` more."""

    jobs: Sequence[Job]
    steps: int
    first_s: float
    more_s: float

    def seconds(self, steps: int) -> float:
        return steps * self.first_s + self.more_s * (steps * (steps - 1) / 2)

    def fitting(self, seconds: float) -> int:
        """How many whole steps fit into `seconds`."""
        if self.seconds(self.steps) <= seconds:
            return self.steps
        half = self.first_s - self.more_s / 2
        root = math.sqrt(half * half + 2 * self.more_s * max(0.0, seconds))
        count = min(self.steps, int(2 * max(0.0, seconds) / (half + root)) + 1)
        while count and self.seconds(count) > seconds:
            count -= 1
        return count


def decoding(running: Sequence[Job]) -> list[Job]:
    """The requests of a step that only decodes; empty where one does not, or where somebody
    wants to hear of each token."""
    jobs = []
    for job in running:
        if job.stalled:
            continue
        if not job.generated or job.known - job.computed != 1:
            return []
        if job.on_token is not None and not job.milestones:
            return []
        jobs.append(job)
    return jobs


def steps_ahead(jobs: Sequence[Job], pool: BlockPool, block_tokens: int, taken: int = 0) -> int:
    """For how many steps, `taken` of which are under way, nobody ends and the blocks suffice."""
    steps = min(_own_steps(job) for job in jobs) - taken
    if steps > 0 and _blocks(jobs, steps + taken, block_tokens) > pool.free:
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            fits = _blocks(jobs, middle + taken, block_tokens) <= pool.free
            low, high = (middle, high) if fits else (low, middle)
        steps = low
    return max(0, steps)


def _own_steps(job: Job) -> int:
    """Steps before the one in which the job ends, or until it stalls."""
    after = job.work.stall_after
    left = job.work.output_tokens - job.generated - 1
    return left if after is None or job.resumed else min(left, after - job.generated)


def _blocks(jobs: Sequence[Job], steps: int, block_tokens: int) -> int:
    return sum(
        max(0, (job.computed + steps + block_tokens - 1) // block_tokens - len(job.blocks))
        for job in jobs
    )


def settle(leap: Leap, steps: int, pool: BlockPool, block_tokens: int, from_s: float) -> float:
    """Books `steps` steps that begin at `from_s`; when the last of them ends."""
    _page(leap.jobs, steps, pool, block_tokens)
    end_s, before_s = from_s + leap.seconds(steps), from_s + leap.seconds(steps - 1)
    for job in leap.jobs:
        job.computed += steps
        job.generated += steps
        job.committed = max(job.committed, job.computed // block_tokens)
        job.previous_s = job.token_s if steps == 1 else before_s
        job.token_s = end_s
    return end_s


def _page(jobs: Sequence[Job], steps: int, pool: BlockPool, block_tokens: int) -> None:
    """Fills and takes blocks. Requests whose blocks fill up in the same step form a group: a
    step begins with taking the next blocks of a group that the step before has filled."""
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(-job.computed % block_tokens, []).append(job)
    order = sorted(groups)
    for turn in range(0, steps + 1, block_tokens):
        for offset in order:
            step = turn + offset
            if step > steps:
                return
            if step:
                _fill(groups[offset], step, pool, block_tokens)
            if step < steps:
                _extend(groups[offset], step, pool, block_tokens)


def _extend(jobs: Sequence[Job], step: int, pool: BlockPool, block_tokens: int) -> None:
    for job in jobs:
        # One that was admitted again has a block for its newest token already.
        if job.computed + step == len(job.blocks) * block_tokens:
            job.blocks.append(pool.take_one())


def _fill(jobs: Sequence[Job], step: int, pool: BlockPool, block_tokens: int) -> None:
    for job in jobs:
        index = (job.computed + step) // block_tokens - 1
        keys = job.work.keys
        if job.committed <= index < len(keys):
            pool.commit(job.blocks[index], keys[index])
