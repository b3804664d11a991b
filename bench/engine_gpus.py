"""The GPUs under a simulated engine, as dcgm-exporter shows them.

All GPUs of an engine are alike: they compute one step together. Values are means since the page
was made before (at least `_WINDOW_S` ago). A GPU is busy while a step runs; its memory is taken at
the start, as vLLM does, and tells nothing; DRAM_ACTIVE and PIPE_TENSOR_ACTIVE are what the steps
read and multiply against the data sheet. Power goes with both, and the temperature follows the
power as a first-order lag. A throttle slows the clock, and the GPU shows as hot from then on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tierway.bench.engine import Engine
from tierway.bench.engine_text import digest
from tierway.bench.profiles import MEMORY_SHARE
from tierway.policies.protocols import Clock

_WINDOW_S = 0.2
_LAG_S = 20.0
_COOL_CELSIUS, _RISE_CELSIUS, _THROTTLED_CELSIUS = 30.0, 50.0, 92.0
_IDLE_POWER, _IDLE_CLOCK_MHZ = 0.15, 345
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Card:
    """What the driver calls a GPU; its highest SM clock and its power limit (data sheets)."""

    name: str
    clock_mhz: int
    watts: float


_CARDS = {
    "a10": _Card("NVIDIA A10", 1695, 150),
    "a40": _Card("NVIDIA A40", 1740, 300),
    "l40s": _Card("NVIDIA L40S", 2520, 350),
    "a100": _Card("NVIDIA A100-SXM4-80GB", 1410, 400),
    "h100": _Card("NVIDIA H100 80GB HBM3", 1980, 700),
    "h200": _Card("NVIDIA H200", 1980, 700),
}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the engine had done at some moment."""

    at_s: float
    busy_s: float
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Activity:
    """Shares of the time in [0, 1]: a step running, memory and tensor cores at work."""

    busy: float = 0.0
    memory: float = 0.0
    tensor: float = 0.0

    @property
    def power(self) -> float:
        """Share of the power limit."""
        load = 0.4 * self.busy + 0.3 * self.memory + 0.3 * self.tensor
        return _IDLE_POWER + (1.0 - _IDLE_POWER) * min(1.0, 1.6 * load)


@dataclass(slots=True)
class SimulatedGpus:
    """`speed` is the engine's: heat comes as much sooner. `throttle` is the share of its clock
    that a GPU keeps, `temperature_celsius` overrides what the model says."""

    engine: Engine
    clock: Clock
    speed: float = 1.0
    host: str = "sim"
    pod: str = ""
    namespace: str = ""
    throttle: float = 1.0
    temperature_celsius: float | None = None
    _activity: _Activity = _Activity()
    _celsius: float = _COOL_CELSIUS
    _slow_ns: float = 0.0
    _last: _Seen = field(init=False)

    def __post_init__(self) -> None:
        self._last = self._look()

    def set(self, throttle: float, temperature_celsius: float | None) -> None:
        """From now on; what went before keeps its clock."""
        self._update(0.0)
        self.throttle, self.temperature_celsius = throttle, temperature_celsius

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4; one sample per GPU and field."""
        self._update(_WINDOW_S)
        lines = []
        for name, (kind, text, value) in self._fields().items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels}}} {value:.10g}" for labels in self._labels()]
        return ("\n".join(lines) + "\n").encode()

    def _fields(self) -> dict[str, tuple[str, str, float]]:
        gpu, card, activity = self.engine.profile.gpu, self._card(), self._activity
        used = gpu.memory_bytes * MEMORY_SHARE
        clock = card.clock_mhz if activity.busy or self.throttle < 1.0 else _IDLE_CLOCK_MHZ
        celsius = self._celsius if self.temperature_celsius is None else self.temperature_celsius
        gauges = {
            "DEV_SM_CLOCK": ("SM clock frequency (in MHz).", round(clock * self.throttle)),
            "DEV_GPU_TEMP": ("GPU temperature (in C).", round(celsius)),
            "DEV_POWER_USAGE": ("Power draw (in W).", self._watts()),
            "DEV_GPU_UTIL": ("GPU utilization (in %).", round(100 * activity.busy)),
            "DEV_MEM_COPY_UTIL": ("Memory utilization (in %).", round(100 * activity.memory)),
            "DEV_FB_FREE": (
                "Framebuffer memory free (in MiB).",
                (gpu.memory_bytes - used) // _MIB,
            ),
            "DEV_FB_USED": ("Framebuffer memory used (in MiB).", used // _MIB),
            "PROF_PIPE_TENSOR_ACTIVE": (
                "Ratio of cycles the tensor (HMMA) pipe is active.",
                round(activity.tensor, 6),
            ),
            "PROF_DRAM_ACTIVE": (
                "Ratio of cycles the device memory interface is active sending or receiving data.",
                round(activity.memory, 6),
            ),
        }
        found = {f"DCGM_FI_{name}": ("gauge", *told) for name, told in gauges.items()}
        text = "Throttling duration due to thermal constraints (in ns)."
        found["DCGM_FI_DEV_THERMAL_VIOLATION"] = ("counter", text, self._slow_ns)
        return found

    def _labels(self) -> list[str]:
        unique = digest("gpu", self.engine.profile.name, self.host, self.pod)
        pod = f',namespace="{self.namespace}",pod="{self.pod}"' if self.pod else ""
        return [
            f'gpu="{index}",UUID="GPU-{unique:016x}-{index}",device="nvidia{index}",'
            f'modelName="{self._card().name}",Hostname="{self.host}"{pod}'
            for index in range(self.engine.profile.gpus)
        ]

    def _card(self) -> _Card:
        return _CARDS[self.engine.profile.gpu.name]

    def _watts(self) -> float:
        return round(self._activity.power * self.throttle * self._card().watts, 1)

    def _update(self, window_s: float) -> None:
        seen = self._look()
        elapsed_s = seen.at_s - self._last.at_s
        if elapsed_s <= 0.0 or elapsed_s < window_s:
            return
        self._activity = self._between(self._last, seen)
        target = _COOL_CELSIUS + _RISE_CELSIUS * self._activity.power
        if self.throttle < 1.0:
            target = _THROTTLED_CELSIUS
            self._slow_ns += elapsed_s * 1e9
        left = math.exp(-elapsed_s * self.speed / _LAG_S)
        self._celsius = target + (self._celsius - target) * left
        self._last = seen

    def _look(self) -> _Seen:
        now_s, totals = self.clock(), self.engine.totals
        # A step is booked when it begins; what is left of it has not been worked yet.
        ahead_s = max(0.0, (self.engine.due_s or now_s) - now_s)
        tokens = totals.computed_prompt_tokens + totals.generation_tokens
        return _Seen(now_s, totals.busy_s - ahead_s, totals.steps, tokens)

    def _between(self, before: _Seen, after: _Seen) -> _Activity:
        profile, elapsed_s = self.engine.profile, after.at_s - before.at_s
        times, reached = profile.times(), profile.efficiency
        held = self.engine.kv_usage * profile.kv_capacity_tokens
        step_s = times.weights_s * reached.weights + times.context_s * reached.kv * held
        work_s = elapsed_s * self.speed
        return _Activity(
            busy=_share((after.busy_s - before.busy_s) / elapsed_s),
            memory=_share((after.steps - before.steps) * step_s / work_s),
            tensor=_share(
                (after.tokens - before.tokens) * times.product_token_s * reached.products / work_s
            ),
        )


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
