"""The simulated engine over real sockets: wire, pace, metrics, faults, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import httpx
import pytest

from tierway.bench.engine_server import EngineServer, serve_engine
from tierway.bench.fleet import EngineSpec, Fleet, spawn_fleet
from tierway.bench.fleet import main as fleet_main
from tierway.bench.profiles import profile
from tierway.router.gpu_pages import read_gpus

SPEED = 200.0
# Reading the certificates for a client that never speaks TLS costs more than most tests.
PLAIN: dict[str, Any] = {"timeout": 10, "verify": False}


@contextlib.asynccontextmanager
async def serving(
    *, speed: float = SPEED, seed: int = 1, **limits: int
) -> AsyncIterator[tuple[EngineServer, httpx.AsyncClient]]:
    made = dataclasses.replace(profile("8b-a100"), **limits)  # type: ignore[arg-type]  # ints only
    server = EngineServer(made, seed=seed, speed=speed)
    port = await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", **PLAIN) as client:
            yield server, client
    finally:
        await server.aclose()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


async def until(condition: Callable[[], bool], bound_s: float = 5.0) -> None:
    end_s = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < end_s, "the condition never came true"
        await asyncio.sleep(0.002)


def chat(content: str = "What is a cache?", **more: Any) -> dict[str, Any]:
    return {"model": "sim-8b", "messages": [{"role": "user", "content": content}], **more}


async def ask(client: httpx.AsyncClient, content: str = "What is a cache?", **more: Any) -> Any:
    answer = await client.post("/v1/chat/completions", json=chat(content, **more))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(client: httpx.AsyncClient, content: str, **more: Any) -> list[Any]:
    """The data of each event; [DONE] must end the stream and is left out."""
    body = chat(content, stream=True, **more)
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def metric(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    for line in (await client.get("/metrics")).text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            return float(value)
    raise AssertionError(f"no series {name} {labels}")


async def aborts(client: httpx.AsyncClient) -> float:
    return await metric(client, "vllm:request_success_total", finished_reason="abort")


def test_a_chat_answer_is_complete_and_repeatable() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            first, second = await ask(client), await ask(client)
            assert first["object"] == "chat.completion"
            assert first["model"] == "sim-8b"
            assert text_of(first).startswith('sim-8b answers: you asked "What is a cache?".')
            assert first["choices"][0]["finish_reason"] == "stop"
            assert text_of(first) == text_of(second)
            assert first["id"] != second["id"]
            usage = first["usage"]
            assert 20 <= usage["completion_tokens"] <= 120
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    run(main)


def test_a_stream_says_what_the_whole_answer_says() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            whole = await ask(client, max_tokens=30)
            got = await events(
                client, "What is a cache?", max_tokens=30, stream_options={"include_usage": True}
            )
            *chunks, finish, last = got
            assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:]]
            assert "".join(pieces) == text_of(whole)
            assert len(pieces) == whole["usage"]["completion_tokens"]
            assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
            assert finish["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == len(pieces)
            assert {chunk["id"] for chunk in got} == {got[0]["id"]}
            assert {chunk["object"] for chunk in got} == {"chat.completion.chunk"}

    run(main)


def test_without_include_usage_no_chunk_lacks_choices() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            got = await events(client, "[[answer 5]] hi")
            assert len(got) == 7
            assert all(chunk["choices"] and "usage" not in chunk for chunk in got)

    run(main)


def test_lengths_are_honoured() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            cut = await ask(client, max_tokens=4)
            assert cut["choices"][0]["finish_reason"] == "length"
            assert cut["usage"]["completion_tokens"] == 4
            fixed = await ask(client, "[[answer 33]] hi")
            assert fixed["choices"][0]["finish_reason"] == "stop"
            assert fixed["usage"]["completion_tokens"] == 33

    run(main)


def test_chinese_is_answered_in_chinese() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            answer = await ask(client, "请解释一下什么是缓存?")
            assert text_of(answer).startswith("sim-8b回答:您问的是“请解释一下什么是缓存?”。")

    run(main)


def test_several_choices() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            answer = await ask(client, "[[answer 50]] hi", n=2)
            first, second = answer["choices"]
            assert (first["index"], second["index"]) == (0, 1)
            assert first["message"]["content"] != second["message"]["content"]
            assert answer["usage"]["completion_tokens"] == 100
            got = await events(client, "[[answer 50]] hi", n=2)
            streamed = ["", ""]
            for chunk in got:
                choice = chunk["choices"][0]
                streamed[choice["index"]] += choice["delta"].get("content", "")
            assert streamed == [first["message"]["content"], second["message"]["content"]]

    run(main)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_a_tool_call_whole_and_streamed() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            whole = await ask(client, "[[tool]] Rome", tools=[TOOL])
            message = whole["choices"][0]["message"]
            assert message["content"] is None
            call = message["tool_calls"][0]
            assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
            assert whole["choices"][0]["finish_reason"] == "tool_calls"
            got = await events(client, "[[tool]] Rome", tools=[TOOL])
            deltas = [chunk["choices"][0]["delta"] for chunk in got[1:-1]]
            calls = [delta["tool_calls"][0] for delta in deltas]
            assert calls[0]["id"]
            assert calls[0]["function"] == {"name": "weather", "arguments": ""}
            assert all("id" not in one and "name" not in one["function"] for one in calls[1:])
            assert all(one["index"] == 0 for one in calls)
            pieces = [one["function"]["arguments"] for one in calls]
            assert len(pieces) > 3
            assert "".join(pieces) == call["function"]["arguments"]
            assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"

    run(main)


def test_completions() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            body = {"model": "sim-8b", "prompt": ["Why?", "How?"], "max_tokens": 12}
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["object"] == "text_completion"
            assert [choice["index"] for choice in answer["choices"]] == [0, 1]
            body = {"prompt": "Why?", "max_tokens": 12, "stream": True}
            stream = (await client.post("/v1/completions", json=body)).text.split("\n\n")
            chunks = [json.loads(part.removeprefix("data: ")) for part in stream[:-2]]
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            assert text == answer["choices"][0]["text"]
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"

    run(main)


def test_embeddings() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            body = {"model": "sim-8b", "input": ["one text", "another"]}
            answer = (await client.post("/v1/embeddings", json=body)).json()
            vectors = [item["embedding"] for item in answer["data"]]
            assert [len(vector) for vector in vectors] == [384, 384]
            assert math.isclose(sum(v * v for v in vectors[0]), 1.0)
            assert answer["usage"]["prompt_tokens"] == 3
            packed = {**body, "encoding_format": "base64", "dimensions": 8}
            short = (await client.post("/v1/embeddings", json=packed)).json()
            assert len(short["data"][0]["embedding"]) == 44
            assert server.engine.totals.finished["stop"] == 4
            wrong = await client.post("/v1/embeddings", json={"input": "x", "dimensions": 0})
            assert wrong.json()["error"]["param"] == "dimensions"

    run(main)


def test_the_prefix_cache_shows_in_usage_and_metrics() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            long = "Explain caches. " * 30
            first = await ask(client, long)
            second = await ask(client, long)
            assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
            cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0.8 * second["usage"]["prompt_tokens"]
            assert cached % 16 == 0
            assert await metric(client, "vllm:prefix_cache_hits_total") == cached
            queries = await metric(client, "vllm:prefix_cache_queries_total")
            assert queries == 2 * second["usage"]["prompt_tokens"]
            salted = await ask(client, long, cache_salt="tenant-b")
            assert salted["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    run(main)


def test_metrics_carry_vllms_names_and_labels() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            await asyncio.gather(*(ask(client, f"[[answer 20]] {n}") for n in range(3)))
            page = await client.get("/metrics")
            assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
            for name in (
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
            ):
                assert f'{name}{{engine="0",model_name="sim-8b"}} 0.0' in page.text
            assert await metric(client, "vllm:generation_tokens_total") == 60
            assert await metric(client, "vllm:request_success_total", finished_reason="stop") == 3
            assert await metric(client, "vllm:time_to_first_token_seconds_count") == 3
            assert await metric(client, "vllm:time_to_first_token_seconds_bucket", le="2560.0") == 3
            assert await metric(client, "vllm:inter_token_latency_seconds_count") == 57
            blocks = str(server.profile.blocks)
            labels = {"block_size": "16", "num_gpu_blocks": blocks}
            assert await metric(client, "vllm:cache_config_info", **labels) == 1

    run(main)


def test_the_load_stands_in_the_head_of_an_answer_for_who_asks() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            for stream in (False, True):
                body = chat("[[answer 5]]", stream=stream)
                for form in ("TEXT", "JSON"):
                    headers = {"endpoint-load-metrics-format": form}
                    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                    told = answer.headers["endpoint-load-metrics"]
                    assert told.startswith(form)
                    assert "num_requests_waiting" in told
                answer = await client.post("/v1/chat/completions", json=body)
                assert "endpoint-load-metrics" not in answer.headers

    run(main)


def test_the_load_counts_who_is_inside() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            assert (await client.get("/load")).json() == {"server_load": 0}
            asked = asyncio.create_task(ask(client, "[[fault:hang]]"))
            await until(lambda: server.engine.running == 1)
            assert (await client.get("/load")).json() == {"server_load": 1}
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    run(main)


def test_a_throttle_slows_the_steps_and_shows_on_the_gpus() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            page = (await client.get("/gpu/metrics")).text
            assert 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-' in page
            done = await client.put("/faults", json={"throttle": 0.25, "temperature": 91})
            assert done.json() == {"fault": None, "throttle": 0.25, "temperature": 91.0}
            assert server.engine.slowdown == 4.0
            (told,) = read_gpus((await client.get("/gpu/metrics")).text)
            assert (told.temperature_celsius, told.clock_mhz) == (91.0, round(1410 / 4))
            assert (await client.put("/faults", json={})).json() == {"fault": None}
            assert server.engine.slowdown == 1.0
            wrong = await client.put("/faults", json={"throttle": 2})
            assert wrong.status_code == 400
            assert "throttle = 2" in wrong.json()["error"]["message"]

    run(main)


def test_the_other_endpoints() -> None:
    async def main() -> None:
        async with serving(max_model_len=2048) as (_, client):
            card = (await client.get("/v1/models")).json()["data"][0]
            assert (card["id"], card["max_model_len"]) == ("sim-8b", 2048)
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/version")).status_code == 200
            missing = await client.get("/nowhere")
            assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")
            assert (await client.get("/v1/chat/completions")).status_code == 404

    run(main)


def test_bad_requests_get_openai_errors() -> None:
    async def main() -> None:
        async with serving(max_model_len=256) as (_, client):
            path = "/v1/chat/completions"
            broken = await client.post(path, content=b"{")
            assert (broken.status_code, broken.json()["error"]["type"]) == (
                400,
                "invalid_request_error",
            )
            other = await client.post(path, json={**chat(), "model": "gpt"})
            assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
            over = await client.post(path, json=chat("word " * 400))
            assert over.status_code == 400
            assert over.json()["error"]["code"] == "context_length_exceeded"
            assert "maximum context length is 256 tokens" in over.json()["error"]["message"]
            unknown = await client.post(path, json=chat("[[fault:boom]]"))
            assert unknown.status_code == 400

    run(main)


def test_an_answer_ends_where_the_context_ends() -> None:
    async def main() -> None:
        async with serving(max_model_len=128) as (_, client):
            answer = await ask(client, "[[answer 5000]] hi")
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["total_tokens"] == 128

    run(main)


def test_the_kv_cache_bounds_the_context() -> None:
    async def main() -> None:
        async with serving(blocks=8) as (server, client):
            assert server.profile.max_model_len == 128
            over = await client.post("/v1/chat/completions", json=chat("word " * 200))
            assert over.status_code == 400

    run(main)


def test_the_pace_is_the_profiles() -> None:
    async def main() -> None:
        async with serving(speed=4.0) as (server, client):
            start_s = time.monotonic()
            await ask(client, "[[answer 60]] hi")
            took_s = time.monotonic() - start_s
            # Lower bound only: 60 steps of 11.7 ms at four times the speed; the machine may lag.
            assert took_s >= 60 * 0.0115 / 4
            assert server.engine.totals.busy_s == pytest.approx(60 * 0.0117 / 4, rel=0.1)

    run(main)


def test_answers_depend_on_the_seed_and_nothing_else() -> None:
    async def main() -> None:
        async with serving(seed=1) as (_, a), serving(seed=1) as (_, b), serving(seed=2) as (_, c):
            prompts = [f"Question number {number}?" for number in range(8)]
            first, same, other = [
                [await ask(client, prompt) for prompt in prompts] for client in (a, b, c)
            ]
            assert [text_of(x) for x in first] == [text_of(x) for x in same]
            assert [x["id"] for x in first] == [x["id"] for x in same]
            assert [text_of(x) for x in first] != [text_of(x) for x in other]

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "retry_after"),
    [("500", 500, None), ("429 7", 429, "7"), ("503 2", 503, "2")],
)
def test_status_faults(stream: bool, fault: str, status: int, retry_after: str | None) -> None:
    async def main() -> None:
        async with serving() as (_, client):
            body = chat(f"[[fault:{fault}]]", stream=stream)
            answer = await client.post("/v1/chat/completions", json=body)
            assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
            assert answer.json()["error"]["code"] == status

    run(main)


async def raw(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[bytes, bool]:
    """(what came, whether the connection was reset) on a connection of its own."""
    port = client.base_url.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    writer.write(b"content-length: %d\r\n\r\n" % len(data) + data)
    got = b""
    try:
        while part := await asyncio.wait_for(reader.read(65536), 5):
            got += part
    except ConnectionResetError:
        return got, True
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return got, False


def test_refuse_resets_before_any_byte() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            assert await raw(client, chat("[[fault:refuse]]")) == (b"", True)

    run(main)


def test_cut_closes_a_stream_after_its_tokens() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            got, reset = await raw(client, chat("[[fault:cut 5]]", stream=True))
            assert not reset
            assert got.count(b'"content":') == 6  # the role chunk and five tokens
            assert b"[DONE]" not in got
            assert not got.endswith(b"0\r\n\r\n")
            assert (server.engine.running, server.engine.kv_usage) == (0, 0.0)
            got, _ = await raw(client, chat("[[fault:cut 0]]", stream=True))
            assert got.startswith(b"HTTP/1.1 200")
            assert b"data:" not in got

    run(main)


def test_cut_closes_an_answer_in_its_middle() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            got, _ = await raw(client, chat("[[fault:cut 5]]"))
            head, _, body = got.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert 0 < len(body) < length

    run(main)


def test_broken_json() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            body = chat("[[fault:broken-json 5]] [[answer 9]]")
            whole = await client.post("/v1/chat/completions", json=body)
            assert whole.status_code == 200
            with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
                whole.json()
            streamed = await client.post("/v1/chat/completions", json={**body, "stream": True})
            parts = streamed.text.split("\n\n")
            with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
                json.loads(parts[6].removeprefix("data: "))
            assert all(json.loads(part.removeprefix("data: ")) for part in parts[:6])
            assert len(parts) == 14  # role, 9 tokens, the broken one, finish, [DONE], the end

    run(main)


def test_error_event() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            got = await events(client, "[[fault:error-event 5]]")
            assert got[-1]["error"]["code"] == 500
            assert len(got) == 7
            whole = await client.post("/v1/chat/completions", json=chat("[[fault:error-event 5]]"))
            assert whole.status_code == 500
            name = "vllm:request_success_total"
            assert await metric(client, name, finished_reason="error") == 2

    run(main)


def test_a_fault_shows_even_when_the_answer_is_shorter() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            got = await events(client, "[[fault:error-event 50]] [[answer 3]]")
            assert got[-1]["error"]["code"] == 500
            assert "finish_reason" not in json.dumps(got[-1])

    run(main)


def test_slow_adds_real_seconds_before_the_first_token() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            start_s = time.monotonic()
            waiting = asyncio.create_task(ask(client, "[[fault:slow 0.2]] [[answer 3]]"))
            await until(lambda: server.engine.running == 1)
            answer = await waiting
            assert time.monotonic() - start_s >= 0.2
            assert answer["usage"]["completion_tokens"] == 3

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["", "[[fault:hang]]", "[[fault:stall 3]]", "[[fault:slow 60]]"])
def test_a_client_that_leaves_frees_its_slot(stream: bool, fault: str) -> None:
    async def main() -> None:
        async with serving(speed=1.0) as (server, client):
            body = chat(f"{fault} [[answer 5000]]", stream=stream)
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            tokens = 3 if "hang" not in fault and "slow" not in fault else 0
            await until(lambda: server.engine.running == 1)
            await until(lambda: server.engine.totals.generation_tokens >= tokens)
            assert server.engine.kv_usage > 0
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: server.engine.running == 0)
            assert (server.engine.waiting, server.engine.kv_usage) == (0, 0.0)
            assert await aborts(client) == 1
            assert await metric(client, "vllm:num_requests_running") == 0

    run(main)


async def first_bytes(port: int | None, fault: str, count: int) -> bytes:
    """What a stream brings until `count` contents are there, and 0.1 s of silence after them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(chat(f"[[fault:{fault}]]", stream=True)).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    writer.write(b"content-length: %d\r\n\r\n" % len(data) + data)
    got = b""
    while got.count(b'"content":') < count:
        got += await asyncio.wait_for(reader.read(65536), 5)
    with pytest.raises(TimeoutError):
        got += await asyncio.wait_for(reader.read(65536), 0.1)
    writer.close()
    await writer.wait_closed()
    return got


def test_a_hang_sends_nothing_and_a_stall_sends_its_tokens() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            assert await first_bytes(client.base_url.port, "hang", 0) == b""
            got = await first_bytes(client.base_url.port, "stall 4", 5)
            assert got.count(b'"content":') == 5  # the role chunk and four tokens
            await until(lambda: server.engine.totals.finished["abort"] == 2)

    run(main)


def test_a_waiting_client_that_leaves_is_forgotten() -> None:
    async def main() -> None:
        async with serving(speed=1.0, sequences=1) as (server, client):
            tasks = [
                asyncio.create_task(ask(client, f"[[answer 5000]] {number}")) for number in range(3)
            ]
            await until(lambda: (server.engine.running, server.engine.waiting) == (1, 2))
            assert await metric(client, "vllm:num_requests_waiting") == 2
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: (server.engine.running, server.engine.waiting) == (0, 0))
            assert await aborts(client) == 3

    run(main)


def test_the_switch_over_http() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            answer = await client.put("/faults", json={"fault": "503 2", "count": 2})
            assert answer.json()["count"] == 2
            statuses = [
                (await client.post("/v1/chat/completions", json=chat("[[answer 3]]"))).status_code
                for _ in range(3)
            ]
            assert statuses == [503, 503, 200]
            assert (await client.get("/faults")).json() == {"fault": None}
            wrong = await client.put("/faults", json={"fault": "boom"})
            assert wrong.status_code == 400
            await client.put("/faults", json={"fault": "500"})
            assert (await client.get("/health")).status_code == 200
            embedding = await client.post("/v1/embeddings", json={"input": "x"})
            assert embedding.status_code == 500
            await client.put("/faults", json={"fault": "refuse", "scope": "all"})
            with pytest.raises(httpx.ReadError):
                await client.get("/health")
            await client.put("/faults", json={})
            assert (await client.get("/health")).status_code == 200

    run(main)


def test_one_connection_serves_many_requests_even_pipelined() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            body = json.dumps(chat("[[answer 4]]", stream=True)).encode()
            post = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
            ask_once = post % len(body) + body
            writer.write(ask_once + ask_once + b"GET /health HTTP/1.1\r\nhost: x\r\n")
            writer.write(b"connection: close\r\n\r\n")
            got = await asyncio.wait_for(reader.read(), 5)
            assert got.count(b"HTTP/1.1 200") == 3
            assert got.count(b"data: [DONE]") == 2
            assert server.engine.totals.finished["stop"] == 2
            writer.close()
            await writer.wait_closed()

    run(main)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"NONSENSE\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"HTTP/1.1 200"),
        (
            b"PUT /faults HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
            b"HTTP/1.1 100",
        ),
        (
            b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\n"
            b"upgrade: h2c\r\n\r\n",
            b"HTTP/1.1 200",
        ),
    ],
)
def test_unusual_http(request_bytes: bytes, status: bytes) -> None:
    async def main() -> None:
        async with serving() as (_, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(request_bytes)
            got = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
            assert got.startswith(status)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    run(main)


def test_a_stream_to_http_1_0_ends_with_the_connection() -> None:
    async def main() -> None:
        async with serving() as (_, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            body = json.dumps(chat("[[answer 4]]", stream=True)).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d" % len(body))
            writer.write(b"\r\n\r\n" + body)
            got = await asyncio.wait_for(reader.read(), 5)
            assert b"chunked" not in got
            assert got.endswith(b"data: [DONE]\n\n")
            writer.close()
            await writer.wait_closed()

    run(main)


def test_closing_ends_everything_in_flight() -> None:
    async def main() -> None:
        server = EngineServer("8b-a100")
        port = await server.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", **PLAIN) as client:
            tasks = [
                asyncio.create_task(
                    client.post("/v1/chat/completions", json=chat(f"[[fault:{fault}]] hi"))
                )
                for fault in ("hang", "stall 2", "slow 90")
            ]
            await until(lambda: server.engine.running == 3)
            await server.aclose()
            await server.aclose()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, httpx.TransportError) for result in results)
            assert server.engine.running == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    run(main)


def test_many_streams_at_once() -> None:
    async def main() -> None:
        async with serving() as (server, client):
            limits = httpx.Limits(max_connections=40)
            async with httpx.AsyncClient(base_url=client.base_url, limits=limits, **PLAIN) as many:
                got = await asyncio.gather(
                    *(events(many, f"[[answer 12]] question {n}") for n in range(40))
                )
            assert {len(one) for one in got} == {14}
            assert server.engine.totals.finished["stop"] == 40
            assert server.engine.totals.steps < 40 * 12

    run(main)


def test_serve_engine_runs_until_cancelled() -> None:
    async def main() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serve: Awaitable[None] = serve_engine(
            "8b-a10", seed=3, speed=50, model="mine", ready=ready.set_result
        )
        task = asyncio.ensure_future(serve)
        async with httpx.AsyncClient(base_url=await ready, **PLAIN) as client:
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "mine"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="did you mean"):
            await serve_engine("8b-a11")

    run(main)


@pytest.mark.parametrize("rounds", range(5))
def test_who_was_accepted_as_the_server_closed_is_closed_too(rounds: int) -> None:
    async def main() -> None:
        server = EngineServer(profile("8b-a100"))
        port = await server.start()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port)))]
            clients += [stack.enter_context(socket.socket()) for _ in range(3)]
            for client in clients[1:]:
                client.connect(("127.0.0.1", port))
            for _ in range(rounds):
                await asyncio.sleep(0)
            await server.aclose()
            for client in clients:
                client.setblocking(False)
                with contextlib.suppress(ConnectionResetError):
                    asked = asyncio.get_running_loop().sock_recv(client, 1)
                    assert await asyncio.wait_for(asked, 5) == b""

    run(main)


def test_a_fleet_in_a_child_process() -> None:
    async def main() -> None:
        specs = [
            EngineSpec("8b-a10", model="m", speed=SPEED),
            EngineSpec("70b-a100x4", seed=2, speed=SPEED, max_model_len=512, node="n1", pod="p"),
        ]
        async with spawn_fleet(specs) as urls:
            assert len(set(urls)) == 2
            async with httpx.AsyncClient(**PLAIN) as client:
                cards = [(await client.get(f"{url}/v1/models")).json()["data"][0] for url in urls]
                assert [card["id"] for card in cards] == ["m", "sim-70b"]
                assert cards[1]["max_model_len"] == 512
                gpus = read_gpus((await client.get(f"{urls[1]}/gpu/metrics")).text)
                assert [(gpu.host, gpu.pods) for gpu in gpus] == [("n1", {"p"})] * 4
                answer = await client.post(
                    f"{urls[1]}/v1/chat/completions", json={**chat(), "model": "sim-70b"}
                )
                assert text_of(answer.json()).startswith("sim-70b answers:")
        for url in urls:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

    run(main)


def test_a_fleet_ends_with_its_parent() -> None:
    parent = (
        "import asyncio\n"
        "from tierway.bench.fleet import EngineSpec, spawn_fleet\n"
        "async def main():\n"
        "    async with spawn_fleet([EngineSpec('8b-a10')]) as urls:\n"
        "        print(urls[0], flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )

    def listening(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    async def main() -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", parent), stdout=asyncio.subprocess.PIPE, env=env
        )
        assert process.stdout is not None
        port = int((await process.stdout.readline()).decode().strip().rpartition(":")[2])
        assert listening(port)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(lambda: not listening(port))
        await process.stdout.read()

    run(main)


def test_wrong_fleets_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet_main(["--engines", '[{"profile": "8b-b10"}]']) == 2
    assert fleet_main(["--engines", '[{"profile": "8b-a10", "colour": 1}]']) == 2
    assert fleet_main(["--engines", "nonsense"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "8b-a10" in said.err

    async def main() -> None:
        with pytest.raises(ValueError, match="did you mean"):
            async with spawn_fleet([EngineSpec("8b-b10")]):
                pass

    run(main)


def test_a_fleet_that_cannot_listen_closes_what_it_opened() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            fleet = Fleet([EngineSpec("8b-a10"), EngineSpec("8b-a10", port=port)])
            with pytest.raises(OSError, match="in use"):
                await fleet.start()
            opened = int(fleet.urls[0].rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", opened)

    run(main)
