"""Runs the gateway and its admin listener, in one process or several, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tierway.middleware.app import create_app
from tierway.middleware.asgi import Gateway
from tierway.middleware.config import ADMIN_KEY, Settings
from tierway.middleware.logs import RequestLog
from tierway.middleware.workers import Place, supervise
from tierway.policies.errors import ConfigError

# A request leaves hundreds of short-lived objects and next to no cycles: look for those rarely.
_GC_THRESHOLD = (10_000, 20, 20)
_H2C = re.compile(rb"(\r\n)upgrade(:[ \t]*h2c[ \t]*\r\n)", re.IGNORECASE)
_GRACE_S = 30  # streams in flight may take so long to end after a signal


class _MainServer(uvicorn.Server):
    """A server whose signals mean "stop": uvicorn would raise them again once it has stopped,
    and SIGTERM would end the process before the gateway is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


class _AdminServer(uvicorn.Server):
    """A server that leaves signals to the main one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 that stays so.

    Java's client and `curl --http2` offer an upgrade to HTTP/2 with every first request. The
    offer may be ignored, but the parser takes it for accepted and drops the body: so it is made
    to look like an unknown header. Inside JSON a line break cannot stand before such a text.
    """

    def data_received(self, data: bytes) -> None:
        if b"h2c" in data:
            data = _H2C.sub(rb"\1x-no-h2c\2", data, count=1)
        super().data_received(data)


def serve(
    settings: Settings | None, *, host: str, port: int, admin: tuple[str, int], workers: int = 1
) -> int:
    """Serves until SIGINT or SIGTERM; the exit code. None serves the embedded demo.

    Each of several workers is a gateway of its own, with an admin listener on the next port.
    """
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    environ = dict(os.environ)
    made_key = not environ.get(ADMIN_KEY)
    if made_key:
        environ[ADMIN_KEY] = secrets.token_urlsafe(24)
    try:
        with _listen(host, port) as front, contextlib.ExitStack() as stack:
            backs = [stack.enter_context(_listen(*_beside(admin, n))) for n in range(workers)]
            listening = _Listening(front, backs, environ[ADMIN_KEY] if made_key else "")
            if workers == 1 or settings is None:
                return _serve_one(settings, environ, listening)
            return supervise(
                lambda place: _serve_one(settings, environ, listening, place),
                workers,
                lambda: listening.announce(settings),
            )
    except OSError as error:
        print(f"tierway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


@dataclass(frozen=True, slots=True)
class _Listening:
    """The sockets, an admin one for each worker; `admin_key` is told where it was made here."""

    front: socket.socket
    backs: Sequence[socket.socket]
    admin_key: str

    def announce(self, settings: Settings) -> None:
        base = f"http://{_address(self.front)}"
        lines = [
            f"Tierway serves {base}/v1 ({', '.join(settings.models) or 'no models'}). Try:",
            "",
            f"  curl {base}/v1/chat/completions -H 'content-type: application/json' \\",
            '    -d \'{"model": "auto", "messages": [{"role": "user", '
            '"content": "What is the capital of France?"}]}\'',
            "",
        ]
        for number, back in enumerate(self.backs, 1):
            whose = f" (worker {number} of {len(self.backs)})" if len(self.backs) > 1 else ""
            lines.append(f"Admin: http://{_address(back)}/admin/state, /metrics{whose}")
        if self.admin_key:
            lines.append(f"Admin key of this run: {self.admin_key}")
        print("\n".join(lines), flush=True)


def _serve_one(
    settings: Settings | None,
    environ: Mapping[str, str],
    listening: _Listening,
    place: Place | None = None,
) -> int:
    """One gateway in this process, which is a worker where it has a place."""
    gateway = Gateway(settings, environ=environ, hooks=(RequestLog(),))
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        return loop.run(_Runner(gateway, listening, place).run())


class _Runner:
    def __init__(self, gateway: Gateway, listening: _Listening, place: Place | None) -> None:
        self._gateway, self._listening, self._place = gateway, listening, place
        self._reloads: set[asyncio.Future[None]] = set()

    async def run(self) -> int:
        try:
            await self._gateway.start()
        except (ConfigError, RuntimeError) as error:
            print(f"tierway: {error}", file=sys.stderr)
            return 2 if isinstance(error, ConfigError) else 1
        try:
            main = _MainServer(_config(create_app(gateway=self._gateway)))
            side = _AdminServer(_config(self._gateway.admin_app, lifespan="off"))
            back = self._listening.backs[self._place.number if self._place else 0]
            serving = asyncio.create_task(side.serve(sockets=[back]))
            self._reload_on_hangup()
            self._tell(main)
            gc.collect()
            gc.freeze()  # what start-up made lives to the end: no need to look at it again
            gc.set_threshold(*_GC_THRESHOLD)
            await main.serve(sockets=[self._listening.front])
            side.should_exit = True
            await serving
        finally:
            await self._gateway.aclose()
        return 0

    def _reload_on_hangup(self) -> None:
        """Without a file SIGHUP ends the process, as it ends any other with its terminal."""
        if self._gateway.parts.reload.path is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            if self._place is not None:  # started again, it knows the file as it was at first
                self._reload(quiet=True)

    def _reload(self, *, quiet: bool = False) -> None:
        task = asyncio.ensure_future(self._gateway.parts.reload.attempt(quiet=quiet))
        self._reloads.add(task)  # the loop itself holds tasks but weakly
        task.add_done_callback(self._reloads.discard)

    def _tell(self, main: uvicorn.Server) -> None:
        """Says that it serves, and has a worker end with its parent."""
        if self._place is None:
            self._listening.announce(self._gateway.parts.settings)
            return

        def orphaned() -> None:
            asyncio.get_running_loop().remove_reader(lifeline)
            main.should_exit = True

        lifeline = self._place.lifeline
        asyncio.get_running_loop().add_reader(lifeline, orphaned)
        self._place.ready()


def _config(app: Any, *, lifespan: Literal["auto", "off"] = "auto") -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        interface="asgi3",  # a bound method is not recognised as one
        lifespan=lifespan,
        proxy_headers=False,
        access_log=False,  # one line a request comes from its Trace
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        date_header=False,
    )


def _beside(address: tuple[str, int], number: int) -> tuple[str, int]:
    """The address with a port so many further on; any free one where there is none."""
    host, port = address
    return host, port + number if 0 < port <= 65535 - number else 0


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; OSError names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # from here on a client waits instead of being refused
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
