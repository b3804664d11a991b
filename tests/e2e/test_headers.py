"""What the gateway says of a request in its response headers, for every way it can go."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import GatewayProcess, ask, ask_until_cached, generated, outcome, said

CAPITAL = "What is the capital of France?"
ALWAYS = {
    "x-request-id",
    "x-tierway-cache",
    "x-tierway-tier",
    "x-tierway-replica",
    "x-tierway-attempts",
}
ON_A_HIT = {"age", "x-tierway-entry", "x-tierway-similarity"}


@pytest.fixture
def stored(client: httpx.Client) -> httpx.Response:
    """The answer to CAPITAL, which is in the cache from now on."""
    answer = ask(client, CAPITAL)
    assert outcome(answer) == "miss"
    return answer


def test_a_miss_names_the_replica_that_answered(
    client: httpx.Client, stored: httpx.Response, fleet: EngineUrls
) -> None:
    headers = stored.headers
    assert set(headers) >= ALWAYS
    assert not set(headers) & ON_A_HIT
    assert "x-tierway-reason" not in headers
    assert headers["x-tierway-attempts"] == "1"
    assert headers["x-tierway-tier"] in ("small", "medium", "large")
    model, _, address = headers["x-tierway-replica"].partition("@")
    assert f"http://{address}" in fleet.all
    assert model == stored.json()["model"]


def test_the_clients_own_request_id_comes_back(client: httpx.Client) -> None:
    assert (
        ask(client, CAPITAL, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    )


def test_a_repeat_is_a_hit_with_the_stored_identity(
    client: httpx.Client, stored: httpx.Response
) -> None:
    hit = ask(client, CAPITAL)
    assert outcome(hit) == "hit"
    assert set(hit.headers) >= ALWAYS | ON_A_HIT
    assert hit.headers["x-tierway-replica"] == "cache"
    assert hit.headers["x-tierway-attempts"] == "0"
    assert hit.headers["x-tierway-tier"] == stored.headers["x-tierway-tier"]
    assert float(hit.headers["x-tierway-similarity"]) == 1.0
    assert int(hit.headers["age"]) >= 0
    before, after = stored.json(), hit.json()
    assert after["usage"].pop("cached") is True
    assert after == before


def test_other_words_are_a_semantic_hit(client: httpx.Client, stored: httpx.Response) -> None:
    first = ask(client, CAPITAL)
    hit = ask_until_cached(client, "What's France's capital?")
    assert outcome(hit) == "semantic-hit"
    assert set(hit.headers) >= ALWAYS | ON_A_HIT
    assert 0.5 < float(hit.headers["x-tierway-similarity"]) < 1.0
    assert hit.headers["x-tierway-entry"] == first.headers["x-tierway-entry"]
    assert said(hit) == said(stored)


def test_no_store_leaves_nothing_behind(client: httpx.Client) -> None:
    assert outcome(ask(client, CAPITAL, headers={"cache-control": "no-store"})) == "miss"
    assert outcome(ask(client, CAPITAL)) == "miss"


def test_no_cache_is_a_bypass_whose_answer_is_stored(
    client: httpx.Client, stored: httpx.Response
) -> None:
    old = ask(client, CAPITAL)
    assert outcome(ask(client, CAPITAL, headers={"cache-control": "no-cache"})) == "bypass"
    new = ask(client, CAPITAL)
    assert outcome(new) == "hit"
    assert new.headers["x-tierway-entry"] != old.headers["x-tierway-entry"]


def test_only_if_cached_never_goes_upstream(client: httpx.Client, fleet: EngineUrls) -> None:
    only = {"cache-control": "only-if-cached"}
    before = generated(*fleet.all)
    missing = ask(client, CAPITAL, headers=only)
    assert missing.status_code == 504
    assert generated(*fleet.all) == before
    ask(client, CAPITAL)
    assert outcome(ask(client, CAPITAL, headers=only)) == "hit"


def test_max_age_zero_and_litellms_cache_object_are_understood(
    client: httpx.Client, stored: httpx.Response
) -> None:
    assert outcome(ask(client, CAPITAL, headers={"cache-control": "max-age=0"})) == "bypass"
    assert outcome(ask(client, CAPITAL, cache={"no-cache": True})) == "bypass"
    assert outcome(ask(client, CAPITAL, cache={"s-maxage": 600})) == "hit"


def test_a_high_temperature_bypasses_the_cache(client: httpx.Client) -> None:
    assert outcome(ask(client, CAPITAL, temperature=1.5)) == "bypass"
    assert outcome(ask(client, CAPITAL, temperature=1.5)) == "bypass"


@pytest.mark.parametrize("stream", [False, True])
def test_identical_requests_in_flight_share_one_upstream_call(
    client: httpx.Client, fleet: EngineUrls, stream: bool
) -> None:
    question = f"Why is the sky blue? [[fault:slow 1]] {stream}"
    before = generated(*fleet.all)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: ask(client, question, stream=stream), range(2)))
    assert sorted(map(outcome, both)) == ["miss", "shared"]
    assert said(both[0]) == said(both[1])
    assert both[0].headers["x-tierway-replica"] == both[1].headers["x-tierway-replica"]
    assert generated(*fleet.all) == before + 1


def test_debug_tells_the_reason_as_json(client: httpx.Client, stored: httpx.Response) -> None:
    asked = ask(client, "Name a river in Peru.", headers={"x-tierway-debug": "1"})
    reason = json.loads(asked.headers["x-tierway-reason"])
    assert reason["route"] == "classifier"
    assert set(reason["probabilities"]) == {"small", "medium", "large"}
    assert reason["policy"] == "llm"
    hit = ask(client, CAPITAL, headers={"x-tierway-debug": "1"})
    assert json.loads(hit.headers["x-tierway-reason"])["cache"] == "exact"


def test_a_pinned_tier_answers(client: httpx.Client) -> None:
    pinned = ask(client, CAPITAL, headers={"x-tierway-tier": "large", "x-tierway-debug": "1"})
    assert pinned.headers["x-tierway-tier"] == "large"
    assert pinned.json()["model"] == "sim-175b"
    by_name = ask(client, CAPITAL, model="medium")
    assert by_name.headers["x-tierway-tier"] == "medium"
    in_body = ask(client, CAPITAL, tierway={"tier": "large", "cache": {"no_cache": True}})
    assert in_body.headers["x-tierway-tier"] == "large"


def test_a_wrong_control_is_refused_by_name(client: httpx.Client) -> None:
    wrong = ask(client, CAPITAL, headers={"x-tierway-quality": "7"})
    assert wrong.status_code == 400
    assert "x-tierway-quality" in wrong.json()["error"]["message"]
    unknown = ask(client, CAPITAL, tierway={"teir": "small"})
    assert unknown.status_code == 400
    assert "tier" in unknown.json()["error"]["message"]


def test_a_deleted_entry_is_a_miss(
    client: httpx.Client, stored: httpx.Response, tierway: GatewayProcess
) -> None:
    entry = ask_until_cached(client, "What's France's capital?").headers["x-tierway-entry"]
    assert tierway.admin("DELETE", f"/admin/cache/{entry}").json() == {"deleted": 1}
    assert outcome(ask(client, CAPITAL, headers={"cache-control": "no-store"})) == "miss"
    assert outcome(ask(client, "What's France's capital?")) == "miss"
    assert tierway.admin("DELETE", f"/admin/cache/{entry}").status_code == 404


def test_errors_carry_the_request_id_and_the_headers(client: httpx.Client) -> None:
    wrong = ask(client, CAPITAL, model="nobody")
    assert wrong.status_code == 404
    assert set(wrong.headers) >= ALWAYS
