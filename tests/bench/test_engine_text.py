"""Tokens, answers and vectors of the simulated engine, and how a body becomes a query."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.bench.engine_embeddings import as_base64, embed
from tierway.bench.engine_query import (
    BadQuery,
    chat_query,
    completion_query,
    embedding_inputs,
    load,
    plan,
    prompt_room,
)
from tierway.bench.engine_text import answer_tokens, block_keys, natural_length, tokenise


@given(st.text())
def test_tokens_add_up_to_the_text_and_survive_cuts(text: str) -> None:
    tokens = tokenise(text)
    assert "".join(tokens) == text
    half = len(tokens) // 2
    assert tokenise("".join(tokens[:half])) == tokens[:half]


def test_a_token_is_about_what_a_real_tokenizer_makes() -> None:
    english = "The quick brown fox jumps over the lazy dog, and then it sleeps for 12 hours."
    assert len(english) / 5.5 < len(tokenise(english)) < len(english) / 3.5
    assert len(tokenise("今天天气很好")) == 6


def test_keys_stand_for_all_tokens_before_them() -> None:
    tokens = [str(number) for number in range(50)]
    keys = block_keys(tokens, "")
    assert len(keys) == 3
    assert block_keys(tokens[:40], "") == keys[:2]
    assert not set(block_keys(["x", *tokens[1:]], "")) & set(keys)
    assert not set(block_keys(tokens, "tenant")) & set(keys)


@pytest.mark.parametrize("count", [1, 7, 8, 60, 400])
def test_an_answer_has_as_many_tokens_as_asked_and_reads_back_the_same(count: int) -> None:
    tokens = answer_tokens("sim-8b", "p", "How do caches work in practice?", count)
    assert len(tokens) == count
    assert tokenise("".join(tokens)) == tokens
    assert tokens == answer_tokens("sim-8b", "p", "How do caches work in practice?", count)


def test_an_answer_names_the_model_and_repeats_the_question() -> None:
    text = "".join(answer_tokens("sim-8b", "p", "How do [[answer 60]] caches work?", 60))
    assert text.startswith('sim-8b answers: you asked "How do caches work?".')
    assert text.endswith(".")
    chinese = "".join(answer_tokens("sim-8b", "p", "请解释一下缓存是什么", 60))
    assert chinese.startswith("sim-8b回答:您问的是“请解释一下缓存是什么”。")
    assert chinese.endswith("。")


def test_a_long_answer_does_not_repeat_itself() -> None:
    tokens = answer_tokens("sim-8b", "p", "ok", 2000)
    assert max(len(list(run)) for _, run in itertools.groupby(tokens)) < 3
    sentences = "".join(tokens).split(". ")
    assert len(set(sentences)) > len(sentences) / 2


def test_other_prompts_and_choices_get_other_answers() -> None:
    texts = {
        "".join(answer_tokens("m", prompt, "Why is the sky blue?", 80, choice))
        for prompt in ("a", "b")
        for choice in (0, 1)
    }
    assert len(texts) == 4


def test_natural_lengths_follow_the_seed_and_stay_in_range() -> None:
    lengths = [natural_length(f"prompt {number}", 1) for number in range(300)]
    assert min(lengths) >= 20
    assert max(lengths) <= 120
    assert len(set(lengths)) > 60
    assert lengths != [natural_length(f"prompt {number}", 2) for number in range(300)]


def test_vectors_have_length_one_and_similar_texts_are_near() -> None:
    first, second, third = (
        embed(text) for text in ("the capital of France", "France's capital", "bake a cake")
    )
    assert math.isclose(math.sqrt(sum(v * v for v in first)), 1.0)
    assert embed("the capital of France") == first
    assert sum(a * b for a, b in zip(first, second, strict=True)) > 0.4
    assert abs(sum(a * b for a, b in zip(first, third, strict=True))) < 0.4
    assert len(embed("", 16)) == 16
    assert struct.unpack("<2f", base64.b64decode(as_base64([0.5, -0.25]))) == (0.5, -0.25)


def chat(content: Any = "Hello there", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def test_a_conversation_extends_its_own_prefix() -> None:
    first = chat_query(chat("What is a cache?"))
    planned = plan(first, first.prompts[0], model="m", seed=0, choice=0, room=1000)
    text = "".join(planned.tokens)
    second = chat_query(
        {
            "messages": [
                {"role": "user", "content": "What is a cache?"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": "And why?"},
            ]
        }
    )
    whole = (*first.prompts[0].tokens, *planned.tokens)
    assert second.prompts[0].tokens[: len(whole)] == whole
    assert second.prompts[0].question == "And why?"


@pytest.mark.parametrize(
    ("more", "count", "finish"),
    [
        ({"max_tokens": 7}, 7, "length"),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9, "length"),
        ({"max_tokens": 30, "ignore_eos": True}, 30, "length"),
        ({"max_tokens": 500}, 40, "stop"),
        ({"min_tokens": 200}, 200, "stop"),
        ({}, 40, "stop"),
    ],
)
def test_the_length_of_an_answer(more: dict[str, Any], count: int, finish: str) -> None:
    query = chat_query(chat("Hello [[answer 40]] there", **more))
    planned = plan(query, query.prompts[0], model="m", seed=0, choice=0, room=1000)
    assert (len(planned.tokens), planned.finish) == (count, finish)


def test_a_huge_answer_is_cut_to_the_room() -> None:
    query = chat_query(chat("[[answer 9999999]]"))
    planned = plan(query, query.prompts[0], model="m", seed=0, choice=0, room=50)
    assert (len(planned.tokens), planned.finish) == (50, "length")


def test_stop_sequences_end_an_answer_before_them() -> None:
    query = chat_query(chat("Tell me a lot [[answer 60]]", stop=["nowhere", " asked"]))
    planned = plan(query, query.prompts[0], model="m", seed=0, choice=0, room=100)
    assert ("".join(planned.tokens), planned.finish) == ("m answers: you", "stop")


def test_content_parts_and_media_are_read() -> None:
    query = chat_query(
        chat([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}])
    )
    assert query.prompts[0].tokens.count("<|media|>") == 256


TOOLS = [
    {"type": "function", "function": {"name": "first"}},
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["c", "f"]},
                    "days": {"type": "integer"},
                    "odd": {"type": ["string", "null"]},
                },
            },
        },
    },
]


def test_a_tool_is_called_when_asked_for() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    query = chat_query(chat("Weather in Rome?", tools=TOOLS, tool_choice=named))
    planned = plan(query, query.prompts[0], model="m", seed=0, choice=0, room=500)
    arguments = json.loads("".join(planned.tokens))
    expected = {"city": "Weather in Rome?", "unit": "c", "days": 1, "odd": "Weather in Rome?"}
    assert arguments == expected
    for body, name in [
        (chat("[[tool]] x", tools=TOOLS), "first"),
        (chat("x", tools=TOOLS, tool_choice="required"), "first"),
        (chat("[[tool]] x", tools=TOOLS, tool_choice="none"), None),
        (chat("x", tools=TOOLS), None),
        (chat("[[tool]] x"), None),
    ]:
        function = chat_query(body).function
        assert (function and function["name"]) == name


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ({"type": "json_object"}, {"answer": "Rome?"}),
        (
            {
                "type": "json_schema",
                "json_schema": {"schema": {"properties": {"n": {"type": "integer"}}}},
            },
            {"n": 1},
        ),
        ({"type": "json_schema"}, {}),
    ],
)
def test_json_is_answered_when_wanted(wanted: dict[str, Any], answer: dict[str, Any]) -> None:
    query = chat_query(chat("Rome?", response_format=wanted))
    planned = plan(query, query.prompts[0], model="m", seed=0, choice=0, room=500)
    assert json.loads("".join(planned.tokens)) == answer
    assert chat_query(chat("Rome?", response_format={"type": "text"})).schema is None


def test_a_tool_result_is_answered_in_words() -> None:
    messages = [
        {"role": "user", "content": "[[tool]] x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    assert chat_query({"messages": messages, "tools": TOOLS}).function is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens="9"), "max_tokens"),
        (chat(n=99), "n"),
        (chat(tools=TOOLS, tool_choice={"function": {"name": "x"}}), "tool_choice"),
    ],
)
def test_a_bad_chat_is_refused_with_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadQuery) as caught:
        chat_query(body)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_completions_take_texts_and_tokens() -> None:
    assert completion_query({"prompt": "a b"}).prompts[0].tokens == ("a", " b")
    assert completion_query({"prompt": "a b"}).max_tokens == 16
    assert len(completion_query({"prompt": ["a", "b"]}).prompts) == 2
    assert len(completion_query({"prompt": [1, 2, 3]}).prompts[0].tokens) == 3
    for wrong in (None, "", [], [""], [[]], {"a": 1}):
        with pytest.raises(BadQuery):
            completion_query({"prompt": wrong})


def test_embedding_inputs() -> None:
    assert embedding_inputs({"input": "a"}) == ["a"]
    assert embedding_inputs({"input": ["a", "b"]}) == ["a", "b"]
    assert embedding_inputs({"input": [1, 2]}) == ["1 2"]
    assert embedding_inputs({"input": [[1], [2, 3]]}) == ["1", "2 3"]
    for wrong in (None, [], "", [None], {"a": 1}):
        with pytest.raises(BadQuery):
            embedding_inputs({"input": wrong})


def test_the_context_window_is_kept() -> None:
    query = chat_query(chat("word " * 200, max_tokens=50))
    size = len(query.prompts[0].tokens)
    assert prompt_room(query, size + 50) == 50
    with pytest.raises(BadQuery, match=f"maximum context length is {size + 49}") as caught:
        prompt_room(query, size + 49)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadQuery):
        load(raw)
