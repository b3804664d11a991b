"""The GPUs of this host by NVIDIA's driver library (package nvidia-ml-py, extra `gpu`).

The library's calls may block in the driver, so they are made in a thread. A value that a GPU does
not have is unknown; a GPU that fell off the bus is not listed.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Sequence
from typing import Any

from tierway.router.gpu_pages import SLOWING_REASONS, GpuReading

logger = logging.getLogger(__name__)


class NvmlReader:
    """`library` is the module pynvml, imported at the first reading unless given."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._started = self._failed = False

    async def read(self) -> Sequence[GpuReading] | None:
        return None if self._failed else await asyncio.to_thread(self._read)

    async def aclose(self) -> None:
        if self._started:
            self._started = False
            await asyncio.to_thread(self._library.nvmlShutdown)

    def _read(self) -> list[GpuReading] | None:
        if not self._started and not self._start():
            return None
        library = self._library
        try:
            count = library.nvmlDeviceGetCount()
        except library.NVMLError:
            return None
        found = (self._gpu(index) for index in range(count))
        return [gpu for gpu in found if gpu is not None]

    def _start(self) -> bool:
        """Where the library is missing it stays so; the driver may come up later."""
        try:
            if self._library is None:
                self._library = importlib.import_module("pynvml")
        except ImportError:
            self._failed = True
            logger.warning("telemetry: nvml needs the extra gpu: pip install 'tierway[gpu]'")
            return False
        try:
            self._library.nvmlInit()
        except self._library.NVMLError:
            return False
        self._started = True
        return True

    def _gpu(self, index: int) -> GpuReading | None:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(library.nvmlDeviceGetUUID(handle))
        except library.NVMLError:
            return None
        memory = self._first(handle, "MemoryInfo")
        use = self._first(handle, "UtilizationRates")
        milliwatts = self._first(handle, "PowerUsage")
        sensor, clock = (library.NVML_TEMPERATURE_GPU,), (library.NVML_CLOCK_SM,)
        reasons = self._first(handle, "CurrentClocksEventReasons", "CurrentClocksThrottleReasons")
        return GpuReading(
            index=str(index),
            uuid=uuid,
            model=_text(self._first(handle, "Name") or ""),
            utilisation=None if use is None else use.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
            temperature_celsius=self._first(handle, "TemperatureV", "Temperature", more=sensor),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            clock_mhz=self._first(handle, "ClockInfo", more=clock),
            slowed=bool((reasons or 0) & SLOWING_REASONS),
        )

    def _first(self, handle: Any, *names: str, more: tuple[Any, ...] = ()) -> Any:
        """What the first of these questions answers, newer names before those they replace."""
        for name in names:
            call = getattr(self._library, f"nvmlDeviceGet{name}", None)
            try:
                if call is not None:
                    return call(handle, *more)
            except self._library.NVMLError:
                continue
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
