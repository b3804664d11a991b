"""What replicas say of their own model, and what is believed of it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from tierway.middleware.build import build
from tierway.policies.types import Model
from tierway.router.discover import ask_model
from tierway.router.transport import Origin, Transport

CARD = {"id": "Qwen/Qwen2.5-7B-Instruct", "object": "model", "max_model_len": 32768}


@asynccontextmanager
async def replica(body: bytes, *, key: str = "") -> AsyncIterator[tuple[Origin, list[bytes]]]:
    """A server with one answer, for those who have its key; its API and the request lines it
    got."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *headers = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        asked.append(line)
        keys = [header for header in headers if header.startswith(b"authorization:")]
        known = keys == ([b"authorization: Bearer " + key.encode()] if key else [])
        told = body if known else b'{"error": "no key"}'
        status = 200 if known else 401
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(told)) + told)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Origin.parse(f"http://127.0.0.1:{port}/v1"), asked
    finally:
        server.close()


def asked_of(
    model: Model, *bodies: bytes, gone: bool = False, keys: Sequence[str] = ()
) -> tuple[Model, list[list[bytes]]]:
    """The model after asking replicas with these bodies and keys, the first of them
    unreachable if `gone`; and what each was asked."""

    async def main() -> tuple[Model, list[list[bytes]]]:
        transport = Transport(connect_timeout_s=2)
        replicas, asked = [], []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(transport.aclose)
            if gone:
                taken = stack.enter_context(socket.socket())  # taken, and nobody listens
                taken.bind(("127.0.0.1", 0))
                origin = Origin.parse(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
                replicas.append((origin, ""))
            for body, key in zip(bodies, keys or [""] * len(bodies), strict=True):
                origin, log = await stack.enter_async_context(replica(body, key=key))
                replicas.append((origin, key))
                asked.append(log)
            return await asyncio.wait_for(ask_model(transport, replicas, model), 10), asked

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


def test_each_replica_is_asked_with_its_own_key() -> None:
    second = cards({"id": "second"})
    found, asked = asked_of(Model("q", "small"), b"null", second, keys=("first key", "other key"))
    assert found.served_name == "second"
    assert [len(log) for log in asked] == [1, 1]


def test_the_configured_key_reaches_the_replica() -> None:
    async def main() -> Model:
        async with replica(cards(CARD), key="s3cret") as (origin, _):
            url = f"http://{origin.host}:{origin.port}"
            fleet = [{"url": url, "engine": "generic", "api_key_env": "REPLICA_KEY"}]
            models = {"qwen": {"tier": "small", "replicas": fleet}}
            config = {"models": models, "cache": {"mode": "off"}}
            parts = await build(config, {"REPLICA_KEY": "s3cret"})
            await parts.aclose()
        return next(model for tier in parts.tiers for model in tier.models)

    found = asyncio.run(asyncio.wait_for(main(), 10))
    assert (found.served_name, found.context_tokens) == (CARD["id"], 32768)


@pytest.mark.parametrize(
    ("served_name", "window"), [("mine", 4096), ("/weights/mine", 4096), ("other", 512), ("x", 512)]
)
def test_the_window_is_that_of_the_configured_name(served_name: str, window: int) -> None:
    told = cards(
        {"id": "other", "root": "other", "max_model_len": 512},
        {"id": "mine", "root": "/weights/mine", "max_model_len": 4096},
        {"id": "mine too", "root": "mine", "max_model_len": 1024},
    )
    found, _ = asked_of(Model("q", "small", served_name=served_name), told)
    assert (found.served_name, found.context_tokens) == (served_name, window)


def test_an_adapter_has_the_window_of_its_parent() -> None:
    adapter = {"id": "adapter", "root": "/lora", "parent": "base", "max_model_len": None}
    told = cards({"id": "x", "max_model_len": 1}, {"id": "base", "max_model_len": 8192}, adapter)
    assert asked_of(Model("q", "small", served_name="adapter"), told)[0].context_tokens == 8192
    orphan = cards({"id": "x", "max_model_len": 1}, {"id": "adapter"})
    assert asked_of(Model("q", "small", served_name="adapter"), orphan)[0].context_tokens is None


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
        b'{"data": [{"id": null}]}',
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
