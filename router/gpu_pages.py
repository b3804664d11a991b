"""Reads the GPUs out of a page of dcgm-exporter or of AMD's device-metrics-exporter.

Names are those of dcgm-exporter 4 (its default-counters.csv; labels gpu, UUID, modelName, pod, and
Hostname, since 2026 hostname) and of AMD's exporter (with and without its prefix `amd_`). Of clock
events only those count that make a GPU slower than it should be: heat and hardware slowdown, but
not a power cap, which a GPU at full load always meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tierway.router.exposition import samples

# Bits of nvmlClocksEventReasons: hardware slowdown, software and hardware heat, power brake.
SLOWING_REASONS = 0x08 | 0x20 | 0x40 | 0x80

_MIB = 1 << 20
_MOST_MIB = 1 << 24
_SLOWING_EVENTS = ("hw_thermal", "sw_thermal", "hw_slowdown", "hw_power_brake")
_SLOW_SHARE = 5.0  # per cent of the time; less is a spike

_Key = tuple[str, str, str]
"""Host, UUID (else index), and the instance of a GPU that is cut up (MIG)."""


@dataclass(slots=True)
class GpuReading:
    """One GPU, as one page shows it. `slowed` tells of this moment; `slow_ns` (time slowed down
    since the start of the driver) and `slow_events` (in some window) tell by their growth."""

    index: str = ""
    uuid: str = ""
    instance: str = ""
    model: str = ""
    host: str = ""
    pods: frozenset[str] = frozenset()
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    clock_mhz: float | None = None
    slowed: bool = False
    slow_ns: float | None = None
    slow_events: float | None = None

    @property
    def key(self) -> _Key:
        return self.host, self.uuid or self.index, self.instance


class _Page:
    """The readings of a page while they are collected."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.gpus: dict[_Key, GpuReading] = {}

    def values(
        self,
        names: Iterable[str],
        low: float,
        high: float,
        keep: tuple[str, tuple[str, ...]] | None = None,
    ) -> dict[_Key, float]:
        """By GPU, the first family of these that the page has; the largest of several samples of
        one GPU. Values out of range are the exporters' signs for no value."""
        for name in names:
            found: dict[_Key, float] = {}
            for labels, value in samples(self.text, name):
                if keep is not None and labels.get(keep[0], "") not in keep[1]:
                    continue
                key = self._gpu(labels).key
                if value is not None and low <= value <= high:
                    found[key] = max(value, found.get(key, low))
            if found:
                return found
        return {}

    def _gpu(self, labels: Mapping[str, str]) -> GpuReading:
        def label(*names: str) -> str:
            return next((labels[name] for name in names if labels.get(name)), "")

        made = GpuReading(
            index=label("gpu", "gpu_id"),
            uuid=label("UUID", "uuid", "gpu_uuid"),
            instance=label("GPU_I_ID"),
            model=label("modelName", "card_model"),
            host=label("Hostname", "hostname"),
        )
        gpu = self.gpus.setdefault(made.key, made)
        if pod := label("pod", "exported_pod"):
            gpu.pods |= {pod}
        return gpu


def read_gpus(text: str) -> list[GpuReading]:
    """All GPUs of a page, by host, UUID or index, and instance."""
    page = _Page(text)
    if "\nDCGM_" in text or text.startswith("DCGM_"):
        _read_dcgm(page)
    else:
        _read_amd(page, "amd_gpu_" if "amd_gpu_" in text else "gpu_")
    return [page.gpus[key] for key in sorted(page.gpus)]


def _read_dcgm(page: _Page) -> None:
    name = "DCGM_FI_DEV_"
    temperature = page.values([name + "GPU_TEMP"], -50, 200)
    percent = page.values([name + "GPU_UTIL"], 0, 100)
    active = page.values(["DCGM_FI_PROF_GR_ENGINE_ACTIVE"], 0, 1)  # MIG has no GPU_UTIL
    used, free, reserved, total = (
        page.values([name + part], 0, _MOST_MIB)
        for part in ("FB_USED", "FB_FREE", "FB_RESERVED", "FB_TOTAL")
    )
    power = page.values([name + "POWER_USAGE"], 0, 1e5)
    clock = page.values([name + "SM_CLOCK"], 0, 1e5)
    reasons = page.values(
        [name + "CLOCKS_EVENT_REASONS", name + "CLOCK_THROTTLE_REASONS"], 0, 1 << 32
    )
    slow_ns = page.values([name + "THERMAL_VIOLATION"], 0, 1e18)
    kept = ("clock_event", _SLOWING_EVENTS)
    events = page.values(["DCGM_EXP_CLOCK_EVENTS_COUNT"], 0, 1e9, kept)
    for key, gpu in page.gpus.items():
        gpu.temperature_celsius = temperature.get(key)
        gpu.utilisation = percent[key] / 100 if key in percent else active.get(key)
        gpu.memory_used_bytes = _bytes(used.get(key))
        whole = total.get(key)
        if whole is None and key in used and key in free:
            whole = used[key] + free[key] + reserved.get(key, 0.0)
        gpu.memory_bytes = _bytes(whole)
        gpu.power_watts, gpu.clock_mhz = power.get(key), clock.get(key)
        gpu.slowed = bool(int(reasons.get(key, 0)) & SLOWING_REASONS)
        gpu.slow_ns, gpu.slow_events = slow_ns.get(key), events.get(key)


def _read_amd(page: _Page, prefix: str) -> None:
    def values(high: float, *parts: str) -> dict[_Key, float]:
        return page.values([prefix + part for part in parts], 0, high)

    temperature = values(200, "junction_temperature", "edge_temperature")
    percent = values(100, "gfx_activity")
    used, total = values(_MOST_MIB, "used_vram"), values(_MOST_MIB, "total_vram")
    power = values(1e5, "package_power", "average_package_power")
    slow = [
        values(100, f"violation_{part}_residency_percentage")
        for part in ("socket_thermal", "hbm_thermal", "vr_thermal", "processor_hot")
    ]
    for key, gpu in page.gpus.items():
        gpu.temperature_celsius = temperature.get(key)
        gpu.utilisation = percent[key] / 100 if key in percent else None
        gpu.memory_used_bytes, gpu.memory_bytes = _bytes(used.get(key)), _bytes(total.get(key))
        gpu.power_watts = power.get(key)
        gpu.slowed = any(part.get(key, 0.0) >= _SLOW_SHARE for part in slow)


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * _MIB)
