"""More faults that users of other semantic caches met: how a hit is served, and how it goes.

The numbers are those of the table behind test_known_faults.py.
"""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from e2e.conftest import EngineUrls
from e2e.servers import (
    GatewayProcess,
    ask,
    ask_until_cached,
    generated,
    metric,
    outcome,
    said,
)

FRANCE, FRANCE_TOO = "What is the capital of France?", "What's France's capital?"
PERU, PERU_TOO = "法国的首都是哪里？", "法国的首都在哪里？"
DEBUG = {"x-tierway-debug": "1"}


def why(answer: httpx.Response) -> str:
    return str(json.loads(answer.headers["x-tierway-reason"])["cache"])


def conversation(question: str, human_turns: int) -> list[dict[str, str]]:
    before = [
        turn
        for number in range(human_turns - 1)
        for turn in (
            {"role": "user", "content": f"Tell me fact {number} about tides."},
            {"role": "assistant", "content": "Tides come twice a day."},
        )
    ]
    return [*before, {"role": "user", "content": question}]


def test_known_fault_12_a_hit_is_a_whole_stream(client: httpx.Client) -> None:
    """semantic-router #913 and #378: JSON or garbage where a stream was asked for."""
    whole = ask(client, FRANCE)
    exact = ask(client, FRANCE, stream=True)
    similar = ask_until_cached(client, FRANCE_TOO, stream=True)
    for answer, result in ((exact, "hit"), (similar, "semantic-hit")):
        assert outcome(answer) == result
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("data: [DONE]\n\n")
        assert said(answer) == said(whole)


def test_known_fault_13_a_streamed_answer_is_stored(
    client: httpx.Client, fleet: EngineUrls
) -> None:
    """semantic-router #1555, higress #1624."""
    before = generated(*fleet.all)
    first = ask(client, "How do tides work at sea?", stream=True)
    second = ask(client, "How do tides work at sea?", stream=True)
    assert (outcome(first), outcome(second)) == ("miss", "hit")
    assert said(first) == said(second) != ""
    assert generated(*fleet.all) == before + 1


def test_known_fault_14_one_wrong_entry_is_removed(
    client: httpx.Client, tierway: GatewayProcess
) -> None:
    """semantic-router #1581: no way to be rid of one wrong answer, or of one wrong pair."""
    ask(client, FRANCE)
    hit = ask(client, FRANCE)
    entry = hit.headers["x-tierway-entry"]
    assert tierway.admin("DELETE", f"/admin/cache/{entry}").status_code == 200
    only = {"cache-control": "only-if-cached"}
    assert ask(client, FRANCE, headers=only).status_code == 504
    assert ask(client, FRANCE_TOO, headers=only).status_code == 504


def test_known_fault_18_one_answer_serves_both_wires(
    client: httpx.Client, fleet: EngineUrls
) -> None:
    """litellm #28272: the same question by another protocol, in the asker's own."""
    before = generated(*fleet.all)
    chat = ask(client, FRANCE, max_tokens=400)
    messages = ask(client, FRANCE, path="/v1/messages", max_tokens=400)
    assert outcome(messages) == "hit"
    assert messages.json()["type"] == "message"
    assert messages.json()["content"][0]["text"] == said(chat)
    assert generated(*fleet.all) == before + 1


@pytest.mark.parametrize("stored", [FRANCE, PERU])
def test_known_fault_22_long_conversations_are_not_matched_by_meaning(
    client: httpx.Client, stored: str
) -> None:
    """litellm #21906: a topic that overlaps is no repetition, and one can see why it missed."""
    other = {FRANCE: FRANCE_TOO, PERU: PERU_TOO}[stored]
    long = conversation(stored, 10)
    assert outcome(ask(client, "", messages=long)) == "miss"
    skipped = ask(client, "", messages=conversation(other, 10), headers=DEBUG)
    assert (outcome(skipped), why(skipped)) == ("miss", "max-turns")
    assert outcome(ask(client, "", messages=long)) == "hit"


@pytest.mark.parametrize("stream", [False, True])
def test_known_fault_28_a_hit_shows_in_log_header_and_metric(
    client: httpx.Client, tierway: GatewayProcess, stream: bool
) -> None:
    """bifrost #2906 and #3050: invisible when streaming."""

    def counted() -> float:
        return metric(tierway.admin_url, "tierway_cache_lookups_total")

    ask(client, FRANCE, stream=stream)
    ask_until_cached(client, FRANCE_TOO)
    before = counted()
    answer = ask(client, FRANCE_TOO, stream=stream)
    assert outcome(answer) == "semantic-hit"
    assert 0.5 < float(answer.headers["x-tierway-similarity"]) <= 1.0
    assert answer.headers["x-tierway-entry"].startswith("e_")
    assert int(answer.headers["age"]) >= 0
    assert counted() == before + 1
    line = logged(tierway, answer.headers["x-request-id"])
    assert "semantic-hit" in line
    assert answer.headers["x-tierway-entry"] in line


def logged(tierway: GatewayProcess, request_id: str) -> str:
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        lines = [line for line in tierway.errors.splitlines() if request_id in line]
        if lines:
            return lines[-1]
    raise AssertionError("the request was not logged")


def test_known_fault_33_both_kinds_of_hit_are_on_by_default(client: httpx.Client) -> None:
    """higress #3880: with an exact cache configured, vectors were not used."""
    for stored, other in ((FRANCE, FRANCE_TOO), (PERU, PERU_TOO)):
        ask(client, stored)
        assert outcome(ask(client, stored)) == "hit"
        assert outcome(ask_until_cached(client, other)) == "semantic-hit"


def test_known_fault_36_history_counts_and_still_hits(client: httpx.Client) -> None:
    """LightRAG #3510, zeph #1372: history left out answers wrongly, history kept never hits."""

    def chat(country: str, question: str) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": f"Tell me of {country}."},
            {"role": "assistant", "content": "It is a country in Europe."},
            {"role": "user", "content": question},
        ]

    for country in ("France", "France", "Spain", "Spain"):
        # A conversation is findable by meaning from its second time on.
        ask(client, "", messages=chat(country, "How do I cook brown rice?"))
        ask(client, "", messages=chat(country, "What is its capital?"))
    ask(client, "", messages=chat("France", "How do I boil an egg softly?"))
    leaning = ask(client, "", messages=chat("Spain", "And its capital?"), headers=DEBUG)
    assert (outcome(leaning), why(leaning)) == ("miss", "not-self-contained")
    standing = chat("France", "How can I boil an egg softly?")
    assert outcome(ask_until_cached(client, "", messages=standing)) == "semantic-hit"
    other = ask(client, "", messages=chat("Spain", "How can I boil an egg softly?"))
    assert outcome(other) == "miss"
