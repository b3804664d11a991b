"""Profiles: names, memory, and step times against published and measured anchors."""

from __future__ import annotations

import pytest

from tierway.bench.engine import Engine, Work
from tierway.bench.profiles import StepLoad, names, profile


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("8b-a10", 1916),
        ("8b-l40s", 12_445),
        ("8b-a100", 26_483),
        ("70b-a100x4", 27_712),
        ("70b-h200x4", 70_529),
        ("175b-h100x8", 2946),
        ("175b-h200x8", 8892),
    ],
)
def test_the_kv_cache_is_what_the_weights_leave(name: str, blocks: int) -> None:
    assert profile(name).blocks == pytest.approx(blocks, abs=2)


@pytest.mark.parametrize(
    ("name", "tpot_ms"),
    [
        ("8b-a10", 34),
        ("8b-a100", 11.7),
        ("8b-h100", 8.1),
        ("70b-a100x4", 26),
        ("70b-h100x4", 17.7),
        ("175b-a100x8", 33),
        ("175b-h100x8", 22),
    ],
)
def test_time_per_token_of_a_lone_request(name: str, tpot_ms: float) -> None:
    engine = Engine(profile(name))
    job = engine.submit(Work(512, 200))
    engine.advance()
    assert job.finished_s is not None
    assert job.first_token_s is not None
    assert (job.finished_s - job.first_token_s) / 199 * 1e3 == pytest.approx(tpot_ms, rel=0.03)


def test_more_tokens_cost_more_but_not_in_proportion_below_the_knee() -> None:
    made = profile("8b-a100")
    one, many, most = (made.step_s(StepLoad(n, n, decode_context=n * 512)) for n in (1, 32, 512))
    assert one < many < one * 2
    assert most > many * 2


def test_nvlink_makes_a_group_of_gpus_worth_its_price_and_pcie_does_not() -> None:
    load = StepLoad(1024, 1, prefill_pairs=1024 * 512)
    a100 = profile("8b-a100").step_s(load) / profile("8b-a100x4").step_s(load)
    l40s = profile("8b-l40s").step_s(load) / profile("8b-l40sx4").step_s(load)
    assert a100 > 2 > l40s


def test_a_profile_knows_its_limits() -> None:
    assert profile("7b-a10").max_model_len == 32_768
    assert profile("8b-a10").max_model_len == 1916 * 16
    assert (profile("8b-h100").batched_tokens, profile("8b-h100").sequences) == (8192, 1024)
    assert profile("8b-a100x2").gpus == 2
    assert profile("8b-a100x1").name == "8b-a100"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("8b-a1000", "8b-a100"),
        ("70b-a100x3", "70b-a100x4"),
        ("175b-a10", "175b-a100x8"),
        ("", "7b-a10"),
    ],
)
def test_an_unknown_profile_names_its_neighbours(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=near) as caught:
        profile(wrong)
    assert repr(wrong) in str(caught.value)


def test_every_listed_name_is_a_profile() -> None:
    listed = names()
    assert {"8b-a10", "70b-a100x4", "175b-h100x8"} <= set(listed)
    assert "70b-a100" not in listed
    assert all(profile(name).name == name for name in listed)
