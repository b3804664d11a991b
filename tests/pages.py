"""Servers of metrics pages, and the pages of GPU exporters, written from their documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tierway.router.transport import Transport

Pages = dict[bytes, tuple[int, bytes]]
DROPPED = (0, b"")


@asynccontextmanager
async def engine(pages: Pages, *, silent: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server of these pages by path: its URL and the paths that were asked for."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                asked.append(path)
                if silent:
                    await reader.read()
                    return
                status, body = pages.get(path, (404, b"no such page"))
                if (status, body) == DROPPED:
                    return
                writer.write(
                    b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


def run(test: Callable[[Transport], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        transport = Transport(connect_timeout_s=2)
        try:
            await asyncio.wait_for(test(transport), 10)
        finally:
            await transport.aclose()

    asyncio.run(main())


UUIDS = tuple(f"GPU-0000000{index}-aaaa" for index in range(8))


def dcgm(name: str, value: object, gpu: int = 0, host: str = "n1", **more: str) -> str:
    """One sample as dcgm-exporter writes it."""
    labels = {
        "gpu": str(gpu),
        "UUID": UUIDS[gpu],
        "pci_bus_id": f"00000000:0{gpu}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": host,
        "container": "",
        "namespace": "",
        "pod": "",
        **more,
    }
    told = ",".join(f'{label}="{text}"' for label, text in labels.items() if text is not None)
    return f"{name}{{{told}}} {value}\n"


def gpu_page(gpus: int = 1, *, host: str = "n1", **fields: Any) -> str:
    """A page of so many GPUs; `fields` are lists by GPU in place of the usual values, or labels
    of all."""
    values: dict[str, Any] = {
        "temp": [60.0 + gpu for gpu in range(gpus)],
        "util": [90] * gpus,
        "used": [70_000 + 1000 * gpu for gpu in range(gpus)],
        **{name: value for name, value in fields.items() if isinstance(value, list)},
    }
    labels = {name: value for name, value in fields.items() if isinstance(value, str)}
    families = {
        "DCGM_FI_DEV_SM_CLOCK": [1980] * gpus,
        "DCGM_FI_DEV_GPU_TEMP": values["temp"],
        "DCGM_FI_DEV_POWER_USAGE": [612.5] * gpus,
        "DCGM_FI_DEV_GPU_UTIL": values["util"],
        "DCGM_FI_DEV_FB_FREE": [81_000 - used for used in values["used"]],
        "DCGM_FI_DEV_FB_USED": values["used"],
        "DCGM_FI_DEV_FB_RESERVED": [559] * gpus,
        **{name: value for name, value in values.items() if name.startswith("DCGM")},
    }
    lines = []
    for name, found in families.items():
        lines += [f"# HELP {name} About it (in its unit).\n", f"# TYPE {name} gauge\n"]
        lines += [
            dcgm(name, value, gpu, host, **labels)
            for gpu, value in enumerate(found)
            if value is not None
        ]
    return "".join(lines)
