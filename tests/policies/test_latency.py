"""The `llm` score: predictions, and what they make of sessions, load, heat and silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tierway.policies.latency import LlmPolicy, forecast
from tierway.policies.types import GPU_FRESH_S, BalanceAsk, Pace, ReplicaView

PACE = Pace(prefill_s=1e-4, first_s=0.02, step_s=0.01, request_s=0.001, context_s=1e-7)


def view(name: str, **facts: object) -> ReplicaView:
    given = {"pace": PACE, **facts}
    return ReplicaView(id=name, model="m", tier="small", **given)  # type: ignore[arg-type]


def ask(tokens: int = 1000, *, output: int = 100, draw: float = 0.0, **more: object) -> BalanceAsk:
    return BalanceAsk("s", tokens, 0, draw, output_tokens=output, **more)  # type: ignore[arg-type]


def first(question: BalanceAsk, views: Sequence[ReplicaView], **options: float) -> str:
    return LlmPolicy(**options).rank(question, views).candidates[0].replica


def picks(views: Sequence[ReplicaView], question: BalanceAsk, count: int = 40) -> Counter[str]:
    return Counter(first(replace(question, draw=n / count), views) for n in range(count))


def test_a_forecast_adds_up_what_stands_before_the_first_token() -> None:
    busy = view("a", inflight=4, prefill_tokens=2000, context_tokens=5000)
    found = forecast(ask(1000, cached={"a": 600}), busy)
    assert found.queue_s == pytest.approx(0.2)
    assert found.own_s == pytest.approx(0.04)
    assert found.ttft_s == pytest.approx(0.26)
    assert found.step_s == pytest.approx(0.01 + 4 * 0.001 + (5000 + 1000 + 50) * 1e-7)


def test_a_full_kv_cache_is_waited_for() -> None:
    full = view(
        "a", inflight=10, context_tokens=9500, output_tokens=2000, kv_capacity_tokens=10_000
    )
    assert forecast(ask(1000), full).kv_s > 0
    assert forecast(ask(100), full).kv_s == 0
    roomy = replace(full, kv_capacity_tokens=None)
    assert forecast(ask(1000), roomy).kv_s == 0


def test_what_is_cached_binds_a_call_until_load_breaks_it() -> None:
    def fleet(waiting: int) -> list[ReplicaView]:
        home = view("home", inflight=waiting, prefill_tokens=1000 * waiting)
        return [home, view("b"), view("c")]

    question = ask(3000, cached={"home": 2900})
    assert first(question, fleet(0)) == first(question, fleet(2)) == "home"
    assert first(question, fleet(40)) != "home"


def test_what_everybody_shares_does_not_bind() -> None:
    fleet = [view("home", inflight=3, context_tokens=9000), view("b")]
    bound = ask(2100, cached={"home": 2000})
    assert first(bound, fleet) == "home"
    assert first(replace(bound, common_tokens=2000), fleet, output_weight=0.5) == "b"


def test_slow_replicas_get_less_and_not_nothing() -> None:
    slow = replace(PACE, prefill_s=3e-4, step_s=0.03)
    fast, lame = view("fast"), view("lame", pace=slow)
    assert set(picks([fast, lame], ask(10))) == {"fast"}
    loaded = replace(fast, inflight=30, context_tokens=30_000)
    assert set(picks([loaded, lame], ask(10))) == {"lame"}


def test_large_requests_care_more_for_the_fast_replica() -> None:
    slow = replace(PACE, prefill_s=3e-4, step_s=0.03)
    fleet = [view("fast", inflight=4, prefill_tokens=3000), view("lame", pace=slow)]
    assert first(ask(10, output=5), fleet) == "lame"
    assert first(ask(8000, output=800), fleet) == "fast"


def test_requests_that_no_gateway_counts_weigh_while_facts_are_fresh() -> None:
    busy = view("busy", unseen=60.0, facts_at_s=-0.5)
    idle = view("idle", facts_at_s=-0.5)
    assert set(picks([busy, idle], ask())) == {"idle"}
    stale = [replace(busy, facts_at_s=-6.0), replace(idle, facts_at_s=-6.0)]
    assert set(picks(stale, ask())) == {"busy", "idle"}


def test_silence_does_not_look_like_idleness() -> None:
    known = [view(f"r{n}", unseen=20.0, facts_at_s=-0.1) for n in range(3)]
    silent = view("silent", facts_at_s=-300.0)
    assert picks([*known, silent], ask(), 200)["silent"] < 2 * 200 / 4


def test_a_full_engine_gets_less_when_it_says_so() -> None:
    full = view("full", kv_usage=0.99, facts_at_s=-0.5)
    roomy = view("b", kv_usage=0.2, facts_at_s=-0.5)
    assert set(picks([full, roomy], ask())) == {"b"}
    assert set(picks([replace(full, facts_at_s=-60.0), roomy], ask())) == {"b", "full"}


def test_silence_does_not_look_like_room() -> None:
    """Where all are full, the one whose engine tells nothing is not taken for empty."""
    full = [view(f"r{n}", kv_usage=0.99, facts_at_s=-0.5) for n in range(3)]
    for silent in (view("silent"), view("silent", kv_usage=0.0, facts_at_s=-60.0)):
        assert picks([*full, silent], ask(), 200)["silent"] < 2 * 200 / 4


def test_heat_throttling_and_a_low_weight_count_as_slowness() -> None:
    pending = {"inflight": 5, "prefill_tokens": 20_000}
    cool = view("cool", gpu_temperature_celsius=84.0, **pending)
    others = [
        view("hot", gpu_temperature_celsius=95.0, gpu_facts_at_s=0.0, **pending),
        view("throttled", gpu_throttled=True, gpu_facts_at_s=0.0, **pending),
        view("light", weight=0.25, **pending),
    ]
    assert set(picks([cool, *others], ask())) == {"cool"}


def test_whether_a_gpu_is_hot_still_is_not_known_for_ever() -> None:
    hot = view("hot", gpu_temperature_celsius=95.0, gpu_throttled=True, gpu_facts_at_s=0.0)
    assert set(picks([hot, view("cool")], ask())) == {"cool"}
    assert set(picks([hot, view("cool")], ask(now_s=GPU_FRESH_S + 1))) == {"cool", "hot"}


def test_recent_work_breaks_ties_and_fades() -> None:
    worked = view("a", recent_s=5.0, recent_at_s=0.0)
    assert set(picks([worked, view("b")], ask())) == {"b"}
    assert set(picks([worked, view("b")], ask(now_s=1000.0))) == {"a", "b"}


def test_the_best_are_explained_and_priced() -> None:
    fleet = [view(f"r{n}", inflight=n) for n in range(6)]
    ranking = LlmPolicy().rank(ask(), fleet)
    best, last = ranking.candidates[0], ranking.candidates[-1]
    assert set(best.reasons) == {"wait", "prompt", "decode", "kv", "recent"}
    assert (best.ttft_s, best.tpot_s) == pytest.approx((0.12, 0.010105))
    assert best.cost is not None
    assert best.score == pytest.approx(1 / (1 + best.cost.base_s))
    assert min(best.cost.request_s, best.cost.prefill_token_s) > 0
    assert last.cost is None
    assert not last.reasons


def test_the_tail_of_a_long_prompt_costs_more_than_its_head() -> None:
    pace = replace(PACE, pair_s=1e-8)
    long = forecast(ask(100_000, cached={"a": 99_000}), view("a", pace=pace))
    short = forecast(ask(1000), view("a", pace=pace))
    assert short.own_s == pytest.approx(1000 * (1e-4 + 1e-8 * 500))
    assert long.own_s == pytest.approx(1000 * (1e-4 + 1e-8 * 99_500))
    behind = view("a", pace=pace, prefill_tokens=1000, prefill_pairs=1000 * 99_500)
    assert forecast(ask(10), behind).queue_s == pytest.approx(long.own_s)
