"""The driver library's answers as readings, over a module of the same functions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tierway.router.gpu_pages import GpuReading
from tierway.router.nvml import NvmlReader


class Library:
    """Two GPUs; what is in `missing` raises, as the library does for what a GPU has not."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *missing: str) -> None:
        self.missing, self.reasons = set(missing), 0
        self.started = self.stopped = 0
        self.lost: set[int] = set()

    def _say(self, name: str, value: Any) -> Any:
        if name in self.missing:
            raise self.NVMLError(name)
        return value

    def nvmlInit(self) -> None:
        self._say("init", None)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.stopped += 1

    def nvmlDeviceGetCount(self) -> int:
        return int(self._say("count", 2))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise self.NVMLError("lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA L40S"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._say("memory", SimpleNamespace(used=30 << 30, total=45 << 30))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._say("utilisation", SimpleNamespace(gpu=80, memory=40))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return int(self._say("power", 250_000))

    def nvmlDeviceGetTemperatureV(self, handle: int, sensor: int) -> int:
        return int(self._say("new temperature", 71 + handle))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return int(self._say("temperature", 70))

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return int(self._say("clock", 2500))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return int(self._say("reasons", self.reasons))


def read(library: Library) -> Sequence[GpuReading] | None:
    async def main() -> Sequence[GpuReading] | None:
        reader = NvmlReader(library)
        found = await reader.read()
        assert await reader.read() == found
        await reader.aclose()
        return found

    return asyncio.run(main())


def test_what_the_driver_tells_of_a_gpu() -> None:
    library = Library()
    found = read(library)
    assert found is not None
    assert found[1] == GpuReading(
        index="1",
        uuid="GPU-1",
        model="NVIDIA L40S",
        utilisation=0.8,
        memory_used_bytes=30 << 30,
        memory_bytes=45 << 30,
        temperature_celsius=72,
        power_watts=250.0,
        clock_mhz=2500,
    )
    assert (library.started, library.stopped) == (1, 1)


def test_what_a_gpu_does_not_have_is_not_known() -> None:
    found = read(Library("memory", "utilisation", "power", "clock", "reasons"))
    assert found is not None
    assert found[0] == GpuReading(
        index="0", uuid="GPU-0", model="NVIDIA L40S", temperature_celsius=71
    )


def test_an_older_question_is_asked_where_the_newer_has_no_answer() -> None:
    found = read(Library("new temperature"))
    assert found is not None
    assert found[0].temperature_celsius == 70
    found = read(Library("new temperature", "temperature"))
    assert found is not None
    assert found[0].temperature_celsius is None


@pytest.mark.parametrize(("reasons", "slowed"), [(0x1, False), (0x4, False), (0x60, True)])
def test_heat_slows_down_a_power_cap_does_not(reasons: int, slowed: bool) -> None:
    library = Library()
    library.reasons = reasons
    found = read(library)
    assert found is not None
    assert found[0].slowed is slowed


def test_a_gpu_that_fell_off_the_bus_is_not_listed() -> None:
    library = Library()
    library.lost = {0}
    found = read(library)
    assert found is not None
    assert [one.uuid for one in found] == ["GPU-1"]


@pytest.mark.parametrize("missing", ["init", "count"])
def test_a_driver_that_is_not_there_may_come_later(missing: str) -> None:
    async def main() -> None:
        library = Library(missing)
        reader = NvmlReader(library)
        assert await reader.read() is None
        library.missing.clear()
        assert await reader.read() is not None
        await reader.aclose()
        assert library.stopped == library.started

    asyncio.run(main())


def test_without_the_package_it_is_said_once_which_extra_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    async def main() -> None:
        reader = NvmlReader()
        assert await reader.read() is None
        assert await reader.read() is None
        await reader.aclose()

    asyncio.run(main())
    (told,) = [record.message for record in caplog.records]
    assert "tierway[gpu]" in told
