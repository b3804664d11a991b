"""What replicas say of their own model, and what is believed of it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from tierway.policies.types import Model
from tierway.router.discover import ask_model
from tierway.router.transport import Origin, Transport

CARD = {"id": "Qwen/Qwen2.5-7B-Instruct", "object": "model", "max_model_len": 32768}


@asynccontextmanager
async def replica(body: bytes, *, status: int = 200) -> AsyncIterator[tuple[Origin, list[bytes]]]:
    """A server with one answer; its API and the request lines it got."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0])
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Origin.parse(f"http://127.0.0.1:{port}/v1"), asked
    finally:
        server.close()


def asked_of(model: Model, *bodies: bytes, gone: bool = False) -> tuple[Model, list[list[bytes]]]:
    """The model after asking replicas with these bodies, the first of them unreachable if
    `gone`; and what each was asked."""

    async def main() -> tuple[Model, list[list[bytes]]]:
        transport = Transport(connect_timeout_s=2)
        origins, asked = [], []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(transport.aclose)
            if gone:
                taken = stack.enter_context(socket.socket())  # taken, and nobody listens
                taken.bind(("127.0.0.1", 0))
                origins.append(Origin.parse(f"http://127.0.0.1:{taken.getsockname()[1]}/v1"))
            for body in bodies:
                origin, log = await stack.enter_async_context(replica(body))
                origins.append(origin)
                asked.append(log)
            return await asyncio.wait_for(ask_model(transport, origins, model), 10), asked

    return asyncio.run(main())


def cards(*items: object) -> bytes:
    return orjson.dumps({"object": "list", "data": list(items)})


def test_open_fields_come_from_the_first_card() -> None:
    found, asked = asked_of(Model("qwen", "small"), cards(CARD, {"id": "adapter"}))
    assert (found.served_name, found.context_tokens) == (CARD["id"], 32768)
    assert (found.name, found.tier) == ("qwen", "small")
    assert asked == [[b"GET /v1/models HTTP/1.1"]]


def test_what_is_configured_stays() -> None:
    model = Model("qwen", "small", served_name="mine", context_tokens=4096)
    assert asked_of(model, cards(CARD))[0] == model
    partly = Model("qwen", "small", served_name="mine")
    assert asked_of(partly, cards(CARD))[0].served_name == "mine"
    assert asked_of(partly, cards(CARD))[0].context_tokens == 32768


def test_the_first_replica_that_answers_is_believed() -> None:
    found, asked = asked_of(
        Model("qwen", "small"), b"<html>", cards(CARD), cards({"id": "other"}), gone=True
    )
    assert found.served_name == CARD["id"]
    assert [len(log) for log in asked] == [1, 1, 0]


@pytest.mark.parametrize("window", [None, 0, -1, "32768", 1.5])
def test_a_window_that_is_no_count_is_not_known(window: object) -> None:
    found, _ = asked_of(Model("q", "small"), cards({"id": "served", "max_model_len": window}))
    assert (found.served_name, found.context_tokens) == ("served", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"data"',
        b'{"error": {"message": "no key"}}',
        b'{"data": null}',
        b'{"data": {}}',
        b'{"data": []}',
        b'{"data": [null]}',
        b'{"data": [{"object": "model"}]}',
    ],
)
def test_a_body_without_a_card_is_a_warning_and_the_configured_name(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model("qwen", "small")
    with caplog.at_level(logging.WARNING):
        assert asked_of(model, body)[0] == model
    assert [record.message for record in caplog.records] == [
        "models.qwen: no replica told its served_name; it is asked for as 'qwen'"
    ]


def test_no_warning_where_the_name_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    model = Model("qwen", "small", served_name="mine")
    with caplog.at_level(logging.WARNING):
        assert asked_of(model, gone=True)[0] == model
        assert asked_of(model)[0] == model
    assert not caplog.records
