"""GPUs read from exporters' pages, with the names and labels of their documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import UUIDS, dcgm, gpu_page

from tierway.router.gpu_pages import GpuReading, read_gpus

MIB = 1 << 20


def only(page: str) -> GpuReading:
    (gpu,) = read_gpus(page)
    return gpu


def test_what_dcgm_exporter_tells_of_a_gpu() -> None:
    assert only(gpu_page(pod="vllm-0")) == GpuReading(
        index="0",
        uuid=UUIDS[0],
        model="NVIDIA H100 80GB HBM3",
        host="n1",
        pods=frozenset({"vllm-0"}),
        utilisation=0.9,
        memory_used_bytes=70_000 * MIB,
        memory_bytes=81_559 * MIB,
        temperature_celsius=60.0,
        power_watts=612.5,
        clock_mhz=1980.0,
    )


def test_the_label_of_the_host_is_read_under_both_its_names() -> None:
    page = gpu_page(host="n7")
    assert only(page.replace("Hostname=", "hostname=")).host == only(page).host == "n7"


def test_labels_may_be_set_apart_by_blanks_and_in_any_order() -> None:
    page = 'DCGM_FI_DEV_GPU_TEMP{pod="p", UUID="GPU-1", gpu="3"} 41\n'
    found = only(page)
    assert (found.index, found.uuid, found.temperature_celsius) == ("3", "GPU-1", 41.0)


@pytest.mark.parametrize("value", ["NaN", "140737488355328", "9223372036854775794", "-500", ""])
def test_an_exporters_sign_for_no_value_is_not_known(value: str) -> None:
    page = gpu_page(temp=[value], util=[value])
    assert (only(page).temperature_celsius, only(page).utilisation) == (None, None)
    assert only(page).clock_mhz == 1980.0


def test_memory_is_known_only_with_what_is_free() -> None:
    page = dcgm("DCGM_FI_DEV_FB_USED", 100)
    assert (only(page).memory_used_bytes, only(page).memory_bytes) == (100 * MIB, None)
    page += dcgm("DCGM_FI_DEV_FB_FREE", 300)
    assert only(page).memory_bytes == 400 * MIB
    assert only(page + dcgm("DCGM_FI_DEV_FB_TOTAL", 500)).memory_bytes == 500 * MIB


@pytest.mark.parametrize(
    ("bits", "slowed"),
    [
        (0x0, False),
        (0x1, False),
        (0x4, False),
        (0x8, True),
        (0x20, True),
        (0x44, True),
        (0x80, True),
    ],
)
@pytest.mark.parametrize("name", ["CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS"])
def test_heat_and_hardware_slow_down_idleness_and_power_caps_do_not(
    name: str, bits: int, slowed: bool
) -> None:
    assert only(gpu_page() + dcgm("DCGM_FI_DEV_" + name, bits)).slowed is slowed


def test_counters_of_slowed_time_and_events_are_kept_for_comparison() -> None:
    page = gpu_page() + dcgm("DCGM_FI_DEV_THERMAL_VIOLATION", 5_000_000)
    page += dcgm(
        "DCGM_EXP_CLOCK_EVENTS_COUNT", 9, clock_event="sw_power_cap", window_size_in_ms="1"
    )
    page += dcgm("DCGM_EXP_CLOCK_EVENTS_COUNT", 2, clock_event="hw_thermal", window_size_in_ms="1")
    assert (only(page).slow_ns, only(page).slow_events) == (5e6, 2.0)


def test_a_gpu_that_several_pods_share_is_one_gpu() -> None:
    page = gpu_page(pod="a") + gpu_page(pod="b")
    assert only(page).pods == {"a", "b"}
    assert only(page).memory_used_bytes == 70_000 * MIB


def test_instances_of_a_gpu_that_is_cut_up_are_told_apart() -> None:
    page = "".join(
        dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.25 * part, GPU_I_ID=str(part), GPU_I_PROFILE="1g")
        for part in (1, 2)
    )
    first, second = read_gpus(page)
    assert (first.utilisation, second.utilisation) == (0.25, 0.5)
    assert first.uuid == second.uuid


def amd(prefix: str) -> str:
    labels = 'card_model="MI300X",gpu_id="0",gpu_uuid="72ff",hostname="n1",pod="vllm-0"'
    values = {
        "gfx_activity": 75,
        "used_vram": 150_000,
        "total_vram": 196_592,
        "junction_temperature": 66,
        "package_power": 480,
    }
    return "".join(f"{prefix}{name}{{{labels}}} {value}\n" for name, value in values.items())


@pytest.mark.parametrize("prefix", ["gpu_", "amd_gpu_"])
def test_what_amds_exporter_tells_of_a_gpu(prefix: str) -> None:
    assert only(amd(prefix)) == GpuReading(
        index="0",
        uuid="72ff",
        model="MI300X",
        host="n1",
        pods=frozenset({"vllm-0"}),
        utilisation=0.75,
        memory_used_bytes=150_000 * MIB,
        memory_bytes=196_592 * MIB,
        temperature_celsius=66.0,
        power_watts=480.0,
    )


@pytest.mark.parametrize(("percent", "slowed"), [(0, False), (3, False), (40, True)])
def test_amds_share_of_time_in_heat(percent: int, slowed: bool) -> None:
    name = "gpu_violation_socket_thermal_residency_percentage"
    page = amd("gpu_") + f'{name}{{gpu_id="0",gpu_uuid="72ff",hostname="n1"}} {percent}\n'
    assert only(page).slowed is slowed


@pytest.mark.parametrize("page", ["", "<html>no</html>\n", "# HELP DCGM_FI_DEV_GPU_TEMP t\n"])
def test_a_page_without_gpus_shows_none(page: str) -> None:
    assert read_gpus(page) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "gpu_used_vram"]),
            st.text('gU=,"{}\\ 0a', max_size=30),
        ),
        max_size=5,
    )
)
def test_any_other_line_is_no_fault(lines: list[tuple[str, str]]) -> None:
    for gpu in read_gpus("".join(f"{name}{rest}\n" for name, rest in lines)):
        assert gpu.memory_bytes is None
