"""The GPUs under a simulated engine: their page, their load, their heat."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tierway.bench.engine import Engine, Work
from tierway.bench.engine_gpus import SimulatedGpus
from tierway.bench.profiles import profile
from tierway.policies.physics import gpu
from tierway.router.gpu_pages import GpuReading, read_gpus


class Machine:
    """An engine and its GPUs on a clock of their own."""

    def __init__(self, name: str = "8b-a100", speed: float = 1.0, **labels: str) -> None:
        self.now_s = 0.0
        self.engine = Engine(profile(name), speed=speed)
        self.gpus = SimulatedGpus(self.engine, lambda: self.now_s, speed=speed, **labels)

    def run(self, seconds: float) -> None:
        self.now_s += seconds
        self.engine.advance(self.now_s)

    def read(self) -> list[GpuReading]:
        return read_gpus(self.gpus.render().decode())

    def values(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.gpus.render().decode())
        return {one.name.removeprefix("DCGM_FI_"): one.samples[0].value for one in families}


@pytest.mark.parametrize("name", ["8b-a10", "8b-l40s", "70b-a100x4", "70b-h100x4", "175b-h200x8"])
def test_each_gpu_of_an_engine_is_shown_by_the_name_of_its_driver(name: str) -> None:
    machine = Machine(name, host="n1", pod="vllm-0", namespace="models")
    readings = machine.read()
    made = machine.engine.profile
    assert [one.index for one in readings] == [str(index) for index in range(made.gpus)]
    assert len({one.uuid for one in readings}) == made.gpus
    for one in readings:
        assert gpu(one.model) == made.gpu
        assert (one.host, one.pods) == ("n1", {"vllm-0"})
        assert one.memory_bytes == pytest.approx(made.gpu.memory_bytes, rel=1e-3)
        assert (one.memory_used_bytes or 0) / (one.memory_bytes or 1) == pytest.approx(
            0.92, rel=1e-3
        )


def test_outside_kubernetes_there_is_no_pod() -> None:
    machine = Machine()
    assert b"pod=" not in machine.gpus.render()
    assert machine.read()[0].pods == frozenset()


def test_an_idle_gpu_is_cool_and_a_busy_one_warms_up() -> None:
    machine = Machine()
    machine.run(100.0)
    idle = machine.values()
    assert (idle["DEV_GPU_UTIL"], idle["PROF_DRAM_ACTIVE"]) == (0, 0)
    assert idle["DEV_GPU_TEMP"] < 45
    for _ in range(64):
        machine.engine.submit(Work(1000, 4000))
    temperatures = []
    for _ in range(5):
        machine.run(10.0)
        temperatures.append(machine.values()["DEV_GPU_TEMP"])
    busy = machine.values()
    assert busy["DEV_GPU_UTIL"] == 100
    assert temperatures == sorted(temperatures)
    assert temperatures[0] + 5 < temperatures[-1] < 85
    assert 3 * idle["DEV_POWER_USAGE"] < busy["DEV_POWER_USAGE"] <= 400
    assert busy["DEV_SM_CLOCK"] == 1410 > idle["DEV_SM_CLOCK"]


def test_reading_prompts_keeps_the_tensor_cores_busy_and_writing_the_memory() -> None:
    reader, writer = Machine(), Machine()
    for number in range(100):
        reader.engine.submit(Work(2000, 1))
        if number < 8:
            writer.engine.submit(Work(16, 3000))
    reader.run(8.0)
    writer.run(8.0)
    reading, writing = reader.values(), writer.values()
    assert reading["PROF_PIPE_TENSOR_ACTIVE"] > 0.5 > 10 * writing["PROF_PIPE_TENSOR_ACTIVE"]
    assert writing["PROF_DRAM_ACTIVE"] > 0.5 > 2 * reading["PROF_DRAM_ACTIVE"]
    assert writing["DEV_MEM_COPY_UTIL"] == round(100 * writing["PROF_DRAM_ACTIVE"])


def test_utilisation_is_the_share_of_the_time_since_the_last_page() -> None:
    machine = Machine()
    machine.engine.submit(Work(100, 300))
    machine.engine.advance()
    seconds = machine.engine.totals.busy_s
    machine.now_s = 4 * seconds
    assert machine.values()["DEV_GPU_UTIL"] == 25
    machine.now_s += 0.01  # too soon: the last figures stand
    assert machine.values()["DEV_GPU_UTIL"] == 25
    machine.now_s += 1.0
    assert machine.values()["DEV_GPU_UTIL"] == 0


def test_a_step_under_way_counts_as_far_as_it_came() -> None:
    machine = Machine("8b-a10")
    machine.engine.submit(Work(2000, 1))
    duration_s = machine.engine.begin()
    assert duration_s is not None
    machine.now_s = 0.75 * duration_s
    assert machine.values()["DEV_GPU_UTIL"] == 100
    machine.run(1.25 * duration_s)
    assert machine.values()["DEV_GPU_UTIL"] == 20


def test_a_throttled_gpu_loses_clock_gets_hot_and_counts_the_time() -> None:
    machine = Machine()
    machine.engine.submit(Work(100, 20_000))
    machine.run(60.0)
    before = machine.values()
    machine.gpus.set(0.5, None)
    machine.run(60.0)
    after = machine.values()
    assert after["DEV_SM_CLOCK"] == before["DEV_SM_CLOCK"] / 2
    assert after["DEV_GPU_TEMP"] > 85 > before["DEV_GPU_TEMP"]
    assert (before["DEV_THERMAL_VIOLATION"], after["DEV_THERMAL_VIOLATION"]) == (0, 60e9)
    machine.gpus.set(1.0, 95.0)
    machine.run(60.0)
    told = machine.values()
    assert (told["DEV_GPU_TEMP"], told["DEV_THERMAL_VIOLATION"]) == (95, 60e9)


def test_heat_comes_sooner_where_time_runs_faster() -> None:
    slow, fast = Machine(), Machine(speed=20.0)
    for machine in (slow, fast):
        machine.engine.submit(Work(100, 30_000))
        machine.run(5.0)
    assert fast.values()["DEV_GPU_TEMP"] > slow.values()["DEV_GPU_TEMP"] + 10
