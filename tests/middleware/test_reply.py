"""What goes out to the client: one answer or one error, and the headers that tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import orjson
import pytest
from fakes import FakeAnswer, chunk, completion, make_call, stream_of, until

from tierway.middleware.reply import Reply, outcome_of, reason, trace_headers
from tierway.middleware.wire import PATHS
from tierway.policies.errors import (
    BadCall,
    BrokenStream,
    GatewayError,
    NoCapacity,
    Overloaded,
    Unauthorised,
    UpstreamTimeout,
)
from tierway.policies.types import Trace, Usage

CHAT, MESSAGES = PATHS["/v1/chat/completions"], PATHS["/v1/messages"]
COMMENT = b": waiting for an answer\n\n"


class Rig:
    """A Reply and what it sent."""

    def __init__(self, codec: Any = CHAT) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.trace = Trace("req_1", wire=codec.name, tier="small", replica="m@a:1")
        self.reply = Reply(self.send, codec, self.trace)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        await asyncio.sleep(0)

    @property
    def status(self) -> int:
        assert [m["type"] for m in self.sent].count("http.response.start") == 1
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        pairs = self.sent[0]["headers"]
        assert len(dict(pairs)) == len(pairs), "a header came twice"
        return dict(pairs)

    @property
    def body(self) -> bytes:
        assert [m.get("more_body") for m in self.sent[1:]][-1] is False, "the end is missing"
        return b"".join(m["body"] for m in self.sent[1:])


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], codec: Any = CHAT) -> Rig:
    async def main() -> Rig:
        rig = Rig(codec)
        await asyncio.wait_for(test(rig), 10)
        return rig

    return asyncio.run(main())


def test_a_whole_answer_has_its_length_and_is_sent_at_once() -> None:
    body = orjson.dumps(completion())

    async def main(rig: Rig) -> None:
        await rig.reply.send_answer(make_call(), FakeAnswer([body[:10], body[10:]]))

    rig = run(main)
    assert (rig.status, rig.body, len(rig.sent)) == (200, body, 2)
    assert rig.headers[b"content-length"] == str(len(body)).encode()
    assert rig.headers[b"content-type"] == b"application/json"
    assert (rig.trace.status, rig.trace.outcome) == (200, "ok")


def test_a_stream_passes_piece_by_piece() -> None:
    events = stream_of("Pa", "ris.")

    async def main(rig: Rig) -> None:
        await rig.reply.send_answer(make_call(stream=True), FakeAnswer(list(events), stream=True))

    rig = run(main)
    assert [message["body"] for message in rig.sent[1:]] == [*events, b""]
    assert rig.headers[b"content-type"].startswith(b"text/event-stream")
    assert rig.headers[b"cache-control"] == b"no-cache"
    assert b"content-length" not in rig.headers
    assert (rig.trace.chunks, rig.trace.outcome) == (len(events), "ok")


def test_another_wire_is_rendered() -> None:
    async def whole(rig: Rig) -> None:
        await rig.reply.send_answer(make_call(), FakeAnswer([orjson.dumps(completion())]))

    async def stream(rig: Rig) -> None:
        await rig.reply.send_answer(
            make_call(stream=True), FakeAnswer(stream_of("Paris."), stream=True)
        )

    rig = run(whole, MESSAGES)
    assert orjson.loads(rig.body)["content"] == [{"type": "text", "text": "Paris."}]
    assert rig.headers[b"content-length"] == str(len(rig.body)).encode()
    assert rig.headers[b"request-id"] == b"req_1"
    rig = run(stream, MESSAGES)
    assert rig.body.startswith(b"event: message_start\n")
    assert rig.body.rstrip().endswith(b'data: {"type":"message_stop"}')


def test_a_stream_that_breaks_off_ends_with_one_error_event() -> None:
    async def main(rig: Rig) -> None:
        answer = FakeAnswer([chunk("Pa"), BrokenStream("It broke off.")], stream=True)
        with pytest.raises(BrokenStream) as caught:
            await rig.reply.send_answer(make_call(stream=True), answer)
        await rig.reply.send_error(caught.value)

    rig = run(main)
    assert (rig.status, rig.trace.status, rig.trace.outcome) == (200, 200, "broken")
    *_, last = rig.body.rstrip().split(b"\n\n")
    assert orjson.loads(last.removeprefix(b"data: "))["error"]["message"] == "It broke off."
    assert b"[DONE]" not in rig.body
    assert rig.trace.error == "upstream_broken_stream"


def test_a_whole_answer_that_breaks_off_is_an_error_of_its_own_status() -> None:
    async def main(rig: Rig) -> None:
        answer = FakeAnswer([b"{", UpstreamTimeout("idle", 30)])
        with pytest.raises(UpstreamTimeout) as caught:
            await rig.reply.send_answer(make_call(), answer)
        await rig.reply.send_error(caught.value)

    rig = run(main)
    assert (rig.status, rig.trace.outcome) == (504, "upstream_error")
    assert orjson.loads(rig.body)["error"]["code"] == "upstream_timeout"


@pytest.mark.parametrize("codec", [CHAT, MESSAGES], ids=["openai", "anthropic"])
def test_an_error_is_told_in_the_shape_of_the_wire(codec: Any) -> None:
    async def main(rig: Rig) -> None:
        await rig.reply.send_error(Overloaded("Too many requests.", retry_after_s=2.5))

    rig = run(main, codec)
    assert (rig.status, rig.trace.status, rig.trace.outcome) == (429, 429, "overloaded")
    assert rig.headers[b"content-length"] == str(len(rig.body)).encode()
    assert rig.headers[b"retry-after"] == b"3"
    assert rig.headers[b"x-request-id"] == b"req_1"
    assert (b"request-id" in rig.headers) is (codec is MESSAGES)
    document = orjson.loads(rig.body)
    assert document["error"]["message"] == "Too many requests."
    assert (document.get("type") == "error") is (codec is MESSAGES)


def test_the_log_word_of_an_error_is_no_text_of_the_request() -> None:
    async def main(rig: Rig) -> None:
        await rig.reply.send_error(BadCall("The word 'secret' is wrong.", param="model"))

    rig = run(main)
    assert rig.trace.error == "BadCall"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unauthorised("no"), "unauthorised"),
        (Overloaded("no"), "overloaded"),
        (NoCapacity("no"), "no_capacity"),
        (NoCapacity("no", status=500), "error"),
        (BadCall("no", status=413), "bad_call"),
        (BrokenStream("no"), "upstream_error"),
        (GatewayError("no"), "error"),
    ],
)
def test_outcomes_are_few(error: GatewayError, outcome: str) -> None:
    assert outcome_of(error) == outcome


def test_a_silent_stream_gets_its_status_and_comments_then_the_answer() -> None:
    async def main(rig: Rig) -> None:
        rig.reply.commit_after(0)
        await until(lambda: len(rig.sent) == 2)
        await rig.reply.send_answer(make_call(stream=True), FakeAnswer([chunk("x")], stream=True))

    rig = run(main)
    assert (rig.status, rig.body) == (200, COMMENT + chunk("x"))


@pytest.mark.parametrize("codec", [CHAT, MESSAGES], ids=["openai", "anthropic"])
def test_an_error_after_comments_is_an_event(codec: Any) -> None:
    async def main(rig: Rig) -> None:
        rig.reply.commit_after(0)
        await until(lambda: len(rig.sent) == 2)
        await rig.reply.send_error(NoCapacity("Nobody is left."))

    rig = run(main, codec)
    assert (rig.status, rig.trace.status, rig.trace.outcome) == (200, 200, "no_capacity")
    assert rig.body.startswith(COMMENT)
    assert b"Nobody is left." in rig.body
    assert b"[DONE]" not in rig.body


def test_after_comments_an_answer_that_is_no_stream_is_a_fault() -> None:
    async def main(rig: Rig) -> None:
        rig.reply.commit_after(0)
        await until(lambda: len(rig.sent) == 2)
        with pytest.raises(BrokenStream):
            await rig.reply.send_answer(make_call(stream=True), FakeAnswer([b"{}"]))
        rig.reply.stop()

    run(main)


def test_an_answer_in_time_or_a_stop_means_no_comments() -> None:
    async def answered(rig: Rig) -> None:
        rig.reply.commit_after(0)
        await rig.reply.send_answer(make_call(stream=True), FakeAnswer([chunk("x")], stream=True))
        await asyncio.sleep(0)

    async def stopped(rig: Rig) -> None:
        rig.reply.commit_after(0)
        rig.reply.stop()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not rig.sent

    assert COMMENT not in run(answered).body
    run(stopped)


def test_the_headers_tell_what_is_known() -> None:
    trace = Trace("r", wire="chat", cache="bypass")
    assert dict(trace_headers(trace)) == {
        b"x-request-id": b"r",
        b"x-tierway-cache": b"bypass",
        b"x-tierway-tier": b"",
        b"x-tierway-replica": b"",
        b"x-tierway-attempts": b"0",
    }
    trace = Trace(
        "r", wire="messages", cache="stale", similarity=0.98765, entry_id="e_1", age_s=61.9,
        tier="small", replica="cache", degraded="stale_cache",
    )  # fmt: skip
    headers = dict(trace_headers(trace))
    assert headers[b"age"] == b"61"
    assert headers[b"x-tierway-similarity"] == b"0.9877"
    assert headers[b"x-tierway-entry"] == b"e_1"
    assert headers[b"x-tierway-degraded"] == b"stale_cache"
    assert headers[b"request-id"] == b"r"


def test_the_reason_is_one_line_of_json_and_only_on_wish() -> None:
    trace = Trace(
        "r",
        cache_reason="names",
        route_reason="classifier",
        probabilities={"small": 0.123456},
        excluded=(("large", "a\r\nreason: injected"),),
        policy="llm",
        balance={"wait": 0.98765},
        retries=["refused"],
        usage=Usage(1, 1),
    )
    assert b"x-tierway-reason" not in dict(trace_headers(trace))
    header = dict(trace_headers(trace, debug=True))[b"x-tierway-reason"]
    assert not set(header) & set(b"\r\n")
    assert orjson.loads(header) == reason(trace)
    assert reason(trace)["probabilities"] == {"small": 0.123}
