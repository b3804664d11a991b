"""Finds, starts and talks to the encoder process of this host (see encoder_process.py).

Several processes that start together spawn one encoder: whoever gets the file lock looks for a
living one first. A lost connection fails what was under way, and every call until the next one
stands, at once; reconnecting, and a new encoder where the old one is gone, happen behind them
with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import logging
import os
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from tierway.cache.encoder_process import single_threaded
from tierway.cache.encoder_wire import (
    FAULT,
    HELLO,
    lock_path,
    read_frame,
    read_reply,
    request_frame,
    withdrawal_frame,
)
from tierway.policies.errors import CacheError

log = logging.getLogger(__name__)

START_S = 60.0
POLL_S = 0.05
STALL_S = 30.0
"""A reply that takes longer means a stuck encoder; callers have their own, shorter deadline."""
STEADY_S = 10.0
"""A connection that lived this long was a good one: the next pause starts small again."""
PAUSE_S, PAUSE_MAX_S = 0.25, 10.0
PENDING = 1024
SOCKET_PATH_BYTES = 100  # Linux allows 107, macOS 103.


class Child:
    """A spawned process that a daemon thread reaps, so that it never stays as a zombie.

    (A Popen object would complain when it is collected before the process ends, and this
    process is meant to live on for others.)
    """

    def __init__(self, argv: list[str], environment: dict[str, str], errors: Path) -> None:
        write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.errors = errors
        self.exited = threading.Event()
        self.pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(errors), write, 0o600),
            ],
        )
        threading.Thread(target=self._reap, name="encoder-reaper", daemon=True).start()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.exited.set()

    def kill(self) -> None:
        if not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)

    def complaint(self) -> str:
        """The last line that the process wrote to its standard error."""
        with contextlib.suppress(OSError):
            lines = self.errors.read_text(errors="replace").split("\n")
            return next((line for line in reversed(lines) if line.strip()), "")
        return ""


Launch = Callable[[Path], Child]
"""Starts an encoder that will listen on the given socket."""


def launch_encoder(path: Path, models: str = "use") -> Child:
    """`models` as the encoder process knows them."""
    # The child must find the packages where this process found them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    single_threaded(environment)
    argv = [sys.executable, "-m", "tierway.cache.encoder_process", "--socket", str(path)]
    return Child([*argv, "--models", models], environment, path.with_suffix(".log"))


def launch_pair(path: Path) -> Child:
    return launch_encoder(path, models="pair")


def private_folder() -> Path:
    """A folder that only this user can enter: below XDG_RUNTIME_DIR, else the temporary one.

    Raises CacheError when it belongs to somebody else or is open to others: whoever can put a
    socket there could answer for the encoder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        folder = Path(runtime) / "tierway"
    else:
        folder = Path(tempfile.gettempdir()) / f"tierway-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as fault:
        raise CacheError(f"cannot make the encoder's folder {folder}: {fault}") from fault
    check_private(folder)
    return folder


def check_private(folder: Path) -> None:
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise CacheError(f"{folder} is not a folder of this user")
    if facts.st_mode & 0o077:
        raise CacheError(f"{folder} is open to other users; it must have mode 0700")


class EncoderClient:
    """One connection to the encoder of this host; `encode` returns raw float32 rows."""

    def __init__(
        self,
        path: Path,
        *,
        id: str,
        launch: Launch = launch_encoder,
        start_s: float = START_S,
    ) -> None:
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise CacheError(f"the socket path {path} is longer than {SOCKET_PATH_BYTES} bytes")
        self._path, self._id, self._launch, self._start_s = path, id, launch, start_s
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._ids = itertools.count(1)
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once an encoder answers; raises CacheError within `start_s`."""
        if self._keeper is None:
            reader = await self._open()
            self._keeper = asyncio.create_task(self._keep(reader), name="encoder-client")

    async def encode(self, texts: Sequence[str]) -> bytes:
        """Whoever is cancelled withdraws its texts; a late reply finds nobody and is dropped."""
        if self._writer is None:
            raise CacheError("the encoder is not connected")
        if len(self._pending) >= PENDING:
            raise CacheError(f"more than {PENDING} requests wait for the encoder")
        request_id = next(self._ids)
        try:
            frame = request_frame(request_id, texts)
        except UnicodeEncodeError as fault:
            raise CacheError("the text is not valid Unicode") from fault
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = reply
        try:
            self._writer.write(frame)
            async with asyncio.timeout(STALL_S):
                return await reply
        except TimeoutError as fault:
            raise CacheError(f"the encoder did not answer within {STALL_S:g} s") from fault
        finally:
            del self._pending[request_id]
            if not reply.done() or reply.cancelled():
                self._withdraw(request_id)

    def _withdraw(self, request_id: int) -> None:
        if self._writer is not None:
            self._writer.write(withdrawal_frame(request_id))

    async def aclose(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        self._drop("the encoder client is closed")

    async def _keep(self, reader: asyncio.StreamReader | None) -> None:
        """Reads replies; once the connection is lost, makes the next one."""
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            if reader is not None:
                since = clock()
                await self._read(reader)
                failures = 0 if clock() - since >= STEADY_S else failures + 1
            if failures > 1:
                await asyncio.sleep(min(PAUSE_S * 2 ** (failures - 2), PAUSE_MAX_S))
            try:
                reader = await self._open()
            except CacheError as fault:
                log.warning("encoder: %s", fault)
                reader, failures = None, failures + 1

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                self._take(await read_frame(reader))
        except (asyncio.IncompleteReadError, OSError, ValueError, struct.error):
            self._drop("the encoder went away")

    def _take(self, frame: bytes) -> None:
        request_id, kind, payload = read_reply(frame)
        reply = self._pending.get(request_id)
        if reply is None or reply.done():
            return
        if kind == FAULT:
            reply.set_exception(CacheError(f"the encoder failed: {payload.decode()}"))
        else:
            reply.set_result(payload)

    def _drop(self, why: str) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(CacheError(why))

    async def _open(self) -> asyncio.StreamReader:
        try:
            async with asyncio.timeout(self._start_s):
                return await self._connect() or await self._connect_or_launch()
        except TimeoutError as fault:
            raise CacheError(f"no encoder answered within {self._start_s:g} s") from fault

    async def _connect(self) -> asyncio.StreamReader | None:
        """None where nothing listens; raises CacheError when another encoder does."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            return None
        try:
            hello = await read_frame(reader)
            _, kind, payload = read_reply(hello)
            if kind != HELLO:
                raise CacheError(f"{self._path} does not speak the encoder's protocol")
            found = json.loads(payload)["id"]
            if found != self._id:
                raise CacheError(f"{self._path} serves {found}, not {self._id}")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()
            return None
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        return reader

    async def _connect_or_launch(self) -> asyncio.StreamReader:
        async with _locked(lock_path(self._path)):
            if reader := await self._connect():
                return reader
            child = self._launch(self._path)
            try:
                while not child.exited.is_set():
                    if reader := await self._connect():
                        return reader
                    await asyncio.sleep(POLL_S)
            except BaseException:
                child.kill()
                raise
            raise CacheError(f"the encoder ended at once: {child.complaint() or 'no message'}")


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise CacheError(f"cannot open the encoder's lock {path}: {fault}") from fault
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                await asyncio.sleep(POLL_S)
        yield
    finally:
        os.close(lock)
