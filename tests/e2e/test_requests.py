"""Requests that cannot be served, and what the client is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from e2e.servers import GatewayProcess, ask, outcome
from e2e.stand import RawClient, body_of, engine, stand

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"model": "auto",\n "messages": [}', "line 2 column 15"),
        (b'{"model": "auto", "temperature": NaN}', "line 1 column 34"),
        (b"", "empty"),
        (b"[1, 2]", "not an array"),
        (b'"text"', "not a string"),
        (b'{"model": "auto", "messages": [{"role": "user", "content": "\xff"}]}', "not UTF-8"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, ""),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_body_that_is_no_json_object(
    client: httpx.Client, path: str, raw: bytes, told: str
) -> None:
    answer = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": USER}, "model"),
        ({"model": "auto"}, "messages"),
        ({"model": "auto", "messages": []}, "messages"),
        ({"model": "auto", "messages": ["hi"]}, "messages[0]"),
        ({"model": "auto", "messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"model": "auto", "messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"model": "auto", "messages": USER, "stream": "yes"}, "stream"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_names_what_exists(client: httpx.Client) -> None:
    answer = ask(client, "hi", model="nobody")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert all(name in error["message"] for name in ("auto", "small", "sim-7b"))


@pytest.mark.parametrize(("path", "status"), [(CHAT, 405), ("/v1/nothing", 404), ("/x", 404)])
def test_wrong_methods_and_paths(client: httpx.Client, path: str, status: int) -> None:
    assert client.get(path).status_code == status


def test_text_of_every_kind_passes(client: httpx.Client) -> None:
    for text in ("你好,世界", "emoji 👩‍👩‍👧‍👦 \u0000 \u2028", "\\ud83d", "a" * 20_000, " \n\t "):
        assert outcome(ask(client, text, model="small")) == "miss", text


def test_lone_surrogates_are_no_server_error(client: httpx.Client) -> None:
    raw = b'{"model": "small", "messages": [{"role": "user", "content": "\\ud800"}]}'
    answer = client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)


def test_probes_answer_on_both_listeners(tierway: GatewayProcess) -> None:
    for base in (tierway.url, tierway.admin_url):
        assert httpx.get(base + "/healthz").status_code == 200
        assert httpx.get(base + "/readyz").status_code == 200


def test_metrics_count_by_tier_and_carry_no_text(
    tierway: GatewayProcess, client: httpx.Client
) -> None:
    ask(client, "a-secret-word-of-a-prompt", model="small")
    page = httpx.get(tierway.admin_url + "/metrics").text
    line = 'tierway_requests_total{outcome="ok",tier="small",wire="chat"}'
    assert line in page
    assert "a-secret-word-of-a-prompt" not in page


LIMIT = 10_000


def test_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    async def main() -> None:
        async with stand(engine(), server={"max_body_bytes": LIMIT}) as made:
            fits = body_of("a" * (LIMIT - 200))
            assert (await made.client.post(CHAT, json=fits)).status_code == 200
            declared = await made.client.post(CHAT, json=body_of("a" * LIMIT))
            assert declared.status_code == 413
            assert str(LIMIT) in declared.json()["error"]["message"]

            async def pieces() -> Any:
                for _ in range(20):
                    yield b" " * 1000

            chunked = await made.client.post(CHAT, content=pieces())
            assert chunked.status_code == 413
            assert made.generated == 1

    asyncio.run(main())


def test_a_declared_size_is_refused_before_the_body_is_sent() -> None:
    async def main() -> None:
        async with stand(engine(), server={"max_body_bytes": LIMIT}) as made:
            client = await RawClient.post(made.url, b"", b"content-length: 1000000000")
            head = await client.read_until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413")
            await client.leave()

    asyncio.run(main())


def test_pipelined_requests_on_one_connection_are_all_answered() -> None:
    async def main() -> None:
        async with stand(engine()) as made:
            raw = json.dumps(body_of("hi")).encode()
            request = (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n"
                b"content-length: %d\r\n\r\n" % len(raw)
            ) + raw
            host, _, port = made.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request * 3)
            async with asyncio.timeout(10):
                for _ in range(3):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200")
                    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    assert json.loads(await reader.readexactly(size))["choices"]
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_an_offer_of_http2_is_ignored_and_the_body_kept(client: httpx.Client) -> None:
    headers = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "AAMA"}
    answer = client.post(CHAT, json={"model": "auto", "messages": USER}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-tierway-cache"] in ("miss", "hit")
