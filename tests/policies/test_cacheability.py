"""When a call may be looked up, stored and joined, and what an answer must be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.policies.cacheability import (
    CacheRules,
    Plan,
    TtlRule,
    calls_tools,
    lookup,
    storable,
)
from tierway.policies.personal import Personal
from tierway.policies.types import Ask, CacheControl, Call, Controls

RULES = CacheRules(ttl_rules=(TtlRule(60.0, lambda call: "today" in call.ask.question),))


def plan(
    body: dict[str, Any] | None = None,
    *,
    rules: CacheRules = RULES,
    wire: Any = "chat",
    question: str = "Why is the sky blue?",
    user: str = "ann",
    **control: Any,
) -> Plan:
    asked = Call(
        id="r1",
        wire=wire,
        raw=b"",
        body=body or {},
        ask=Ask(turns=(), question=question),
        model="auto",
        user=user,
        controls=Controls(cache=CacheControl(**control)),
    )
    return lookup(asked, rules)


def allowed(found: Plan) -> tuple[bool, bool, bool, str]:
    return found.lookup, found.store, found.join, found.reason


@pytest.mark.parametrize("wire", ["chat", "completions", "messages", "embeddings"])
def test_an_ordinary_call_may_use_the_cache_in_every_way(wire: Any) -> None:
    assert plan(wire=wire) == Plan(True, True, True, ttl_s=86400.0)


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ({"no_cache": True}, (False, True, False, "no-cache")),
        ({"max_age_s": 0.0}, (False, True, False, "max-age")),
        ({"no_store": True}, (True, False, False, "no-store")),
        ({"only_if_cached": True}, (True, False, False, "only-if-cached")),
        ({"no_cache": True, "no_store": True}, (False, False, False, "no-cache")),
        ({"no_cache": True, "only_if_cached": True}, (False, False, False, "no-cache")),
        ({"ttl_s": 0.0}, (True, False, True, "ttl")),
        ({"max_age_s": 5.0}, (True, True, True, "")),
    ],
)
def test_what_the_client_asked_is_done(control: dict[str, Any], expected: Any) -> None:
    assert allowed(plan(**control)) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"n": 2}, "n"),
        ({"n": "2"}, "n"),
        ({"temperature": 1.01}, "temperature"),
        ({"temperature": "1.5"}, "temperature"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "audio"),
    ],
)
def test_a_call_that_wants_variety_or_sound_bypasses(body: dict[str, Any], reason: str) -> None:
    assert allowed(plan(body)) == (False, False, False, reason)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 1, "temperature": 1.0},
        {"temperature": None, "n": None},
        {"temperature": [], "n": {}, "modalities": "audio"},
        {"modalities": ["text"]},
    ],
)
def test_an_absent_or_odd_setting_is_cacheable(body: dict[str, Any]) -> None:
    assert plan(body).reason == ""


def test_the_highest_temperature_is_the_operators() -> None:
    cold = CacheRules(max_temperature=0.0)
    assert plan({"temperature": 0.1}, rules=cold).reason == "temperature"
    assert plan({"temperature": 0}, rules=cold).reason == ""


def test_an_unknown_wire_bypasses() -> None:
    assert plan(wire="rerank").reason == "wire"


def test_off_means_off_and_still_says_only_if_cached() -> None:
    found = plan(rules=CacheRules(mode="off"), only_if_cached=True)
    assert allowed(found) == (False, False, False, "off")
    assert found.only_if_cached


def test_observe_looks_up_and_stores_but_changes_no_answer() -> None:
    found = plan(rules=CacheRules(mode="observe"))
    assert allowed(found) == (True, True, False, "")
    assert not found.serve


def test_scope_user_wants_a_user() -> None:
    rules = CacheRules(scope="user")
    assert allowed(plan(rules=rules, user="")) == (False, False, False, "no-user")
    assert plan(rules=rules, user="ann").lookup
    assert plan(user="").lookup


@pytest.mark.parametrize("question", ["What is my account balance?", "我的余额是多少"])
@pytest.mark.parametrize("scope", ["tenant", "user", "shared"])
def test_a_personal_answer_is_its_users_alone(scope: Any, question: str) -> None:
    rules = CacheRules(scope=scope)
    assert plan(rules=rules, question=question).scope == "user"
    nobodys = plan(rules=rules, question=question, user="")
    reason = "no-user" if scope == "user" else "personal"
    assert allowed(nobodys) == (False, False, False, reason)
    assert plan(rules=rules).scope == scope


def test_the_query_may_be_personal_and_an_operators_word_makes_it_so() -> None:
    rules = CacheRules(scope="shared", personal=Personal(("badge",)))
    assert plan(rules=rules, query="What is my balance?").scope == "user"
    assert plan(rules=rules, question="Which badge opens it?").scope == "user"
    assert plan(question="Which badge opens it?").scope == "tenant"
    assert plan(rules=rules, question="What is my balance?", wire="embeddings").scope == "shared"


def test_a_rule_of_no_seconds_keeps_the_call_out() -> None:
    never = CacheRules(ttl_rules=(TtlRule(0, lambda call: "today" in call.ask.question),))
    assert allowed(plan(rules=never, question="today?")) == (False, False, False, "ttl-rule")
    assert plan(rules=never, question="today?", only_if_cached=True).only_if_cached
    assert plan(rules=never).lookup


def test_what_only_its_own_words_may_find_is_still_looked_up_and_kept() -> None:
    assert allowed(plan(question="tell me a joke")) == (True, True, True, "")
    assert plan(rules=CacheRules(max_turns=3)).max_turns == 3


def test_time_sensitive_questions_live_short_and_accept_nothing_older() -> None:
    found = plan(question="What happened today?")
    assert (found.ttl_s, found.max_age_s) == (60.0, 60.0)
    assert plan(question="What happened today?", max_age_s=10.0).max_age_s == 10.0
    assert (plan().ttl_s, plan().max_age_s) == (86400.0, None)


def test_the_shortest_of_several_rules_counts() -> None:
    always = tuple(TtlRule(ttl_s, lambda _: True) for ttl_s in (300.0, 5.0, 60.0))
    assert plan(rules=CacheRules(ttl_rules=always)).ttl_s == 5.0


def test_a_client_may_shorten_a_time_to_live_but_not_lengthen_it() -> None:
    assert plan(ttl_s=5.0).ttl_s == 5.0
    assert plan(ttl_s=1e9).ttl_s == 86400.0
    assert plan(ttl_s=3600.0, question="today?").ttl_s == 60.0


@given(
    st.builds(
        CacheControl,
        no_cache=st.booleans(),
        no_store=st.booleans(),
        only_if_cached=st.booleans(),
        max_age_s=st.none() | st.floats(0, 1e6),
        ttl_s=st.none() | st.floats(0, 1e6),
    ),
    st.sampled_from(["serve", "observe", "off"]),
    st.integers(1, 3),
)
def test_a_plan_never_allows_more_than_was_asked(
    control: CacheControl, mode: Any, choices: int
) -> None:
    asked = Call(
        "r", "chat", b"", {"n": choices}, Ask((), ""), "auto", controls=Controls(cache=control)
    )
    found = lookup(asked, CacheRules(mode=mode))
    assert not (found.lookup and control.no_cache)
    assert not (found.store and (control.no_store or control.only_if_cached))
    assert not (found.join and not (found.lookup and found.serve))
    assert not ((found.lookup or found.store) and (mode == "off" or choices > 1))
    assert found.store is False or 0 < found.ttl_s <= 86400.0
    assert bool(found.reason) or (found.lookup and found.store)


def answer(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "Paris.", **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("given_answer", "reason"),
    [
        (answer(), None),
        (answer(reasoning="Hm.", refusal=None, tool_calls=[], audio=None), None),
        ({**answer(), "error": None, "usage": {"prompt_tokens": 1}}, None),
        (answer("length"), "unfinished"),
        (answer(None), "unfinished"),
        (answer("content_filter"), "refusal"),
        (answer(refusal="I cannot."), "refusal"),
        (answer("tool_calls", content=None, tool_calls=[{"id": "c"}]), "tool-calls"),
        (answer(tool_calls=[{"id": "c"}]), "tool-calls"),
        (answer("function_call", function_call={"name": "f"}), "tool-calls"),
        (answer(audio={"id": "a"}), "audio"),
        (answer(content=""), "empty"),
        (answer(content=" \n"), "empty"),
        (answer(content=None), "empty"),
        (answer(content=None, reasoning="Only thoughts."), "empty"),
        (answer(content=[{"type": "text"}]), "shape"),
        (answer(reasoning={"odd": 1}), "shape"),
        ({"error": {"message": "boom"}}, "error"),
        ({**answer(), "error": {"message": "boom"}}, "error"),
        ({"choices": []}, "choices"),
        ({"choices": answer()["choices"] * 2}, "choices"),
        ({"choices": ["odd"]}, "choices"),
        ({}, "choices"),
        ({"choices": [{"finish_reason": "stop"}]}, "shape"),
    ],
)
def test_only_finished_plain_answers_are_stored(
    given_answer: dict[str, Any], reason: str | None
) -> None:
    assert storable(given_answer, "chat") == reason
    assert storable(given_answer, "messages") == reason


def tool_call(arguments: Any = '{"to": "Bob"}', **fields: Any) -> dict[str, Any]:
    function = {"name": "pay", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function, **fields}


@pytest.mark.parametrize(
    ("given_answer", "reason"),
    [
        (answer("tool_calls", content=None, tool_calls=[tool_call(), tool_call("")]), None),
        (answer("stop", content="I pay.", tool_calls=[tool_call()]), None),
        (answer("length", tool_calls=[tool_call()]), "unfinished"),
        (answer("content_filter", tool_calls=[tool_call()]), "refusal"),
        (answer("tool_calls", tool_calls=[tool_call()], refusal="No."), "refusal"),
        (answer("tool_calls", tool_calls=[tool_call('{"to": "B')]), "tool-calls"),
        (answer("tool_calls", tool_calls=[tool_call("7")]), "tool-calls"),
        (answer("tool_calls", tool_calls=[tool_call(None)]), "tool-calls"),
        (answer("tool_calls", tool_calls=[tool_call(id="")]), "tool-calls"),
        (answer("tool_calls", tool_calls=[tool_call(function=None, custom={})]), "tool-calls"),
        (answer("tool_calls", tool_calls="odd"), "tool-calls"),
        (answer("tool_calls", tool_calls=[tool_call()], content=[{}]), "shape"),
        (answer("function_call", function_call={"name": "f"}), "tool-calls"),
        (answer("tool_calls", content=None), "unfinished"),
        (answer(), None),
        ({}, "choices"),
    ],
)
def test_tool_calls_are_stored_whole_and_only_on_wish(
    given_answer: dict[str, Any], reason: str | None
) -> None:
    assert storable(given_answer, "chat", tool_calls=True) == reason
    if calls_tools(given_answer):
        assert storable(given_answer, "chat") == "tool-calls"


def test_logprobs_are_no_reason() -> None:
    found = answer()
    found["choices"][0]["logprobs"] = {"content": [{"token": "Paris."}]}
    assert storable(found, "chat") is None


def test_completions_and_embeddings_have_their_own_shape() -> None:
    text = {"choices": [{"index": 0, "text": " Paris", "finish_reason": "stop"}]}
    assert storable(text, "completions") is None
    assert storable(text, "chat") == "shape"
    assert storable(answer(), "completions") == "empty"
    cut = {"choices": [{"text": "Pa", "finish_reason": "length"}]}
    assert storable(cut, "completions") == "unfinished"
    assert storable({"data": [{"embedding": [0.5]}]}, "embeddings") is None
    assert storable({"data": []}, "embeddings") == "empty"
    assert storable({"error": {"message": "x"}}, "embeddings") == "error"
