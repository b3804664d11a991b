"""A real `tierway serve` before a fast fake upstream, each a process, for benchmarks.

The gateway is started as anybody starts it: the command with a configuration file, on free
ports. Benchmarks never import the HTTP edge.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_READY_S = 120.0  # the encoder of the cache takes seconds to load
_STOP_S = 40.0
_LOOKUPS = re.compile(r'^tierway_cache_lookups_total\{[^}]*result="([a-z-]+)"[^}]*\} (\S+)', re.M)
_CONFIG = """\
cache: {{mode: "{mode}", store: {{kind: memory}}}}
models:
  fake:
    tier: small
    served_name: fake
    context_tokens: 32768
    replicas: [{{url: "{upstream}"}}]
tiers: {{small: {{class: 7b}}}}
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway; `url` and `admin_url` end without a slash."""

    pid: int
    url: str
    admin_url: str
    admin_key: str

    def lookups(self) -> dict[str, float]:
        """Cache lookups so far, by their result."""
        page = self.admin("GET", "/metrics").decode()
        return {name: float(value) for name, value in _LOOKUPS.findall(page)}

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The body of an admin call's answer; urllib's HTTPError for one that was refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.admin_url + path, data, method=method)
        request.add_header("authorization", f"Bearer {self.admin_key}")
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            told: bytes = answer.read()
            return told


def environment(**more: str) -> dict[str, str]:
    """Of a child that is to find the same packages as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


@contextmanager
def _child(
    command: Sequence[str], stderr: Any = None, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """A program of ours, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *command],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str], pattern: str) -> str:
    """The first group of the first line of output that matches."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise RuntimeError(f"{process.args!r} ended before it was ready")


@contextmanager
def fake_upstream(tokens: int, tick_ms: int) -> Iterator[str]:
    """The upstream of the relay benchmark; gives its address without `/v1`."""
    command = ["tierway.bench.relay", "--serve-upstream", "0"]
    pace = ["--tokens", str(tokens), "--tick-ms", str(tick_ms)]
    with _child([*command, *pace]) as process:
        yield _line(process, r"(http://\S+)/v1")


def running_gateway(mode: str, upstream: str) -> AbstractContextManager[Gateway]:
    """`tierway serve` with the cache in this mode."""
    return configured_gateway(_CONFIG.format(mode=mode, upstream=upstream))


@contextmanager
def configured_gateway(config: str) -> Iterator[Gateway]:
    """`tierway serve` with this text as its configuration file."""
    key = secrets.token_urlsafe(12)
    with tempfile.TemporaryDirectory(prefix="tierway-road-") as folder:
        file, log = Path(folder, "tierway.yaml"), Path(folder, "log")
        file.write_text(config, "utf-8")
        command = ["tierway.middleware.cli", "serve", "--config", str(file)]
        ports = ["--port", "0", "--admin-port", "0"]
        with (
            log.open("w") as stderr,
            _child([*command, *ports], stderr, TIERWAY_ADMIN_KEY=key) as process,
        ):
            try:
                url = _line(process, r"serves (http://\S+)/v1")
                admin_url = _line(process, r"Admin: (http://[^/\s]+)")
            except RuntimeError as error:
                raise RuntimeError(f"{error}:\n{log.read_text()}") from error
            gateway = Gateway(process.pid, url, admin_url, key)
            _wait_until_ready(gateway)
            yield gateway


def _wait_until_ready(gateway: Gateway) -> None:
    end = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{gateway.url}/readyz", timeout=10):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
