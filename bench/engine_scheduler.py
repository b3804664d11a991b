"""Who runs in a simulated engine, and with which blocks: the scheduling of vLLM.

Running requests are served first, in order of admission; then waiting ones are admitted in
order of arrival while the blocks of all their known tokens are there. When a running request
finds no block, the newest running one is preempted: it loses its blocks, waits at the head of
the queue and is computed again.
"""

from __future__ import annotations

from collections import deque

from tierway.bench.engine_jobs import Job, Totals
from tierway.bench.engine_kv import BlockPool
from tierway.bench.profiles import Profile

Batch = list[tuple[Job, int]]
"""Requests of one step, each with the number of its tokens that are computed in it."""


class Scheduler:
    def __init__(self, profile: Profile, totals: Totals) -> None:
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.pool = BlockPool(profile.blocks)
        self._profile = profile
        self._totals = totals
        self._block_tokens = profile.block_tokens

    def drop(self, job: Job) -> None:
        """Takes a job out, wherever it is, and frees its blocks."""
        if job in self.running:
            self.running.remove(job)
        else:
            self.waiting.remove(job)
        self.pool.release(job.blocks)
        job.blocks = []

    def schedule(self, now_s: float) -> Batch:
        """Who computes how many tokens in the step that begins now."""
        batch: Batch = []
        budget = self._profile.batched_tokens
        preempted = False
        for job in list(self.running):
            if budget <= 0:
                break
            if job.stalled or not job.blocks:  # no blocks: preempted a moment ago
                continue
            count = min(job.known - job.computed, budget)
            got, cleared = self._make_room(job, job.computed + count)
            preempted = preempted or cleared
            if got:
                batch.append((job, count))
                budget -= count
        return batch if preempted else batch + self._admit(budget, now_s)

    def _make_room(self, job: Job, tokens: int) -> tuple[bool, bool]:
        """(blocks for `tokens` are held, somebody was preempted for them)."""
        missing = -(-tokens // self._block_tokens) - len(job.blocks)
        if missing <= 0:
            return True, False
        cleared = False
        while missing > self.pool.free:
            victim = self.running.pop()
            self._preempt(victim)
            cleared = True
            if victim is job:
                return False, True
        job.blocks += self.pool.take(missing)
        return True, cleared

    def _preempt(self, job: Job) -> None:
        self.pool.release(job.blocks)
        job.blocks, job.computed, job.committed = [], 0, 0
        job.preemptions += 1
        self._totals.preemptions += 1
        self.waiting.appendleft(job)

    def _admit(self, budget: int, now_s: float) -> Batch:
        batch: Batch = []
        while self.waiting and budget > 0 and len(self.running) < self._profile.sequences:
            job = self.waiting[0]
            if not self._place(job, now_s):
                break
            self.waiting.popleft()
            self.running.append(job)
            if not job.stalled:
                count = min(job.known - job.computed, budget)
                batch.append((job, count))
                budget -= count
        return batch

    def _place(self, job: Job, now_s: float) -> bool:
        """Holds the blocks of all known tokens, cached ones first; False when too few are free."""
        shared = self.pool.match(job.work.keys, (job.known - 1) // self._block_tokens)
        missing = -(-job.known // self._block_tokens) - len(shared)
        if missing + self.pool.idle(shared) > self.pool.free:
            return False
        self.pool.hold(shared)
        job.blocks = shared + self.pool.take(missing)
        job.committed = len(shared)
        job.computed = len(shared) * self._block_tokens
        if job.admitted_s is None:
            job.admitted_s = now_s
            job.cached_tokens = job.computed
            self._totals.prefix_queries += job.work.prompt_tokens
            self._totals.prefix_hits += job.computed
        return True

    def shut(self) -> bool:
        """True when decoding alone cannot let the next waiting request in."""
        if len(self.running) >= self._profile.sequences:
            return True
        job = self.waiting[0]
        limit = (job.known - 1) // self._block_tokens
        shared = self.pool.match(job.work.keys, limit)
        missing = -(-job.known // self._block_tokens) - len(shared)
        if missing + self.pool.idle(shared) <= self.pool.free:
            return False
        place = len(shared)
        if place >= min(limit, len(job.work.keys)):
            return True
        # A running request may be about to compute the block that the waiting one shares.
        wanted = job.work.keys[place]
        return all(
            len(other.work.keys) <= place or other.work.keys[place] != wanted
            for other in self.running
        )
