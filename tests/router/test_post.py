"""JSON to one path of one server, and the whole answer back."""

from __future__ import annotations

import asyncio

import pytest

from tierway.policies.errors import BadCall, Refused
from tierway.router.post import JsonPost
from tierway.router.transport import Origin, Transport


def post(*, key: str = "", gone: bool = False) -> tuple[tuple[int, bytes], bytes]:
    """What came back from a server that answers 418, and what it was asked."""

    async def main() -> tuple[tuple[int, bytes], bytes]:
        asked = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.extend(await reader.readuntil(b"{}"))
            writer.write(b"HTTP/1.1 418 x\r\ncontent-length: 3\r\n\r\ntea")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if gone:
            server.close()
            await server.wait_closed()
        transport = Transport(connect_timeout_s=2)
        origin = Origin.parse(f"http://127.0.0.1:{port}/base/v1")
        try:
            return await JsonPost(transport, origin, b"/embeddings", api_key=key)(b"{}"), asked
        finally:
            await transport.aclose()
            server.close()

    return asyncio.run(main())


def test_status_and_body_come_back_whatever_they_are() -> None:
    answer, asked = post()
    assert answer == (418, b"tea")
    head, _, body = bytes(asked).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/embeddings HTTP/1.1\r\n")
    assert b"content-type: application/json" in head
    assert b"authorization" not in head
    assert body == b"{}"


def test_the_key_goes_along() -> None:
    assert b"authorization: Bearer sesame\r\n" in post(key="sesame")[1]


def test_faults_are_those_of_the_tree() -> None:
    with pytest.raises(Refused):
        post(gone=True)
    with pytest.raises(BadCall):
        post(key="a\nb")
