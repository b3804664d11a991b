"""Block hashes: what they cover, and that a conversation keeps its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import make_call
from tierway.policies.prefix_blocks import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    prompt_kind,
    prompt_prefix,
)
from tierway.policies.types import Ask, Call

LONG = "The quick brown fox jumps over the lazy dog. " * 40


def chat(*messages: dict[str, Any], **fields: Any) -> Call:
    return replace(make_call("?"), body={"model": "m", "messages": [*messages], **fields})


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def completion(prompt: Any) -> Call:
    body = {"model": "m", "prompt": prompt}
    return replace(make_call(), wire="completions", body=body, ask=Ask((), ""))


def blocks_of(call: Call, seed: str) -> tuple[int, ...]:
    return prompt_prefix(call, seed).blocks


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading blocks that both have; nothing may be equal behind the first difference."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    at = same.index(False) if False in same else len(same)
    assert not any(same[at:])
    return at


def test_only_full_blocks_of_64_bits_are_told() -> None:
    assert blocks_of(chat(says("user", "short")), "m") == ()
    blocks = blocks_of(chat(says("user", "x" * BLOCK_BYTES * 3)), "m")
    assert len(blocks) == 3
    assert all(0 <= block < 2**64 for block in blocks)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text()), min_size=1))
def test_a_conversation_keeps_the_full_blocks_of_its_earlier_turns(
    said: list[tuple[str, str]],
) -> None:
    turns = [says("system", LONG), *(says(role, text * 30) for role, text in said)]
    before = ()
    for upto in range(1, len(turns) + 1):
        now = blocks_of(chat(*turns[:upto]), "m")
        assert now[: len(before)] == before
        before = now


def test_prompts_share_blocks_up_to_where_they_differ() -> None:
    one = blocks_of(chat(says("system", LONG), says("user", "a" * 1800)), "m")
    other = blocks_of(chat(says("system", LONG), says("user", "b" * 1800)), "m")
    assert shared(one, other) == len(LONG) // BLOCK_BYTES


def test_who_says_it_and_where_it_is_cut_count() -> None:
    text = "y" * 1200
    by_user = blocks_of(chat(says("user", text)), "m")
    assert shared(by_user, blocks_of(chat(says("assistant", text)), "m")) == 0
    cut = blocks_of(chat(says("user", text[:600]), says("user", text[600:])), "m")
    assert shared(by_user, cut) == 1


def test_equal_turns_do_not_cancel_and_order_counts() -> None:
    a, b = says("user", "continue " * 120), says("user", "stop " * 220)
    seen = {
        blocks_of(chat(*turns), "m")[-1]
        for turns in ((a, a), (b, b), (a, b), (b, a), (a, a, a, a), (a, b, a, b))
    }
    assert len(seen) == 6


def test_models_and_salts_do_not_meet() -> None:
    call = chat(says("user", LONG))
    assert shared(blocks_of(call, "m"), blocks_of(call, "m\0salt")) == 0


def test_tool_definitions_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": LONG}}]
    bare = blocks_of(chat(says("user", LONG)), "m")
    one = blocks_of(chat(says("user", "p" * 1800), tools=tools), "m")
    other = blocks_of(chat(says("user", "q" * 1800), tools=tools), "m")
    assert shared(one, other) >= len(LONG) // BLOCK_BYTES
    assert shared(bare, one) == 0


def test_a_turn_without_content_counts_by_its_tool_calls() -> None:
    def agent(path: str) -> Call:
        asked = {"id": "1", "type": "function", "function": {"name": "read", "arguments": path}}
        return chat(
            says("user", LONG),
            {"role": "assistant", "tool_calls": [asked]},
            says("assistant", None),
            says("tool", "z" * 1200, tool_call_id="1"),
        )

    one, other = blocks_of(agent("a.py"), "m"), blocks_of(agent("b.py"), "m")
    assert len(one) > len(LONG) // BLOCK_BYTES
    assert shared(one, other) == len(LONG) // BLOCK_BYTES


def test_parts_of_text_are_text_and_pictures_count_by_what_they_show() -> None:
    def seen(data: str) -> tuple[int, ...]:
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
        return blocks_of(
            chat(says("user", [{"type": "text", "text": LONG}, url, "and " * 400])), "m"
        )

    plain = blocks_of(chat(says("user", LONG)), "m")
    big = "Q" * 100_000
    assert shared(seen("AAAA"), plain) == len(plain)
    assert shared(seen("AAAA"), seen("AAAB")) == len(LONG) // BLOCK_BYTES
    assert seen(big) == seen(big)
    assert shared(seen(big), seen(big + "Q")) == len(LONG) // BLOCK_BYTES
    assert len(seen(big)) < 20


def test_completions_have_text_or_token_ids() -> None:
    assert len(blocks_of(completion(LONG), "m")) == len(LONG) // BLOCK_BYTES
    ids = list(range(1000))
    blocks = blocks_of(completion(ids), "m")
    assert len(blocks) == 4000 // BLOCK_BYTES
    assert (
        shared(blocks, blocks_of(completion([*ids[:500], 7, *ids[501:]]), "m"))
        == 2000 // BLOCK_BYTES
    )
    assert blocks_of(completion([LONG, "other"]), "m") == blocks_of(completion(LONG), "m")
    assert blocks_of(completion([ids, [1]]), "m") == blocks


@pytest.mark.parametrize("prompt", [None, [], {}, 3, [2**40], [-1, 2], [None], [["a"]]])
def test_a_prompt_that_makes_no_sense_has_no_blocks(prompt: Any) -> None:
    assert blocks_of(completion(prompt), "m") == ()


def test_embeddings_have_no_prefix_worth_keeping() -> None:
    assert blocks_of(replace(chat(says("user", LONG)), wire="embeddings"), "m") == ()


def test_only_so_much_of_a_prompt_is_looked_at() -> None:
    turns = [says("user", "w" * 100_000) for _ in range(8)]
    assert len(blocks_of(chat(*turns), "m")) == MAX_BLOCKS
    assert len(blocks_of(completion("w" * 1_000_000), "m")) == MAX_BLOCKS


def test_lone_surrogates_hurt_nobody() -> None:
    assert len(blocks_of(chat(says("user", "\ud800" * 400)), "m\ud800")) == 2


def test_another_process_finds_the_same() -> None:
    call = make_call("你好，世界" * 120)
    code = (
        "from tests.fakes import make_call\n"
        "from tierway.policies.prefix_blocks import prompt_prefix\n"
        "print(prompt_prefix(make_call('你好，世界' * 120), 'm').blocks)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == repr(blocks_of(call, "m"))


def test_prompts_are_of_three_kinds() -> None:
    assert prompt_kind(make_call("hello")) == "latin"
    assert prompt_kind(make_call("你好")) == "other"
    assert prompt_kind(completion([1, 2, 3])) == "ids"
    assert prompt_kind(completion("text")) == "latin"


def test_a_next_turn_names_the_prompt_whose_answer_it_goes_on_from() -> None:
    asked = [says("system", LONG), says("user", "first " * 300)]
    answered = [*asked, says("assistant", "answer " * 90), says("user", "and then?")]
    one, two = (prompt_prefix(chat(*turns), "m") for turns in (asked, answered))
    assert (one.previous, one.answered_bytes) == (0, 0)
    assert two.previous == one.whole != two.whole
    size = sum(len(turn["content"]) + len(turn["role"]) + 2 for turn in answered[:3])
    assert two.answered_bytes == size
    other = prompt_prefix(chat(*asked, says("assistant", "else"), says("user", "?")), "m")
    assert other.previous == one.whole
    edited = [says("system", LONG), says("user", "First " * 300), *answered[2:]]
    assert prompt_prefix(chat(*edited), "m").previous != one.whole
    assert prompt_prefix(chat(*answered), "salted").previous != one.whole


def test_what_tools_said_since_the_answer_is_new() -> None:
    call = {"tool_calls": [{"id": "1", "function": {"name": "read", "arguments": "{}"}}]}
    asked = [says("user", "Read it."), says("assistant", None, **call)]
    first = prompt_prefix(chat(asked[0]), "m")
    then = prompt_prefix(chat(*asked, says("tool", "text " * 500), says("tool", "more")), "m")
    assert then.previous == first.whole
    assert 0 < then.answered_bytes < 200
    prefilled = prompt_prefix(chat(*asked), "m")
    assert prefilled.previous == first.whole


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 7, BLOCK_BYTES, 3 * BLOCK_BYTES])
def test_ends_are_told_at_any_length_and_are_no_blocks(size: int) -> None:
    asked = chat(says("user", "x" * size))
    found = prompt_prefix(asked, "m")
    then = prompt_prefix(
        chat(says("user", "x" * size), says("assistant", "y"), says("user", "z")), "m"
    )
    assert then.previous == found.whole
    assert found.whole not in found.blocks
    assert prompt_prefix(chat(says("user", "x" * size + "x")), "m").whole != found.whole


def test_of_a_prompt_that_is_cut_no_end_is_told() -> None:
    turns = [says("user", "w" * 900_000), says("assistant", "a"), says("user", "b")]
    found = prompt_prefix(chat(*turns), "m")
    assert (found.whole, found.previous) == (0, 0)
    assert prompt_prefix(completion("w" * 1_000_000), "m").whole == 0
    assert prompt_prefix(completion("once upon"), "m").whole != 0
