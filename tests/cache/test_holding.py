"""What a process holds: a fold of the log whose lines may come in any order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.cache.answers import Answers
from tierway.cache.holding import Holding
from tierway.cache.index import Arena
from tierway.policies.protocols import Entry

P = b"p" * 16
FIRST = Entry(
    id="e1", exact=b"1" * 16, partition=P, wire="chat", question="Why?", answer=b"{}",
    tier="small", model="m", probabilities={"small": 0.9}, tenant="", user="", namespace="",
    created_at=100.0, expires_at=200.0,
)  # fmt: skip
VECTOR = np.array([1.0, 0.0], np.float32)


def entry(number: int, **fields: object) -> Entry:
    made = replace(FIRST, id=f"e{number}", exact=bytes([number]) * 16, created_at=100.0 + number)
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


def holding(*entries: Entry, most: int = 100, index: Arena | None = None) -> Holding:
    made = Holding(Arena(2) if index is None else index, entries=most, answers_bytes=1000)
    for one in entries:
        made.hold(one)
    return made


def test_an_entry_is_found_by_digest_id_and_number() -> None:
    held = holding()
    made = held.hold(FIRST)
    assert made is not None
    assert held.exactly(FIRST.exact) == held.by_id("e1") == held.by_key(made.key) == made
    assert "e1" in held
    assert len(held) == 1
    assert (made.source.tier, made.source.replica) == ("small", "cache")
    assert made.source.probabilities == {"small": 0.9}
    assert held.exactly(b"x" * 16) is held.by_id("e9") is held.by_key(99) is None


def test_the_same_entry_twice_is_once() -> None:
    held = holding(FIRST)
    assert held.hold(FIRST) == held.by_id("e1")
    assert len(held) == 1


def test_a_few_questions_tell_what_is_asked() -> None:
    held = holding(*(entry(n, question=f"{n}?") for n in range(1, 5)))
    held.drop("e1")
    assert held.questions(2) == ["2?", "3?"]
    assert sorted(held.questions(9)) == ["2?", "3?", "4?"]
    assert holding().questions(2) == []


def test_a_newer_answer_takes_the_place_of_the_one_with_its_digest() -> None:
    index = Arena(2)
    held = holding(FIRST, index=index)
    old = held.by_id("e1")
    assert old is not None
    held.attach(old, VECTOR)
    held.answers.put("e1", b"old")
    newer = held.hold(replace(FIRST, id="e2", created_at=150.0))
    assert held.exactly(FIRST.exact) == newer
    assert "e1" not in held
    assert (index.size(P), held.answers.get("e1"), len(held)) == (0, None, 1)


def test_a_dropped_entry_leaves_nothing_behind() -> None:
    index = Arena(2)
    held = holding(FIRST, index=index)
    made = held.by_id("e1")
    assert made is not None
    held.attach(made, VECTOR)
    held.answers.put("e1", b"{}")
    assert held.drop("e1")
    assert not held.drop("e1")
    assert (len(held), index.size(P), held.answers.get("e1")) == (0, 0, None)
    assert held.exactly(FIRST.exact) is held.by_key(made.key) is None
    held.attach(made, VECTOR)
    assert index.size(P) == 0


def test_a_vector_is_attached_once() -> None:
    index = Arena(2)
    held = holding(FIRST, index=index)
    made = held.by_id("e1")
    assert made is not None
    held.attach(made, VECTOR)
    held.attach(made, VECTOR)
    again = held.by_id("e1")
    assert again is not None
    assert (made.indexed, again.indexed) == (False, True)
    assert again.features is made.features  # made once
    assert [key for key, _ in index.search(P, VECTOR, 8)] == [made.key]


def test_what_was_deleted_does_not_come_back_from_the_log() -> None:
    held = holding(FIRST)
    assert held.delete(["e1", "unknown"]) == 1
    assert held.hold(FIRST) is None
    assert held.hold(entry(9, id="unknown")) is None
    assert held.hold(replace(FIRST, id="e2")) is not None


def test_a_drop_of_the_log_is_no_deletion() -> None:
    held = holding(FIRST)
    held.drop("e1")
    assert held.hold(FIRST) is not None


def test_the_oldest_goes_when_there_are_too_many() -> None:
    held = holding(*(entry(number) for number in range(1, 6)), most=3)
    assert [f"e{number}" in held for number in range(1, 6)] == [False, False, True, True, True]


def test_expired_entries_are_dropped_and_clear_drops_all() -> None:
    held = holding(entry(1, expires_at=10.0), entry(2, expires_at=20.0), entry(3, expires_at=30.0))
    held.drop_expired(20.0)
    assert [name in held for name in ("e1", "e2", "e3")] == [False, True, True]
    held.clear()
    assert len(held) == 0
    assert held.hold(entry(2)) is not None


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["put", "drop", "delete"]))))
def test_any_order_of_changes_leaves_the_maps_and_the_index_in_step(
    steps: list[tuple[int, str]],
) -> None:
    index = Arena(2)
    held = holding(index=index)
    deleted = set()
    for number, step in steps:
        if step == "put":
            made = held.hold(entry(number))
            assert (made is None) is (number in deleted)
            if made is not None:
                held.attach(made, VECTOR)
        elif step == "drop":
            held.drop(f"e{number}")
        else:
            held.delete([f"e{number}"])
            deleted.add(number)
    ids = [f"e{number}" for number in range(1, 5) if f"e{number}" in held]
    assert len(held) == len(ids) == index.size(P)
    for name in ids:
        made = held.by_id(name)
        assert made is not None
        assert held.exactly(made.exact) == held.by_key(made.key) == made


def test_answers_are_bounded_by_their_bytes_and_the_one_used_last_stays() -> None:
    answers = Answers(10)
    answers.put("a", b"1234")
    answers.put("b", b"1234")
    assert answers.get("a") == b"1234"
    answers.put("c", b"1234")
    assert [answers.get(name) for name in "abc"] == [b"1234", None, b"1234"]


def test_an_answer_that_is_put_again_counts_once() -> None:
    answers = Answers(10)
    for _ in range(5):
        answers.put("a", b"123456")
    answers.put("b", b"1234")
    assert (answers.get("a"), answers.get("b")) == (b"123456", b"1234")
    answers.drop("a")
    answers.drop("a")
    answers.put("c", b"123456")
    assert answers.get("b") == b"1234"


@pytest.mark.parametrize("size", [11, 1000])
def test_an_answer_beyond_the_bound_is_not_kept(size: int) -> None:
    answers = Answers(10)
    answers.put("a", b"x" * size)
    assert answers.get("a") is None
    answers.put("b", b"12")
    assert answers.get("b") == b"12"
