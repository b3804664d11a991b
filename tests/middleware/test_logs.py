"""The line of a request: one JSON object, with nothing of the prompt in it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import orjson
import pytest

from tierway.middleware.logs import RequestLog, log_request
from tierway.policies.types import Trace, Usage


def line_of(trace: Trace, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    with caplog.at_level(logging.INFO, logger="tierway.requests"):
        log_request(trace)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "\n" not in record.message
    found: dict[str, Any] = orjson.loads(record.message)
    return found


def test_a_request_is_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(
        "req_1",
        wire="chat",
        tenant="acme",
        requested_model="auto",
        status=200,
        outcome="ok",
        cache="miss",
        tier="small",
        replica="m@a:1",
        route_reason="classifier",
        attempts=2,
        retries=["refused"],
        degraded="other_replica",
        usage=Usage(7, 2),
        first_token_s=0.0123456,
        duration_s=1.5,
    )
    assert line_of(trace, caplog) == {
        "request_id": "req_1",
        "tenant": "acme",
        "wire": "chat",
        "model": "auto",
        "stream": False,
        "status": 200,
        "outcome": "ok",
        "cache": "miss",
        "cache_reason": "",
        "tier": "small",
        "replica": "m@a:1",
        "route": "classifier",
        "attempts": 2,
        "retries": ["refused"],
        "degraded": "other_replica",
        "duration_ms": 1500.0,
        "first_token_ms": 12.346,
        "input_tokens": 7,
        "output_tokens": 2,
    }


def test_what_did_not_happen_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(Trace("r"), caplog)
    assert line["duration_ms"] is None
    assert not {"similarity", "entry", "retries", "degraded", "error", "input_tokens"} & line.keys()


def test_a_name_with_a_line_break_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    odd = 'a\n"b"\u2028\x00中'
    assert line_of(Trace("r", requested_model=odd), caplog)["model"] == odd


def test_nothing_is_written_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tierway.requests"):
        log_request(Trace("r"))
    assert not caplog.records


def test_a_process_of_our_own_writes_lines_together() -> None:
    async def main() -> list[dict[str, object]]:
        reading, writing = os.pipe()
        log = RequestLog(writing, every_s=0.01)
        for name in ("one", "two"):
            log(Trace(name, outcome="ok"))
        data = await asyncio.to_thread(os.read, reading, 65536)
        os.close(reading)
        log(Trace("three"))
        log.flush()  # nobody reads any more: the line is lost, nothing is raised
        os.close(writing)
        return [orjson.loads(line) for line in data.splitlines()]

    lines = asyncio.run(main())
    assert [line["request_id"] for line in lines] == ["one", "two"]


def test_a_hit_tells_its_scores_streamed_or_not(caplog: pytest.LogCaptureFixture) -> None:
    for stream in (False, True):
        caplog.clear()
        trace = Trace(
            "r", stream=stream, cache="semantic-hit", similarity=0.97, probability=0.98765,
            entry_id="e_1", cache_reason="equal",
        )  # fmt: skip
        line = line_of(trace, caplog)
        assert (line["cache"], line["cache_reason"], line["entry"]) == (
            "semantic-hit",
            "equal",
            "e_1",
        )
        assert (line["similarity"], line["probability"]) == (0.97, 0.9877)
        assert "observed" not in line
