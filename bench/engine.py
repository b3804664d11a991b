"""The step model of an inference engine: continuous batching over a paged KV cache.

Each step gives tokens of its budget to the running requests first, then admits waiting ones
in order of arrival while the blocks of their whole prompt are there (chunked prefill). When
blocks run out the newest running request is preempted and computed again later. Formulas of
a step's duration: policies/physics.py; who runs: engine_scheduler.py.

The engine knows no clock and no I/O. In virtual time `advance` runs it; in real time a loop
calls `begin`, waits until `due_s`, and calls `finish`. Between the two, requests may come
and go. All times are seconds on the caller's clock; `speed` divides every step's duration,
`slowdown` multiplies it from the next step on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tierway.bench.engine_jobs import FinishReason, Job, Totals, Work
from tierway.bench.engine_leap import Leap, decoding, settle, steps_ahead
from tierway.bench.engine_scheduler import Batch, Scheduler
from tierway.bench.profiles import Profile
from tierway.policies.physics import StepLoad

__all__ = ["Engine", "FinishReason", "Job", "Totals", "Work"]

_SHORTEST_LEAP = 2
MOST_LOST = 0.6


class Engine:
    def __init__(self, profile: Profile, *, speed: float = 1.0, now_s: float = 0.0) -> None:
        if speed <= 0:
            raise ValueError(f"speed = {speed}: must be above 0")
        self.profile = profile
        self.now_s = now_s
        self.totals = Totals()
        self.step_tokens = 0
        self.slowdown = 1.0
        self._speed = speed
        self._times = profile.times()
        self._block_tokens = profile.block_tokens
        self._jobs = Scheduler(profile, self.totals)
        self._step: Batch | None = None
        self._due_s = now_s
        self._idle = True
        self._lost_share, self._lost_blocks = 0.0, 0

    @property
    def running(self) -> int:
        return len(self._jobs.running)

    @property
    def waiting(self) -> int:
        return len(self._jobs.waiting)

    @property
    def kv_usage(self) -> float:
        return self._jobs.pool.usage

    def lose_memory(self, share: float) -> None:
        """Makes this share of its KV blocks unusable, as fragmentation does; it is over with the
        engine's end. At most MOST_LOST of all, so that it goes on serving."""
        pool = self._jobs.pool
        room = int(MOST_LOST * pool.total) - self._lost_blocks
        self._lost_share = min(1.0, self._lost_share + share)
        wanted = int(self._lost_share * pool.total) - self._lost_blocks
        self._lost_blocks += pool.lose(max(0, min(wanted, room)))

    def cached_tokens(self, keys: Sequence[Hashable], prompt_tokens: int) -> int:
        """How many leading tokens of a prompt its prefix cache would save it now."""
        found = self._jobs.pool.match(keys, (prompt_tokens - 1) // self._block_tokens)
        return len(found) * self._block_tokens

    @property
    def due_s(self) -> float | None:
        """When the step in progress ends; None between steps."""
        return None if self._step is None else self._due_s

    def submit(
        self,
        work: Work,
        *,
        at_s: float | None = None,
        on_token: Callable[[Job], None] | None = None,
        milestones: bool = False,
    ) -> Job:
        """Queues a request; `on_token` is called at each token and at the end of the job, with
        `milestones` at the first token and at the end only (which lets `advance` leap).

        ValueError when the request could never fit: it would wait for ever.
        """
        tokens = work.prompt_tokens + work.output_tokens
        room = min(self.profile.max_model_len, self.profile.kv_capacity_tokens)
        if work.prompt_tokens < 1 or tokens > room:
            raise ValueError(f"{tokens} tokens: a request has 1 to {room}, prompt included")
        arrived_s = self.now_s if at_s is None else at_s
        if self._step is None:
            self.now_s = max(self.now_s, arrived_s)
        job = Job(work, arrived_s, on_token, milestones)
        self._jobs.waiting.append(job)
        self._idle = False
        return job

    def abort(self, job: Job, reason: FinishReason = "abort") -> bool:
        """Ends a job at once and frees its blocks; False when it was over already.

        The caller asked for it, so `on_token` is not called.
        """
        if job.reason is not None:
            return False
        self._end(job, reason)
        self._idle = False
        return True

    def resume(self, job: Job) -> None:
        """Lets a stalled job go on from the next step."""
        job.resumed = True
        self._idle = False

    def begin(self) -> float | None:
        """Schedules the next step; its duration, or None when there is nothing to do."""
        if self._step is not None:
            raise RuntimeError("a step is in progress: call finish() first")
        batch = self._jobs.schedule(self.now_s)
        if not batch:
            self._idle = True
            return None
        load = _load(batch)
        seconds = self._times.step_s(load) * self.slowdown / self._speed
        self._step, self._due_s, self.step_tokens = batch, self.now_s + seconds, load.tokens
        self.totals.steps += 1
        self.totals.busy_s += seconds
        return seconds

    def finish(self) -> list[Job]:
        """Ends the step in progress: the jobs that got a token or ended, in batch order."""
        if self._step is None:
            raise RuntimeError("no step is in progress: call begin() first")
        batch, self._step = self._step, None
        self.now_s = self._due_s
        moved = [job for job, count in batch if job.reason is None and self._settle(job, count)]
        for job in moved:
            # A callback may have aborted a job that comes after it in the batch.
            told = job.told
            if told is not None and job.reason not in ("abort", "error"):
                told(job)
        return moved

    def advance(self, until_s: float = float("inf")) -> None:
        """Runs every step that ends by `until_s`; idle time passes at once.

        Steps in which nothing happens but tokens that nobody waits for are taken in one leap.
        """
        while True:
            if self._step is None:
                self._leap(until_s)
                if self.begin() is None:
                    break
            if self._due_s > until_s:
                return
            self.finish()
        if until_s != float("inf"):
            self.now_s = max(self.now_s, until_s)

    def next_event_s(self) -> float | None:
        """Until when `advance` would do nothing that a client sees, if nobody comes or goes.

        None for an engine that has nothing to do. It may be early, and never is late.
        """
        if self._step is None:
            return None if self._idle else self.now_s
        leap = self._plan(taken=1)
        return self._due_s + (leap.seconds(leap.steps) if leap else 0.0)

    def catch_up(self, now_s: float) -> None:
        """Moves the clock between steps forward to a real clock that ran ahead."""
        if self._step is None:
            self.now_s = max(self.now_s, now_s)

    def _leap(self, until_s: float) -> None:
        leap = self._plan()
        if leap is None:
            return
        steps = leap.fitting(until_s - self.now_s)
        if steps:
            begin_s = self.now_s
            self.now_s = settle(leap, steps, self._jobs.pool, self._block_tokens, begin_s)
            self.step_tokens = len(leap.jobs)
            self.totals.steps += steps
            self.totals.busy_s += self.now_s - begin_s
            self.totals.generation_tokens += steps * len(leap.jobs)

    def _plan(self, taken: int = 0) -> Leap | None:
        """The leap that comes after `taken` (0 or 1) steps of the same kind, if any."""
        jobs = decoding(self._jobs.running)
        if not 0 < len(jobs) <= self.profile.batched_tokens:
            return None
        if self._jobs.waiting and not self._jobs.shut():
            return None
        steps = steps_ahead(jobs, self._jobs.pool, self._block_tokens, taken)
        if steps < _SHORTEST_LEAP:
            return None
        scale, count = self.slowdown / self._speed, len(jobs)
        context = sum(job.computed for job in jobs) + count * (1 + taken)
        first_s = self._times.base_s(count, count) + self._times.context_s * context
        return Leap(jobs, steps, first_s * scale, self._times.context_s * count * scale)

    def _settle(self, job: Job, count: int) -> bool:
        """Books `count` computed tokens; True when the job got a token or ended."""
        prompt, before = job.work.prompt_tokens, job.computed
        job.computed = after = before + count
        if before < prompt:
            self.totals.computed_prompt_tokens += min(after, prompt) - before
        if after // self._block_tokens > job.committed:
            self._commit(job)
        if after < job.known:
            return False
        if job.generated == 0:
            self.totals.prompt_tokens += job.work.prompt_tokens
        self._emit(job)
        return True

    def _commit(self, job: Job) -> None:
        keys, filled = job.work.keys, job.computed // self._block_tokens
        for index in range(job.committed, min(filled, len(keys))):
            self._jobs.pool.commit(job.blocks[index], keys[index])
        job.committed = filled

    def _emit(self, job: Job) -> None:
        if job.generated < job.work.output_tokens:
            job.generated += 1
            job.previous_s, job.token_s = job.token_s, self.now_s
            self.totals.generation_tokens += 1
            if job.first_token_s is None:
                job.first_token_s = self.now_s
        if job.generated >= job.work.output_tokens:
            self._end(job, job.work.finish)

    def _end(self, job: Job, reason: FinishReason) -> None:
        self._jobs.drop(job)
        job.reason, job.finished_s = reason, self.now_s
        self.totals.finished[reason] += 1


def _load(batch: Sequence[tuple[Job, int]]) -> StepLoad:
    tokens = outputs = context = 0
    pairs = 0.0
    for job, count in batch:
        tokens += count
        outputs += job.computed + count >= job.known
        if count == 1:
            context += job.computed + 1
        else:
            pairs += count * (job.computed + count / 2)
    return StepLoad(tokens, outputs, context, pairs)
