"""The encoder's own process: `python -m tierway.cache.encoder_process --socket PATH --models M`.

Encoding costs ten times as much CPU as everything else on the road of a request, so one child
per host does it for every worker and keeps the models in memory once. USE alone is loaded before
it listens, two models each when a text first wants it. It leaves a few seconds after its last
client: it never outlives the gateways and needs no supervisor. The wire is in encoder_wire.py,
who shares a model call with whom in batching.py.
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
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path

from tierway.cache.encoder_wire import (
    FAULT,
    HELLO,
    ROWS,
    lock_path,
    read_frame,
    read_request,
    reply_frame,
)
from tierway.policies.errors import CacheError

LINGER_S = 3.0
FIRST_CLIENT_S = 60.0

# One thread: four cost 90 times the CPU for short texts (busy waiting between small products).
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Encode = Callable[[list[str]], Awaitable[Sequence[bytes]]]
"""Texts -> the bytes of one float32 [dim] each; raises CacheError."""


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
        self._done = asyncio.Event()
        self._clients = 0
        self._exit_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Returns once the last client left and the socket is gone."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._path)
        os.chmod(self._path, 0o600)
        self._leave_after(self._first_client_s)
        try:
            await self._done.wait()
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        self._stay()
        writer.write(reply_frame(0, HELLO, self._hello))
        answering: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                self._accept(await read_frame(reader), writer, answering)
        except (asyncio.IncompleteReadError, OSError, ValueError, struct.error):
            pass  # The client left, or speaks another protocol: either way it is over.
        finally:
            for task in answering.values():
                task.cancel()
            writer.close()
            self._clients -= 1
            if not self._clients:
                self._leave_after(self._linger_s)

    def _accept(
        self, frame: bytes, writer: asyncio.StreamWriter, answering: dict[int, asyncio.Task[None]]
    ) -> None:
        request_id, texts = read_request(frame)
        if not texts:
            if withdrawn := answering.get(request_id):
                withdrawn.cancel()
            return
        task = asyncio.create_task(self._answer(request_id, texts, writer))
        answering[request_id] = task
        task.add_done_callback(lambda _: answering.pop(request_id, None))

    async def _answer(
        self, request_id: int, texts: list[str], writer: asyncio.StreamWriter
    ) -> None:
        try:
            reply = reply_frame(request_id, ROWS, b"".join(await self._encode(texts)))
        except CacheError as fault:
            reply = reply_frame(request_id, FAULT, fault.public.encode(errors="replace"))
        if not writer.is_closing():
            writer.write(reply)

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


def single_threaded(environment: MutableMapping[str, str]) -> None:
    """Must run before numpy is imported."""
    environment.update(dict.fromkeys(THREAD_VARIABLES, "1"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tierway.cache.encoder_process")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--models", choices=("use", "pair"), default="use")
    parser.add_argument("--linger-s", type=float, default=LINGER_S)
    options = parser.parse_args(argv)
    # A session of its own: Ctrl-C in the terminal ends the gateways, and they end the encoder.
    with contextlib.suppress(OSError):
        os.setsid()
    single_threaded(os.environ)
    from tierway.cache import encoder_models  # brings numpy

    async def serve() -> None:
        models, server_id = encoder_models.made(options.models)
        server = EncoderServer(
            options.socket,
            models.encode,
            id=server_id,
            dim=encoder_models.DIM,
            linger_s=options.linger_s,
        )
        await models.load()
        await server.run()

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
