from __future__ import annotations

import time
from itertools import pairwise

import orjson
import pytest
from fakes import chunk, event, stream_of
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.errors import BrokenStream, Rejected
from tierway.router.sse import Framer, error_of, has_first_token, payloads, rejection, split_events

USAGE = event({"id": "1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_bytes_pass_unchanged_wherever_they_are_cut(places: list[int], crlf: bool) -> None:
    data = b"".join([*stream_of("Pa", "ris"), b": a comment\n\n"][:-1])
    if crlf:
        data = data.replace(b"\n\n", b"\r\n\r\n")
    framer = Framer(strip_usage=True)
    out = b"".join(framer.feed(piece) for piece in cut(data, places)) + framer.finish()
    assert out == data
    assert framer.done


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_the_usage_chunk_nobody_asked_for_is_kept_back(places: list[int]) -> None:
    events = stream_of("Pa", "ris")
    data = b"".join([*events[:-1], USAGE, events[-1]])
    framer = Framer(strip_usage=True)
    out = b"".join(framer.feed(piece) for piece in cut(data, places))
    assert out == b"".join(events)
    assert framer.usage_event == USAGE


def test_the_usage_chunk_passes_and_is_noted_for_a_client_that_asked() -> None:
    framer = Framer(strip_usage=False)
    assert framer.feed(USAGE) == USAGE
    assert framer.usage_event == USAGE


def test_an_event_that_never_ends_breaks_the_stream_at_four_mebibytes() -> None:
    framer = Framer(strip_usage=False)
    piece = b"x" * (64 << 10)
    for _ in range(64):
        assert framer.feed(piece) == b""
    with pytest.raises(BrokenStream):
        framer.feed(b"x")


def test_the_time_of_an_event_grows_with_its_length_not_with_its_pieces() -> None:
    framer = Framer(strip_usage=False)
    long = b"data: " + b"x" * (4 << 20)
    began = time.process_time()
    out = b"".join(framer.feed(long[at : at + 128]) for at in range(0, 4 << 20, 128))
    out += framer.feed(b"\n\n: next")
    assert time.process_time() - began < 2  # minutes where each piece looks at all before it
    assert out == long[: 4 << 20] + b"\n\n"
    assert framer.feed(b"\n\n") == b": next\n\n"


def test_an_empty_choices_chunk_without_usage_passes() -> None:
    filtered = event({"choices": [], "prompt_filter_results": [{"x": 1}]})
    assert Framer(strip_usage=True).feed(filtered) == filtered


def test_a_cut_stream_is_not_done() -> None:
    framer = Framer(strip_usage=False)
    framer.feed(b"".join(stream_of("Pa", "ris")[:-1]))
    assert framer.finish() == b""
    assert not framer.done


def test_a_text_that_says_done_does_not_end_the_stream() -> None:
    framer = Framer(strip_usage=False)
    framer.feed(chunk("data: [DONE]"))
    assert not framer.done


def test_a_last_event_without_its_blank_line_counts() -> None:
    framer = Framer(strip_usage=False)
    assert framer.feed(b"data: [DONE]\n") == b""
    assert framer.finish() == b"data: [DONE]\n"
    assert framer.done


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"refusal": "x"},
        {"tool_calls": [{"index": 0}]},
    ],
)
def test_what_counts_as_the_first_token(delta: dict[str, object]) -> None:
    assert not has_first_token(chunk(role="assistant", content=""))
    assert not has_first_token(b": comment\n\n")
    assert has_first_token(chunk(**delta))
    assert has_first_token(chunk(role="assistant", content="") + chunk(**delta))


def test_the_end_of_an_empty_answer_counts_too() -> None:
    assert has_first_token(chunk(finish="stop"))
    assert has_first_token(event({"choices": [{"index": 0, "text": "x"}]}))
    assert has_first_token(b"data: [DONE]\n\n")


def test_an_error_event_before_the_first_token_is_a_rejection() -> None:
    with pytest.raises(Rejected) as caught:
        has_first_token(event({"error": {"message": "no", "code": 503}}))
    assert caught.value.status == 503
    assert caught.value.retryable
    with pytest.raises(Rejected) as caught:
        has_first_token(event({"error": "boom"}))
    assert caught.value.status == 500


def test_broken_json_before_the_first_token_is_a_broken_stream() -> None:
    with pytest.raises(BrokenStream):
        has_first_token(b'data: {"choices": [\n\n')


def test_errors_of_odd_bodies() -> None:
    assert error_of({"choices": []}) is None
    assert error_of([1]) is None
    assert error_of({"error": {"message": "m"}}) == {"message": "m"}
    assert error_of({"object": "error", "message": "old vLLM"}) is not None
    assert orjson.loads(rejection({"message": "m", "code": 400}).body)["error"]["message"] == "m"


def test_events_of_several_lines_and_both_line_ends() -> None:
    block = b"event: a\ndata: 1\ndata: 2\n\nid: 3\r\ndata:4\r\n\r\n"
    assert b"".join(split_events(block)) == block
    assert list(payloads(block)) == [b"1\n2", b"4"]


def test_an_error_event_midway_ends_the_stream() -> None:
    framer = Framer(strip_usage=True)
    error = event({"error": {"message": "out of memory"}})
    assert framer.feed(chunk("a") + error + b"data: [DONE]\n\n") == chunk("a")
    assert framer.error == {"message": "out of memory"}
    assert not framer.done


def test_a_text_that_speaks_of_errors_is_no_error() -> None:
    framer = Framer(strip_usage=True)
    told = chunk('data: {"error": 1}')
    assert framer.feed(told) == told
    assert framer.error is None
