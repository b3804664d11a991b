"""Several simulated engines in one child process, for the demo and for tests.

`python -m tierway.bench.fleet --engines '[{"profile": "8b-a10", "seed": 1}]'` prints one line,
`{"urls": [...]}`, once all of them listen. It ends when its standard input is closed, so it
never outlives the process that holds the other end. `spawn_fleet` is that process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from tierway.bench.engine_server import EngineServer
from tierway.bench.profiles import profile

_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. `blocks` and `max_model_len` override the profile's where set; `node`, `pod` and
    `namespace` are the place that its GPUs name."""

    profile: str
    model: str | None = None
    seed: int = 0
    speed: float = 1.0
    host: str = "127.0.0.1"
    port: int = 0
    blocks: int | None = None
    max_model_len: int | None = None
    node: str = "sim"
    pod: str = ""
    namespace: str = ""

    def build(self) -> EngineServer:
        """ValueError for an unknown profile or a speed that is not above 0."""
        made = profile(self.profile)
        if self.blocks is not None:
            made = dataclasses.replace(made, blocks=self.blocks)
        if self.max_model_len is not None:
            made = dataclasses.replace(made, max_model_len=self.max_model_len)
        return EngineServer(
            made,
            model=self.model,
            seed=self.seed,
            speed=self.speed,
            node=self.node,
            pod=self.pod,
            namespace=self.namespace,
        )


class Fleet:
    """Engines on one event loop; `urls` in the order of the specs."""

    def __init__(self, specs: Sequence[EngineSpec]) -> None:
        self._specs = tuple(specs)
        self.servers = [spec.build() for spec in specs]
        self.urls: list[str] = []

    async def start(self) -> list[str]:
        try:
            for spec, server in zip(self._specs, self.servers, strict=True):
                port = await server.start(spec.host, spec.port)
                self.urls.append(f"http://{spec.host}:{port}")
        except BaseException:
            await self.aclose()
            raise
        return self.urls

    async def aclose(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self.servers))


@contextlib.asynccontextmanager
async def spawn_fleet(specs: Sequence[EngineSpec]) -> AsyncIterator[list[str]]:
    """Runs the engines in a child process and yields their base URLs; ends it afterwards.

    ValueError for a bad spec, RuntimeError when the child does not come up; what it wrote
    goes to standard error.
    """
    for spec in specs:
        spec.build()
    wanted = orjson.dumps([dataclasses.asdict(spec) for spec in specs]).decode()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tierway.bench.fleet", "--engines", wanted),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # The child must find the packages where this process found them.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield await _read_urls(child)
    finally:
        await asyncio.shield(_stop(child))


async def _read_urls(child: asyncio.subprocess.Process) -> list[str]:
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), _READY_TIMEOUT_S)
    except TimeoutError:
        line = b""
    if not line:
        raise RuntimeError("the simulated engines did not come up; see standard error")
    urls: list[str] = orjson.loads(line)["urls"]
    return urls


async def _stop(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    try:
        await asyncio.wait_for(child.wait(), _STOP_TIMEOUT_S)
    except TimeoutError:
        child.kill()
        await child.wait()
    await child.stdout.read()


async def _serve(specs: Sequence[EngineSpec]) -> None:
    fleet = Fleet(specs)
    urls = await fleet.start()
    try:
        print(orjson.dumps({"urls": urls}).decode(), flush=True)
        await _stdin_closed()
    finally:
        await fleet.aclose()


async def _stdin_closed() -> None:
    """Waits in a thread: standard input may be a pipe, a file or a terminal."""
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        # os.read and not sys.stdin: a buffered reader would hold its lock at shutdown.
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
    await closed.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 once standard input is closed, 2 for specs that are wrong."""
    parser = argparse.ArgumentParser(prog="tierway.bench.fleet", description=__doc__)
    parser.add_argument("--engines", required=True, help="a JSON list of engine specs")
    wanted = parser.parse_args(argv).engines
    try:
        specs = [EngineSpec(**spec) for spec in orjson.loads(wanted)]
        for spec in specs:
            spec.build()
    except (TypeError, ValueError) as error:
        print(f"--engines: {error}", file=sys.stderr)
        return 2
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(_serve(specs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
