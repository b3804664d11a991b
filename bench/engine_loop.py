"""Runs an Engine at a real pace: one task that schedules a step, waits for its end, emits.

Deadlines are absolute, so a late wake-up shortens the next wait; when the process was held up
for longer than `_FORGIVEN_S` the engine's clock moves on instead of hurrying through the past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tierway.bench.engine import Engine, FinishReason, Job, Work
from tierway.policies.protocols import Clock

_FORGIVEN_S = 0.1
_SHORTEST_SLEEP_S = 0.0005


class EngineLoop:
    """`on_step` gets the jobs that each step moved, after their own `on_token`."""

    def __init__(
        self, engine: Engine, clock: Clock, on_step: Callable[[Sequence[Job]], None]
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._on_step = on_step
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def submit(self, work: Work, on_token: Callable[[Job], None]) -> Job:
        job = self.engine.submit(work, at_s=self._clock(), on_token=on_token)
        self._wake.set()
        return job

    def abort(self, job: Job, reason: FinishReason = "abort") -> bool:
        self._wake.set()
        return self.engine.abort(job, reason)

    def resume(self, job: Job) -> None:
        self.engine.resume(job)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self.engine.begin() is None:
                await self._wake.wait()
                self.engine.catch_up(self._clock())
                continue
            await self._until(self.engine.due_s or 0.0)
            moved = self.engine.finish()
            self._on_step(moved)
            if self._clock() - self.engine.now_s > _FORGIVEN_S:
                self.engine.catch_up(self._clock())

    async def _until(self, due_s: float) -> None:
        wait_s = due_s - self._clock()
        await asyncio.sleep(wait_s if wait_s > _SHORTEST_SLEEP_S else 0)
