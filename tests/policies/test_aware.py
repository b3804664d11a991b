"""What the LLM-aware policies make of work, caches and the state of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierway.policies.errors import ConfigError
from tierway.policies.gpu import Coolness, GpuOptions, Idleness, MemoryRoom
from tierway.policies.registry import build_policy
from tierway.policies.types import BalanceAsk, Candidate, Pace, ReplicaView
from tierway.policies.work import PredictedWork, pressure

PACE = Pace(prefill_s=1e-4, first_s=0.02, step_s=0.016, request_s=0.001)
SLOW = Pace(prefill_s=4e-4, first_s=0.02, step_s=0.064, request_s=0.004)
AWARE = ["global_least_request", "gpu", "predicted_latency", "prefix"]
NOW_S = 100.0


def view(name: str, **facts: Any) -> ReplicaView:
    return ReplicaView(id=name, model="m", tier="small", **{"pace": PACE, **facts})


def gpu_view(name: str, **facts: Any) -> ReplicaView:
    return view(name, **{"gpu_facts_at_s": NOW_S, "facts_at_s": NOW_S, **facts})


def ask(tokens: int = 1000, output: int = 100, **more: Any) -> BalanceAsk:
    return BalanceAsk("s", tokens, 0, 0.0, output_tokens=output, now_s=NOW_S, **more)


def best(name: str, question: BalanceAsk, views: Sequence[ReplicaView], **options: float) -> str:
    return build_policy(name, options).rank(question, views).candidates[0].replica


def scored(name: str, question: BalanceAsk, views: Sequence[ReplicaView]) -> dict[str, float]:
    ranking = build_policy(name, {}).rank(question, views)
    return {candidate.replica: candidate.score for candidate in ranking.candidates}


def test_work_is_what_its_formula_says() -> None:
    busy = view("a", inflight=3, prefill_tokens=2000, output_tokens=400, weight=2.0)
    (seconds,) = PredictedWork(recent_weight=0.0).work_s(ask(cached={"a": 600}), [busy])
    token_s = 0.016 / 16 + 0.001
    ahead_s = 0.2 + 400 * token_s + 3 * 0.001 * 100
    assert seconds == pytest.approx((ahead_s + 0.04 + 100 * token_s) / 2.0)


def test_a_prompt_in_flight_weighs_more_than_many_small_requests() -> None:
    one = view("one", inflight=1, prefill_tokens=20_000, output_tokens=100)
    many = view("many", inflight=6, prefill_tokens=300, output_tokens=600)
    assert best("least_request", ask(), [one, many]) == "one"
    assert best("global_least_request", ask(), [one, many]) == "many"


@pytest.mark.parametrize("told", ["engine", "counts"])
def test_full_kv_memory_repels(told: str) -> None:
    facts: dict[str, Any] = {"kv_capacity_tokens": 100_000}
    full: dict[str, Any] = {"context_tokens": 96_000}
    if told == "engine":
        facts["facts_at_s"], full = NOW_S, {"kv_usage": 0.97}
    half = view("half", inflight=3, prefill_tokens=3000, **facts, kv_usage=0.3)
    assert best("global_least_request", ask(), [view("full", **facts, **full), half]) == "half"
    assert pressure(0.5) == pytest.approx(1.0)
    assert pressure(0.95) == pytest.approx(19.0)
    assert pressure(1.5) > pressure(1.2) > pressure(0.96) > pressure(0.94)


def test_kv_use_that_nothing_tells_is_that_of_the_others() -> None:
    full = view("full", kv_capacity_tokens=1000, context_tokens=900)
    empty = view("empty", kv_capacity_tokens=100_000)
    silent = view("silent")
    full_s, empty_s, silent_s = PredictedWork().work_s(ask(100), [full, empty, silent])
    assert empty_s < silent_s < full_s


def test_facts_that_are_too_old_are_unknown() -> None:
    old = view("old", unseen=50.0, kv_usage=0.0, facts_at_s=NOW_S - 60)
    new = view("new", unseen=2.0, kv_usage=0.4, facts_at_s=NOW_S)
    old_s, new_s = PredictedWork().work_s(ask(), [old, new])
    assert old_s == pytest.approx(new_s)


def test_costs_tell_what_more_in_flight_would_add() -> None:
    fleet = [view("a", inflight=2, prefill_tokens=1000, output_tokens=200), view("b")]
    more = [replace(fleet[0], inflight=3, prefill_tokens=1500, output_tokens=250), fleet[1]]
    policy = build_policy("global_least_request", {})

    def cost(views: Sequence[ReplicaView]) -> Any:
        found = {c.replica: c.cost for c in policy.rank(ask(), views).candidates}
        return found["a"]

    was, then = cost(fleet), cost(more)
    added = was.request_s + 500 * was.prefill_token_s + 50 * was.output_token_s
    assert then.base_s == pytest.approx(was.base_s + added)


@pytest.mark.parametrize("name", AWARE)
def test_the_first_four_are_told_with_reasons_and_predictions(name: str) -> None:
    ranking = build_policy(name, {}).rank(ask(), [view(f"r{n}", inflight=n) for n in range(6)])
    told, rest = ranking.candidates[:4], ranking.candidates[4:]
    assert all(one.reasons and one.ttft_s > 0 and one.tpot_s > 0 for one in told)
    assert all(one == Candidate(one.replica, one.score) for one in rest)
    assert all((one.cost is None) == (name == "prefix") for one in told)
    (alone,) = build_policy(name, {}).rank(ask(), [view("a")]).candidates
    assert alone.score == 1.0
    assert alone.ttft_s > 0


def test_least_completion_weighs_reading_against_writing() -> None:
    reader = view("reader", pace=replace(PACE, step_s=0.05))
    writer = view("writer", pace=replace(PACE, prefill_s=1e-3))
    assert best("predicted_latency", ask(8000, 10), [reader, writer]) == "reader"
    assert best("predicted_latency", ask(100, 800), [reader, writer]) == "writer"


def test_a_match_binds_within_the_bound_only() -> None:
    question = ask(4000, cached={"home": 3000})

    def fleet(waiting: int) -> list[ReplicaView]:
        home = view("home", inflight=waiting, prefill_tokens=2000 * waiting)
        return [home, view("b", inflight=1, prefill_tokens=2000), view("c")]

    assert best("prefix", question, fleet(1)) == "home"
    assert best("prefix", question, fleet(40)) == "c"
    assert best("prefix", question, fleet(4), bound=1.0) == "c"
    assert best("prefix", question, fleet(4), bound=50.0) == "home"


def test_the_longer_match_wins_and_among_equal_ones_the_less_loaded() -> None:
    fleet = [view("a"), view("b", inflight=1, prefill_tokens=500), view("c")]
    assert best("prefix", ask(4000, cached={"a": 1000, "b": 3900}), fleet) == "b"
    assert best("prefix", ask(4000, cached={"b": 3900, "c": 3900}), fleet) == "c"


def test_what_is_common_or_too_short_is_no_match() -> None:
    fleet = [view("a", inflight=1, prefill_tokens=100), view("b")]
    assert best("prefix", ask(4000, cached={"a": 2000}, common_tokens=2000), fleet) == "b"
    assert best("prefix", ask(4000, cached={"a": 2050}, common_tokens=2000), fleet) == "b"
    assert best("prefix", ask(4000, cached={"a": 3900}, common_tokens=2000), fleet) == "a"
    options = {"min_match_tokens": 3000.0}
    assert best("prefix", ask(4000, cached={"a": 2000}), fleet, **options) == "b"
    assert best("prefix", ask(4000, cached={"a": 2000}), fleet) == "a"


def test_ties_go_to_the_one_given_least_of_late() -> None:
    fleet = [view("a", recent_s=5.0, recent_at_s=NOW_S), view("b", recent_s=4.0)]
    for name in AWARE:
        assert best(name, ask(), fleet) == "b"


def test_strong_gpus_get_the_large_calls() -> None:
    strong = view("strong", inflight=2, prefill_tokens=3000, output_tokens=100)
    weak = view("weak", pace=SLOW)
    assert best("gpu", ask(100, 20), [strong, weak]) == "weak"
    assert best("gpu", ask(8000, 600), [strong, weak]) == "strong"


def test_hot_and_throttling_gpus_get_less_but_not_nothing() -> None:
    cool = gpu_view("cool", gpu_temperature_celsius=70.0)
    warm = gpu_view("warm", gpu_temperature_celsius=79.0)
    hot = gpu_view("hot", gpu_temperature_celsius=88.0)
    slow = gpu_view("slow", gpu_temperature_celsius=70.0, gpu_throttled=True)
    found = Coolness(GpuOptions()).score(ask(), [cool, warm, hot, slow])
    assert found[:2] == [1.0, 1.0]
    assert 0.2 < found[2] < 0.6
    assert found[3] == 0.5
    busy = replace(cool, inflight=20, prefill_tokens=60_000)
    assert best("gpu", ask(), [busy, hot]) == "hot"
    assert best("gpu", ask(), [cool, hot]) == "cool"


def test_memory_is_kv_use_where_the_engine_takes_all() -> None:
    full: dict[str, Any] = {"gpu_memory_used_bytes": 97, "gpu_memory_bytes": 100}
    takes_all = gpu_view("a", kv_usage=0.2, **full)
    grows = gpu_view("b", kv_usage=0.2, preallocates=False, **full)
    crowded = gpu_view("c", kv_usage=0.97, gpu_memory_used_bytes=40, gpu_memory_bytes=100)
    found = MemoryRoom(GpuOptions()).score(ask(), [takes_all, grows, crowded])
    assert found[0] == 1.0
    assert found[1] == pytest.approx(found[2])
    assert found[1] < 0.3


def test_utilisation_alone_derates_nobody() -> None:
    alone = gpu_view("alone", gpu_utilisation=1.0, waiting=0, running=1, kv_usage=0.1)
    queued = replace(alone, id="queued", waiting=12)
    crowded = replace(alone, id="crowded", kv_usage=0.99)
    idle = replace(queued, id="idle", gpu_utilisation=0.3)
    stale = replace(queued, id="stale", facts_at_s=NOW_S - 60)
    fleet = [alone, queued, crowded, idle, stale]
    found = Idleness(GpuOptions()).score(ask(), fleet)
    assert found[0] == found[3] == found[4] == 1.0
    assert 0.5 <= found[1] < 0.7
    assert 0.5 <= found[2] < 0.7


@pytest.mark.parametrize("scorer", [Coolness(GpuOptions()), MemoryRoom(GpuOptions())])
def test_what_is_unknown_of_a_gpu_is_neither_fine_nor_bad(scorer: Coolness | MemoryRoom) -> None:
    fine = gpu_view("a", gpu_temperature_celsius=50.0, kv_usage=0.1)
    bad = gpu_view("b", gpu_temperature_celsius=99.0, kv_usage=1.0)
    silent = view("c")
    old_s = NOW_S - 60
    old = replace(bad, id="d", gpu_facts_at_s=old_s, facts_at_s=old_s)
    good, worst, *unknown = scorer.score(ask(), [fine, bad, silent, old])
    assert all(worst < one < good for one in unknown)
    assert scorer.score(ask(), [silent, old]) == [1.0, 1.0]


WORSE: list[dict[str, Any]] = [
    {"gpu_temperature_celsius": 95.0},
    {"gpu_throttled": True},
    {"kv_usage": 1.0},
    {"waiting": 60},
    {"gpu_utilisation": 1.0},
]
states = st.fixed_dictionaries(
    {
        "inflight": st.integers(0, 30),
        "prefill_tokens": st.integers(0, 50_000),
        "output_tokens": st.integers(0, 9000),
        "kv_usage": st.none() | st.floats(0, 1),
        "waiting": st.none() | st.integers(0, 50),
        "gpu_utilisation": st.none() | st.floats(0, 1),
        "gpu_temperature_celsius": st.none() | st.floats(20, 94),
        "gpu_facts_at_s": st.sampled_from([None, NOW_S, NOW_S - 100]),
        "facts_at_s": st.sampled_from([None, NOW_S, NOW_S - 100]),
    }
)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(states, min_size=2, max_size=5), worse=st.sampled_from(WORSE))
def test_hotter_fuller_or_throttled_never_gains(
    rows: list[dict[str, Any]], worse: dict[str, Any]
) -> None:
    fleet = [view(f"r{n}", **row) for n, row in enumerate(rows)]
    before = scored("gpu", ask(), fleet)
    known = {key: row for key, row in worse.items() if getattr(fleet[0], key) is not None}
    after = scored("gpu", ask(), [replace(fleet[0], **known), *fleet[1:]])
    beaten_by = {name for name, score in before.items() if score > before["r0"] + 1e-9}
    assert all(after[name] > after["r0"] - 1e-9 for name in beaten_by)


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("gpu", {"limit_celsius": 70}, "options.limit_celsius = 70: must be above hot_celsius, 80"),
        ("gpu", {"memory_threshold": 1.5}, "at most 0.99"),
        ("prefix", {"bound": 0.5}, "at least 1"),
        ("prefix", {"minmatch": 5}, "did you mean min_match_tokens"),
        ("global_least_request", {"batch": 0}, "at least 1"),
        ("predicted_latency", {"fresh_s": 0}, "above 0"),
    ],
)
def test_wrong_options_are_told(name: str, options: dict[str, float], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        build_policy(name, options)
