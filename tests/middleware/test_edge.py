"""The edge of one request: whatever happens in between, one answer, one trace, nothing left."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

import orjson
import pytest
from fakes import FakeAnswer, FakeClock, chunk, completion, stream_of, until

from tierway.middleware.edge import Edge, Limits
from tierway.middleware.tenants import Tenants
from tierway.middleware.wire import PATHS
from tierway.policies.errors import BrokenStream, NoCapacity
from tierway.policies.protocols import Answer
from tierway.policies.types import Call, Trace, Usage

BODY = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "A secret?"}]})
STREAM = orjson.dumps({**orjson.loads(BODY), "stream": True})
Handle = Callable[[Call, Trace], Awaitable[Answer]]


class ScriptedPipeline:
    """Handles calls as it is told; `calls` are those that reached it."""

    def __init__(self, handle: Handle) -> None:
        self.calls: list[Call] = []
        self._handle = handle

    async def handle(self, call: Call, trace: Trace) -> Answer:
        self.calls.append(call)
        return await self._handle(call, trace)


class Rig:
    """An edge and one client of it. The client's disconnect comes when `leave` is set."""

    def __init__(self, handle: Handle, *, limits: Limits, keys: Mapping[str, str]) -> None:
        self.clock = FakeClock()
        self.pipeline = ScriptedPipeline(handle)
        self.traces: list[Trace] = []
        self.edge = Edge(
            self.pipeline,  # type: ignore[arg-type]  # its one method is all the edge uses
            Tenants(keys.items()),
            limits=limits,
            clock=self.clock,
            hooks=(self.traces.append,),
        )
        self.leave = asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self.broken_pipe = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.broken_pipe:
            raise OSError("broken pipe")
        self.sent.append(message)
        await asyncio.sleep(0)

    async def ask(
        self,
        *chunks: bytes,
        path: str = "/v1/chat/completions",
        headers: Mapping[bytes, bytes] | None = None,
        whole: bool = True,
    ) -> None:
        """One request with a body in these chunks; not `whole`: its client leaves instead."""
        inbox: list[MutableMapping[str, Any]] = [
            {"type": "http.request", "body": data, "more_body": True} for data in chunks
        ]
        if whole:
            inbox[-1]["more_body"] = False

        async def receive() -> MutableMapping[str, Any]:
            if inbox:
                return inbox.pop(0)
            if whole:
                await self.leave.wait()
            return {"type": "http.disconnect"}

        scope: dict[str, Any] = {"type": "http", "headers": list((headers or {}).items())}
        await self.edge.serve(PATHS[path], scope, receive, self.send)

    @property
    def status(self) -> int:
        assert [message["type"] for message in self.sent].count("http.response.start") == 1
        found: int = self.sent[0]["status"]
        return found

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        assert self.sent[-1].get("more_body") is False
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)["error"]
        return found

    @property
    def trace(self) -> Trace:
        (trace,) = self.traces
        return trace


def run(
    test: Callable[[Rig], Coroutine[Any, Any, None]],
    handle: Handle,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    keys: Mapping[str, str] | None = None,
) -> Rig:
    async def main() -> Rig:
        rig = Rig(handle, limits=limits, keys=keys or {})
        await asyncio.wait_for(test(rig), 10)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await until(lambda: all(task.done() for task in left))
        return rig

    return asyncio.run(main())


def answering(answer: FakeAnswer) -> Handle:
    async def handle(call: Call, trace: Trace) -> Answer:
        return answer

    return handle


def failing(error: BaseException) -> Handle:
    async def handle(call: Call, trace: Trace) -> Answer:
        raise error

    return handle


def whole() -> FakeAnswer:
    return FakeAnswer([orjson.dumps(completion())], usage=Usage(7, 2))


async def nobody(call: Call, trace: Trace) -> Answer:
    raise AssertionError("this call must not come so far")


def test_a_request_is_answered_and_closed_and_its_trace_handed_on_once() -> None:
    answer = whole()

    async def main(rig: Rig) -> None:
        await rig.ask(BODY[:5], BODY[5:])

    rig = run(main, answering(answer))
    assert (rig.status, orjson.loads(rig.body)) == (200, completion())
    assert answer.closed == 1
    (call,) = rig.pipeline.calls
    assert (call.raw, call.id) == (BODY, rig.trace.request_id)
    assert (rig.trace.outcome, rig.trace.usage) == ("ok", Usage(7, 2))
    assert (rig.trace.duration_s, rig.trace.first_token_s) == (0, 0)
    assert rig.headers[b"x-request-id"].decode() == rig.trace.request_id


def test_the_times_of_a_call_come_from_the_clock_and_the_limits() -> None:
    async def handle(call: Call, trace: Trace) -> Answer:
        rig_of[0].clock.advance(2)
        return whole()

    rig_of: list[Rig] = []

    async def main(rig: Rig) -> None:
        rig_of.append(rig)
        await rig.ask(BODY)

    rig = run(main, handle, limits=Limits(total_timeout_s=60))
    (call,) = rig.pipeline.calls
    assert (call.arrived_s, call.deadline_s) == (1000, 1060)
    assert (rig.trace.first_token_s, rig.trace.duration_s) == (2, 2)


@pytest.mark.parametrize("given", [b"my-id", b"a b;c", b"x" * 128])
def test_a_request_id_that_is_given_is_kept(given: bytes) -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY, headers={b"x-request-id": given})

    assert run(main, answering(whole())).headers[b"x-request-id"] == given


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a\x00b", b"a\tb", b"\xc3\xa4"])
def test_an_odd_request_id_is_replaced(given: bytes) -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY, headers={b"x-request-id": given})

    assert run(main, answering(whole())).headers[b"x-request-id"].startswith(b"req_")


@pytest.mark.parametrize("declared", [{b"content-length": b"101"}, {}, {b"content-length": b"x"}])
def test_a_body_beyond_the_limit_is_refused(declared: dict[bytes, bytes]) -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(b"x" * 60, b"x" * 41, headers=declared)

    rig = run(main, nobody, limits=Limits(max_body_bytes=100))
    assert (rig.status, rig.error["code"]) == (413, "request_too_large")
    assert "max_body_bytes = 100" in rig.error["message"]
    assert rig.trace.outcome == "bad_call"


def test_a_body_that_is_wrong_is_told_in_the_wires_own_shape() -> None:
    async def openai(rig: Rig) -> None:
        await rig.ask(b"{")

    async def anthropic(rig: Rig) -> None:
        await rig.ask(b"{", path="/v1/messages")

    rig = run(openai, nobody)
    assert (rig.status, rig.error["code"]) == (400, "invalid_json")
    rig = run(anthropic, nobody)
    assert orjson.loads(rig.body)["type"] == "error"
    assert rig.trace.wire == "messages"


def test_keys_are_asked_for_before_the_body_is_read() -> None:
    async def without(rig: Rig) -> None:
        await rig.ask(b"{")

    async def with_key(rig: Rig) -> None:
        await rig.ask(BODY, headers={b"authorization": b"Bearer sk-1"})

    rig = run(without, nobody, keys={"sk-1": "acme"})
    assert (rig.status, rig.trace.outcome) == (401, "unauthorised")
    assert rig.headers[b"www-authenticate"] == b"Bearer"
    rig = run(with_key, answering(whole()), keys={"sk-1": "acme"})
    assert (rig.status, rig.trace.tenant, rig.pipeline.calls[0].tenant) == (200, "acme", "acme")


def test_an_error_of_the_pipeline_is_the_answer() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY)

    rig = run(main, failing(NoCapacity("Nobody is left.")))
    assert (rig.status, rig.error["message"]) == (503, "Nobody is left.")
    assert rig.headers[b"retry-after"] == b"5"
    assert (rig.trace.outcome, rig.trace.error) == ("no_capacity", "no_capacity")


def test_a_fault_of_ours_is_logged_and_its_text_stays_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY)

    with caplog.at_level(logging.ERROR):
        rig = run(main, failing(ZeroDivisionError("inner text")))
    assert (rig.status, rig.trace.outcome) == (500, "error")
    assert b"inner text" not in rig.body
    (record,) = caplog.records
    assert rig.trace.request_id in record.message
    assert "secret" not in record.message


def test_a_client_that_leaves_before_its_body_is_there_gets_nothing() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY[:5], whole=False)

    rig = run(main, nobody)
    assert (rig.sent, rig.trace.outcome) == ([], "client_left")


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
def test_a_client_that_leaves_while_it_waits_cancels_the_call(body: bytes) -> None:
    cancelled = []

    async def handle(call: Call, trace: Trace) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(call.id)
            raise
        raise AssertionError

    async def main(rig: Rig) -> None:
        asking = asyncio.create_task(rig.ask(body))
        await until(lambda: bool(rig.pipeline.calls))
        rig.leave.set()
        await asking  # ends without an exception: a server would log it as a fault

    rig = run(main, handle)
    assert (rig.sent, rig.trace.outcome) == ([], "client_left")
    assert cancelled == [rig.trace.request_id]


def test_a_client_that_leaves_midway_closes_the_answer() -> None:
    answer = FakeAnswer([chunk("Pa"), asyncio.Event(), chunk("ris.")], stream=True)

    async def main(rig: Rig) -> None:
        asking = asyncio.create_task(rig.ask(STREAM))
        await until(lambda: len(rig.sent) == 2)
        rig.leave.set()
        await asking

    rig = run(main, answering(answer))
    assert (answer.closed, rig.trace.outcome) == (1, "client_left")
    assert (rig.trace.status, rig.trace.chunks) == (200, 1)


def test_the_end_of_the_server_is_no_leaving_client() -> None:
    answer = FakeAnswer([asyncio.Event()], stream=True)

    async def main(rig: Rig) -> None:
        asking = asyncio.create_task(rig.ask(STREAM))
        await until(lambda: bool(rig.sent))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    rig = run(main, answering(answer))
    assert (answer.closed, len(rig.traces)) == (1, 1)
    assert rig.trace.outcome != "client_left"


def test_a_broken_pipe_while_an_error_is_told_is_a_client_that_left() -> None:
    async def main(rig: Rig) -> None:
        rig.broken_pipe = True
        await rig.ask(BODY)

    assert run(main, failing(NoCapacity("no"))).trace.outcome == "client_left"


@pytest.mark.parametrize("asked", [BODY, STREAM], ids=["whole", "stream"])
def test_a_broken_pipe_while_an_answer_is_sent_is_a_client_that_left(
    asked: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers of ASGI 2.4 on raise at `send` when nobody is there any more."""
    answer = FakeAnswer(stream_of("Paris"), stream=asked is STREAM)

    async def main(rig: Rig) -> None:
        rig.broken_pipe = True
        await rig.ask(asked)

    with caplog.at_level(logging.ERROR):
        rig = run(main, answering(answer))
    assert (rig.trace.outcome, answer.closed) == ("client_left", 1)
    assert not caplog.records


def test_a_broken_pipe_at_a_comment_leaves_the_end_to_the_disconnect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def never(call: Call, trace: Trace) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("nobody waits any more")

    async def main(rig: Rig) -> None:
        rig.broken_pipe = True
        asking = asyncio.create_task(rig.ask(STREAM))
        await until(lambda: bool(rig.pipeline.calls))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        rig.leave.set()
        await asking
        gc.collect()

    with caplog.at_level(logging.ERROR):
        rig = run(main, never, limits=Limits(commit_after_s=0.0))
    assert rig.trace.outcome == "client_left"
    assert not caplog.records


def test_a_stream_that_breaks_is_closed_and_told_as_an_event() -> None:
    answer = FakeAnswer([chunk("Pa"), BrokenStream("It broke off.")], stream=True)

    async def main(rig: Rig) -> None:
        await rig.ask(STREAM)

    rig = run(main, answering(answer))
    assert (rig.status, answer.closed, rig.trace.outcome) == (200, 1, "broken")
    assert b"It broke off." in rig.body


def test_a_stream_that_waits_long_is_begun_with_comments() -> None:
    gate = asyncio.Event()

    async def handle(call: Call, trace: Trace) -> Answer:
        await gate.wait()
        return FakeAnswer(list(stream_of("Paris.")), stream=True)

    async def main(rig: Rig) -> None:
        asking = asyncio.create_task(rig.ask(STREAM))
        await until(lambda: len(rig.sent) >= 2)
        gate.set()
        await asking

    rig = run(main, handle, limits=Limits(commit_after_s=0))
    assert rig.status == 200
    assert rig.body == b": waiting for an answer\n\n" + b"".join(stream_of("Paris."))
    assert rig.trace.outcome == "ok"


def test_a_whole_answer_is_never_begun_before_it_is_there() -> None:
    async def handle(call: Call, trace: Trace) -> Answer:
        for _ in range(5):
            await asyncio.sleep(0)
        raise NoCapacity("no")

    async def main(rig: Rig) -> None:
        await rig.ask(BODY)

    assert run(main, handle, limits=Limits(commit_after_s=0)).status == 503


def test_the_reason_is_shown_on_wish() -> None:
    async def main(rig: Rig) -> None:
        await rig.ask(BODY, headers={b"x-tierway-debug": b"1"})

    rig = run(main, answering(whole()))
    assert orjson.loads(rig.headers[b"x-tierway-reason"])["route"] == ""
