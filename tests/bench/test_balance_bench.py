"""`tierway bench balance`: its figures, its promises of equal loads, and wrong use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tierway.bench.balance_bench import main
from tierway.bench.balance_figures import max_over_mean, over_seeds, spread
from tierway.bench.balance_fleet import fleet_profile
from tierway.bench.rivals import RIVALS

SMALL = (
    "--sessions",
    "6",
    "--turns",
    "3",
    "--input",
    "400",
    "--output",
    "40",
    "--concurrency",
    "4",
)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """Figures without what the machine's CPU decides."""
    return {
        name: {key: value for key, value in row.items() if key != "decision_us"}
        for name, row in found["policies"].items()
    }


def test_the_figures_are_those_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, *SMALL, "--replicas", "2", "--policies", "round_robin,llm")
    assert list(found["policies"]) == ["round_robin", "llm"]
    row = found["policies"]["llm"]
    assert set(row["ttft_s"]) == set(row["tpot_s"]) == {"mean", "p50", "p99"}
    assert set(row["decision_us"]) == {"p50", "p99"}
    assert 0 < row["ttft_s"]["p50"] <= row["ttft_s"]["p99"] < 1
    assert 0.005 < row["tpot_s"]["mean"] < 0.05
    assert row["goodput"] == 1.0
    assert row["lost"] == 0
    assert 1.0 <= row["work_max_over_mean"] <= 2.0
    assert row["output_tokens_per_s"] > 100


def test_sessions_that_stay_are_found_in_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*SMALL, "--replicas", "3", "--policies", "random,consistent_hash")
    rows = _json(capsys, *options)["policies"]
    assert rows["consistent_hash"]["kv_hit_ratio"] > rows["random"]["kv_hit_ratio"] + 0.2
    assert rows["consistent_hash"]["ttft_s"]["mean"] < rows["random"]["ttft_s"]["mean"]


def test_one_seed_gives_one_result_in_any_process(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*SMALL, "--replicas", "2", "--policies", "random,llm", "--seeds", "2")
    here = _told(_json(capsys, *options))
    assert here == _told(_json(capsys, *options, "--jobs", "2"))
    assert here["llm"]["ci95"]["ttft_s"]["mean"] >= 0
    assert len(set(here["llm"]["by_seed"]["ttft_s"])) == 2


def test_unequal_gpus_and_weights(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*SMALL, "--fleet", "h100,a10", "--policies", "least_request,weighted_least_request")
    rows = _json(capsys, *options)["policies"]
    equal, weighted = rows["least_request"], rows["weighted_least_request"]
    assert weighted["output_tokens_per_s"] > equal["output_tokens_per_s"]


def _trace(path: Path) -> str:
    rows = [
        {
            "timestamp_ms": 200 * n,
            "input_tokens": 2100,
            "output_tokens": 20,
            "block_ids": [0, 10 + n % 3, 20 + n % 3, 30 + n % 3, 100 + n],
            "session": n % 3,
        }
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_trace_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = ("--trace", _trace(tmp_path / "t.jsonl"), "--replicas", "2", "--policies", "llm")
    slow = _json(capsys, *trace)["policies"]["llm"]
    fast = _json(capsys, *trace, "--scale", "4", "--limit", "20")["policies"]["llm"]
    assert 0.5 < slow["kv_hit_ratio"] < 1.0
    assert slow["seconds"] > 5 > 2 > fast["seconds"]


def test_rivals_and_bounds_run_beside_the_policies(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*RIVALS, "oracle", "oracle_8", "pooled"]
    rows = _json(capsys, *SMALL, "--replicas", "2", "--policies", ",".join(names))["policies"]
    assert list(rows) == names
    assert all(row["lost"] == 0 and row["goodput"] > 0 for row in rows.values())
    best = max(row["kv_hit_ratio"] for row in rows.values())
    assert rows["pooled"]["kv_hit_ratio"] == best
    assert rows["oracle"]["ttft_s"]["mean"] <= rows["oracle_8"]["ttft_s"]["mean"]


def test_gateways_that_share_see_what_each_other_sent(capsys: pytest.CaptureFixture[str]) -> None:
    loop = ("--sessions", "24", "--turns", "4", "--input", "800", "--output", "60")
    options = (*loop, "--concurrency", "12", "--replicas", "4", "--policies", "llm,round_robin")
    alone = _json(capsys, *options)["policies"]
    four = _json(capsys, *options, "--gateways", "4")["policies"]
    assert four["llm"]["kv_hit_ratio"] > 0.8 * alone["llm"]["kv_hit_ratio"]
    assert four["llm"]["ttft_s"]["mean"] < 1.5 * alone["llm"]["ttft_s"]["mean"]


def test_a_replica_that_slows_down_costs_time(capsys: pytest.CaptureFixture[str]) -> None:
    options = (*SMALL, "--replicas", "2", "--policies", "round_robin")
    even = _json(capsys, *options)["policies"]["round_robin"]
    slowed = _json(capsys, *options, "--slow", "0@0.5:4")["policies"]["round_robin"]
    assert slowed["seconds"] > 1.2 * even["seconds"]
    assert _told(_json(capsys, *options, "--perturb", "0.3"))["round_robin"] != even


def test_a_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--replicas", "2", "--policies", "llm,llm:surcharge=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "TTFT ms" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["llm", "llm:surcharge=9"]


def test_prompts_that_fit_nowhere_are_lost_and_late(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"timestamp_ms": n, "input_tokens": size, "output_tokens": 5}
        for n, size in enumerate((100, 60_000))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = _json(capsys, "--trace", str(path), "--fleet", "a10,a10", "--policies", "llm")
    assert row["policies"]["llm"]["lost"] == 1
    assert row["policies"]["llm"]["goodput"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policies", "lllm"), "did you mean llm?"),
        (("--policies", "llm:surcharge"), "'surcharge' is not OPTION=NUMBER"),
        (("--policies", "llm:surcharge=-1"), "options.surcharge = -1.0"),
        (("--fleet", "a100,b200"), "--fleet b200"),
        (("--fleet", "a100,a100", "--replicas", "3"), "--fleet names 2 GPUs"),
        (("--model", "175b", "--fleet", "a10"), "--fleet a10"),
        (("--policies", "xor_prefi"), "or the rival xor_prefix"),
        (("--slow", "8@1:2"), "replicas are 0 to 7"),
        (("--scale", "2"), "--scale needs --trace"),
        (("--trace", "/nowhere.jsonl"), "--trace: "),
        (("--trace", "/nowhere.jsonl", "--turns", "2"), "--turns is not for a trace"),
    ],
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--replicas", "0"),
        ("--scale", "0"),
        ("--think-s", "-1"),
        ("--spread", "1.5"),
        ("--slo-ttft", "nan"),
        ("--model", "9b"),
        ("--perturb", "1"),
        ("--slow", "0@x:3"),
        ("--slow", "0@1:0"),
    ],
)
def test_wrong_numbers_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_a_model_gets_as_many_gpus_as_it_needs() -> None:
    assert fleet_profile("8b", "a10").gpus == 1
    assert fleet_profile("70b", "a100").gpus == 4
    assert fleet_profile("70b", "h100x8").gpus == 8
    assert fleet_profile("175b", "h100").gpus == 8
    assert fleet_profile("8b", "a100").max_model_len > 100_000


def test_figures_of_little_or_nothing() -> None:
    assert spread([]) == {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    assert spread([3.0, 1.0, 2.0]) == {"mean": 2.0, "p50": 2.0, "p99": 3.0}
    assert max_over_mean([0.0, 0.0]) == 1.0
    assert max_over_mean([1.0, 3.0]) == 1.5
    rows: list[dict[str, Any]] = [
        {"ttft_s": {"mean": value}, "output_tokens_per_s": 1.0} for value in (1.0, 3.0)
    ]
    merged = over_seeds(rows)
    assert merged["ttft_s"]["mean"] == 2.0
    assert merged["ci95"]["ttft_s"]["mean"] == pytest.approx(12.706)
