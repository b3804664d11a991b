"""The other end of the maintenance webhook: restarts the machine that is named, and counts."""

from __future__ import annotations

import asyncio
import logging

import orjson

from tierway.bench.engine_http import Connections, HttpProtocol, HttpRequest, Reply
from tierway.bench.soak_fleet import Machine, SoakFleet

logger = logging.getLogger(__name__)


class Mender:
    """`needless` counts the calls for machines that were well."""

    def __init__(self, fleet: SoakFleet) -> None:
        self._fleet = fleet
        self._server: asyncio.Server | None = None
        self._restarts: set[asyncio.Task[None]] = set()
        self.needless = 0
        self.unknown = 0

    async def start(self) -> str:
        """Listens; the address for the webhook."""
        connections = Connections()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpProtocol(self._handle, connections), "127.0.0.1", 0
        )
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mend"

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._restarts, return_exceptions=True)

    async def _handle(self, request: HttpRequest, reply: Reply) -> None:
        machine = self._fleet.at(orjson.loads(request.body)["url"])
        if machine is None:
            self.unknown += 1
            reply.send(404, b"{}")
            return
        self._count(machine)
        task = asyncio.get_running_loop().create_task(machine.restart())
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)
        reply.send(202, b"{}")

    def _count(self, machine: Machine) -> None:
        if machine.fragments:
            machine.mended += 1
        else:
            self.needless += 1
            logger.warning("%s was to be mended and is not ill", machine.name)
