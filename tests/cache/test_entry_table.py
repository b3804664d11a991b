"""Entries as rows: what went in comes out, in little memory."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierway.cache.columns import FIRST as FIRST_ROOM
from tierway.cache.entry_table import EntryTable
from tierway.policies.protocols import Entry
from tierway.policies.questions import features

FIRST = Entry(
    id="e_00ff00ff00ff00ff00ff", exact=b"1" * 16, partition=b"p" * 16, wire="chat",
    question="Why?", answer=b"{}", tier="small", model="m", probabilities={"small": 0.9},
    tenant="", user="", namespace="", created_at=100.0, expires_at=200.0,
)  # fmt: skip


def table(expected: int = 1000) -> EntryTable:
    return EntryTable(expected=expected, read=features)


def random_entry(**fields: object) -> Entry:
    made = replace(FIRST, id="e_" + os.urandom(10).hex(), exact=os.urandom(16))
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields' types vary


@given(
    st.text(max_size=40) | st.from_regex(r"e_[0-9a-f]{20}", fullmatch=True),
    st.text(max_size=200),
    st.dictionaries(st.text(max_size=5), st.floats(0, 1), max_size=7),
    st.binary(min_size=16, max_size=16),
)
def test_what_goes_in_comes_out(
    entry_id: str, question: str, probabilities: dict[str, float], digest: bytes
) -> None:
    held = table()
    held.add(random_entry())
    given_entry = replace(
        FIRST, id=entry_id, question=question, probabilities=probabilities, exact=digest
    )
    row = held.add(given_entry)
    found = held.at(row)
    assert row == held.row_of_id(entry_id) == held.row_of_exact(digest)
    assert row == held.row_of_key(found.key)
    assert (found.id, found.question, found.exact) == (entry_id, question, digest)
    assert (found.partition, found.created_at, found.expires_at) == (b"p" * 16, 100.0, 200.0)
    assert (found.source.tier, found.source.model, found.source.replica) == ("small", "m", "cache")
    assert list(found.source.probabilities.items()) == list(probabilities.items())
    assert found.features == features(question)
    assert not found.indexed


def test_a_row_used_again_has_another_key_and_nothing_of_before() -> None:
    held = table()
    many = {f"class {number}": number / 10 for number in range(9)}
    first = held.add(random_entry(id="an odd id", probabilities=many))
    old = held.at(first)
    held.mark_indexed(first)
    held.remove(first)
    assert (len(held), held.row_of_id("an odd id"), held.row_of_key(old.key)) == (0, -1, -1)
    again = held.add(FIRST)
    assert again == first
    assert held.row_of_key(old.key) == -1
    now = held.at(again)
    assert (now.id, now.indexed, now.source.probabilities) == (FIRST.id, False, {"small": 0.9})


def test_numbers_are_not_given_twice_though_all_is_forgotten() -> None:
    held = table()
    old = held.at(held.add(FIRST))
    held.clear()
    assert (len(held), held.row_of_key(old.key), held.row_of_exact(FIRST.exact)) == (0, -1, -1)
    assert held.at(held.add(FIRST)).key != old.key


def test_numbers_that_were_never_given_find_nothing() -> None:
    held = table()
    held.add(FIRST)
    assert [held.row_of_key(key) for key in (-1, 0, 1, 99, 1 << 40, 1 << 62)] == [-1] * 6
    assert held.row_of_exact(b"short") == -1


@pytest.mark.parametrize("wrong", [{"exact": b"short"}, {"partition": b"p" * 17}])
def test_a_digest_of_a_wrong_length_is_refused_and_leaves_nothing(wrong: dict[str, bytes]) -> None:
    held = table()
    with pytest.raises(ValueError, match="must be 16"):
        held.add(random_entry(**wrong))
    assert len(held) == 0


def test_expired_rows_are_those_in_use() -> None:
    held = table()
    rows = [held.add(random_entry(expires_at=at)) for at in (10.0, 20.0, 30.0)]
    held.remove(rows[0])
    assert list(held.rows_expired(25.0)) == [rows[1]]
    assert list(held.rows_expired(10.0)) == []


def test_the_next_row_in_use_is_found_around_the_end() -> None:
    held = table()
    rows = [held.add(random_entry()) for _ in range(4)]
    held.remove(rows[0])
    held.remove(rows[3])
    assert [held.next_in_use(start) for start in (0, 1, 2, 3, 9)] == [1, 1, 2, 1, 1]


def test_a_table_that_grows_finds_all_and_takes_few_bytes_for_each() -> None:
    held = table(expected=1_000_000)
    entries = [random_entry() for _ in range(20 * FIRST_ROOM)]
    for one in entries:
        held.add(one)
    assert len(held) == len(entries)
    for one in entries[::50]:
        row = held.row_of_exact(one.exact)
        assert row == held.row_of_id(one.id)
        assert held.id_at(row) == one.id
    assert held.nbytes / len(entries) < 180
