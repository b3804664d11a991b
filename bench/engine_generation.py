"""One generation request on its way through a simulated engine, with the fault it asked for.

Tokens are written from the engine's own callback, without a task switch in between: the task
of the request only waits for the end, and cancelling it (the client left) aborts the jobs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

from tierway.bench.engine import FinishReason, Job, Work
from tierway.bench.engine_chunks import DONE, Choice, Chunks, ToolCall, error_body, usage
from tierway.bench.engine_http import Reply
from tierway.bench.engine_loop import EngineLoop
from tierway.bench.engine_query import Planned, Prompt, Query
from tierway.bench.engine_text import block_keys
from tierway.bench.faults import Fault

_FAILED = "the simulated engine failed here because it was told to"


@dataclass(frozen=True, slots=True)
class Part:
    """One choice of the answer; `tool` is set when it is a tool call."""

    index: int
    prompt: Prompt
    planned: Planned
    tool: ToolCall | None = None

    @property
    def finish(self) -> str:
        called = self.tool is not None and self.planned.finish == "stop"
        return "tool_calls" if called else self.planned.finish


@dataclass(slots=True)
class Generation:
    query: Query
    parts: list[Part]
    chunks: Chunks
    loop: EngineLoop
    reply: Reply
    fault: Fault | None = None
    _jobs: list[Job] = field(default_factory=list)
    _left: int = 0
    _reason: FinishReason = "abort"
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Returns when the answer, or what the fault left of it, is written."""
        self._left = len(self.parts)
        try:
            if self.query.stream and not self._is("hang"):
                self.reply.start(b"text/event-stream; charset=utf-8")
            self._act(0)
            for part in () if self._over.is_set() else self.parts:
                self._jobs.append(self.loop.submit(self._work(part), partial(self._on_token, part)))
            if self.fault is not None and self.fault.kind == "slow":
                await self._resume_after(self.fault.amount)
            await self._over.wait()
        finally:
            for job in self._jobs:
                self.loop.abort(job, self._reason)

    def _work(self, part: Part) -> Work:
        prompt, planned = part.prompt.tokens, part.planned
        return Work(
            prompt_tokens=len(prompt),
            output_tokens=len(planned.tokens),
            keys=block_keys((*prompt, *planned.tokens), self.query.salt),
            finish=planned.finish,
            stall_after=self._stall_after(len(planned.tokens)),
        )

    def _stall_after(self, output_tokens: int) -> int | None:
        if self._is("hang") or self._is("slow"):
            return 0
        if self.fault is not None and self.fault.kind == "stall":
            # A shorter answer stalls before its last token: the fault must show.
            return max(0, min(self.fault.tokens, output_tokens - 1))
        return None

    async def _resume_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for job in self._jobs:
            self.loop.resume(job)

    def _on_token(self, part: Part, job: Job) -> None:
        if self._over.is_set():
            return
        if self.query.stream and job.generated:
            self.reply.write(self._event(part, job.generated))
        if job.generated or job.reason:
            self._act(job.generated, last=job.reason is not None)
        if job.reason is not None and not self._over.is_set():
            self._end_part(part)

    def _event(self, part: Part, number: int) -> bytes:
        text = part.planned.tokens[number - 1]
        if part.tool is None:
            event = self.chunks.token(part.index, text)
        else:
            event = self.chunks.tool_token(part.index, text)
        if number > 1:
            return event
        opening = self.chunks.role(part.index)
        if part.tool is not None:
            opening += self.chunks.tool_head(part.index, part.tool)
        return opening + event

    def _end_part(self, part: Part) -> None:
        if self.query.stream:
            self.reply.write(self.chunks.finish(part.index, part.finish))
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        if not self.query.stream:
            body = self._body()
            half = body[: len(body) // 2]
            self.reply.send(200, half if self._is("broken-json") else body)
        else:
            if self.query.include_usage:
                self.reply.write(self.chunks.usage(self._usage()))
            self.reply.write(DONE)
            self.reply.finish()
        self._over.set()

    def _act(self, tokens: int, *, last: bool = False) -> None:
        """Shows the fault once as many tokens are out as it wants, at the latest at the end."""
        fault = self.fault
        if fault is None or (tokens < fault.tokens and not last):
            return
        if fault.kind == "broken-json" and self.query.stream:
            self.fault = None
            self.reply.write(self.chunks.broken())
        elif fault.kind == "cut":
            self._cut()
        elif fault.kind == "error-event":
            self._fail()

    def _cut(self) -> None:
        if self.query.stream:
            self.reply.cut()
        else:
            body = self._body()
            self.reply.send_part(body, len(body) // 2)
        self._over.set()

    def _fail(self) -> None:
        body = error_body(500, _FAILED)
        if self.query.stream:
            self.reply.write(b"data: " + body + b"\n\n" + DONE)
            self.reply.finish()
        else:
            self.reply.send(500, body)
        self._reason = "error"
        self._over.set()

    def _is(self, kind: str) -> bool:
        return self.fault is not None and self.fault.kind == kind

    def _body(self) -> bytes:
        choices = [
            Choice(part.index, "".join(part.planned.tokens), part.finish, part.tool)
            for part in self.parts
        ]
        return self.chunks.whole(choices, self._usage())

    def _usage(self) -> dict[str, object]:
        prompt = sum(len(prompt.tokens) for prompt in self.query.prompts)
        firsts = self._jobs[:: self.query.choices]
        cached = sum(job.cached_tokens for job in firsts)
        return usage(prompt, sum(job.generated for job in self._jobs), cached)
