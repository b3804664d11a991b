"""What the encoder process and its clients say to each other, over a unix stream socket.

Little-endian:
    request   u32 size of the rest, u64 id, then each text as u32 size and UTF-8; without a text
              it withdraws the request of that id, which then gets no reply
    reply     u32 size of the rest, u64 id, u8 kind, payload
              kind ROWS: float32 [n, dim]; kind FAULT: UTF-8 message;
              kind HELLO (first frame, id 0): JSON {"id", "dim"}
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

FRAME_BYTES = 16 * 1024 * 1024

HELLO, ROWS, FAULT = 0, 1, 2
SIZE = struct.Struct("<I")
REQUEST = struct.Struct("<IQ")
REPLY = struct.Struct("<IQB")


def request_frame(request_id: int, texts: Sequence[str]) -> bytes:
    """Raises UnicodeEncodeError for lone surrogates."""
    encoded = [text.encode() for text in texts]
    body = b"".join(SIZE.pack(len(text)) + text for text in encoded)
    return REQUEST.pack(REQUEST.size - SIZE.size + len(body), request_id) + body


def withdrawal_frame(request_id: int) -> bytes:
    return request_frame(request_id, ())


def read_request(frame: bytes) -> tuple[int, list[str]]:
    """Id and texts of a frame without its size. Raises ValueError or struct.error for junk."""
    (request_id,) = struct.unpack_from("<Q", frame)
    return request_id, list(_texts(frame[8:]))


def reply_frame(request_id: int, kind: int, payload: bytes) -> bytes:
    return REPLY.pack(REPLY.size - SIZE.size + len(payload), request_id, kind) + payload


def read_reply(frame: bytes) -> tuple[int, int, bytes]:
    """Id, kind and payload of a frame without its size. Raises struct.error for junk."""
    request_id, kind = struct.unpack_from("<QB", frame)
    return request_id, kind, frame[9:]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame without its size. Raises IncompleteReadError at the end, ValueError when the
    size is beyond FRAME_BYTES."""
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    if size > FRAME_BYTES:
        raise ValueError(f"frame of {size} bytes, at most {FRAME_BYTES}")
    return await reader.readexactly(size)


def lock_path(socket_path: Path) -> Path:
    """The file that is locked by whoever starts or ends an encoder."""
    return socket_path.with_suffix(".lock")


def _texts(body: bytes) -> Iterator[str]:
    at = 0
    while at < len(body):
        (size,) = SIZE.unpack_from(body, at)
        at += SIZE.size + size
        yield body[at - size : at].decode()
