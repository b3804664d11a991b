"""Metrics: what one request counts, and what a scrape reads from the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tierway.middleware.metrics import Metrics
from tierway.policies.types import FRESH_S, GPU_FRESH_S, ReplicaView, Trace, Usage

OK = Trace(
    "r",
    wire="chat",
    tenant="acme",
    stream=True,
    outcome="ok",
    cache="miss",
    tier="small",
    route_reason="classifier",
    retries=["refused", "refused", "overload"],
    usage=Usage(7, 5),
    stages_s={"cache": 0.002, "route": 0.0001},
    first_token_s=0.5,
    duration_s=2.5,
)
VIEW = ReplicaView(
    "m@a:1", "m", "small", inflight=3, waiting=2, kv_usage=0.25, gpu_utilisation=0.9,
    gpu_memory_used_bytes=1 << 30, gpu_temperature_celsius=61.0, facts_at_s=99.0,
    gpu_facts_at_s=95.0,
)  # fmt: skip


class Rig:
    def __init__(self) -> None:
        self.views, self.breakers = [VIEW], {"m@a:1": "closed"}
        self.entries, self.version = 0, 1
        self.now = 100.0
        self.metrics = Metrics(
            views=lambda: self.views,
            breakers=lambda: self.breakers,
            entries=lambda: self.entries,
            policy_version=lambda: self.version,
            prices={"priced": (1.0, 10.0)},
            clock=lambda: self.now,
        )

    def count(self, *traces: Trace) -> dict[str, float]:
        """All samples after these requests; labels in the order of their names."""
        for trace in traces:
            self.metrics(trace)
        found = {}
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            assert family.name.startswith("tierway_")
            assert family.documentation
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                found[f"{sample.name.removeprefix('tierway_')}{{{labels}}}"] = sample.value
        return found


def test_one_streamed_request() -> None:
    found = Rig().count(OK)
    expected = {
        "requests_total{outcome=ok,tier=small,wire=chat}": 1,
        "cache_lookups_total{result=miss}": 1,
        "request_seconds_sum{}": 2.5,
        "route_total{reason=classifier,tier=small}": 1,
        "retries_total{reason=refused}": 2,
        "retries_total{reason=overload}": 1,
        "overhead_seconds_sum{stage=cache}": 0.002,
        "overhead_seconds_count{stage=route}": 1,
        "ttft_seconds_sum{tier=small}": 0.5,
        "tpot_seconds_sum{tier=small}": 0.5,
        "tenant_tokens_total{direction=input,tenant=acme}": 7,
        "tenant_tokens_total{direction=output,tenant=acme}": 5,
        "cache_saved_tokens_total{}": 0,
    }
    assert expected.items() <= found.items()


def test_second_opinions_are_counted_by_what_they_came_to() -> None:
    asked = [replace(OK, second_opinion=word) for word in ("accepted", "slow", "slow")]
    found = Rig().count(OK, *asked)
    assert found["cache_second_opinions_total{result=accepted}"] == 1
    assert found["cache_second_opinions_total{result=slow}"] == 2


def test_the_same_labels_are_the_same_counter() -> None:
    assert Rig().count(OK, OK, OK)["requests_total{outcome=ok,tier=small,wire=chat}"] == 3


@pytest.mark.parametrize("result", ["hit", "semantic-hit", "stale"])
def test_an_answer_from_the_cache_saves_tokens_and_costs_none(result: str) -> None:
    found = Rig().count(replace(OK, cache=result))
    assert found["cache_saved_tokens_total{}"] == 5
    assert not [name for name in found if name.startswith(("tenant_tokens", "ttft", "tpot"))]


@pytest.mark.parametrize("outcome", ["upstream_error", "client_left", "broken"])
def test_a_request_that_failed_counts_no_tokens_and_no_speed(outcome: str) -> None:
    found = Rig().count(replace(OK, outcome=outcome))
    assert found[f"requests_total{{outcome={outcome},tier=small,wire=chat}}"] == 1
    assert not [name for name in found if name.startswith(("tenant_tokens", "ttft", "tpot"))]


def test_speed_is_told_of_streams_with_more_than_one_token() -> None:
    def told(trace: Trace) -> set[str]:
        names = Rig().count(trace)
        return {name.split("_")[0] for name in names if name.startswith(("ttft", "tpot"))}

    assert told(replace(OK, stream=False)) == set()
    assert told(replace(OK, usage=Usage(7, 1))) == {"ttft"}
    assert told(replace(OK, usage=None)) == {"ttft"}
    assert told(replace(OK, first_token_s=None)) == set()


def test_a_request_refused_at_the_door() -> None:
    found = Rig().count(Trace("r", wire="chat", outcome="unauthorised", duration_s=0.001))
    assert found["requests_total{outcome=unauthorised,tier=,wire=chat}"] == 1
    assert not [name for name in found if name.startswith("route_total")]


def test_a_scrape_reads_the_fleet_as_it_is() -> None:
    rig = Rig()
    rig.entries, rig.version = 12, 4
    where = "{replica=m@a:1,tier=small}"
    found = rig.count()
    expected = {
        "cache_entries{}": 12,
        "policy_version{}": 4,
        f"replica_inflight{where}": 3,
        f"replica_waiting{where}": 2,
        f"replica_kv_usage{where}": 0.25,
        f"replica_gpu_utilisation{where}": 0.9,
        f"replica_gpu_memory_used_bytes{where}": 1 << 30,
        f"replica_gpu_temperature_celsius{where}": 61.0,
        f"replica_gpu_throttled{where}": 0,
        f"replica_facts_age_seconds{where}": 1.0,
        "breaker_state{replica=m@a:1}": 0,
    }
    assert expected.items() <= found.items()
    rig.views = [ReplicaView("m@b:1", "m", "small")]
    rig.breakers = {"m@b:1": "half-open", "m@a:1": "open"}
    found = rig.count()
    assert found["breaker_state{replica=m@b:1}"] == 1
    assert found["breaker_state{replica=m@a:1}"] == 2
    names = [name for name in found if name.startswith("replica_")]
    assert names == ["replica_inflight{replica=m@b:1,tier=small}"]


def test_facts_that_are_too_old_leave_a_gap() -> None:
    rig, where = Rig(), "{replica=m@a:1,tier=small}"
    rig.now = 99.0 + FRESH_S + 1
    found = rig.count()
    assert (f"replica_waiting{where}" in found, f"replica_kv_usage{where}" in found) == (0, 0)
    assert found[f"replica_gpu_temperature_celsius{where}"] == 61.0
    rig.now = 95.0 + GPU_FRESH_S + 1
    names = {name for name in rig.count() if name.startswith("replica_")}
    assert names == {f"replica_inflight{where}", f"replica_facts_age_seconds{where}"}


def test_two_gateways_of_a_process_do_not_share_counts() -> None:
    Rig().count(OK)
    assert "requests_total{outcome=ok,tier=small,wire=chat}" not in Rig().count()


def test_a_hit_by_meaning_tells_its_score_and_a_miss_its_reason() -> None:
    hit = replace(OK, cache="semantic-hit", similarity=0.96)
    observed = replace(OK, observed="semantic-hit", cache_reason="observed equal", similarity=0.91)
    found = Rig().count(
        hit,
        observed,
        replace(OK, cache_reason="numbers"),
        replace(OK, cache_reason="The body: 'x'"),
        replace(OK, cache="hit", similarity=1.0),
    )
    assert found["cache_similarity_count{result=semantic-hit}"] == 1
    assert found["cache_similarity_bucket{le=0.95,result=semantic-hit}"] == 0
    assert found["cache_similarity_bucket{le=0.97,result=semantic-hit}"] == 1
    assert found["cache_similarity_sum{result=observed}"] == 0.91
    assert found["cache_misses_total{reason=numbers}"] == 1
    assert found["cache_misses_total{reason=other}"] == 1
    assert not any("observed equal" in name or "'x'" in name for name in found)


def test_dollars_are_counted_for_models_with_a_price() -> None:
    paid = replace(OK, model="priced", usage=Usage(1_000_000, 100_000))
    found = Rig().count(
        paid,
        replace(paid, cache="semantic-hit"),
        replace(paid, cache="shared"),
        replace(paid, model="bare"),
        replace(paid, outcome="broken"),
    )
    assert found["cost_usd_total{tier=small}"] == 2.0
    assert found["saved_usd_total{}"] == 2.0
