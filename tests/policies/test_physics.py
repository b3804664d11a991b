"""The roofline of a step: its terms, its tables, and the pace it promises."""

from __future__ import annotations

import pytest

from tierway.policies.physics import (
    GPUS,
    MODELS,
    Efficiency,
    ModelSpec,
    StepLoad,
    gpu,
    model_for_class,
    pace,
    step_times,
)

_PLACES = [("8b", "a10", 1), ("8b", "h100", 1), ("70b", "a100", 4), ("175b", "h200", 8)]


def step_s(model: str, card: str, gpus: int, load: StepLoad) -> float:
    return step_times(MODELS[model], GPUS[card], gpus).step_s(load)


def test_more_tokens_cost_more_but_not_in_proportion_below_the_knee() -> None:
    one, many, most = (
        step_s("8b", "a100", 1, StepLoad(n, n, decode_context=n * 512)) for n in (1, 32, 512)
    )
    assert one < many < one * 2
    assert most > many * 2


def test_nvlink_makes_a_group_of_gpus_worth_its_price_and_pcie_does_not() -> None:
    load = StepLoad(1024, 1, prefill_pairs=1024 * 512)
    a100 = step_s("8b", "a100", 1, load) / step_s("8b", "a100", 4, load)
    l40s = step_s("8b", "l40s", 1, load) / step_s("8b", "l40s", 4, load)
    assert a100 > 2 > l40s


def test_the_weights_of_a_lone_token_are_read_at_the_measured_share_of_the_bandwidth() -> None:
    # engine kernels on A100: 0.66 to 0.78 of the data sheet on one GPU, from 0.41 on eight
    model, card = ModelSpec("llama-2-7b", 6.74e9, 32, 4096, 32, 32, 11_008, 32_000), GPUS["a100"]
    for gpus, low, high in ((1, 0.66, 0.78), (8, 0.41, 0.69)):
        kernels = step_times(model, card, gpus, Efficiency(launch_s=0, host_s=0, reduce=0))
        seconds = kernels.weights_s + kernels.fixed_s
        share = model.linear_weights * 2 / gpus / card.bytes_per_s / seconds
        assert low <= share <= high


def test_time_is_affine_in_the_decode_context() -> None:
    times = step_times(MODELS["70b"], GPUS["h100"], 4)
    near, far = (times.step_s(StepLoad(8, 8, decode_context=n)) for n in (0, 10_000))
    assert near == times.base_s(8, 8)
    assert far == pytest.approx(near + 10_000 * times.context_s)


def test_more_gpus_than_kv_heads_hold_copies() -> None:
    small = MODELS["7b"]  # four KV heads
    assert small.kv_bytes_held(8) == 2 * small.kv_bytes_per_token
    assert small.kv_bytes_held(2) == small.kv_bytes_per_token
    four, eight = (step_times(small, GPUS["a100"], n).context_s for n in (4, 8))
    assert four == eight


def test_fp8_halves_what_is_read_and_doubles_the_pace_of_products() -> None:
    half = MODELS["70b"]
    eighth = ModelSpec("fp8", 70.55e9, 80, 8192, 64, 8, 28_672, 128_256, weight_bytes=1, kv_bytes=1)
    slow, fast = (step_times(model, GPUS["h200"], 2) for model in (half, eighth))
    assert fast.weights_s == slow.weights_s / 2
    assert fast.product_token_s == slow.product_token_s / 2
    assert fast.context_s == slow.context_s / 2
    assert fast.head_s == slow.head_s  # the output matrix stays in fp16


@pytest.mark.parametrize(("model", "card", "gpus"), _PLACES)
def test_the_pace_predicts_the_steps_it_came_from(model: str, card: str, gpus: int) -> None:
    made = pace(MODELS[model], GPUS[card], gpus)
    lone = step_s(model, card, gpus, StepLoad(1, 1, decode_context=1000))
    assert made.step_s + 1000 * made.context_s == pytest.approx(lone)
    many = step_s(model, card, gpus, StepLoad(64, 64, decode_context=64_000))
    assert made.step_s + 63 * made.request_s + 64_000 * made.context_s == pytest.approx(many)
    prompt = step_s(model, card, gpus, StepLoad(2000, 1, prefill_pairs=2000 * 1000))
    assert made.first_s + 2000 * made.prefill_s == pytest.approx(prompt, rel=0.25)


def test_the_classes_of_tiers_have_a_model() -> None:
    assert [model_for_class(name).name for name in ("7b", "70b", "175b")] == ["8b", "70b", "175b"]
    with pytest.raises(ValueError, match=r"class 'cloud': allowed are 7b, 70b, 175b"):
        model_for_class("cloud")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a10", "a10"),
        ("A100-80GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA H200", "h200"),
        ("nvidia_h100_pcie", "h100"),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_the_names_that_drivers_give_it(written: str, name: str | None) -> None:
    found = gpu(written)
    assert (found.name if found else None) == name


def test_the_small_a100_is_not_taken_for_the_large_one() -> None:
    found = gpu("NVIDIA A100-SXM4-40GB")
    assert found is not None
    assert (found.memory_bytes, found.bytes_per_s) == (40e9, 1.555e12)
