"""Which calls share an exact key, which share a partition, and which are never matched."""

from __future__ import annotations

import re
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tierway.cache.keys import FIELDS, Fingerprint, Ignore, fingerprint
from tierway.policies.errors import CacheError
from tierway.policies.types import Ask, CacheControl, Call, Controls

ASK = Ask(turns=(), question="")
MESSAGES = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "What is the capital of France?"},
]


def call(body: dict[str, Any] | bytes, *, wire: Any = "chat", **facts: Any) -> Call:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    parsed = orjson.loads(raw) if isinstance(body, bytes) else body
    given_facts = {"tenant": "acme", "user": "ann", **facts}
    return Call("r1", wire, raw, parsed, ASK, str(parsed.get("model", "")), **given_facts)


def key(body: dict[str, Any] | bytes, *, wire: Any = "chat", **facts: Any) -> Fingerprint:
    return fingerprint(call(body, wire=wire, **facts), names="auto@r1")


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": list(messages or MESSAGES), **fields}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def controls(namespace: str = "", **cache: Any) -> Controls:
    return Controls(namespace=namespace, cache=CacheControl(**cache))


VALUES: dict[str, Any] = {
    "model": "other",
    "stream_options": {"include_usage": True},
    "metadata": {"user_id": "u-7", "trace": "t"},
    "tierway": {"quality": 1},
    "cache": {"ttl": 5},
    "stream": True,
    "messages": [user("Something else?")],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "n": 1,
}
CHANGING = [
    *sorted(set(CompletionCreateParamsBase.__annotations__) - set(FIELDS)),
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "truncate_prompt_tokens",
    "reasoning_effort",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "documents",
    "structured_outputs",
    "cache_salt",
    "kv_transfer_params",
    "vllm_xargs",
    "mm_processor_kwargs",
    "return_token_ids",
    "a_field_of_next_year",
]


@pytest.mark.parametrize("name", FIELDS)
def test_identity_transport_and_model_are_not_in_the_key(name: str) -> None:
    assert key(chat(**{name: VALUES.get(name, "x")})) == key(chat())


@pytest.mark.parametrize("name", CHANGING)
def test_every_other_field_makes_another_partition(name: str) -> None:
    base, changed = key(chat()), key(chat(**{name: VALUES.get(name, "x")}))
    assert base.partition != changed.partition
    assert base.exact != changed.exact


def test_a_value_of_an_answer_changing_field_counts() -> None:
    keys = [key(chat(temperature=value)).partition for value in (0, 0.0, 1, 1.0, True, None, "1")]
    assert len(set(keys)) == len(keys)
    assert key(b'{"messages":[],"x":1.0}') == key(b'{"messages":[],"x":1.00}')
    assert key(b'{"messages":[],"x":1e0}') == key(b'{"messages":[],"x":1.0}')


def test_the_text_of_a_request_does_not_matter_only_its_values_do() -> None:
    plain = b'{"model":"auto","top_p":0.5,"messages":[{"role":"user","content":"caf\xc3\xa9/x?"}]}'
    other = (
        b'{ "messages" : [ {"content":"caf\\u00e9\\/x?", "role":"user"} ],\n'
        b'  "top_p": 0.50, "stream": true, "model": "auto" }'
    )
    assert key(plain) == key(other)


def test_the_digests_are_sixteen_bytes_and_the_question_is_the_last_turn() -> None:
    found = key(chat())
    assert (len(found.exact), len(found.partition)) == (16, 16)
    assert found.exact != found.partition
    assert found.question == "What is the capital of France?"
    assert found.semantic
    assert found.why_not == ""


def test_only_the_wording_of_the_last_question_stays_out_of_the_partition() -> None:
    one, two = key(chat(user("What is 17 * 23?"))), key(chat(user("What is 17 * 24?")))
    assert one.partition == two.partition
    assert one.exact != two.exact


def test_an_equal_last_turn_after_another_history_is_another_partition() -> None:
    last = user("how old is he")
    said = {"role": "assistant", "content": "Let me see."}
    keys = [key(chat(user(f"CEO of {name}?"), said, last)) for name in ("OpenAI", "Apple")]
    assert keys[0].partition != keys[1].partition
    assert keys[0].exact != keys[1].exact


def test_another_system_prompt_or_persona_is_another_partition() -> None:
    prompts = ["Answer in French.", "You are a pirate.", ""]
    systems = [({"role": "system", "content": text},) for text in prompts]
    keys = [key(chat(*system, MESSAGES[1])).partition for system in [*systems, ()]]
    assert len(set(keys)) == len(keys)
    developer = key(chat({"role": "developer", "content": prompts[0]}, MESSAGES[1]))
    assert developer.partition not in keys


@pytest.mark.parametrize(
    ("scope", "same_tenant", "same_user"),
    [("shared", True, True), ("tenant", False, True), ("user", False, False)],
)
def test_tenants_and_users_share_what_the_scope_says(
    scope: Any, same_tenant: bool, same_user: bool
) -> None:
    body = chat(user("What is my account balance?"))

    def made(**facts: str) -> Fingerprint:
        return fingerprint(call(body, **facts), names="n", scope=scope)

    base = made(tenant="acme", user="ann")
    assert (made(tenant="globex", user="ann").partition == base.partition) is same_tenant
    assert (made(tenant="acme", user="bob").partition == base.partition) is same_user
    assert (made(tenant="acme", user="bob").exact == base.exact) is same_user


def test_tenant_and_user_cannot_be_shifted_into_each_other() -> None:
    def made(tenant: str, user_name: str, namespace: str) -> bytes:
        facts = {"tenant": tenant, "user": user_name, "controls": controls(namespace)}
        return fingerprint(call(chat(), **facts), names="n", scope="user").partition

    assert len({made("ab", "c", ""), made("a", "bc", ""), made("a", "b", "c")}) == 3


def test_namespace_names_and_wire_family_part_the_cache() -> None:
    base = key(chat())
    assert key(chat(), controls=controls("blue")).partition != base.partition
    assert fingerprint(call(chat()), names="auto@r2").partition != base.partition
    assert key(chat(), wire="completions").partition != base.partition
    assert key(chat(), wire="messages") == base


@pytest.mark.parametrize(
    "content",
    [
        "Hi?",
        [{"type": "text", "text": "Hi?"}],
        [{"text": "Hi?", "type": "text", "cache_control": {"type": "ephemeral"}}],
    ],
)
def test_one_text_part_is_the_plain_string(content: Any) -> None:
    assert key(chat(user(content))) == key(chat(user("Hi?")))


def test_the_borders_of_several_text_parts_are_in_the_key() -> None:
    def parts(*texts: str) -> Fingerprint:
        return key(chat(user([{"type": "text", "text": text} for text in texts])))

    found = [parts("a", "b\nc"), parts("a\nb", "c"), parts("a", "b", "c"), parts("a\nb\nc")]
    assert len({one.exact for one in found}) == 4
    assert found[0].partition == found[1].partition
    assert {one.question for one in found} == {"a\nb\nc"}
    assert all(one.semantic for one in found)
    marked = key(chat(user([{"type": "text", "text": "a", "lang": "en"}])))
    assert marked.partition != key(chat(user("a"))).partition


@pytest.mark.parametrize(
    ("body", "wire", "why_not"),
    [
        (chat(*MESSAGES, {"role": "assistant", "content": "Pa"}), "chat", "not-user"),
        (chat(user("x"), {"role": "tool", "content": "3"}), "chat", "not-user"),
        ({"messages": []}, "chat", "not-user"),
        ({"messages": "hello"}, "chat", "not-user"),
        (chat(user([{"type": "image_url", "image_url": {"url": "u"}}])), "chat", "media"),
        (chat(user([{"type": "text", "text": "x"}, {"type": "file"}])), "chat", "media"),
        (chat(user([{"type": "text", "text": 5}])), "chat", "media"),
        (chat(user(["x"])), "chat", "media"),
        (chat(user({"odd": 1})), "chat", "media"),
        (chat(user("  \n")), "chat", "empty"),
        (chat(user(None)), "chat", "empty"),
        (chat(user([])), "chat", "empty"),
        (chat(n=2), "chat", "n"),
        (chat(return_token_ids=True), "chat", "quotes-prompt"),
        (chat(prompt_logprobs=0), "chat", "quotes-prompt"),
        (chat(logprobs=True), "chat", "logprobs"),
        ({"prompt": "Say hi", "logprobs": 0}, "completions", "logprobs"),
        ({"prompt": "Say hi", "echo": True}, "completions", "quotes-prompt"),
        ({"prompt": ["a", "b"]}, "completions", "prompt-list"),
        ({"prompt": [1, 2, 3]}, "completions", "prompt-list"),
        ({"prompt": "def f(", "suffix": "return x"}, "completions", "suffix"),
        ({"prompt": " "}, "completions", "empty"),
        ({"input": "hello"}, "embeddings", "embeddings"),
    ],
)
def test_what_is_matched_exactly_only(body: dict[str, Any], wire: Any, why_not: str) -> None:
    found = key(body, wire=wire)
    assert (found.semantic, found.why_not, found.question) == (False, why_not, "")
    assert key(dict(body), wire=wire) == found
    assert key({**body, "seed": 7}, wire=wire).exact != found.exact


def test_exact_only_calls_differ_by_their_whole_content() -> None:
    def image(url: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": url}}
        return key(chat(user([{"type": "text", "text": "What is this?"}, part]))).exact

    assert image("data:1") != image("data:2")
    inputs = ("a", ["a"], [1])
    assert len({key({"input": value}, wire="embeddings").exact for value in inputs}) == 3


def test_a_false_echo_is_no_reason() -> None:
    assert key({"prompt": "Say hi", "echo": False}, wire="completions").semantic


def test_what_stands_in_place_of_the_question_cannot_be_written_by_a_client() -> None:
    base = key(chat(user("Hi?")))
    for forged in (user(None), user([]), user([{"type": "text"}]), {"role": "user"}):
        assert key(chat(forged)).partition != base.partition


def test_further_keys_of_the_last_turn_stay_in_the_partition() -> None:
    assert key(chat(user("Hi?", name="ann"))).partition != key(chat(user("Hi?"))).partition


def test_a_completion_prompt_is_its_question() -> None:
    one, two = ({"prompt": text, "max_tokens": 5} for text in ("Name a tree.", "Name one tree."))
    assert key(one, wire="completions").question == "Name a tree."
    assert key(one, wire="completions").partition == key(two, wire="completions").partition
    other = key({**one, "max_tokens": 6}, wire="completions")
    assert other.partition != key(one, wire="completions").partition


def rag(documents: str, query: str, **cache: Any) -> Fingerprint:
    body = chat(user(f"Documents: {documents}\nQuestion: {query}"))
    return key(body, controls=controls(query=query, **cache))


def test_a_context_id_stands_for_the_documents_of_a_turn() -> None:
    base = rag("A B C", "Who wrote it?", context_id="doc-1")
    assert base.question == "Who wrote it?"
    assert rag("C B A", "Who wrote it?", context_id="doc-1") == base
    assert rag("A B C", "Who wrote this?", context_id="doc-1").partition == base.partition
    assert rag("A B C", "Who wrote it?", context_id="doc-2").partition != base.partition
    assert key(chat(user("Who wrote it?"))).partition != base.partition


def test_without_a_context_id_the_rest_of_the_turn_stays_in_the_partition() -> None:
    base = rag("A B C", "Who wrote it?")
    assert base.question == "Who wrote it?"
    assert rag("A B C", "Who is the writer?").partition == base.partition
    assert rag("A B D", "Who wrote it?").partition != base.partition
    elsewhere = [
        key(chat(user(text)), controls=controls(query="not in it")).partition
        for text in ("Documents: A", "Documents: B")
    ]
    assert elsewhere[0] != elsewhere[1]


def test_a_context_id_alone_is_part_of_the_partition() -> None:
    one, two = (key(chat(), controls=controls(context_id=name)) for name in ("a", "b"))
    assert one.partition != two.partition
    assert one.question == "What is the capital of France?"


CLOCK = Ignore("system", re.compile(r"Current time: .*"))


@pytest.mark.parametrize("as_parts", [False, True])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_ignored_text_of_the_system_prompt_does_not_part(role: str, as_parts: bool) -> None:
    def at(time_of_day: str, ignore: tuple[Ignore, ...]) -> Fingerprint:
        text = f"Be kind.\nCurrent time: {time_of_day}"
        content: Any = [{"type": "text", "text": text}] if as_parts else text
        body = chat({"role": role, "content": content}, MESSAGES[1])
        return fingerprint(call(body), names="n", ignore=ignore)

    assert at("10:00", (CLOCK,)) == at("10:01", (CLOCK,))
    assert at("10:00", ()).partition != at("10:01", ()).partition


def test_a_rule_for_system_texts_leaves_the_user_alone_and_the_other_way() -> None:
    body = chat({"role": "system", "content": "[id 1]"}, user("[id 1] Hi?"))
    rule = Ignore("user", re.compile(r"\[id \d+\] ?"))
    found = fingerprint(call(body), names="n", ignore=[rule])
    assert found.question == "Hi?"
    other = chat({"role": "system", "content": "[id 2]"}, user("[id 1] Hi?"))
    assert fingerprint(call(other), names="n", ignore=[rule]).partition != found.partition
    prompt = fingerprint(
        call({"prompt": "[id 3] Hi?"}, wire="completions"), names="n", ignore=[rule]
    )
    assert prompt.question == "Hi?"
    image = chat(user([{"type": "image_url"}]), MESSAGES[1])
    assert fingerprint(call(image), names="n", ignore=[rule]).semantic


def test_a_body_that_is_no_json_is_a_cache_error() -> None:
    for body in (chat(seed=2**70), chat(user("\ud800")), chat(stop="\ud800")):
        with pytest.raises(CacheError, match="cannot be made a cache key"):
            fingerprint(Call("r", "chat", b"", body, ASK, "auto"), names="n")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=5), st.text(max_size=20))
def test_any_body_has_one_key_however_it_is_written(fields: dict[str, Any], text: str) -> None:
    body = {**fields, "messages": [user(text)]}
    turned = {name: body[name] for name in reversed(body)}
    assert key(body) == key(turned) == key(orjson.dumps(turned, option=orjson.OPT_INDENT_2))
    assert call(body).body == body


@given(JSON, JSON)
def test_different_values_never_share_a_key(one: Any, two: Any) -> None:
    same = orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        two, option=orjson.OPT_SORT_KEYS
    )
    assert (key(chat(x=one)).exact == key(chat(x=two)).exact) is same


def test_a_key_of_a_two_kilobyte_body_costs_little() -> None:
    asked = call(chat({"role": "system", "content": "x" * 1800}, MESSAGES[1], temperature=0.2))
    best_s = float("inf")
    for _ in range(10):
        started_s = time.process_time()
        for _ in range(100):
            fingerprint(asked, names="auto@r1")
        best_s = min(best_s, (time.process_time() - started_s) / 100)
    # About 17 us; the bound catches a second serialisation, not a busy machine.
    assert best_s < 200e-6
