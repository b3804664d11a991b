"""The live balancing benchmark: its figures, and one small run with everything real."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import pytest

from tierway.bench.balance_bench import main as balance
from tierway.bench.balance_clients import Heard, Talk, Told, converse
from tierway.bench.balance_figures import Slo
from tierway.bench.balance_live import configuration, figures, main, table
from tierway.bench.engine_server import EngineServer
from tierway.middleware.config import resolve

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def told(began_s: float, first_s: float, ended_s: float, replica: str, cached: int = 0) -> Told:
    return Told(began_s, first_s, ended_s, 100, cached, 11, replica)


def test_times_are_told_as_on_the_machines() -> None:
    heard = Heard([told(0, 1, 2, "a"), told(0, 3, 4, "b")], wall_s=4)
    found = figures([heard], 2.0, SLO)
    assert found["ttft_s"] == {"mean": 4.0, "p50": 2.0, "p99": 6.0}
    assert found["tpot_s"]["mean"] == pytest.approx(0.2)
    assert found["output_tokens_per_s"] == pytest.approx(22 / 8)


def test_rounds_are_pooled_and_work_is_what_no_cache_held() -> None:
    first = Heard([told(0, 1, 2, "a", cached=40), told(0, 1, 2, "a", cached=100)], wall_s=2)
    second = Heard([told(0, 1, 2, "b", cached=80)], wall_s=2)
    found = figures([first, second], 1.0, SLO)
    assert found["kv_hit_ratio"] == pytest.approx(220 / 300)
    assert found["work_max_over_mean"] == pytest.approx(60 * 2 / 80)
    assert found["shares"] == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    assert found["requests"] == 3


def test_busy_counts_time_and_not_requests() -> None:
    together = [told(0, 1, 10, "a"), told(2, 3, 5, "a"), told(8, 9, 12, "a")]
    alone = [told(0, 1, 4, "b"), told(8, 9, 12, "b")]
    found = figures([Heard([*together, *alone], wall_s=12)], 1.0, SLO)
    assert found["busy_max_over_mean"] == pytest.approx(12 * 2 / 20)


def test_late_answers_and_faults_are_no_goodput() -> None:
    good = told(0, 0.1, 0.2, "a")
    late, slow = told(0, 3, 3.1, "a"), told(0, 0.1, 9, "a")
    heard = Heard([good, late, slow], Counter({"status 503": 1}), wall_s=9)
    found = figures([heard], 1.0, SLO)
    assert (found["goodput"], found["faults"]) == (0.25, 1)


def test_what_nobody_names_is_not_known() -> None:
    found = figures([Heard([told(0, 1, 2, "")], wall_s=2)], 1.0, SLO)
    assert (found["work_max_over_mean"], found["shares"]) == (None, {})
    nothing = figures([Heard()], 1.0, SLO)
    assert nothing["ttft_s"]["mean"] is None
    assert "-" in table({"speed": 4.0, "policies": {"llm": nothing}})


def test_a_conversation_is_found_in_the_cache_of_its_engine() -> None:
    async def main() -> Heard:
        engine = EngineServer("8b-a100", model="sim", speed=500.0)
        port = await engine.start()
        try:
            talk = Talk(sessions=3, turns=3, prompt_tokens=64, output_tokens=40, concurrency=2)
            url = f"http://127.0.0.1:{port}"
            return await converse(url, "sim", talk, seed="s", clock=time.perf_counter)
        finally:
            await engine.aclose()

    heard = asyncio.run(main())
    assert not heard.faults
    assert len(heard.answers) == 9
    sizes = sorted(one.prompt_tokens for one in heard.answers)
    assert all(64 <= size <= 90 for size in sizes[:3])  # 64 and the chat template
    assert all(one.output_tokens == 40 for one in heard.answers)
    for one in heard.answers:
        earlier = one.prompt_tokens > 100
        # All but the newest turn, in whole blocks of 16.
        assert one.cached_tokens >= earlier * (one.prompt_tokens - 64 - 40)
        assert one.began_s < one.first_s <= one.ended_s


def test_faults_are_counted_and_end_a_conversation() -> None:
    async def main() -> Heard:
        engine = EngineServer("8b-a100", model="sim", speed=500.0)
        port = await engine.start()
        engine.faults.set({"fault": "500", "count": 1})
        try:
            talk = Talk(sessions=2, turns=2, prompt_tokens=20, output_tokens=5, concurrency=1)
            url = f"http://127.0.0.1:{port}"
            return await converse(url, "sim", talk, seed="s", clock=time.perf_counter)
        finally:
            await engine.aclose()

    heard = asyncio.run(main())
    assert heard.faults == {"status 500": 1}
    assert len(heard.answers) == 2


def test_the_configuration_names_the_hardware() -> None:
    given = json.loads(configuration(["http://127.0.0.1:1"], ["70b-a100x4"]))
    settings = resolve(given, {"TIERWAY_ADMIN_KEY": "k"})
    assert settings is not None
    (replica,) = settings.models["sim"].replicas
    assert (replica.gpu, replica.gpus, replica.tp) == ("a100", 4, 4)


def test_a_small_run_with_a_real_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--sessions", "3", "--turns", "2", "--input", "40", "--output", "10"]
    load = [*sizes, "--concurrency", "3", "--speed", "50", "--replicas", "2"]
    assert main(["--json", "--policies", "round_robin,llm", *load]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["policies"]) == {"round_robin", "llm"}
    for row in found["policies"].values():
        assert (row["requests"], row["faults"]) == (6, 0)
        assert row["ttft_s"]["mean"] > 0
        assert sum(row["shares"].values()) == pytest.approx(1)
    assert len(found["policies"]["round_robin"]["shares"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet", "a100,a101"], "did you mean"),
        (["--policies", "lest_request"], "did you mean least_request"),
        (["--speed", "0"], "a number above 0"),
        (["--sessions", "x"], "a whole number from 1"),
    ],
)
def test_wrong_use_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = balance(["--live", *arguments])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]  # argparse gives a number
    assert code == 2
    assert said in capsys.readouterr().err
